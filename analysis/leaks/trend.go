// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"math"

	"github.com/gputrace/gputrace/analysis/leaks/internal/floors"
)

// amount is a mean of blocks and bytes.
type amount struct{ blocks, requested, bytes float64 }

func (a amount) plus(b amount) amount {
	return amount{a.blocks + b.blocks, a.requested + b.requested, a.bytes + b.bytes}
}

// over divides a difference of floors by a number of periods or steps.
func over(f floor, n int) amount {
	d := float64(n)
	return amount{float64(f.Blocks) / d, float64(f.Requested) / d, float64(f.Bytes) / d}
}

// steepFactor is the maximum ratio between the rise of the latest steps and that of the whole run.
const steepFactor = 8

// steeper reports whether the latest steps rise so much faster than the whole run that the run cannot consist of such rises: if
// the recording ends within a sawtooth, such as a cache that is copied as it grows, its last tooth is in use at the end.
func (a amount) steeper(whole amount) bool {
	return a.blocks > steepFactor*whole.blocks && a.requested > steepFactor*whole.requested
}

// trend describes how a series rises up to the last step.
type trend struct {
	linear  bool
	period  int    // number of steps between two rises
	step    amount // mean per step
	first   int    // step in which the first surviving block was allocated, exact to a window
	rise    floor  // rise since first
	live    floor  // blocks that survive at the end
	periods int    // number of periods seen
	base    int    // window before the rise
}

// trend judges a series that was advanced to the end. ok is false when it does not rise.
func (s *series) trend(of floors.Measure, loose bool) (trend, bool) {
	if s.windows == nil {
		return trend{}, false
	}
	from := (floors.WarmUp + s.width - 1) / s.width
	r, ok := floors.Rising(s.windows, of, from+1, loose)
	if !ok {
		return trend{}, false
	}
	left := floors.Survivors(s.windows)
	end := left[len(left)-1]
	latest := s.latest()
	t := trend{linear: r.Linear, first: max(1, r.Base*s.width), rise: end.Minus(left[r.Base]), live: latest[len(latest)-1].Plus(s.lent),
		base: r.Base}
	known := s.fromLatest(&t, of, r, left) || s.fromLadder(&t) || s.fromCycle(&t)
	if !known || t.step.steeper(over(s.grown(&t, r, left))) {
		s.fromWindows(&t, r, left, of)
	}
	t.periods = (s.step - t.first) / t.period
	return t, true
}

// fromLatest sets period and amounts from the latest steps, if they have at least three rises at equal distances;
// unequal amounts are averaged over the whole run.
func (s *series) fromLatest(t *trend, of floors.Measure, r floors.Run, windows []floor) bool {
	left := floors.Survivors(s.latest())
	at := floors.RisesOf(left, of, 1)
	skip := max(0, t.first+1-max(0, s.step-keptSteps)) // before the run
	for len(at) > 0 && at[0] < skip {
		at = at[1:]
	}
	if len(at) < 3 {
		return false
	}
	if !floors.EqualGaps(at) {
		return false
	}
	last := at[len(at)-1]
	t.period = at[1] - at[0]
	switch from := at[floors.SameBlocks(left, at):]; {
	case floors.EqualRises(left, at):
		t.step = over(left[last].Minus(left[at[0]]), last-at[0])
	case len(from) >= suspectRises && len(from) < len(at): // freed blocks hid some earlier rises
		t.step = over(left[last].Minus(left[from[0]]), last-from[0])
	case s.fromCycle(t): // for example four, then five, then three blocks, repeatedly
	default:
		t.step = over(s.grown(t, r, windows))
	}
	return true
}

// grown returns the rise between a run's first rise and its last, and the number of steps.
func (s *series) grown(t *trend, r floors.Run, left []floor) (rise floor, steps int) {
	first, last := r.At[0], r.At[len(r.At)-1]
	if rise = left[last].Minus(left[first]); rise == (floor{}) { // all in one window
		return t.rise, len(left) * s.width
	}
	return rise, (last - first) * s.width
}

// fromWindows sets them from the windows: the amount of which all rises are multiples is one period's.
func (s *series) fromWindows(t *trend, r floors.Run, left []floor, of floors.Measure) {
	rise, steps := s.grown(t, r, left)
	t.step = over(rise, steps)
	unit := int64(0)
	for _, i := range r.At[1:] {
		unit = floors.GreatestDivisor(unit, of(left[i])-of(left[i-1]))
	}
	t.period = 1
	if total := of(rise); t.linear && total > 0 {
		t.period = max(1, int(math.Round(float64(steps)*float64(unit)/float64(total))))
	}
}
