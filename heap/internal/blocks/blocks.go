// SPDX-License-Identifier: Apache-2.0

// Package blocks keeps the live blocks of caching allocators, so that millions of them cost neither the garbage collector nor
// more than two memory accesses an event: a table without pointers, and an index of it by address.
package blocks

import "github.com/gputrace/gputrace/event"

// MaxBytes is more than any size can be: an x86-64 process has 57 address bits at most (5-level paging).
const MaxBytes = 1 << 57

// PlausibleSize reports whether a size is possible or event.Unknown.
func PlausibleSize(v uint64) bool { return v < MaxBytes || v == event.Unknown }

// Block is one live block of a caching allocator.
type Block struct {
	Addr, Size uint64 // bytes
	Requested  uint64 // bytes; event.Unknown when not observed
	Stream     uint64 // raw handle; event.Unknown when not observed
	Time       uint64 // of the allocation, CLOCK_BOOTTIME nanoseconds; 0: not known
	Site       uint32 // its number
}

// Table holds blocks by number, without pointers, so that the garbage collector does not scan them.
type Table struct {
	blocks []Block
	free   []uint32
}

// Add adds a block and returns its number: that of a dropped one where there is one.
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

// Drop frees a number.
func (s *Table) Drop(i uint32) { s.free = append(s.free, i) }

// At is the block of a number. It is valid until the next Add.
func (s *Table) At(i uint32) *Block { return &s.blocks[i] }

// Used is how many blocks there are.
func (s *Table) Used() int { return len(s.blocks) - len(s.free) }

// Cap is how many blocks there were at most at one time.
func (s *Table) Cap() int { return len(s.blocks) }

// Read reads the block of a slot of an index, so that it is in the processor's caches. What it returns means nothing: it is there
// so that the read is not optimized away.
func (s *Table) Read(slot uint64) uint64 { return s.blocks[uint32(slot)-1].Addr }
