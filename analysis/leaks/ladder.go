// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"slices"

	"github.com/gputrace/gputrace/analysis/advice"
	"github.com/gputrace/gputrace/analysis/leaks/internal/floors"
)

// Conditions on a run of equal rises at equal distances.
const (
	keptRungs = 32 // number of the latest ones that are kept, at least
	// suspectRises of equal amounts at equal distances are too few for a finding, but enough to withhold the verdict
	// steady if the distance is above WarmUp: few epochs were seen, for example.
	suspectRises = 3
	// fewRises are enough if they are large: a steadyShare of all memory.
	fewRises = 2
	// spanShare and suspectShare: a run must last for 1/spanShare or 1/suspectShare of all steps; windows show what began late.
	spanShare    = 12
	suspectShare = 4
)

// rung is a step from which on more blocks survive than from the previous one.
type rung struct {
	step int
	floor
}

// climb adds the floor of the next steps. Rungs are those of the survivors, exact to a step where windows are not.
func (s *series) climb(step int, f floor) {
	if step > floors.WarmUp {
		s.top = max(s.top, f.Blocks)
		s.fall = max(s.fall, s.top-f.Blocks)
		s.teeth.see(step, f)
	}
	for n := len(s.rungs); n > 0 && s.rungs[n-1].Blocks > f.Blocks; n-- {
		step = s.rungs[n-1].step // the remaining blocks were there then
		s.rungs = s.rungs[:n-1]
	}
	if n := len(s.rungs); n > 0 && s.rungs[n-1].Blocks == f.Blocks {
		s.rungs[n-1].floor = floors.Least(s.rungs[n-1].floor, f)
		return
	}
	if s.rungs = append(s.rungs, rung{step, f}); len(s.rungs) == 2*keptRungs {
		s.rungs = append(s.rungs[:0], s.rungs[keptRungs:]...)
	}
}

// ladder returns the last rungs that are equal amounts at equal distances, and the one before; nil: fewer than three.
func (s *series) ladder() []rung {
	left := s.rungFloors()
	n := len(left)
	if n < suspectRises {
		return nil
	}
	gap, amount := s.rungs[n-1].step-s.rungs[n-2].step, left[n-1].Minus(left[n-2])
	first := n - 1 // index of the first rise
	for first > 1 && s.rungs[first-1].step > floors.WarmUp && s.rungs[first].step-s.rungs[first-1].step == gap &&
		sameAmount(left[first-1].Minus(left[first-2]), amount) {
		first--
	}
	out := make([]rung, n-first+1)
	for i := range out {
		out[i] = rung{s.rungs[first-1+i].step, left[first-1+i]}
	}
	return out
}

func sameAmount(a, b floor) bool { return a.Blocks == b.Blocks && a.Requested == b.Requested }

// periodic returns the trend of a series that rises by equal amounts at equal distances up to the present. ok is false
// if it does not, or has fewer rises than required or lasts for too small a part of the steps.
func (s *series) periodic(rises, share int) (trend, bool) {
	run := s.ladder()
	n := len(run) - 1 // number of rises
	if n < max(2, rises) {
		return trend{}, false
	}
	last := run[n]
	gap := last.step - run[n-1].step
	if n*gap*share < s.step || s.step-1-last.step > floors.GapFactor*gap {
		return trend{}, false
	}
	rise := last.Minus(run[0].floor)
	first := max(1, run[1].step-1)
	base := min(first/s.width, len(s.windows)-1)
	if floors.FallFactor*s.fall >= rise.Blocks {
		return trend{}, false
	}
	latest := s.latest()
	return trend{
		linear: true, period: gap, step: over(last.Minus(run[1].floor), last.step-run[1].step), first: first, rise: rise,
		live: latest[len(latest)-1].Plus(s.lent), periods: (s.step - first) / gap, base: base,
	}, true
}

// blockTrend judges the blocks of a site.
func (s *series) blockTrend() (trend, bool) {
	if t, ok, saw := s.sawtooth(floors.BlocksOf, minTroughs); saw {
		return t, ok
	}
	t, ok := s.trend(floors.BlocksOf, false)
	if !ok {
		t, ok = s.periodic(floors.MinRises, spanShare)
	}
	return t, ok && !s.byChance(t.base)
}

