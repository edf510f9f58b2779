// SPDX-License-Identifier: Apache-2.0

// Package heap replays events into the live set: all memory that is allocated at one moment, by stack. It compares the live
// set with the allocator's own totals and, if the allocator state can be read, with each of its blocks. Torch blocks and
// driver memory are counted separately; a segment of the caching allocator is never counted on top of its blocks.
package heap

import (
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap/internal/blocks"
	"github.com/gputrace/gputrace/heap/internal/tally"
)

// Limits of plausible events, and of what the heap stores. Events beyond them are counted as ignored.
const (
	maxSites         = 1 << 20 // further stacks of a layer are counted on stack 0
	maxCalls         = 1 << 12 // function names; the hook table has far fewer than a thousand
	maxGaps          = 1000
	maxLossIntervals = 1000
	// maxUndo is the number of frees that can be undone, over all threads. A thread has at most one free in flight, so
	// maxUndo is also the number of threads that can be inside one at the same time.
	maxUndo = 4096
)

// Heap is the live set of all processes and devices whose events were applied. It is not safe for concurrent use.
type Heap struct {
	accounts          map[accountKey]*account
	processes         map[uint32]*process
	drivers           map[driverKey]*DriverAccount
	driverPeaks       map[driverKey]*peakState
	sites             sites
	blocks            blocks.Table
	gaps              tally.Ring[Gap]
	lossIntervals     []LossInterval
	lossIntervalCount uint64
	undo              undoLog
	follower          Follower // nil: none
	scratch           Block    // the argument of the follower's methods; allocating one per call would dominate the cost

	lastKey accountKey // account of the previous torch event: most runs have one process and one device
	last    *account

	prefetched uint64         // checksum of what prefetch read, so that the compiler keeps the reads
	lastDriver *DriverAccount // account of the previous driver event

	events, ignored, failures uint64
	first, now                uint64
}

// New returns an empty heap.
func New() *Heap {
	return &Heap{
		accounts:    map[accountKey]*account{},
		processes:   map[uint32]*process{},
		drivers:     map[driverKey]*DriverAccount{},
		driverPeaks: map[driverKey]*peakState{},
		sites:       newSites(),
	}
}

// Apply applies one event. Events of a process must be applied in the order in which they happened. Apply does not keep the event.
//
// The driver's layers identify memory by process, layer, object and address or handle. The kinds have these effects:
//
//   - KindAlloc adds the memory. Where the driver returns the same memory again (shared memory, contexts, an import of a
//     handle that is known here) it adds one more reference.
//   - KindFree removes it, or one of its references. A free by address or handle is looked for in the device, host, shared
//     and virtual layers: one function frees all of them.
//   - KindRetain, KindMap, KindUnmap: physical memory is live as long as it has a reference or a mapping, and is counted once.
//   - KindReset removes everything that was allocated in the context, or on the device, except physical memory; see
//     DriverAccount.Doubtful for what may not be in it.
//   - KindFreeFailed undoes the same thread's last free of that address or handle, whatever happened in between.
//   - KindMark and KindMemoryInfo change nothing.
func (h *Heap) Apply(e *event.Event) {
	if h.events == 0 {
		h.first = e.Time
	}
	h.events++
	h.now = max(h.now, e.Time)
	switch {
	case e.Kind == event.KindMark, e.Kind == event.KindMemoryInfo:
	case !blocks.Plausible(e):
		h.ignored++
	case e.Layer == event.LayerAllocator:
		h.applyTorch(e)
	default:
		h.applyDriver(e)
	}
}

// ApplyAll applies events in order. With many live blocks it is faster than calling Apply for each, because the memory
// accesses of a batch overlap.
func (h *Heap) ApplyAll(events []event.Event) { h.ApplyEach(events, nil) }

// ApplyEach is ApplyAll with a function that is called before each event is applied; nil: none.
func (h *Heap) ApplyEach(events []event.Event, before func(e *event.Event)) {
	for i := range events {
		if i%blocks.PrefetchBatch == 0 {
			h.prefetch(events[i:])
		}
		if before != nil {
			before(&events[i])
		}
		h.Apply(&events[i])
	}
}

// prefetch loads what the next events need into the processor's caches.
func (h *Heap) prefetch(events []event.Event) {
	if h.last != nil {
		h.prefetched += h.blocks.Prefetch(&h.last.live, events[:min(blocks.PrefetchBatch, len(events))])
	}
}
