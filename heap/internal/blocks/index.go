// SPDX-License-Identifier: Apache-2.0

package blocks

import (
	"iter"
	"math/bits"
	"math/rand/v2"
)

// Index finds the live blocks of one caching allocator in the table by address. When the blocks do not fit into the
// processor's caches, memory accesses dominate the cost of an event: Index needs one, a Go map several.
type Index struct {
	// slots has hash<<32 | number in the table + 1, or 0 when free. It is a hash table with linear probing: no slot
	// between a block's home and its slot is free. The number of slots is a power of two. The home is the top bits of
	// the hash, so growing preserves the order and reads no block.
	slots []uint64
	n     int
	seed  uint64 // the target chooses the addresses: without a seed it could make all of them collide
}

// NewIndex returns an empty index.
func NewIndex() Index { return Index{seed: rand.Uint64()} }

// minSlots is the smallest size of an index that is not empty.
const minSlots = 16

// hash maps an address to 32 bits by mixing the halves of a product, as wyhash does.
func (x *Index) hash(addr uint64) uint64 {
	hi, lo := bits.Mul64(addr^x.seed, 0x9e3779b97f4a7c15)
	return (hi ^ lo) >> 32
}

// home returns the slot where the search for a hash begins.
func (x *Index) home(hash uint64) int {
	return int(hash >> (33 - bits.Len(uint(len(x.slots)))))
}

// Find returns the number of the block at an address.
func (x *Index) Find(addr uint64, s *Table) (uint32, bool) {
	if x.n == 0 {
		return 0, false
	}
	hash, mask := x.hash(addr), len(x.slots)-1
	for at := x.home(hash); x.slots[at] != 0; at = (at + 1) & mask {
		if x.slots[at]>>32 == hash {
			if i := uint32(x.slots[at]) - 1; s.blocks[i].Addr == addr {
				return i, true
			}
		}
	}
	return 0, false
}

// Add adds a block at an address that has none.
func (x *Index) Add(addr uint64, i uint32) {
	if (x.n+1)*4 > len(x.slots)*3 {
		x.grow()
	}
	hash := x.hash(addr)
	x.place(hash, hash<<32|uint64(i+1))
	x.n++
}

func (x *Index) place(hash, slot uint64) {
	at, mask := x.home(hash), len(x.slots)-1
	for x.slots[at] != 0 {
		at = (at + 1) & mask
	}
	x.slots[at] = slot
}

func (x *Index) grow() {
	old := x.slots
	x.slots = make([]uint64, max(minSlots, 2*len(old)))
	for _, slot := range old {
		if slot != 0 {
			x.place(slot>>32, slot)
		}
	}
}

// Remove removes a block that is in the index, and moves later blocks nearer to their homes.
func (x *Index) Remove(addr uint64, i uint32) {
	at, mask := x.home(x.hash(addr)), len(x.slots)-1
	for uint32(x.slots[at]) != i+1 {
		at = (at + 1) & mask
	}
	for next := (at + 1) & mask; x.slots[next] != 0; next = (next + 1) & mask {
		if away := (next - x.home(x.slots[next]>>32)) & mask; away >= (next-at)&mask {
			x.slots[at] = x.slots[next]
			at = next
		}
	}
	x.slots[at] = 0
	x.n--
}

// All yields the numbers of the blocks, in no order.
func (x *Index) All() iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for _, slot := range x.slots {
			if slot != 0 && !yield(uint32(slot)-1) {
				return
			}
		}
	}
}

// Len returns the number of blocks in the index.
func (x *Index) Len() int { return x.n }

// prefetchMinSlots is the size below which an index stays in the processor's caches by itself.
const prefetchMinSlots = 1 << 14

// Large reports whether the index is large enough to prefetch.
func (x *Index) Large() bool { return len(x.slots) >= prefetchMinSlots }

// slot returns the slot where the search for an address begins; 0: free.
func (x *Index) slot(addr uint64) uint64 { return x.slots[x.home(x.hash(addr))] }
