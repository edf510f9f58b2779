// SPDX-License-Identifier: Apache-2.0

package pytorch

import (
	"cmp"
	"slices"
)

// history is the history of one device: its entries, and what they omit. An entry has the requested size, not the
// block's, and there are no entries for earlier allocations. Both are reconstructed from the allocator's rules, and
// from the blocks at the end, whose sizes are known.
type history struct {
	settings *settings
	entries  []entry
	sizes    []uint64 // block sizes for the entries, bytes
	before   []before // earlier blocks
	segments []segmentBefore
	mapped   ranges // memory of expandable segments mapped before

	allocated, reserved uint64 // totals before, bytes
	contradictions      int    // number of entries that contradict earlier ones
	odd                 int    // number of blocks at the end whose sizes differ from the allocator's rules
	uncertain           int    // number of earlier blocks whose assumed size is a lower bound

	births   []int          // for each entry, the entry that allocated its block, or ^index of before; unallocated
	now      map[uint64]int // current or last block at an address, as in births
	phases   map[uint64]phase
	occupied places // blocks of the large pool
	held     places // segments that are not expandable
}

// unallocated marks an entry without a block.
const unallocated = int(^uint(0) >> 1)

type phase uint8

const (
	phaseLive phase = iota + 1
	phasePending
	phaseFreed
)

// before is a block from before the first entry.
type before struct {
	block
	stream uint64
	exact  bool // its size is known
	known  bool // known from the state at the end
}

// segmentBefore is a segment from before the first entry that is not expandable.
type segmentBefore struct {
	addr, size, stream uint64
	stack              uint32
}

// newHistory returns the history of a device from its entries and its segments at the end.
func newHistory(entries []entry, segments []segment, s *settings) *history {
	h := &history{
		settings: s, entries: entries, sizes: make([]uint64, len(entries)), births: make([]int, len(entries)),
		now: map[uint64]int{}, phases: map[uint64]phase{},
	}
	h.follow()
	h.end(segments)
	h.segmentsBefore(segments)
	h.settleBefore()
	h.replay()
	for i := range h.before {
		if b := &h.before[i]; b.allocated {
			h.allocated += b.size
		}
		if !h.before[i].exact {
			h.uncertain++
		}
	}
	h.now, h.phases, h.births, h.occupied, h.held = nil, nil, nil, nil, nil
	return h
}

// follow finds which entries are about one block, and which blocks must have existed before.
func (h *history) follow() {
	for i := range h.entries {
		e := &h.entries[i]
		p := h.phases[e.addr]
		h.births[i] = unallocated
		switch e.action {
		case actionAlloc:
			h.check(p != phaseLive && p != phasePending)
			h.now[e.addr], h.births[i], h.phases[e.addr] = i, i, phaseLive
			h.sizes[i] = e.block
		case actionFreeRequested, actionFreeCompleted:
			requested := e.action == actionFreeRequested
			if p == 0 {
				h.now[e.addr] = ^len(h.before)
				h.before = append(h.before, h.given(e, requested))
			} else {
				h.check(p == phaseLive && requested || p == phasePending && !requested)
			}
			h.births[i] = h.now[e.addr]
			if h.phases[e.addr] = phaseFreed; requested {
				h.phases[e.addr] = phasePending
			}
		}
	}
}

// given returns an earlier block that an entry frees.
func (h *history) given(e *entry, allocated bool) before {
	size := h.settings.round(e.size)
	b := before{
		block:  block{addr: e.addr, size: size, requested: e.size, allocated: allocated, active: true},
		stream: e.stream, exact: h.settings.splits(size),
	}
	if e.block != 0 {
		b.size, b.exact = e.block, true
	}
	return b
}

func (h *history) check(ok bool) {
	if !ok {
		h.contradictions++
	}
}

// end adds the information from the blocks at the end.
func (h *history) end(segments []segment) {
	for i := range segments {
		s := &segments[i]
		for j := range s.blocks {
			b := &s.blocks[j]
			if !b.active {
				continue
			}
			p := h.phases[b.addr]
			if p == 0 {
				h.before = append(h.before, before{*b, s.stream, true, true})
				continue
			}
			ok := p == phaseLive && b.allocated || p == phasePending && !b.allocated
			h.check(ok)
			if n := h.now[b.addr]; ok && n >= 0 {
				h.sizes[n] = b.size
				h.compare(&h.entries[n], b.size)
			} else if ok {
				old := &h.before[^n]
				old.size, old.stack, old.exact, old.known = b.size, b.stack, true, true
			}
		}
	}
}

// compare counts a block if the rules do not lead to its known size.
func (h *history) compare(e *entry, size uint64) {
	rounded := h.settings.round(e.size)
	switch more := size - rounded; {
	case e.block != 0 || size == rounded:
	case size < rounded, h.settings.splits(rounded), more > smallSize && (h.settings.maxSplit == 0 || rounded < h.settings.maxSplit):
		h.odd++
	}
}

