// SPDX-License-Identifier: Apache-2.0

// Package summary has what PyTorch's caching allocator counts, by its own keys, of a recording: as far as the events tell it exactly.
package summary

import (
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
)

// Sizes of PyTorch's pools (c10/core/AllocatorConfig.h): requests of up to so many bytes are of the small pool, and so are segments.
const (
	smallRequest = 1 << 20
	smallSegment = 2 << 20
	blockSize    = 512 // requests are rounded up to a multiple
)

// device counts as the caching allocator of one device does.
type device struct {
	stats figures.MemoryStats
	// unsure: the requested size of a block was not recorded, so that its pool is not known; expandable: segments are mapped piece by
	// piece, which is counted otherwise.
	unsure, expandable bool
}

func newDevice(number int) *device {
	return &device{stats: figures.MemoryStats{Device: number}}
}

// each changes the sums of a pool and of all.
func each(p *figures.PoolCounter, small bool, change func(*figures.Counter)) {
	change(&p.All)
	if small {
		change(&p.Small)
	} else {
		change(&p.Large)
	}
}

func more(n uint64) func(*figures.Counter) {
	return func(c *figures.Counter) {
		c.Current += figures.Bytes(n)
		c.Allocated += figures.Bytes(n)
		c.Peak = max(c.Peak, c.Current)
	}
}

func less(n uint64) func(*figures.Counter) {
	return func(c *figures.Counter) {
		c.Current -= figures.Bytes(n)
		c.Freed += figures.Bytes(n)
	}
}

// block counts a block that is allocated or freed.
func (d *device) block(b *heap.Block, change func(uint64) func(*figures.Counter)) {
	requested := b.Requested
	if requested == event.Unknown {
		d.unsure, requested = true, b.Size
	}
	small := (requested+blockSize-1)/blockSize*blockSize <= smallRequest
	each(&d.stats.Stats[figures.StatAllocation], small, change(1))
	each(&d.stats.Stats[figures.StatAllocatedBytes], small, change(b.Size))
	each(&d.stats.Stats[figures.StatRequestedBytes], small, change(requested))
}

// segment counts a segment.
func (d *device) segment(b *heap.Block, change func(uint64) func(*figures.Counter)) {
	if b.Object != event.ObjectMemory {
		d.expandable = true
	}
	small := b.Size <= smallSegment
	each(&d.stats.Stats[figures.StatSegment], small, change(1))
	each(&d.stats.Stats[figures.StatReservedBytes], small, change(b.Size))
}

// known is what of the counters is certain, where the allocator's own totals at the end are those of an account. What was allocated
// before the first event, or lost, is in no sum and at no peak.
func (d *device) known(a *heap.Account) figures.MemoryStats {
	counted := &d.stats
	out := figures.UnknownStats(counted.Device)
	out.Type, counted.Type = a.Device.Type, a.Device.Type
	out.Stats[figures.StatAllocatedBytes].All.Current = figures.Bytes(a.Allocated)
	out.Stats[figures.StatReservedBytes].All.Current = figures.Bytes(a.Reserved)
	if a.Baseline != 0 || a.Gaps+a.LostFrees+a.UnknownFrees > 0 ||
		uint64(counted.Stats[figures.StatAllocatedBytes].All.Current) != a.Allocated {
		return *out
	}
	out.OOMs = figures.Bytes(a.OOMs)
	for _, stat := range []int{figures.StatAllocation, figures.StatAllocatedBytes, figures.StatRequestedBytes} {
		switch {
		case !d.unsure:
			out.Stats[stat] = counted.Stats[stat]
		case stat != figures.StatRequestedBytes:
			out.Stats[stat].All = counted.Stats[stat].All
		}
	}
	if !d.expandable && uint64(counted.Stats[figures.StatReservedBytes].All.Current) == a.Reserved {
		out.Stats[figures.StatSegment] = counted.Stats[figures.StatSegment]
		out.Stats[figures.StatReservedBytes] = counted.Stats[figures.StatReservedBytes]
	}
	return *out
}
