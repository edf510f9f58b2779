// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"slices"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
)

// level is what PyTorch's allocators report as allocated, in the course of steps: also what was there before the attach, and what is of no
// site that was judged. Each byte counts as a block, so that the rungs of the series are rises in bytes. The zero value is empty.
type level struct {
	series
	allocated view.Reported
}

// see takes the next event, in a step.
func (l *level) see(e *event.Event, step int) {
	by, ok := l.allocated.See(e)
	switch {
	case !ok:
	case by >= 0:
		l.add(step, floor{bytes: by, blocks: by})
	default:
		l.remove(step, floor{bytes: -by, blocks: -by})
	}
}

// restart begins again in step 0 with what is allocated now.
func (l *level) restart() {
	l.series = series{}
	sum := int64(l.allocated.Sum())
	l.add(0, floor{bytes: sum, blocks: sum})
}

// steadyShare is how much more may be in use between steps at the end than in the middle, one part in so many, for what grows by no
// rule from step to step to be called steady.
const steadyShare = 20

// rise is by how many bytes the least of a step rose in the later half of all, when that is more than steady memory does; else 0. It rose
// when each window of the last quarter has more than each of the first, or by equal amounts in equal distances: a block that is replaced by a
// longer one from time to time has no line with more blocks.
func (l *level) rise() uint64 {
	late := l.windows[len(l.windows)/2:]
	if len(late) == 0 {
		return 0
	}
	lows := make([]int64, len(late))
	for i, f := range late {
		lows[i] = f.bytes
	}
	by := laterRise(l.windows)
	slices.Sort(lows)
	if by <= lows[len(lows)/2]/steadyShare && !l.climbs() || by <= 0 {
		return l.stairs()
	}
	return uint64(by)
}

// stairs is by how many bytes the least of a step rose by equal amounts in equal distances; 0: it did not, or does not any more.
func (l *level) stairs() uint64 {
	t, ok := l.periodic(suspectRises, suspectShare)
	if !ok || t.period <= warmUp || l.step-1-l.rungs[len(l.rungs)-1].step > t.period {
		return 0
	}
	return uint64(t.rise.bytes)
}

// climbParts is into how many parts steps are divided: what has more in each than in the one before does not vary by chance.
const climbParts = 8

// climbs reports whether the least of each part of the steps after the warm-up is more than that of the part before, to the end.
func (l *level) climbs() bool {
	of := l.windows[min((warmUp+l.width)/l.width, len(l.windows)):]
	if len(of) < 2*climbParts {
		return false
	}
	before := int64(0)
	for part := range climbParts {
		low := of[part*len(of)/climbParts]
		for _, f := range of[part*len(of)/climbParts : (part+1)*len(of)/climbParts] {
			low = least(low, f)
		}
		if part > 0 && low.bytes <= before {
			return false
		}
		before = low.bytes
	}
	return true
}
