// SPDX-License-Identifier: Apache-2.0

package figures

import "github.com/gputrace/gputrace/event"

// Add is the sum of two numbers; event.Unknown when one of them is.
func Add(x, y uint64) uint64 {
	if x == event.Unknown || y == event.Unknown {
		return event.Unknown
	}
	return x + y
}

// Sub is the difference of two numbers; event.Unknown when one of them is.
func Sub(x, y uint64) uint64 {
	if x == event.Unknown || y == event.Unknown {
		return event.Unknown
	}
	return x - y
}
