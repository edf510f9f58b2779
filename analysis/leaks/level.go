// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"slices"

	"github.com/gputrace/gputrace/analysis/leaks/internal/floors"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
)

// level follows the allocated total of PyTorch's allocators from step to step, including memory from before the attach and of sites
// that are not judged. Each byte counts as a block, so that the rungs of the series are rises in bytes. The zero value is empty.
type level struct {
	series
	allocated view.Reported
}

// see adds the next event, in a step.
func (l *level) see(e *event.Event, step int) {
	by, ok := l.allocated.See(e)
	switch {
	case !ok:
	case by >= 0:
		l.add(step, floor{Bytes: by, Blocks: by})
	default:
		l.remove(step, floor{Bytes: -by, Blocks: -by})
	}
}

// restart begins again in step 0 with the current total.
func (l *level) restart() {
	l.series = series{}
	sum := int64(l.allocated.Sum())
	l.add(0, floor{Bytes: sum, Blocks: sum})
}

// steadyShare: if the memory in use between steps rises without a rule, it counts as steady as long as the end has at
// most 1/steadyShare more than the middle.
const steadyShare = 20

// rise returns by how many bytes the minimum of a step rose in the later half, or 0 if that is no more than steady
// memory does. It rose if each window of the last quarter has more than each of the first, or by equal amounts at equal
// distances: when a block is sometimes replaced by a longer one, no line has more blocks.
func (l *level) rise() uint64 {
	late := l.windows[len(l.windows)/2:]
	if len(late) == 0 {
		return 0
	}
	lows := make([]int64, len(late))
	for i, f := range late {
		lows[i] = f.Bytes
	}
	by := floors.LaterRise(l.windows)
	slices.Sort(lows)
	if by <= lows[len(lows)/2]/steadyShare && !l.climbs() || by <= 0 {
		return l.stairs()
	}
	return uint64(by)
}

// stairs returns by how many bytes the minimum of a step rose by equal amounts at equal distances; 0: it did not, or no
// longer does.
func (l *level) stairs() uint64 {
	t, ok := l.periodic(suspectRises, suspectShare)
	if !ok || t.period <= floors.WarmUp || l.step-1-l.rungs[len(l.rungs)-1].step > t.period {
		return 0
	}
	return uint64(t.rise.Bytes)
}

// climbParts is the number of parts into which steps are divided: a rise from each part to the next is no chance.
const climbParts = 8

// climbs reports whether the minimum of each part of the steps after the warm-up is larger than the previous part's, to the end.
func (l *level) climbs() bool {
	of := l.windows[min((floors.WarmUp+l.width)/l.width, len(l.windows)):]
	if len(of) < 2*climbParts {
		return false
	}
	before := int64(0)
	for part := range climbParts {
		low := of[part*len(of)/climbParts]
		for _, f := range of[part*len(of)/climbParts : (part+1)*len(of)/climbParts] {
			low = floors.Least(low, f)
		}
		if part > 0 && low.Bytes <= before {
			return false
		}
		before = low.Bytes
	}
	return true
}
