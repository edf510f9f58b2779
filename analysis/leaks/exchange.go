// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"github.com/gputrace/gputrace/analysis/leaks/internal/ages"
	"github.com/gputrace/gputrace/analysis/leaks/internal/floors"
	"github.com/gputrace/gputrace/event"
)

// exchangeShare is the share of the rises of a stack's size classes by which the stack as a whole must rise: in a full
// buffer whose entries differ in size, one class rises while another falls.
const exchangeShare = 0.5

// In a cache bounded by bytes, or with sessions that come and go, the number of entries rises and falls by chance.
const (
	longLived = 8 // a block that is freed after this number of steps counts as an entry
	// certainRise is the minimum rise, in standard deviations of the difference that exchanging the same number of
	// blocks at random would make.
	certainRise = 4
	// pureRise: a rise of pureRise times the freed blocks needs no such proof.
	pureRise = 2
)

// byChance reports whether a rise from a window on, or the later half of it, can be a random fluctuation of entries
// that come and go.
func (s *series) byChance(base int) bool {
	if s.gone == nil {
		return false
	}
	s.gone.advance(s.step)
	left := floors.Survivors(s.windows)
	end := len(left) - 1
	from := min(base, end)
	return s.isChance(left, from) || s.isChance(left, (from+end)/2)
}

// isChance reports this for the survivors from a window on. If n entries are freed and n others allocated
// independently, the difference has a standard deviation of the square root of 2n.
func (s *series) isChance(left []floor, from int) bool {
	end := len(left) - 1
	return isChance(float64(left[end].Blocks-left[from].Blocks), float64(s.gone.grew(from, end)))
}

// isChance reports whether a rise can be chance, given the number of blocks that were freed.
func isChance(rise, freed float64) bool {
	return rise < pureRise*freed && rise*rise < certainRise*certainRise*2*freed
}

// grew returns how much a count rose between two windows. It is 0 before the count begins.
func (s *series) grew(from, to int) int64 {
	if to >= len(s.windows) {
		return 0
	}
	return s.windows[to].Blocks - s.windows[from].Blocks
}

// stackKey identifies all size classes of a stack.
type stackKey struct {
	place place
	stack event.StackID
}

// stackRise has the windows of a stack: of all its size classes, and of those that rise.
type stackRise struct {
	whole, risen []floor
	base         int // window before the rise
}

// withoutExchange removes the sites whose blocks replaced blocks of the same stack and other size classes.
func (d *detector) withoutExchange(all []risen) []risen {
	rises := map[stackKey]*stackRise{}
	for i := range all {
		k := stackKey{all[i].place, all[i].site.stack}
		r := rises[k]
		if r == nil {
			r = &stackRise{base: all[i].base}
			rises[k] = r
		}
		r.base = min(r.base, all[i].base)
		r.risen = plusWindows(r.risen, d.sites[all[i].site].windows)
	}
	if len(rises) == 0 {
		return all
	}
	for k, s := range d.sites {
		if r := rises[stackKey{k.place, k.stack}]; r != nil {
			r.whole = plusWindows(r.whole, s.windows)
		}
	}
	var out []risen
	for i := range all {
		if rises[stackKey{all[i].place, all[i].site.stack}].goesOn() {
			out = append(out, all[i])
		}
	}
	return out
}

// plusWindows adds up the windows of series that were advanced to the same step.
func plusWindows(sum, windows []floor) []floor {
	if len(windows) == 0 { // nothing of it survived a step
		return sum
	}
	if sum == nil {
		sum = make([]floor, len(windows))
	}
	for i := range min(len(sum), len(windows)) {
		sum[i] = sum[i].Plus(windows[i])
	}
	return sum
}

// goesOn reports whether the stack as a whole rises with its size classes.
func (r *stackRise) goesOn() bool {
	whole, part := floors.Survivors(r.whole), floors.Survivors(r.risen)
	end := len(part) - 1
	from := min(r.base, end)
	return float64(whole[end].Blocks-whole[from].Blocks) >= exchangeShare*float64(part[end].Blocks-part[from].Blocks)
}

// For blocks that come and go, leastDrops steps at least must have ended with fewer of them than they began with, and have lost
// 1/endedShare of the rise: a block that takes the place of another one in its step has not ended.
const (
	leastDrops = 5
	endedShare = 8
)

// turnsOver reports whether a finding's blocks may come and go: see ages.TurnsOver.
func (d *detector) turnsOver(f *Finding, steps *Steps) bool {
	now := d.since(d.begins[d.step%len(d.begins)])
	if f.Blocks <= 0 || now == 0 {
		return false
	}
	var sum ages.Ages
	drops, ended, rise := 0, int64(0), f.Blocks*float64(steps.Last-steps.base)
	for k := range f.blocks {
		if s := d.sites[k]; s != nil {
			sum.Plus(&s.ages)
			drops, ended = max(drops, s.drops), ended+s.ended
		}
	}
	return drops >= leastDrops && endedShare*float64(ended) >= rise && sum.TurnsOver(now, rise/float64(now))
}
