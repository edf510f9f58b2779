// SPDX-License-Identifier: Apache-2.0

// Package whatif replays what a program asked of PyTorch's caching allocator under other settings of it, or on a smaller device: how much
// would be reserved at most, and which request would be the first to fail. The rules are PyTorch's; see docs/decisions/what-if.md.
package whatif

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// Sizes of the allocator's rules, bytes: kMinBlockSize, kSmallSize, kSmallBuffer, kMinLargeAlloc and kRoundLarge of
// c10/cuda/CUDACachingAllocator.cpp, PyTorch 1.8 to 2.8; c10/core/AllocatorConfig.h since.
const (
	minBlock    = 512
	smallSize   = 1 << 20
	smallBuffer = 2 << 20
	minLarge    = 10 << 20
	roundLarge  = 2 << 20
	largeBuffer = 20 << 20
)

// Settings are what decides where the allocator places a block, and when it gives up. The zero value is PyTorch's defaults on a device
// without an end.
type Settings struct {
	// Device is the memory of the device, bytes. 0: it never fails.
	Device uint64
	// Fraction is torch.cuda.set_per_process_memory_fraction, of Device. 0: none was set.
	Fraction float64
	// Expandable is expandable_segments:True.
	Expandable bool
	// MaxSplit is max_split_size_mb, bytes. 0: blocks of all sizes are split. It is at least 20 MiB.
	MaxSplit uint64
	// GC is garbage_collection_threshold, above 0 and below 1. 0: none. PyTorch heeds it only together with a fraction.
	GC float64
	// Divisions is roundup_power2_divisions of all sizes, a power of two. 0 and 1: sizes are rounded to 512 bytes only.
	Divisions uint64
}

// Conf is the settings as PYTORCH_CUDA_ALLOC_CONF has them; empty: PyTorch's defaults. Device and Fraction are not part of it.
func (s *Settings) Conf() string {
	var out []string
	if s.Expandable {
		out = append(out, "expandable_segments:True")
	}
	if s.MaxSplit > 0 {
		out = append(out, "max_split_size_mb:"+strconv.FormatUint(s.MaxSplit>>20, 10))
	}
	if s.GC > 0 {
		out = append(out, "garbage_collection_threshold:"+strconv.FormatFloat(s.GC, 'g', -1, 64))
	}
	if s.Divisions > 1 {
		out = append(out, "roundup_power2_divisions:"+strconv.FormatUint(s.Divisions, 10))
	}
	return strings.Join(out, ",")
}

// ParseConf reads settings as PYTORCH_CUDA_ALLOC_CONF has them. What does not decide where blocks are placed is
// passed over; an error is one of a value that cannot be replayed.
func ParseConf(text string) (Settings, error) {
	var out Settings
	for option := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(option), ":")
		var err error
		switch name {
		case "expandable_segments":
			out.Expandable = strings.EqualFold(value, "true")
		case "max_split_size_mb":
			out.MaxSplit, err = strconv.ParseUint(value, 10, 40)
			if out.MaxSplit <<= 20; err == nil && out.MaxSplit < largeBuffer {
				return Settings{}, fmt.Errorf("%s:%s: PyTorch wants 20 or more", name, value)
			}
		case "garbage_collection_threshold":
			out.GC, err = strconv.ParseFloat(value, 64)
		case "roundup_power2_divisions":
			out.Divisions, err = strconv.ParseUint(value, 10, 32)
		}
		if err != nil || out.GC < 0 || out.GC >= 1 || out.Divisions&(out.Divisions-1) != 0 {
			return Settings{}, fmt.Errorf("%s:%s: not a value that PyTorch takes", name, value)
		}
	}
	return out, nil
}

// round is the size of a block for a request (round_size of CUDACachingAllocator.cpp).
func (s *Settings) round(n uint64) uint64 {
	switch {
	case n < minBlock:
		return minBlock
	case s.Divisions > 1 && n > minBlock*s.Divisions:
		return roundUp(n, s.Divisions)
	}
	return up(n, minBlock)
}

// roundUp rounds up to the next of the steps into which the powers of two around a size are divided.
func roundUp(n, divisions uint64) uint64 {
	floor := uint64(1) << (bits.Len64(n) - 1)
	if floor == n {
		return n
	}
	step := floor >> (bits.Len64(divisions) - 1)
	if step == 0 {
		return floor << 1
	}
	return up(n, step)
}

// segment is how much the driver is asked for (get_allocation_size).
func segment(size uint64) uint64 {
	switch {
	case size <= smallSize:
		return smallBuffer
	case size < minLarge:
		return largeBuffer
	}
	return up(size, roundLarge)
}

// page is the unit in which expandable segments of a pool are mapped.
func page(small bool) uint64 {
	if small {
		return smallBuffer
	}
	return largeBuffer
}

func up(n, unit uint64) uint64 { return (n + unit - 1) / unit * unit }
