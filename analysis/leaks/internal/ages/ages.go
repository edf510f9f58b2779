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

// Change is what happens to a block.
type Change uint8

// The changes.
const (
	Added Change = iota // it was allocated
	Freed               // it is freed
	Lost                // it was freed long after it was allocated, beside Freed
)

// maxKept is the maximum number of changes that wait for the end of a step.
const maxKept = 1 << 12

// Changes are what happens in the current step. They count when the next one begins: in the last one a program frees everything, because
// it ends. The zero value is empty.
type Changes struct{ all []change }

type change struct {
	of   *Ages
	at   uint64
	what Change
}

// Note notes what happens to a block that was allocated at a time.
func (c *Changes) Note(of *Ages, what Change, at uint64) {
	if c.all = append(c.all, change{of, at, what}); len(c.all) == maxKept {
		c.Apply()
	}
}

// Apply counts the changes so far.
func (c *Changes) Apply() {
	for _, x := range c.all {
		x.of.count(x.what, x.at)
	}
	c.all = c.all[:0]
}

// count counts what happens to a block that was allocated at a time.
func (a *Ages) count(c Change, at uint64) {
	switch i := periodOf(at); c {
	case Added:
		a.alive[i]++
	case Freed:
		a.alive[i]--
	case Lost:
		a.lost[i]++
	}
}

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
