// SPDX-License-Identifier: Apache-2.0

package pagemodel

import (
	"cmp"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/heap/values"
	"github.com/gputrace/gputrace/internal/sorts"
)

// Places is where the blocks of caching allocators lie at moments: a map of each segment can be drawn from it.
type Places struct {
	// Pinned: only the pinned moments have a map, because there were too many blocks.
	Pinned   bool
	Segments []PlacedSegment // by part, address and time
	Blocks   []PlacedBlock   // the same
	// Before is what is known of blocks from before the first event; PlacedBlock.Before is an index of it.
	Before []HeldBefore
}

// PlacedSegment is a segment that a caching allocator has at the moments Alloc <= moment < Free.
type PlacedSegment struct {
	Part        int
	Addr, Size  uint64 // bytes
	Expandable  bool   // it is a mapped part of one
	Alloc, Free uint16
}

// PlacedBlock is a block of a caching allocator that is in use at the moments Alloc <= moment < Free.
type PlacedBlock struct {
	Part        int
	Addr, Size  uint64 // bytes
	Requested   uint64 // bytes; event.Unknown
	Group       int32  // index in Model.Groups; -1: it is from before the first event
	Before      int32  // index in Places.Before, where Group is -1
	Alloc, Free uint16
}

// HeldBefore is what is known of blocks from before the first event. Holder is empty where that is not known.
type HeldBefore struct {
	Holder   string
	Category phases.Category
}

// placer notes where blocks lie while a trace is replayed. Only blocks that are in use at a moment are kept.
type placer struct {
	limit    int
	places   Places
	segments map[placedKey]openSegment
	live     map[heap.BlockKey]placedBefore // from before the first event
	index    map[HeldBefore]int32
}

type placedKey struct {
	part       int
	addr, size uint64
}

type openSegment struct {
	alloc, seen uint16 // seen: the last moment at which it was there
	expandable  bool
}

type placedBefore struct {
	part            int
	size, requested uint64
	held            int32
}

func newPlacer(limit int) *placer {
	return &placer{
		limit: limit, segments: map[placedKey]openSegment{}, live: map[heap.BlockKey]placedBefore{},
		index: map[HeldBefore]int32{},
	}
}

// sample compares the segments of a part with those of the moment before.
func (p *placer) sample(part, at int, segments []heap.Segment) {
	for i := range segments {
		s := &segments[i]
		key := placedKey{part, s.Addr, s.Size}
		o, ok := p.segments[key]
		if ok && int(o.seen) < at-1 { // it was returned meanwhile, and is there again
			p.close(key, o, int(o.seen)+1)
			ok = false
		}
		if !ok {
			o = openSegment{alloc: uint16(at), expandable: s.Mapped}
			if s.Stack == 0 && !s.Mapped { // it is from before the first event, and became known now
				o.alloc = 0
			}
		}
		o.seen = uint16(at)
		p.segments[key] = o
	}
}

func (p *placer) close(key placedKey, o openSegment, free int) {
	p.places.Segments = append(p.places.Segments, PlacedSegment{key.part, key.addr, key.size, o.expandable, o.alloc, uint16(free)})
}

// before notes a block from before the first event. It has been there from the first moment on.
func (p *placer) before(l *lifetimes, b *heap.Block) {
	held, ok := l.trace.Holder(b)
	if b.Size == event.Unknown {
		return
	}
	known := HeldBefore{Category: phases.NoCategory}
	if ok {
		known = HeldBefore{held.Holder, cmp.Or(held.Category, phases.NoCategory)}
	}
	i, ok := p.index[known]
	if !ok {
		i = int32(len(p.places.Before))
		p.index[known] = i
		p.places.Before = append(p.places.Before, known)
	}
	p.live[b.Key()] = placedBefore{l.parts[partKey{b.PID, b.Device}], b.Size, b.Requested, i}
}

// beforeFreed notes the end of such a block.
func (p *placer) beforeFreed(m *Model, b *heap.Block, at int) {
	if o, ok := p.live[b.Key()]; ok {
		delete(p.live, b.Key())
		p.add(m, PlacedBlock{o.part, b.Addr, o.size, o.requested, -1, o.held, 0, uint16(at)})
	}
}

