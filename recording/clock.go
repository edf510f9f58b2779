// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"math"
	"time"
)

// clockReadings is how often both clocks are read to find one moment on both.
const clockReadings = 16

// BothClocks reads the wall clock and the clock of the events, in nanoseconds, at one moment. A reading of one clock lies
// between two readings of the other, and the pair with the shortest time between those two is returned: in the other
// pairs this thread may have been interrupted.
func BothClocks(clock func() uint64) (wall time.Time, now uint64) {
	shortest := uint64(math.MaxUint64)
	for range clockReadings {
		before := clock()
		read := time.Now()
		if took := clock() - before; took < shortest {
			shortest, wall, now = took, read, before+took/2
		}
	}
	return wall, now
}
