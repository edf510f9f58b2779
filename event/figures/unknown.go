// SPDX-License-Identifier: Apache-2.0

package figures

import "github.com/gputrace/gputrace/event"

// Add returns the sum of two numbers, or event.Unknown when either is.
func Add(x, y uint64) uint64 {
	if x == event.Unknown || y == event.Unknown {
		return event.Unknown
	}
	return x + y
}

// Sub returns the difference of two numbers, or event.Unknown when either is.
func Sub(x, y uint64) uint64 {
	if x == event.Unknown || y == event.Unknown {
		return event.Unknown
	}
	return x - y
}
