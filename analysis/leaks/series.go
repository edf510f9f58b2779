// SPDX-License-Identifier: Apache-2.0

package leaks

// Bounds of what is kept of a series, whatever its length.
const (
	maxWindows = 64 // of equal length: when they are full, each two become one
	keptSteps  = 64 // the latest steps are kept one by one, for periods
)

// floor is the least of a count in a range of steps: what survived all of it.
type floor struct {
	blocks    int64
	requested int64 // bytes
	bytes     int64 // of the blocks
}

func (f floor) plus(g floor) floor {
	return floor{f.blocks + g.blocks, f.requested + g.requested, f.bytes + g.bytes}
}

func (f floor) minus(g floor) floor {
	return floor{f.blocks - g.blocks, f.requested - g.requested, f.bytes - g.bytes}
}

func least(f, g floor) floor {
	return floor{min(f.blocks, g.blocks), min(f.requested, g.requested), min(f.bytes, g.bytes)}
}

// series is what is in use of something in the course of steps. Its size is bounded: floors of windows that double in length,
// floors of the latest steps, and the latest rises. Nothing is kept of what never outlives a step. The zero value is empty, in step 0.
type series struct {
	live floor // now
	low  floor // least in the step that runs
	step int   // the step that runs
	// width is the steps of a window, a power of two; it depends on the number of steps alone, so that windows of two series
	// that were advanced to the same step are the same.
	width   int
	windows []floor
	recent  []floor // of step i, at i % keptSteps
	rungs   []rung
	top     int64   // most blocks that survived a step after the warm-up
	fall    int64   // the largest fall from there, in blocks
	teeth   teeth   // after the warm-up
	gone    *series // how many were freed long after their step, a count that only rises; nil: none
	lent    floor   // what left a pool that this fills, and was another's: it is not in live, but in use
}

// add counts blocks in a step.
func (s *series) add(step int, f floor) {
	s.advance(step)
	s.live = s.live.plus(f)
}

// remove counts blocks that were freed in a step.
func (s *series) remove(step int, f floor) {
	s.advance(step)
	s.live = s.live.minus(f)
	s.low = least(s.low, s.live)
}

// countGone counts a block that was freed in a step, long after its own.
func (s *series) countGone(step int) {
	if s.gone == nil {
		s.gone = &series{}
	}
	s.gone.add(step, floor{blocks: 1})
}

// advance ends all steps before one. Series are advanced when something happens in them, and at the end.
func (s *series) advance(to int) {
	if s.step >= to {
		return
	}
	s.record(s.step, s.step+1, s.low)
	if to > s.step+1 {
		s.record(s.step+1, to, s.live)
	}
	s.step, s.low = to, s.live
}

// record sets the floor of the steps in [from, to), all of which are over.
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
			s.windows[i] = least(s.windows[i], f)
		} else {
			s.windows = append(s.windows, f)
		}
	}
	for i := max(from, to-keptSteps); i < to; i++ {
		s.recent[i%keptSteps] = f
	}
}

// double makes one window of each two.
func (s *series) double() {
	n := (len(s.windows) + 1) / 2
	for i := range n {
		s.windows[i] = s.windows[2*i]
		if 2*i+1 < len(s.windows) {
			s.windows[i] = least(s.windows[i], s.windows[2*i+1])
		}
	}
	s.windows, s.width = s.windows[:n], 2*s.width
}

// latest is the floors of the latest steps that are over, in order.
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

// survivors is, for each element, the least of it and all later ones: what was there then and is there still. It never falls.
func survivors(floors []floor) []floor {
	out := make([]floor, len(floors))
	for i := len(floors) - 1; i >= 0; i-- {
		out[i] = floors[i]
		if i+1 < len(floors) {
			out[i] = least(out[i], out[i+1])
		}
	}
	return out
}
