// SPDX-License-Identifier: Apache-2.0

package leaks

import "slices"

// Thresholds of the verdict. How they were chosen and confirmed is in docs/measured/leaks.md.
const (
	warmUp     = 5  // steps; a rise in them alone is no leak
	minRises   = 5  // rises of a leak: the fifth period is enough
	looseRises = 10 // rises of a growth, and of a leak at unequal distances
	// gapFactor limits a pause between two rises, and the one at the end, to this multiple of the usual distance.
	gapFactor = 2
	// looseGap is gapFactor for a growth.
	looseGap = 4
	// fallFactor: a series must have risen by this multiple of its largest fall.
	fallFactor = 2
	looseFall  = 4 // for a growth, and if rises are at unequal distances
	// laterShare: a rise that was faster or slower before must last for 1/laterShare of all steps.
	laterShare = 3
)

// measure selects the count of a floor that is judged.
type measure func(floor) int64

func blocksOf(f floor) int64    { return f.blocks }
func requestedOf(f floor) int64 { return f.requested }

// run is a rise that lasts up to the present: the last positions at which the number of survivors increased.
type run struct {
	at     []int // positions of the rises, ascending
	base   int   // position before the first rise
	total  int64 // sum of all rises
	linear bool  // equal amounts at equal distances
}

// rising finds the run at the end of floors, from a position on. ok is false if they do not rise up to the present, or slow down.
func rising(floors []floor, of measure, from int, loose bool) (run, bool) {
	left := survivors(floors)
	at := risesOf(left, of, max(from, 1))
	need, factor, falls := minRises, gapFactor, int64(fallFactor)
	if loose {
		need, factor, falls = looseRises, looseGap, looseFall
	}
	if len(at) < need {
		return run{}, false
	}
	at = lastRun(at, factor)
	if len(at) < need || len(floors)-1-at[len(at)-1] > factor*typicalGap(at)+1 {
		return run{}, false
	}
	if !equalGaps(at) { // it could be chance: more rises are needed
		need, falls = looseRises, looseFall
	}
	at = widen(left, of, at)
	for len(at) >= need {
		r := run{at: at, base: at[0] - 1}
		r.total = of(left[len(left)-1]) - of(left[r.base])
		if falls*drawdown(floors[min(from, r.base):], of) >= r.total {
			return run{}, false
		}
		r.linear = isLinear(left[r.base:], of)
		if keepsOn(left[r.base:], of) && (r.linear || loose) {
			return r, true
		}
		at = at[len(at)/2:] // it can have filled first, and grown since
		need = max(need, looseRises)
		if (len(floors)-at[0])*laterShare < len(floors) {
			break
		}
	}
	return run{}, false
}

// risesOf returns the positions at which the number of survivors increases.
func risesOf(left []floor, of measure, from int) []int {
	var out []int
	for i := from; i < len(left); i++ {
		if of(left[i]) > of(left[i-1]) {
			out = append(out, i)
		}
	}
	return out
}

// typicalGap returns the median of the later half of the distances between at least two rises.
func typicalGap(at []int) int {
	var gaps []int
	for i := 1; i < len(at); i++ {
		gaps = append(gaps, at[i]-at[i-1])
	}
	gaps = gaps[len(gaps)/2:]
	slices.Sort(gaps)
	return gaps[len(gaps)/2]
}

// equalGaps reports whether all distances between rises are equal.
func equalGaps(at []int) bool {
	for i := 2; i < len(at); i++ {
		if at[i]-at[i-1] != at[1]-at[0] {
			return false
		}
	}
	return true
}

// lastRun returns the last rises without a pause that is much longer than usual.
func lastRun(at []int, factor int) []int {
	limit := factor*typicalGap(at) + 1
	first := len(at) - 1
	for first > 0 && at[first]-at[first-1] <= limit {
		first--
	}
	return at[first:]
}

// widen adds earlier rises of about the same amount and distance: those in the warm-up, for a leak that begins with the first step.
func widen(left []floor, of measure, at []int) []int {
	amount := of(left[at[1]]) - of(left[at[1]-1])
	gap := at[1] - at[0]
	for i := at[0] - gap; i > 0; i -= gap {
		if rise := of(left[i]) - of(left[i-1]); 4*rise < 3*amount || 4*rise > 5*amount {
			break
		}
		at = append([]int{i}, at...)
	}
	return at
}

// drawdown returns the largest fall from an earlier height, as at the teeth of a sawtooth.
func drawdown(floors []floor, of measure) int64 {
	top, out := of(floors[0]), int64(0)
	for _, f := range floors {
		top = max(top, of(f))
		out = max(out, top-of(f))
	}
	return out
}

// largestRise returns the largest rise between neighbours.
func largestRise(left []floor, of measure) int64 {
	out := int64(0)
	for i := 1; i < len(left); i++ {
		out = max(out, of(left[i])-of(left[i-1]))
	}
	return out
}

// isLinear reports whether survivors are on a line, within the size of their rises.
func isLinear(left []floor, of measure) bool {
	n, first := int64(len(left)-1), of(left[0])
	total := of(left[n]) - first
	most := max(largestRise(left, of)*3/2, total/10)
	for i := range left {
		expected := first + total*int64(i)/n
		if d := of(left[i]) - expected; d > most || -d > most {
			return false
		}
	}
	return true
}

// keepsOn reports whether the second half of a run rises as much as the first: a cache that fills slows down.
func keepsOn(left []floor, of measure) bool {
	mid := len(left) / 2
	first := of(left[mid]) - of(left[0])
	second := of(left[len(left)-1]) - of(left[mid])
	return second+(first+second)/8+largestRise(left, of) >= first
}

// greatestDivisor returns the greatest common divisor of two numbers that are not negative; for 0 and x it is x.
func greatestDivisor(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
