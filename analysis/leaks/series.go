// SPDX-License-Identifier: Apache-2.0

package leaks

import "github.com/gputrace/gputrace/analysis/leaks/internal/floors"

// Bounds on the stored part of a series, whatever its length.
const (
	maxWindows = 64 // of equal length; when all are used, pairs are merged
	keptSteps  = 64 // the latest steps are stored individually, for periods
)

// floor is the minimum in use over a range of steps.
type floor = floors.Floor

// series is the amount in use of something, step by step. Its size is bounded: it has floors of windows that double in
// length, floors of the latest steps, and the latest rises. It stores nothing about blocks that never survive a step.
// The zero value is empty, in step 0.
type series struct {
	live floor // current
	low  floor // minimum in the current step
	step int   // the current step
	// width is the number of steps of a window, a power of two. It depends only on the number of steps, so that two
	// series that were advanced to the same step have the same windows.
	width   int
	windows []floor
	recent  []floor // step i at i % keptSteps
	rungs   []rung
	top     int64   // most blocks that survived a step after the warm-up
	fall    int64   // the largest fall from top, in blocks
	teeth   teeth   // after the warm-up
	gone    *series // number of blocks freed long after their step, a count that only rises; nil: not counted
	began   int64   // blocks at the beginning of the current step
	drops   int     // number of steps that ended with fewer blocks than they began with
	ended   int64   // by how many
	lent    floor   // blocks of another site that left a pool that this one fills: in use, but not in live
}

// add counts blocks in a step.
func (s *series) add(step int, f floor) {
	s.advance(step)
	s.live = s.live.Plus(f)
}

// remove counts blocks that were freed in a step.
func (s *series) remove(step int, f floor) {
	s.advance(step)
	s.live = s.live.Minus(f)
	s.low = floors.Least(s.low, s.live)
}

// countGone counts a block that was freed in a step, long after it was allocated.
func (s *series) countGone(step int) {
	if s.gone == nil {
		s.gone = &series{}
	}
	s.gone.add(step, floor{Blocks: 1})
}

// advance ends all steps before the given one. Series are advanced when something happens in them, and at the end.
func (s *series) advance(to int) {
	if s.step >= to {
		return
	}
	s.record(s.step, s.step+1, s.low)
	if s.live.Blocks < s.began {
		s.drops, s.ended = s.drops+1, s.ended+s.began-s.live.Blocks
	}
	s.began = s.live.Blocks
	if to > s.step+1 {
		s.record(s.step+1, to, s.live)
	}
	s.step, s.low = to, s.live
}

// record sets the floor of the steps in [from, to), all of which have ended.
func (s *series) record(from, to int, f floor) {
	if s.windows == nil {
		if f == (floor{}) {
			return
		}
		s.width, s.recent = 1, make([]floor, keptSteps)
		s.windows = make([]floor, 0, maxWindows)
		if from > 0 {
			s.record(0, from, floor{})
		}
	}
	s.climb(from, f)
	for (to-1)/s.width >= maxWindows {
		s.double()
	}
	for i := from / s.width; i <= (to-1)/s.width; i++ {
		if i < len(s.windows) {
			s.windows[i] = floors.Least(s.windows[i], f)
		} else {
			s.windows = append(s.windows, f)
		}
	}
	for i := max(from, to-keptSteps); i < to; i++ {
		s.recent[i%keptSteps] = f
	}
}

// double merges pairs of windows.
func (s *series) double() {
	n := (len(s.windows) + 1) / 2
	for i := range n {
		s.windows[i] = s.windows[2*i]
		if 2*i+1 < len(s.windows) {
			s.windows[i] = floors.Least(s.windows[i], s.windows[2*i+1])
		}
	}
	s.windows, s.width = s.windows[:n], 2*s.width
}

// latest returns the floors of the latest steps that have ended, in order.
func (s *series) latest() []floor {
	if s.windows == nil {
		return nil
	}
	out := make([]floor, 0, keptSteps)
	for i := max(0, s.step-keptSteps); i < s.step; i++ {
		out = append(out, s.recent[i%keptSteps])
	}
	return out
}
