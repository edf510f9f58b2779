// SPDX-License-Identifier: Apache-2.0

package leaks

import "github.com/gputrace/gputrace/event"

// exchangeShare is the part of what size classes of a stack rise by that the stack as a whole must rise by: of a full buffer whose entries
// differ in size, one class rises where another falls.
const exchangeShare = 0.5

// The number of entries rises and falls by chance in a cache that is bounded in bytes, or with sessions that come and go.
const (
	longLived = 8 // steps after which a block that is freed counts as an entry
	// certainRise is how many times the standard deviation of a difference of as many blocks as were exchanged a rise must be.
	certainRise = 4
	// pureRise is how many times as many as were freed a rise must be that needs no such proof.
	pureRise = 2
)

// byChance says whether a rise from a window on, or the later half of it, is what entries that come and go rise by now and then.
func (s *series) byChance(base int) bool {
	if s.gone == nil {
		return false
	}
	s.gone.advance(s.step)
	left := survivors(s.windows)
	end := len(left) - 1
	from := min(base, end)
	return s.isChance(left, from) || s.isChance(left, (from+end)/2)
}

// isChance says that of the survivors from a window on. Where n entries were freed and n others allocated, the difference has a standard
// deviation of the root of 2n, if they come and go by themselves.
func (s *series) isChance(left []floor, from int) bool {
	end := len(left) - 1
	return isChance(float64(left[end].blocks-left[from].blocks), float64(s.gone.grew(from, end)))
}

// isChance says that of a rise while a number of blocks were freed.
func isChance(rise, freed float64) bool {
	return rise < pureRise*freed && rise*rise < certainRise*certainRise*2*freed
}

// grew is by how much a count rose between two windows. It has none before it begins.
func (s *series) grew(from, to int) int64 {
	if to >= len(s.windows) {
		return 0
	}
	return s.windows[to].blocks - s.windows[from].blocks
}

// stackKey is all size classes of a stack.
type stackKey struct {
	place place
	stack event.StackID
}

// stackRise is the windows of a stack: of all its size classes, and of those that rise.
type stackRise struct {
	whole, risen []floor
	base         int // window before the rise
}

// withoutExchange is what rises, without the sites in whose place blocks of the same stack and of other size classes were freed.
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

// plusWindows adds windows of series that were advanced to the same step.
func plusWindows(sum, windows []floor) []floor {
	if len(windows) == 0 { // nothing of it outlived a step
		return sum
	}
	if sum == nil {
		sum = make([]floor, len(windows))
	}
	for i := range min(len(sum), len(windows)) {
		sum[i] = sum[i].plus(windows[i])
	}
	return sum
}

// goesOn says whether the stack as a whole rises with its size classes.
func (r *stackRise) goesOn() bool {
	whole, part := survivors(r.whole), survivors(r.risen)
	end := len(part) - 1
	from := min(r.base, end)
	return float64(whole[end].blocks-whole[from].blocks) >= exchangeShare*float64(part[end].blocks-part[from].blocks)
}
