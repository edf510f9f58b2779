// SPDX-License-Identifier: Apache-2.0

package pytorch

import (
	"cmp"
	"slices"
)

// span is [start, end) of a device's addresses.
type span struct{ start, end uint64 }

// ranges are spans in the order of their addresses that do not overlap.
type ranges []span

// find returns the spans from:to that overlap [lo, hi) or, with touch, border on it.
func (r ranges) find(lo, hi uint64, touch uint64) (from, to int) {
	from, _ = slices.BinarySearchFunc(r, lo, func(s span, lo uint64) int {
		if s.end+touch <= lo {
			return -1
		}
		return 1
	})
	for to = from; to < len(r) && r[to].start < hi+touch; to++ {
	}
	return from, to
}

// add adds [lo, hi) and joins it with adjacent spans.
func (r *ranges) add(lo, hi uint64) {
	from, to := r.find(lo, hi, 1)
	if from < to {
		lo, hi = min(lo, (*r)[from].start), max(hi, (*r)[to-1].end)
	}
	*r = slices.Replace(*r, from, to, span{lo, hi})
}

// remove removes [lo, hi).
func (r *ranges) remove(lo, hi uint64) {
	from, to := r.find(lo, hi, 0)
	if from == to {
		return
	}
	var left []span
	if first := (*r)[from]; first.start < lo {
		left = append(left, span{first.start, lo})
	}
	if last := (*r)[to-1]; last.end > hi {
		left = append(left, span{hi, last.end})
	}
	*r = slices.Replace(*r, from, to, left...)
}

// place is a span that has an owner.
type place struct {
	span
	owner int
}

// places are spans in the order of their starts.
type places []place

func (p places) at(start uint64) (int, bool) {
	return slices.BinarySearchFunc(p, start, func(x place, start uint64) int { return cmp.Compare(x.start, start) })
}

// put adds a place, and replaces one with the same start.
func (p *places) put(x place) {
	i, ok := p.at(x.start)
	if ok {
		(*p)[i] = x
		return
	}
	*p = slices.Insert(*p, i, x)
}

func (p *places) drop(start uint64) {
	if i, ok := p.at(start); ok {
		*p = slices.Delete(*p, i, i+1)
	}
}

// holding returns the place that contains an address.
func (p places) holding(addr uint64) (place, bool) {
	i, ok := p.at(addr)
	if !ok {
		i--
	}
	if i < 0 || addr >= p[i].end {
		return place{}, false
	}
	return p[i], true
}
