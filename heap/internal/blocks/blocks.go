// SPDX-License-Identifier: Apache-2.0

// Package blocks stores the live blocks of caching allocators in a table without pointers and an index by address, so
// that millions of blocks cost the garbage collector nothing and an event at most two memory accesses.
package blocks

import "github.com/gputrace/gputrace/event"

// MaxBytes is larger than any possible size: an x86-64 process has at most 57 address bits (5-level paging).
const MaxBytes = 1 << 57

// PlausibleSize reports whether a size is possible or event.Unknown.
func PlausibleSize(v uint64) bool { return v < MaxBytes || v == event.Unknown }

// Block is one live block of a caching allocator.
type Block struct {
	Addr, Size uint64 // bytes
	Requested  uint64 // bytes; event.Unknown when not observed
	Stream     uint64 // raw handle; event.Unknown when not observed
	Time       uint64 // time of the allocation, CLOCK_BOOTTIME nanoseconds; 0: not known
	Site       uint32 // number of its site
}

// Table holds blocks by number. It has no pointers, so the garbage collector does not scan it.
type Table struct {
	blocks []Block
	free   []uint32
}

// Add adds a block and returns its number, reusing that of a dropped block if there is one.
func (s *Table) Add(b Block) uint32 {
	if n := len(s.free); n > 0 {
		i := s.free[n-1]
		s.free = s.free[:n-1]
		s.blocks[i] = b
		return i
	}
	s.blocks = append(s.blocks, b)
	return uint32(len(s.blocks) - 1)
}

// Drop releases a number.
func (s *Table) Drop(i uint32) { s.free = append(s.free, i) }

// At returns the block with a number. It is valid until the next Add.
func (s *Table) At(i uint32) *Block { return &s.blocks[i] }

// Used returns the number of blocks.
func (s *Table) Used() int { return len(s.blocks) - len(s.free) }

// Cap returns the largest number of blocks so far.
func (s *Table) Cap() int { return len(s.blocks) }

// PrefetchBatch is how many events are prefetched before they are applied.
const PrefetchBatch = 16

// Prefetch loads the index slots and the blocks of at most PrefetchBatch events into the processor's caches. It returns a
// meaningless value, so that the compiler keeps the reads.
func (s *Table) Prefetch(x *Index, events []event.Event) (read uint64) {
	if !x.Large() {
		return 0
	}
	var at [PrefetchBatch]uint64
	for i := range events {
		at[i] = x.slot(events[i].Addr)
	}
	for _, slot := range at[:len(events)] {
		if slot != 0 {
			read += s.blocks[uint32(slot)-1].Addr
		}
	}
	return read
}
