// SPDX-License-Identifier: Apache-2.0

package view

import "github.com/gputrace/gputrace/event"

// Reported follows what PyTorch's caching allocators report as allocated, also of what was there before the attach. The zero value has seen
// no event.
type Reported struct {
	totals map[allocator]*total // as reported last
	key    allocator            // of the event before, which most often is that of the next, too
	last   *total               // its total; nil: there was no event
	sum    total
}

// total is what an allocator has allocated and reserved, bytes.
type total struct{ allocated, reserved uint64 }

// allocator is one caching allocator.
type allocator struct {
	pid    uint32
	device event.Device
}

// See takes the next event and returns by how many bytes the sum of all allocators changes with it. ok is false for
// one that says nothing of that: it is of another layer, or neither an allocation nor a free.
func (a *Reported) See(e *event.Event) (by int64, ok bool) {
	if e.Layer != event.LayerAllocator || e.Allocated == event.Unknown || e.Kind != event.KindAlloc && e.Kind != event.KindFree {
		return 0, false
	}
	if k := (allocator{e.PID, e.Device}); a.last == nil || k != a.key {
		a.key, a.last = k, a.total(k)
	}
	by = int64(e.Allocated - a.last.allocated)
	a.last.allocated = e.Allocated
	a.sum.allocated += uint64(by)
	if e.Reserved != event.Unknown {
		a.sum.reserved += e.Reserved - a.last.reserved
		a.last.reserved = e.Reserved
	}
	return by, true
}

// total is that of one allocator, 0 before its first event.
func (a *Reported) total(k allocator) *total {
	if a.totals == nil {
		a.totals = map[allocator]*total{}
	}
	n := a.totals[k]
	if n == nil {
		n = new(total)
		a.totals[k] = n
	}
	return n
}

// Sum is what all allocators have allocated.
func (a *Reported) Sum() uint64 { return a.sum.allocated }

// Reserved is what all allocators have reserved, as far as events say it.
func (a *Reported) Reserved() uint64 { return a.sum.reserved }
