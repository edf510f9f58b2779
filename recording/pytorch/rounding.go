// SPDX-License-Identifier: Apache-2.0

package pytorch

import "math/bits"

// Sizes of PyTorch's caching allocator (c10/cuda/CUDACachingAllocator.cpp, c10/core/AllocatorConfig.h).
const (
	minBlock    = 512     // kMinBlockSize: all sizes are rounded to it
	smallSize   = 1 << 20 // kSmallSize: maximum size from the small pool, and minimum rest when splitting in the large pool
	firstPower  = 20      // roundup_power2_divisions begin at 1 MiB
	lastDivisor = 15      // the last one applies to all larger sizes
)

// round returns the minimum size of a block for a request, bytes: CUDACachingAllocator's round_size.
func (s *settings) round(request uint64) uint64 {
	if request < minBlock {
		return minBlock
	}
	power := bits.Len64(request) - 1
	n := s.divisions[min(max(power-firstPower, 0), lastDivisor)]
	if n > 1 && request > minBlock*n {
		return roundDivision(request, n)
	}
	return (request + minBlock - 1) / minBlock * minBlock
}

// roundDivision rounds up to one of n equal steps between two powers of two: roundup_power2_next_division.
func roundDivision(size, n uint64) uint64 {
	floor := uint64(1) << (bits.Len64(size) - 1)
	step := floor >> (bits.Len64(n) - 1)
	switch {
	case size == floor:
		return size
	case step == 0:
		return floor << 1
	}
	return (size + step - 1) / step * step
}

// splits reports whether a block with this number of bytes always ends at its size, because the rest of the free block
// is split off, however small.
func (s *settings) splits(rounded uint64) bool { return rounded <= smallSize || s.expandable }

// whole returns the size of the block that is taken from a free one of the large pool: CUDACachingAllocator's should_split.
func (s *settings) whole(rounded, free uint64) uint64 {
	if free < rounded || free-rounded > smallSize && (s.maxSplit == 0 || rounded < s.maxSplit) {
		return rounded
	}
	return free
}
