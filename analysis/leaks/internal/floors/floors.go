// SPDX-License-Identifier: Apache-2.0

// Package floors judges whether something rises from step to step, by the minimum that was in use in each range of steps.
package floors

import "slices"

// Floor is the minimum of a count over a range of steps: the blocks that survived all of it.
type Floor struct {
	Blocks    int64
	Requested int64 // bytes
	Bytes     int64 // of the blocks
}

// Plus adds two amounts.
func (f Floor) Plus(g Floor) Floor {
	return Floor{f.Blocks + g.Blocks, f.Requested + g.Requested, f.Bytes + g.Bytes}
}

// Minus is the difference of two amounts.
func (f Floor) Minus(g Floor) Floor {
	return Floor{f.Blocks - g.Blocks, f.Requested - g.Requested, f.Bytes - g.Bytes}
}

// Least is the minimum of each count.
func Least(f, g Floor) Floor {
	return Floor{min(f.Blocks, g.Blocks), min(f.Requested, g.Requested), min(f.Bytes, g.Bytes)}
}

// Thresholds of the verdict. How they were chosen and confirmed is in docs/measured/leaks.md.
const (
	WarmUp     = 5  // steps; a rise in them alone is no leak
	MinRises   = 5  // rises of a leak: the fifth period is enough
	LooseRises = 10 // rises of a growth, and of a leak at unequal distances
	// GapFactor limits a pause between two rises, and the one at the end, to this multiple of the usual distance.
	GapFactor = 2
	// looseGap is GapFactor for a growth.
	looseGap = 4
	// FallFactor: a series must have risen by this multiple of its largest fall.
	FallFactor = 2
	looseFall  = 4 // for a growth, and if rises are at unequal distances
	// laterShare: a rise that was faster or slower before must last for 1/laterShare of all steps.
	laterShare = 3
)

// Measure selects the count of a floor that is judged.
type Measure func(Floor) int64

// BlocksOf is the measure of blocks.
func BlocksOf(f Floor) int64 { return f.Blocks }

// RequestedOf is the measure of requested bytes.
func RequestedOf(f Floor) int64 { return f.Requested }

// Run is a rise that lasts up to the present: the last positions at which the number of survivors increased.
type Run struct {
	At     []int // positions of the rises, ascending
	Base   int   // position before the first rise
	Total  int64 // sum of all rises
	Linear bool  // equal amounts at equal distances
}

// Rising finds the run at the end of floors, from a position on. ok is false if they do not rise up to the present, or slow down.
func Rising(floors []Floor, of Measure, from int, loose bool) (Run, bool) {
	left := Survivors(floors)
	at := RisesOf(left, of, max(from, 1))
	need, factor, falls := MinRises, GapFactor, int64(FallFactor)
	if loose {
		need, factor, falls = LooseRises, looseGap, looseFall
	}
	if len(at) < need {
		return Run{}, false
	}
	at = lastRun(at, factor)
	if len(at) < need || len(floors)-1-at[len(at)-1] > factor*typicalGap(at)+1 {
		return Run{}, false
	}
	if !EqualGaps(at) { // it could be chance: more rises are needed
		need, falls = LooseRises, looseFall
	}
	at = widen(left, of, at)
	for len(at) >= need {
		r := Run{At: at, Base: at[0] - 1}
		r.Total = of(left[len(left)-1]) - of(left[r.Base])
		if falls*Drawdown(floors[min(from, r.Base):], of) >= r.Total {
			return Run{}, false
		}
		r.Linear = isLinear(left[r.Base:], of)
		if keepsOn(left[r.Base:], of) && (r.Linear || loose) {
			return r, true
		}
		at = at[len(at)/2:] // it can have filled first, and grown since
		need = max(need, LooseRises)
		if (len(floors)-at[0])*laterShare < len(floors) {
			break
		}
	}
	return Run{}, false
}

// RisesOf returns the positions at which the number of survivors increases.
func RisesOf(left []Floor, of Measure, from int) []int {
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

// EqualGaps reports whether all distances between rises are equal.
func EqualGaps(at []int) bool {
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
func widen(left []Floor, of Measure, at []int) []int {
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

// Drawdown returns the largest fall from an earlier height, as at the teeth of a sawtooth.
func Drawdown(floors []Floor, of Measure) int64 {
	top, out := of(floors[0]), int64(0)
	for _, f := range floors {
		top = max(top, of(f))
		out = max(out, top-of(f))
	}
	return out
}

// largestRise returns the largest rise between neighbours.
func largestRise(left []Floor, of Measure) int64 {
	out := int64(0)
	for i := 1; i < len(left); i++ {
		out = max(out, of(left[i])-of(left[i-1]))
	}
	return out
}

// isLinear reports whether survivors are on a line, within the size of their rises.
func isLinear(left []Floor, of Measure) bool {
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
func keepsOn(left []Floor, of Measure) bool {
	mid := len(left) / 2
	first := of(left[mid]) - of(left[0])
	second := of(left[len(left)-1]) - of(left[mid])
	return second+(first+second)/8+largestRise(left, of) >= first
}

// GreatestDivisor returns the greatest common divisor of two numbers that are not negative; for 0 and x it is x.
func GreatestDivisor(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// Survivors returns, for each element, the minimum of it and all later ones: the blocks that were there then and still
// are. It never falls.
func Survivors(floors []Floor) []Floor {
	out := make([]Floor, len(floors))
	for i := len(floors) - 1; i >= 0; i-- {
		out[i] = floors[i]
		if i+1 < len(floors) {
			out[i] = Least(out[i], out[i+1])
		}
	}
	return out
}

// LaterRise returns by how many bytes the minimum of a step rose in the later half of the windows, if each window of
// their last quarter has more than each of the first; otherwise 0.
func LaterRise(windows []Floor) int64 {
	late := windows[len(windows)/2:]
	if len(late) == 0 {
		return 0
	}
	n := (len(late) + 3) / 4
	first, last := late[0].Bytes, late[len(late)-1].Bytes
	for i := range n {
		first, last = max(first, late[i].Bytes), min(last, late[len(late)-1-i].Bytes)
	}
	return max(0, last-first)
}

// SameBlocks returns the position of the first of the latest rises that all have the same number of blocks.
func SameBlocks(left []Floor, at []int) int {
	by := func(i int) int64 { return left[at[i]].Blocks - left[at[i]-1].Blocks }
	i := len(at) - 1
	for i > 0 && by(i-1) == by(len(at)-1) {
		i--
	}
	return i
}

// EqualRises reports whether all rises have the same requested bytes.
func EqualRises(left []Floor, at []int) bool {
	for _, i := range at[1:] {
		if left[i].Requested-left[i-1].Requested != left[at[0]].Requested-left[at[0]-1].Requested {
			return false
		}
	}
	return true
}