// freed notes the end of a block with a group.
func (p *placer) freed(m *Model, b *heap.Block, o *openLifetime, at int) {
	if b.Layer == event.LayerAllocator && o.size != event.Unknown {
		p.add(m, PlacedBlock{m.Groups[o.group].Part, b.Addr, o.size, b.Requested, int32(o.group), 0, o.alloc, uint16(at)})
	}
}

// add adds a block, unless it was in use at no moment. Above the limit only what pinned moments need is kept.
func (p *placer) add(m *Model, b PlacedBlock) {
	if b.Alloc >= b.Free || p.places.Pinned && !atPinned(m, &b) {
		return
	}
	p.places.Blocks = append(p.places.Blocks, b)
	if len(p.places.Blocks) > p.limit && !p.places.Pinned {
		p.places.Pinned = true
		p.thin(m)
	}
}

func (p *placer) thin(m *Model) {
	out := p.places.Blocks[:0]
	for i := range p.places.Blocks {
		if atPinned(m, &p.places.Blocks[i]) {
			out = append(out, p.places.Blocks[i])
		}
	}
	p.places.Blocks = out
}

// atPinned says whether a block is in use at a moment that is never given up.
func atPinned(m *Model, b *PlacedBlock) bool {
	for i := int(b.Alloc); i < min(int(b.Free), len(m.Moments)); i++ {
		if m.Moments[i].Kind&pinned != 0 {
			return true
		}
	}
	return false
}

// coarsen renumbers the moments: to has the new number of each.
func (p *placer) coarsen(to []uint16) {
	blocks := p.places.Blocks[:0]
	for _, b := range p.places.Blocks {
		if b.Alloc, b.Free = to[b.Alloc], to[b.Free]; b.Alloc < b.Free {
			blocks = append(blocks, b)
		}
	}
	p.places.Blocks = blocks
	segments := p.places.Segments[:0]
	for _, s := range p.places.Segments {
		if s.Alloc, s.Free = to[s.Alloc], to[s.Free]; s.Alloc < s.Free {
			segments = append(segments, s)
		}
	}
	p.places.Segments = segments
	for key, o := range p.segments {
		next := to[o.seen+1] // the first moment at which it was not seen
		if o.alloc = to[o.alloc]; o.alloc >= next {
			delete(p.segments, key)
			continue
		}
		o.seen = next - 1
		p.segments[key] = o
	}
}

// finish closes what is open at the end, open has the blocks in use.
func (p *placer) finish(m *Model, open *values.PerBlock[openLifetime]) Places {
	end := len(m.Moments)
	for key, o := range p.segments {
		p.close(key, o, int(o.seen)+1)
	}
	for key, o := range p.live {
		p.add(m, PlacedBlock{o.part, key.Addr, o.size, o.requested, -1, o.held, 0, uint16(end)})
	}
	for o := range open.All() {
		if o.torch && o.size != event.Unknown {
			p.add(m, PlacedBlock{m.Groups[o.group].Part, o.addr, o.size, o.requested, int32(o.group), 0, o.alloc, uint16(end)})
		}
	}
	sorts.Func(p.places.Segments, func(x, y PlacedSegment) int {
		return cmp.Or(cmp.Compare(x.Part, y.Part), cmp.Compare(x.Addr, y.Addr), cmp.Compare(x.Alloc, y.Alloc), cmp.Compare(x.Size, y.Size),
			cmp.Compare(x.Free, y.Free))
	})
	sorts.Func(p.places.Blocks, func(x, y PlacedBlock) int {
		return cmp.Or(cmp.Compare(x.Part, y.Part), cmp.Compare(x.Addr, y.Addr), cmp.Compare(x.Alloc, y.Alloc), cmp.Compare(x.Free, y.Free),
			cmp.Compare(x.Size, y.Size), cmp.Compare(x.Group, y.Group), cmp.Compare(x.Before, y.Before))
	})
	return p.places
}
