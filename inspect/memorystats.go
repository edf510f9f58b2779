// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"
)

// Counter is one statistic of the allocator in one pool. Each value may be Unknown.
type Counter struct {
	Current, Peak    uint64
	Allocated, Freed uint64 // all increases and decreases; the program can set them and Peak back
}

// PoolCounter is a statistic by pool.
type PoolCounter struct {
	All, Small, Large Counter
}

// MemoryStats is what the allocator counts of one device: torch.cuda.memory_stats.
type MemoryStats struct {
	Device int // as the program numbers it
	// By PyTorch's order: allocation, segment, active, inactive_split, then the bytes of allocated, reserved, active, inactive_split,
	// requested.
	Stats [statCount]PoolCounter
	// Retries and OOMs are num_alloc_retries and num_ooms; Unknown before PyTorch 2.0.
	Retries, OOMs                         uint64
	OversizeAllocations, OversizeSegments Counter // likewise
}

// The simple counters lie behind the statistics in every version from 2.0 on (struct DeviceStats, from num_alloc_retries to
// oversize_segments).
const tailSize = 2*8 + 2*counterSize

// maxEvents is more than any counter of failures has.
const maxEvents = 1 << 40

// statsTries is how often the counters are read until nothing changed meanwhile.
const statsTries = 1000

// MemoryStats reads all statistics of all devices that the program can use, each device in one moment. Errors are those of Totals, and
// ErrChanged.
func (a *Allocator) MemoryStats(ctx context.Context) ([]MemoryStats, error) {
	devices, err := a.devices(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]MemoryStats, 0, len(devices))
	for i, d := range devices {
		m, err := a.memoryStats(ctx, d, i)
		if err != nil {
			return nil, fmt.Errorf("read the statistics of device %d: %w", i, err)
		}
		out = append(out, m)
	}
	return out, nil
}

func (a *Allocator) memoryStats(ctx context.Context, d device, number int) (MemoryStats, error) {
	for range statsTries {
		before, err := a.stats(ctx, d)
		if err != nil {
			return MemoryStats{}, err
		}
		again, size, err := readSizedStats(a.memory, d.stats)
		if err != nil {
			return MemoryStats{}, err
		}
		tail := make([]byte, tailSize)
		if _, err := a.memory.ReadAt(tail, d.stats+size); err != nil {
			return MemoryStats{}, err
		}
		if after, err := readStats(a.memory, d.stats); err == nil && *before == *again && *again == *after {
			return before.memoryStats(number, tail), nil
		}
		time.Sleep(pollPause)
	}
	return MemoryStats{}, ErrChanged
}

// memoryStats is the statistics with the counters behind them, as far as these are some.
func (s *stats) memoryStats(number int, tail []byte) MemoryStats {
	out := MemoryStats{Device: number, Retries: Unknown, OOMs: Unknown, OversizeAllocations: unknownCounter, OversizeSegments: unknownCounter}
	for stat := range statCount {
		for pool, c := range []*Counter{&out.Stats[stat].All, &out.Stats[stat].Small, &out.Stats[stat].Large} {
			*c = counterOf(s[stat*statSize+pool*counterSize:])
		}
	}
	requested := &out.Stats[statRequestedBytes]
	if s.checkCounter(statRequestedBytes) != nil || requested.All.Current > out.Stats[statAllocatedBytes].All.Current ||
		requested.All.Current == 0 && out.Stats[statAllocatedBytes].All.Current > 0 {
		*requested = PoolCounter{unknownCounter, unknownCounter, unknownCounter}
		return out
	}
	retries, ooms := binary.LittleEndian.Uint64(tail), binary.LittleEndian.Uint64(tail[8:])
	allocations, segments := counterOf(tail[16:]), counterOf(tail[16+counterSize:])
	if retries < maxEvents && ooms < maxEvents && allocations.plausible() && segments.plausible() {
		out.Retries, out.OOMs, out.OversizeAllocations, out.OversizeSegments = retries, ooms, allocations, segments
	}
	return out
}

var unknownCounter = Counter{Unknown, Unknown, Unknown, Unknown}

func counterOf(b []byte) Counter {
	word := func(n int) uint64 { return binary.LittleEndian.Uint64(b[8*n:]) }
	return Counter{word(0), word(1), word(2), word(3)}
}

// plausible reports whether it can be a count of requests.
func (c *Counter) plausible() bool {
	return c.Current <= c.Peak && c.Peak < maxEvents && c.Allocated < maxEvents && c.Freed < maxEvents
}
