// SPDX-License-Identifier: Apache-2.0

package figures

import (
	"strings"

	"github.com/gputrace/gputrace/event"
)

// Counter is a statistic of PyTorch's caching allocator, as in torch.cuda.memory_stats(). Each figure may be Unknown.
type Counter struct {
	Current   Bytes `json:"current"`
	Peak      Bytes `json:"peak"`
	Allocated Bytes `json:"allocated"` // sum of all increases
	Freed     Bytes `json:"freed"`     // sum of all decreases
}

// UnknownCounter is a statistic whose figures are all unknown.
var UnknownCounter = Counter{Unknown, Unknown, Unknown, Unknown}

// PoolCounter is a statistic by pool.
type PoolCounter struct {
	All   Counter `json:"all"`
	Large Counter `json:"large_pool"`
	Small Counter `json:"small_pool"`
}

// Statistics of PyTorch's caching allocator, in the order in which it keeps them: numbers of blocks or segments, then bytes.
const (
	StatAllocation = iota
	StatSegment
	StatActive
	StatInactiveSplit
	StatAllocatedBytes
	StatReservedBytes
	StatActiveBytes
	StatInactiveSplitBytes
	StatRequestedBytes
	StatCount
)

// StatNames are the keys of the statistics in torch.cuda.memory_stats().
var StatNames = [StatCount]string{
	"allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes",
	"requested_bytes",
}

// MemoryStats are the statistics of one device.
type MemoryStats struct {
	Device              int                    `json:"device"` // as the program numbers it
	Type                event.DeviceType       `json:"-"`      // event.DeviceCPU: CUDA's
	Stats               [StatCount]PoolCounter `json:"stats"`
	Retries             Bytes                  `json:"num_alloc_retries"`
	OOMs                Bytes                  `json:"num_ooms"`
	OversizeAllocations Counter                `json:"oversize_allocations"`
	OversizeSegments    Counter                `json:"oversize_segments"`
}

// UnknownStats returns statistics of a device whose figures are all unknown.
func UnknownStats(device int) *MemoryStats {
	out := &MemoryStats{Device: device, Retries: Unknown, OOMs: Unknown, OversizeAllocations: UnknownCounter, OversizeSegments: UnknownCounter}
	for i := range out.Stats {
		out.Stats[i] = PoolCounter{UnknownCounter, UnknownCounter, UnknownCounter}
	}
	return out
}

// Empty reports whether no memory was ever allocated, according to the known figures.
func (s *MemoryStats) Empty() bool {
	a := &s.Stats[StatReservedBytes].All
	return (a.Current == 0 || a.Current == Unknown) && (a.Peak == 0 || a.Peak == Unknown)
}

// Stat is one figure and its key in torch.cuda.memory_stats().
type Stat struct {
	Key   string // "allocated_bytes.all.current"
	Value uint64
}

// Known lists the known figures by PyTorch's keys.
func (s *MemoryStats) Known() []Stat {
	var out []Stat
	add := func(value Bytes, key ...string) {
		if value != Unknown {
			out = append(out, Stat{strings.Join(key, "."), uint64(value)})
		}
	}
	counter := func(c *Counter, key string) {
		add(c.Current, key, "current")
		add(c.Peak, key, "peak")
		add(c.Allocated, key, "allocated")
		add(c.Freed, key, "freed")
	}
	for i, name := range StatNames {
		counter(&s.Stats[i].All, name+".all")
		counter(&s.Stats[i].Large, name+".large_pool")
		counter(&s.Stats[i].Small, name+".small_pool")
	}
	counter(&s.OversizeAllocations, "oversize_allocations")
	counter(&s.OversizeSegments, "oversize_segments")
	add(s.Retries, "num_alloc_retries")
	add(s.OOMs, "num_ooms")
	return out
}
