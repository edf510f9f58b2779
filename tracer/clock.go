// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

package tracer

import (
	"time"

	"golang.org/x/sys/unix"
)

// bootTime is the clock that events carry, nanoseconds.
func bootTime() uint64 { return readClock(unix.CLOCK_BOOTTIME) }

// clocksTogether is how long reading the clocks may take, nanoseconds: we can be interrupted between them.
const clocksTogether = uint64(100 * time.Microsecond)

// suspendedTime is how long the machine was suspended since it was booted, nanoseconds: what CLOCK_BOOTTIME is ahead of
// CLOCK_MONOTONIC, which the kernel side uses. What is below a millisecond is none.
func suspendedTime() uint64 {
	for {
		before, boot := readClock(unix.CLOCK_MONOTONIC), bootTime()
		after := readClock(unix.CLOCK_MONOTONIC)
		if after-before > clocksTogether {
			continue
		}
		if boot < before+uint64(time.Millisecond) {
			return 0
		}
		return boot - before
	}
}

func readClock(clock int32) uint64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(clock, &ts) // cannot fail with a known clock
	return uint64(ts.Nano())
}
