// SPDX-License-Identifier: Apache-2.0

// Package ages counts blocks by when they were allocated, in periods that double in length, so that it takes little memory.
package ages

import "math/bits"

const (
	// periods is the number of periods, and shortest the length of the first one, nanoseconds; the last one has no end.
	periods  = 16
	shortest = 1 << 29
)

// Ages counts the blocks of one site. Times are nanoseconds since the first block of any site. The zero value is empty.
type Ages struct{ alive, lost [periods]int32 }

func periodOf(at uint64) int { return min(bits.Len64(at/shortest), periods-1) }

// Add counts a block that was allocated.
func (a *Ages) Add(at uint64) { a.alive[periodOf(at)]++ }

// Free takes out a block that is freed.
func (a *Ages) Free(at uint64) { a.alive[periodOf(at)]-- }

// Lose counts a block that was freed long after it was allocated, at.
func (a *Ages) Lose(at uint64) { a.lost[periodOf(at)]++ }

// Plus adds the blocks of another site.
func (a *Ages) Plus(b *Ages) {
	for i := range periods {
		a.alive[i], a.lost[i] = a.alive[i]+b.alive[i], a.lost[i]+b.lost[i]
	}
}

const (
	// oldPart: blocks are old if they were allocated in the first 1/oldPart of the time, and middle-aged until 1/midPart of it.
	oldPart, midPart = 4, 2
	// expectedOld is the number of old blocks that a leak must have left for their absence to prove something, fewOld the part of a leak's
	// blocks that counts as few, and manyMid the part of its middle-aged ones that counts as many.
	expectedOld = 8
	fewOld      = 0.25
	manyMid     = 0.4
	// mixedPart is the part of a period's blocks that must be alive, and lost, for it to be mixed, and leastMixed the number of such periods.
	mixedPart  = 0.1
	leastMixed = 2
)

// TurnsOver reports whether blocks that rise at a rate, blocks a nanosecond until now, may come and go: early ones were there for long, and
// yet nearly all of them are freed, some of the middle-aged are there, and blocks of several periods are partly freed. That is how sessions
// look that end after some time, until as many end as begin. A leak leaves some blocks of each time. A queue that grows loses all blocks
// up to a time, and keeps the later ones. What grows although it loses blocks by chance has lost nearly all middle-aged ones, too.
func (a *Ages) TurnsOver(now uint64, rate float64) bool {
	var old, mid, lost float64
	oldEnd, midEnd, mixed := uint64(0), uint64(0), 0
	for i := range periods - 1 {
		end := uint64(shortest) << i
		alive, freed := float64(a.alive[i]), float64(a.lost[i])
		if all := alive + freed; all >= expectedOld && min(alive, freed) >= mixedPart*all {
			mixed++
		}
		switch {
		case end <= now/oldPart:
			old, lost, oldEnd, midEnd = old+alive, lost+freed, end, end
		case end <= now/midPart:
			mid, midEnd = mid+alive, end
		}
	}
	expected := rate * float64(oldEnd)
	return expected >= expectedOld && old <= fewOld*expected && 2*lost >= expected &&
		mid >= manyMid*rate*float64(midEnd-oldEnd) && midEnd > oldEnd && mixed >= leastMixed
}
