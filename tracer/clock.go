// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package tracer

import (
	"time"

	"golang.org/x/sys/unix"
)

// bootTime returns the time on the clock of events, nanoseconds.
func bootTime() uint64 { return readClock(unix.CLOCK_BOOTTIME) }

// clocksTogether is the maximum time between reading the two clocks, nanoseconds; a longer one means that we were interrupted.
const clocksTogether = uint64(100 * time.Microsecond)

// suspendedTime returns how long the machine was suspended since boot, nanoseconds: CLOCK_BOOTTIME less
// CLOCK_MONOTONIC, which the kernel side uses. Less than a millisecond counts as 0.
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
