// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"cmp"
	"slices"
)

// block is a part of a segment.
type block struct {
	addr, size uint64
	stream     uint64
	pool       *pool
	prev, next *block // neighbours in the segment; nil: none
	held       bool
	unmapped   bool   // it is address space without memory, of an expandable segment
	space      *space // nil: the segment is not expandable
	since      uint64 // pool.searches when it became free
	order      uint64 // of its segment, where those of older ones come first; else 0
}

// space is the address space of an expandable segment.
type space struct{ base, size uint64 }

// whole reports whether a block is a segment.
func (b *block) whole() bool { return b.prev == nil && b.next == nil }

// age is how often the pool was searched since the block is free.
func (b *block) age() uint64 { return b.pool.searches - b.since }

// reach is the size that a block of an expandable segment can grow to.
func (b *block) reach() uint64 {
	if b.next != nil && b.next.unmapped {
		return b.size + b.next.size
	}
	return b.size
}

// pool is the free memory for requests of a range of sizes.
type pool struct {
	small    bool
	free     map[uint64][]*block // by stream; as compareFree
	unmapped map[uint64][]*block // by stream; by address
	searches uint64              // counted when garbage is collected
}

func newPool(small bool) *pool {
	return &pool{small: small, free: map[uint64][]*block{}, unmapped: map[uint64][]*block{}}
}

func compareFree(x, y *block) int {
	return cmp.Or(cmp.Compare(x.size, y.size), cmp.Compare(x.order, y.order), cmp.Compare(x.addr, y.addr))
}

func compareAddr(x, y *block) int { return cmp.Compare(x.addr, y.addr) }

// list is where a block that is not held is listed, and in which order.
func (p *pool) list(b *block) (map[uint64][]*block, func(x, y *block) int) {
	if b.unmapped {
		return p.unmapped, compareAddr
	}
	return p.free, compareFree
}

// add lists a block.
func (p *pool) add(b *block) {
	lists, compare := p.list(b)
	b.since = p.searches
	i, _ := slices.BinarySearchFunc(lists[b.stream], b, compare)
	lists[b.stream] = slices.Insert(lists[b.stream], i, b)
}

// remove takes a block off its list.
func (p *pool) remove(b *block) {
	lists, compare := p.list(b)
	if i, ok := slices.BinarySearchFunc(lists[b.stream], b, compare); ok {
		lists[b.stream] = slices.Delete(lists[b.stream], i, i+1)
	}
}

// atLeast is the place of the smallest free block of a size or above.
func (p *pool) atLeast(stream, size uint64) (list []*block, at int) {
	list = p.free[stream]
	at, _ = slices.BinarySearchFunc(list, size, func(b *block, n uint64) int { return cmp.Compare(b.size, n) })
	return list, at
}

// all lists the free blocks of all streams. The list is a copy: blocks may be removed meanwhile.
func (p *pool) all() []*block {
	var streams []uint64
	for stream := range p.free {
		streams = append(streams, stream)
	}
	slices.Sort(streams)
	var out []*block
	for _, stream := range streams {
		out = append(out, p.free[stream]...)
	}
	return out
}

// join adds a neighbour that is not held to a block, when both are mapped or both are not.
func (b *block) join(other *block) {
	if other == nil || other.held || other.unmapped != b.unmapped {
		return
	}
	b.pool.remove(other)
	if b.prev == other {
		b.addr, b.prev = other.addr, other.prev
		if b.prev != nil {
			b.prev.next = b
		}
	} else {
		b.next = other.next
		if b.next != nil {
			b.next.prev = b
		}
	}
	b.size += other.size
}

// cut leaves n bytes of a block, and returns the rest, which is behind it. Neither is listed.
func (b *block) cut(n uint64) *block {
	rest := &block{
		addr: b.addr + n, size: b.size - n, stream: b.stream, pool: b.pool, space: b.space, unmapped: b.unmapped, order: b.order, prev: b,
		next: b.next,
	}
	if rest.next != nil {
		rest.next.prev = rest
	}
	b.next, b.size = rest, n
	return rest
}
