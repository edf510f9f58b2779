// SPDX-License-Identifier: Apache-2.0

package memory

import "encoding/binary"

// Most objects of a large heap are numbers and text, which lead to nothing: a list of a million numbers is one object to follow
// and a million to skip. They are recognised while the memory is read anyway, by the address of their type, and noted in
// a bit each; the pages in which only they are need not be read again and kept.
//
//	address  ....10   count        An object begins at a multiple of 16 bytes, where malloc and Python's own
//	         ....18   its type     allocator put it; its type is in its second word, or 16 bytes further on
//	         ....20   digits       in builds without a GIL (Include/object.h).
const (
	leafShift  = 4  // bits of an address within an object's alignment
	chunkShift = 20 // bits of an address within what one chunk of bits covers
	chunkWords = 1 << (chunkShift - leafShift - 6)
	spanChunks = 1 << (spanShift - chunkShift)
)

// Leaves knows where objects of some types were when memory was read.
type Leaves struct {
	types     []uint64
	low, span uint64 // all types lie in between
	shift     uint64 // how much longer the head of an object is than two words, bytes
	chunks    []*[spanChunks]*[chunkWords]uint64
}

// NewLeaves looks for objects of these types. shift is how much longer the head of an object is than two words, a multiple of 16 bytes.
func NewLeaves(types []uint64, shift uint64) *Leaves {
	l := &Leaves{types: types, shift: shift, low: ^uint64(0), chunks: make([]*[spanChunks]*[chunkWords]uint64, topSpans)}
	high := uint64(0)
	for _, t := range types {
		l.low, high = min(l.low, t), max(high, t)
	}
	l.span = high - l.low
	return l
}

// Scan notes the objects of a page.
func (l *Leaves) Scan(addr uint64, page []byte) {
	var bits *[chunkWords]uint64
	for i := 8; i+8 <= len(page); i += 1 << leafShift {
		if w := binary.LittleEndian.Uint64(page[i:]); w-l.low > l.span || !l.leaf(w) {
			continue
		}
		if bits == nil {
			bits = l.chunk(addr)
		}
		at := (addr + uint64(i)) & (1<<chunkShift - 1) >> leafShift
		bits[at/64] |= 1 << (at % 64)
	}
}

func (l *Leaves) leaf(typ uint64) bool {
	for _, t := range l.types {
		if t == typ {
			return true
		}
	}
	return false
}

// chunk are the bits for an address, made if need be.
func (l *Leaves) chunk(addr uint64) *[chunkWords]uint64 {
	span := l.chunks[addr>>spanShift]
	if span == nil {
		span = new([spanChunks]*[chunkWords]uint64)
		l.chunks[addr>>spanShift] = span
	}
	c := &span[addr>>chunkShift&(spanChunks-1)]
	if *c == nil {
		*c = new([chunkWords]uint64)
	}
	return *c
}

// Has reports whether an object of these types was at an address.
func (l *Leaves) Has(addr uint64) bool {
	if addr += l.shift; addr&(1<<leafShift-1) != 0 || addr >= topSpans<<spanShift {
		return false
	}
	span := l.chunks[addr>>spanShift]
	if span == nil {
		return false
	}
	c := span[addr>>chunkShift&(spanChunks-1)]
	at := addr & (1<<chunkShift - 1) >> leafShift
	return c != nil && c[at/64]>>(at%64)&1 != 0
}
