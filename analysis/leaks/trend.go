// SPDX-License-Identifier: Apache-2.0

package leaks

import "math"

// amount is blocks and bytes, as a mean.
type amount struct{ blocks, requested, bytes float64 }

func (a amount) plus(b amount) amount {
	return amount{a.blocks + b.blocks, a.requested + b.requested, a.bytes + b.bytes}
}

// over is a difference of floors divided by a number of periods or steps.
func over(f floor, n int) amount {
	d := float64(n)
	return amount{float64(f.blocks) / d, float64(f.requested) / d, float64(f.bytes) / d}
}

// steepFactor is how many times as much the latest steps may rise as the whole run.
const steepFactor = 8

// steeper reports whether the latest steps rise so much more than a whole run that it is not made of such rises: where the recording ends
// within a sawtooth, as of a cache that is copied as it grows, what its last tooth has is in use at the end.
func (a amount) steeper(whole amount) bool {
	return a.blocks > steepFactor*whole.blocks && a.requested > steepFactor*whole.requested
}

// trend is how a series rises up to the last step.
type trend struct {
	linear  bool
	period  int    // steps between two rises
	step    amount // each step, as a mean
	first   int    // step in which the first block that survives was allocated, exact to a window
	rise    floor  // since then
	live    floor  // what survives at the end
	periods int    // seen
	base    int    // window before the rise
}

// trend judges a series that was advanced to the end. ok is false when it does not rise.
func (s *series) trend(of measure, loose bool) (trend, bool) {
	if s.windows == nil {
		return trend{}, false
	}
	from := (warmUp + s.width - 1) / s.width
	r, ok := rising(s.windows, of, from+1, loose)
	if !ok {
		return trend{}, false
	}
	left := survivors(s.windows)
	end := left[len(left)-1]
	latest := s.latest()
	t := trend{linear: r.linear, first: max(1, r.base*s.width), rise: end.minus(left[r.base]), live: latest[len(latest)-1].plus(s.lent), base: r.base}
	known := s.fromLatest(&t, of, r, left) || s.fromLadder(&t) || s.fromCycle(&t)
	if !known || t.step.steeper(over(s.grown(&t, r, left))) {
		s.fromWindows(&t, r, left, of)
	}
	t.periods = (s.step - t.first) / t.period
	return t, true
}

// fromLatest takes period and amounts from the latest steps, when they have three rises or more in equal distances; amounts that differ are
// those of the whole run.
func (s *series) fromLatest(t *trend, of measure, r run, windows []floor) bool {
	left := survivors(s.latest())
	at := risesOf(left, of, 1)
	skip := max(0, t.first+1-max(0, s.step-keptSteps)) // before the run
	for len(at) > 0 && at[0] < skip {
		at = at[1:]
	}
	if len(at) < 3 {
		return false
	}
	if !equalGaps(at) {
		return false
	}
	last := at[len(at)-1]
	t.period = at[1] - at[0]
	switch from := at[sameBlocks(left, at):]; {
	case equalRises(left, at):
		t.step = over(left[last].minus(left[at[0]]), last-at[0])
	case len(from) >= suspectRises && len(from) < len(at): // before, blocks left in the place of some
		t.step = over(left[last].minus(left[from[0]]), last-from[0])
	case s.fromCycle(t): // four, then five, then three blocks, again and again
	default:
		t.step = over(s.grown(t, r, windows))
	}
	return true
}

// sameBlocks is the position of the first of the latest rises that all have the same number of blocks.
func sameBlocks(left []floor, at []int) int {
	by := func(i int) int64 { return left[at[i]].blocks - left[at[i]-1].blocks }
	i := len(at) - 1
	for i > 0 && by(i-1) == by(len(at)-1) {
		i--
	}
	return i
}

// equalRises says whether the same is requested with all rises.
func equalRises(left []floor, at []int) bool {
	for _, i := range at[1:] {
		if left[i].requested-left[i-1].requested != left[at[0]].requested-left[at[0]-1].requested {
			return false
		}
	}
	return true
}

// grown is what a run rose by between its first rise and its last, and in how many steps.
func (s *series) grown(t *trend, r run, left []floor) (rise floor, steps int) {
	first, last := r.at[0], r.at[len(r.at)-1]
	if rise = left[last].minus(left[first]); rise == (floor{}) { // all in one window
		return t.rise, len(left) * s.width
	}
	return rise, (last - first) * s.width
}

// fromWindows takes them from the windows: what all rises are multiples of is one period's.
func (s *series) fromWindows(t *trend, r run, left []floor, of measure) {
	rise, steps := s.grown(t, r, left)
	t.step = over(rise, steps)
	unit := int64(0)
	for _, i := range r.at[1:] {
		unit = greatestDivisor(unit, of(left[i])-of(left[i-1]))
	}
	t.period = 1
	if total := of(rise); t.linear && total > 0 {
		t.period = max(1, int(math.Round(float64(steps)*float64(unit)/float64(total))))
	}
}