// Needed returns how long a recording of the same job must be to judge the suspects, nanoseconds; 0: there are none, or
// it is not known.
func (r *Report) Needed() float64 {
	if len(r.Suspects) == 0 || r.Interim {
		return 0
	}
	f, _ := Total(r.Suspects)
	return r.Steps.Period * float64(f.First+(floors.MinRises+1)*f.Period)
}

// suspects returns the lines whose blocks rise at a period of which too few were seen for a finding, the most bytes
// first; if there are several periods, only the lines of the one with the most bytes. nil: none.
func (d *detector) suspects(steps *Steps, o *Options) []Finding {
	if out := d.suspectsOf(suspectRises, 0, steps, o); out != nil || d.level.windows == nil {
		return out
	}
	return d.suspectsOf(fewRises, float64(d.level.windows[len(d.level.windows)-1].Bytes)/steadyShare, steps, o)
}

// recurring returns the sites that rise at a period, with at least the given number of rises.
func (d *detector) recurring(rises int) []risen {
	var all []risen
	for k, s := range d.sites {
		t, ok := s.periodic(rises, suspectShare)
		if !ok || t.period <= floors.WarmUp || s.step-1-s.rungs[len(s.rungs)-1].step > t.period {
			continue
		}
		d.learn(k.stack, s.source)
		all = append(all, risen{trend: t, place: k.place, line: s.source.line, from: s.source, site: k, stack: s.source.stack})
	}
	return all
}

// suspectsOf returns those with at least the given number of rises and bytes per rise.
func (d *detector) suspectsOf(rises int, least float64, steps *Steps, o *Options) []Finding {
	all := d.withCompanions(d.withoutExchange(d.recurring(rises)), alike{1, true})
	sums := map[int]float64{}
	for i := range all {
		sums[all[i].period] += all[i].step.bytes
	}
	period := 0
	for p, bytes := range sums {
		if bytes*float64(p) < least {
			continue
		}
		if period == 0 || bytes > sums[period] || bytes == sums[period] && p > period {
			period = p
		}
	}
	if period == 0 {
		return nil
	}
	all = slices.DeleteFunc(d.recurring(fewRises), func(r risen) bool { return r.period != period })
	all = d.withCompanions(d.withoutExchange(all), alike{1, true})
	var out []Finding
	for k, of := range byLine(all) {
		out = append(out, d.finding(k, of, trendsOf(of), steps, o))
	}
	for i := range out { // what Bound needs
		out[i].proof.facts = advice.FactsOf(out[i].Holder, o.Facts)
		out[i].proof.filled = out[i].hasFilled(o.Holders, o.Earlier)
	}
	order(out)
	fill(out, steps, o)
	return out
}

// fromLadder sets period and amounts from the latest rises, if three or more are equal amounts at equal distances.
func (s *series) fromLadder(t *trend) bool {
	run := s.ladder()
	n := len(run) - 1
	if n < suspectRises {
		return false
	}
	t.period = run[n].step - run[n-1].step
	t.step = over(run[n].Minus(run[1].floor), run[n].step-run[1].step)
	return true
}

const (
	// maxCycle is the maximum number of rises in a cycle, and minCycles how often it must be seen. For example, with
	// two blocks per step of which each fifth stays, one stays after two steps, and the next after three.
	maxCycle  = 8
	minCycles = 3
)

// fromCycle sets period and amounts from the latest rises, if their distances and amounts recur.
func (s *series) fromCycle(t *trend) bool {
	left, n := s.rungFloors(), len(s.rungs)
	same := func(i, k int) bool {
		return s.rungs[i].step-s.rungs[i-1].step == s.rungs[i-k].step-s.rungs[i-k-1].step &&
			sameAmount(left[i].Minus(left[i-1]), left[i-k].Minus(left[i-k-1]))
	}
	for k := 2; k <= maxCycle && minCycles*k < n; k++ {
		i := n - 1
		for i > n-1-(minCycles-1)*k && same(i, k) {
			i--
		}
		if i == n-1-(minCycles-1)*k {
			t.period = s.rungs[n-1].step - s.rungs[n-1-k].step
			t.step = over(left[n-1].Minus(left[n-1-k]), t.period)
			return true
		}
	}
	return false
}
