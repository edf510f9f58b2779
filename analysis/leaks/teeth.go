// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"math"

	"github.com/gputrace/gputrace/analysis/leaks/internal/floors"
)

// A garbage collector, or a queue that is emptied at once, makes a sawtooth of a series: it falls by a large amount
// again and again. Growth is then visible from trough to trough.
const (
	maxTroughs = 128 // maximum number that is kept; when it is reached, every second one is dropped
	// majorFall: a trough counts if its fall is at least 1/majorFall of the largest. Smaller ones are collections of
	// younger generations.
	majorFall = 2
	// toothShare: teeth count if they have at least 1/toothShare of the height of a series; from 1/largeShare on, only
	// they decide whether it rises.
	toothShare = 64
	largeShare = 8
	// sharpFall is the maximum number of steps in which a tooth falls.
	sharpFall = 2
	// minTeeth is the number of troughs that make a sawtooth, and minTroughs the number needed to judge whether it rises.
	minTeeth   = 3
	minTroughs = 4
)

// trough is the minimum between two teeth.
type trough struct {
	rung
	fall   int64 // in blocks, from the preceding height
	fallen int64 // sum of all falls so far
}

// teeth follows the falls of a series. The zero value has seen nothing.
type teeth struct {
	began   bool
	top     rung  // maximum since the last trough
	fallen  int64 // sum of all teeth
	low     rung  // minimum since top
	largest int64 // the largest fall
	highest int64 // the largest rise from a trough to the next fall
	base    int64 // blocks at the last trough
	troughs []trough
}

// see adds the floor of the next step.
func (t *teeth) see(step int, f floor) {
	switch {
	case !t.began:
		t.began, t.top, t.low, t.base = true, rung{step, f}, rung{step, f}, f.Blocks
	case f.Blocks < t.low.Blocks:
		t.low = rung{step, f}
	case f.Blocks > t.low.Blocks:
		fall := t.top.Blocks - t.low.Blocks
		switch {
		case fall > 1 && t.low.step-t.top.step <= sharpFall && 2*majorFall*fall >= t.largest:
			t.largest, t.highest, t.fallen = max(t.largest, fall), max(t.highest, t.top.Blocks-t.base), t.fallen+fall
			t.base = t.low.Blocks
			t.add(trough{t.low, fall, t.fallen})
			t.top, t.low = rung{step, f}, rung{step, f}
		case f.Blocks >= t.top.Blocks || t.low.step-t.top.step > sharpFall:
			t.top, t.low = rung{step, f}, rung{step, f}
		}
	case f.Blocks == t.top.Blocks:
		t.top.step, t.low.step = step, step
	}
}

func (t *teeth) add(x trough) {
	if len(t.troughs) == maxTroughs {
		for i := range maxTroughs / 2 {
			t.troughs[i] = t.troughs[2*i]
		}
		t.troughs = t.troughs[:maxTroughs/2]
	}
	t.troughs = append(t.troughs, x)
}

// major returns the troughs of the largest teeth.
func (t *teeth) major() []trough {
	var out []trough
	for _, x := range t.troughs {
		if majorFall*x.fall >= t.largest {
			out = append(out, x)
		}
	}
	return out
}

// sawtooth judges, by its troughs, a series whose blocks fall by a large amount again and again. saw is false for other series.
func (s *series) sawtooth(of floors.Measure, least int) (t trend, ok, saw bool) {
	at := s.teeth.major()
	if len(at) < minTeeth || toothShare*s.teeth.largest < s.top-at[0].Blocks {
		return trend{}, false, false
	}
	latest := s.latest()
	end := latest[len(latest)-1]
	last := at[len(at)-1]
	if 2*(end.Blocks-last.Blocks) > 3*s.teeth.highest { // it is no longer emptied
		return trend{}, false, false
	}
	at = fromLowest(at, of)
	first := at[0]
	if len(at) < least || !risesByTroughs(at, of) || s.troughsByChance(first, last) {
		return trend{}, false, largeShare*s.teeth.largest >= s.top-at[0].Blocks
	}
	t = trend{linear: true, step: over(last.Minus(first.floor), last.step-first.step), rise: last.Minus(first.floor), live: end.Plus(s.lent)}
	each := float64(of(t.rise)) / float64(last.step-first.step)
	t.period = max(1, int(math.Round(1/t.step.blocks)))
	if t.step.blocks <= 0 {
		t.period = (last.step - first.step) / (len(at) - 1)
	}
	t.first = max(1, first.step-int(math.Round(float64(of(first.floor)-of(s.windows[0]))/each)))
	t.periods = (s.step - t.first) / t.period
	t.base = min(t.first/s.width, len(s.windows)-1)
	return t, true, true
}

// fromLowest returns the troughs from the last one that is as low as the first: growth may have begun long after the teeth.
func fromLowest(at []trough, of floors.Measure) []trough {
	for i := len(at) - 1; i > 0; i-- {
		if of(at[i].floor) <= of(at[0].floor) {
			return at[i:]
		}
	}
	return at
}

// risesByTroughs reports whether troughs rise: by more than their largest fall, linearly, and as much in the later half as before.
func risesByTroughs(at []trough, of floors.Measure) bool {
	n := len(at) - 1
	lows := make([]floor, len(at))
	for i := range at {
		lows[i] = at[i].floor
	}
	total, steps := of(lows[n])-of(lows[0]), int64(at[n].step-at[0].step)
	if total < floors.MinRises || floors.FallFactor*floors.Drawdown(lows, of) >= total {
		return false
	}
	for i := range at {
		expected := of(lows[0]) + total*int64(at[i].step-at[0].step)/steps
		if d := of(lows[i]) - expected; d > total/10+1 || -d > total/10+1 {
			return false
		}
	}
	return true
}

// troughsByChance reports whether such a rise can be caused by entries that come and go one by one, not with a tooth.
func (s *series) troughsByChance(first, last trough) bool {
	if s.gone == nil {
		return false
	}
	s.gone.advance(s.step)
	from, to := min(first.step/s.width, len(s.windows)-1), min(last.step/s.width, len(s.windows)-1)
	freed := max(0, s.gone.grew(from, to)-(last.fallen-first.fallen))
	return last.Blocks > first.Blocks && isChance(float64(last.Blocks-first.Blocks), float64(freed))
}