// segmentsBefore finds the earlier segments, from the segments at the end and the entries.
func (h *history) segmentsBefore(segments []segment) {
	seen := map[uint64]bool{}
	for i := range h.entries {
		e := &h.entries[i]
		if e.action != actionSegmentAlloc && e.action != actionSegmentFree {
			continue
		}
		if e.action == actionSegmentFree && !seen[e.addr] {
			h.segments = append(h.segments, segmentBefore{e.addr, e.size, e.stream, 0})
		}
		seen[e.addr] = true
	}
	for i := range segments {
		switch s := &segments[i]; {
		case s.expandable:
			h.mapped.add(s.addr, s.addr+s.size)
		case !seen[s.addr]:
			h.segments = append(h.segments, segmentBefore{s.addr, s.size, s.stream, s.stack})
		}
	}
	for i := len(h.entries) - 1; i >= 0; i-- {
		switch e := &h.entries[i]; e.action {
		case actionSegmentMap:
			h.mapped.remove(e.addr, e.addr+e.size)
		case actionSegmentUnmap:
			h.mapped.add(e.addr, e.addr+e.size)
		}
	}
	slices.SortFunc(h.segments, func(x, y segmentBefore) int { return cmp.Compare(x.addr, y.addr) })
	for i := range h.segments {
		s := &h.segments[i]
		h.reserved += s.size
		h.held.put(place{span{s.addr, s.addr + s.size}, i})
	}
	for _, m := range h.mapped {
		h.reserved += m.end - m.start
	}
}

// settleBefore finds the sizes of the earlier blocks that were freed. Free blocks of the large pool are larger than
// smallSize, so a smaller gap between two blocks belongs to the first one.
func (h *history) settleBefore() {
	order := h.apart()
	for n, i := range order {
		b := &h.before[i]
		next := ^uint64(0)
		if n+1 < len(order) {
			next = h.before[order[n+1]].addr
		}
		s, ok := h.held.holding(b.addr)
		if ok {
			next = min(next, s.end)
		}
		switch end := b.addr + b.size; {
		case end > next && !b.known:
			h.contradictions++
			b.size, b.exact = next-b.addr, true
		case b.exact:
		case ok && next-end <= smallSize:
			b.size, b.exact = next-b.addr, true
		}
		if !h.settings.splits(b.size) {
			h.occupied.put(place{span{b.addr, b.addr + b.size}, ^i})
		}
	}
}

// apart returns the earlier blocks by address, without those that cannot have existed together with the blocks at the end.
func (h *history) apart() []int {
	order := make([]int, len(h.before))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(x, y int) int { return cmp.Compare(h.before[x].addr, h.before[y].addr) })
	end := uint64(0)
	return slices.DeleteFunc(order, func(i int) bool {
		b := &h.before[i]
		if b.known {
			end = b.addr + b.size
			return false
		}
		if b.addr < end {
			h.contradictions++
			b.allocated = false
			return true
		}
		return false
	})
}

// replay follows the allocator's rules to find the block size for each entry.
func (h *history) replay() {
	for i := range h.entries {
		switch e := &h.entries[i]; e.action {
		case actionAlloc:
			h.alloc(i)
		case actionFreeCompleted:
			h.occupied.drop(e.addr)
		case actionSegmentAlloc:
			h.held.put(place{span{e.addr, e.addr + e.size}, i})
		case actionSegmentFree:
			h.held.drop(e.addr)
		}
	}
	for i := range h.entries {
		switch n := h.births[i]; {
		case h.entries[i].action != actionFreeRequested:
		case n == unallocated:
			h.sizes[i] = h.settings.round(h.entries[i].size)
		case n >= 0:
			h.sizes[i] = h.sizes[n]
		default:
			h.sizes[i] = h.before[^n].size
		}
	}
}

// alloc finds the size of a block that is not known from the end: a block is taken from the front of a free one.
func (h *history) alloc(i int) {
	e := &h.entries[i]
	rounded := h.settings.round(e.size)
	if h.settings.splits(rounded) {
		if h.sizes[i] == 0 {
			h.sizes[i] = rounded
		}
		return
	}
	at, _ := h.occupied.at(e.addr)
	if at > 0 {
		h.learn(h.occupied[at-1], e.addr)
	}
	if h.sizes[i] == 0 {
		next := e.addr + rounded
		if s, ok := h.held.holding(e.addr); ok {
			next = s.end
			if at < len(h.occupied) {
				next = min(next, h.occupied[at].start)
			}
		}
		h.sizes[i] = h.settings.whole(rounded, next-e.addr)
	}
	h.occupied.put(place{span{e.addr, e.addr + h.sizes[i]}, i})
}

// learn corrects the unknown size of the previous block when a block begins: the previous one extends up to it if the
// gap is smaller than any free block.
func (h *history) learn(p place, next uint64) {
	if p.owner >= 0 || h.before[^p.owner].exact {
		return
	}
	if b := &h.before[^p.owner]; next >= b.addr+b.size && next-b.addr-b.size <= smallSize {
		b.size, b.exact = next-b.addr, true
	}
}
