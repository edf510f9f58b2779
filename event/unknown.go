// SPDX-License-Identifier: Apache-2.0

package event

// Add is the sum of two numbers; Unknown when one of them is.
func Add(x, y uint64) uint64 {
	if x == Unknown || y == Unknown {
		return Unknown
	}
	return x + y
}

// Sub is the difference of two numbers; Unknown when one of them is.
func Sub(x, y uint64) uint64 {
	if x == Unknown || y == Unknown {
		return Unknown
	}
	return x - y
}
