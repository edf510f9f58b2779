// SPDX-License-Identifier: Apache-2.0

// Package heap replays events into the exact live set: what is allocated now, by which stacks, and whether that agrees with
// the allocator's own totals and, where it can be read, with the allocator state, block for block. Torch blocks and driver
// memory are separate, and a segment of the caching allocator is never counted in addition to the blocks in it.
package heap

import (
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap/internal/blocks"
)

// Limits of plausible events, and of what is kept. Events beyond them are counted as ignored.
const (
	maxSites         = 1 << 20 // further stacks of a layer are counted on its stack 0
	maxCalls         = 1 << 12 // function names; the hook table has well under a thousand
	maxGaps          = 1000
	maxLossIntervals = 1000
	// maxUndo is how many frees can be undone, over all threads. A thread has one free in flight, so this is also the number
	// of threads that can be inside one at once.
	maxUndo = 4096
)

// Heap is the live set of all processes and devices whose events it was given. Not safe for concurrent use.
type Heap struct {
	accounts          map[accountKey]*account
	processes         map[uint32]*process
	drivers           map[driverKey]*DriverAccount
	driverPeaks       map[driverKey]*peakState
	sites             sites
	blocks            blocks.Table
	gaps              gapLog
	lossIntervals     []LossInterval
	lossIntervalCount uint64
	undo              undoLog
	follower          Follower // nil: none
	scratch           Block    // the argument of the follower's methods: allocating one a call would be most of the cost

	lastKey accountKey // of the previous torch event: most runs have one process and one device
	last    *account

	prefetched uint64         // the sum of what prefetch read, so that the reads are not optimized away
	lastDriver *DriverAccount // of the previous driver event

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

// Apply applies one event. Events of a process must come in the order in which they happened. The event is not kept.
//
// On the driver's layers memory is identified by process, layer, object and address or handle. What each kind does:
//
//   - KindAlloc adds the memory. Where the driver returns the same memory again (shared memory, contexts, an import of a
//     handle that is known here) it adds one more reference.
//   - KindFree removes it, or one of its references. A free by address or handle is looked for in the device, host, shared
//     and virtual layers: one function frees all of them.
//   - KindRetain, KindMap, KindUnmap: physical memory is live as long as it has a reference or a mapping, and is counted once.
//   - KindReset removes everything that was allocated in the context, or on the device, except physical memory; see
//     DriverAccount.Doubtful for what may not be in it.
//   - KindFreeFailed undoes the same thread's last free of that address or handle, whatever happened in between.
//   - KindMark changes nothing.
func (h *Heap) Apply(e *event.Event) {
	if h.events == 0 {
		h.first = e.Time
	}
	h.events++
	h.now = max(h.now, e.Time)
	switch {
	case e.Kind == event.KindMark:
	case !plausible(e):
		h.ignored++
	case e.Layer == event.LayerTorch:
		h.applyTorch(e)
	default:
		h.applyDriver(e)
	}
}

// prefetchBatch is how many events are prefetched before they are applied.
const prefetchBatch = 16

// ApplyAll applies events in order. With many live blocks that is faster than Apply for each: the memory accesses of a batch of
// events overlap, where each Apply waits for its own.
func (h *Heap) ApplyAll(events []event.Event) { h.ApplyEach(events, nil) }

// ApplyEach is ApplyAll with a function that is called before each event is applied; nil: none.
func (h *Heap) ApplyEach(events []event.Event, before func(e *event.Event)) {
	for len(events) > 0 {
		next := events[:min(prefetchBatch, len(events))]
		h.prefetch(next)
		for i := range next {
			if before != nil {
				before(&next[i])
			}
			h.Apply(&next[i])
		}
		events = events[len(next):]
	}
}

// prefetch reads the index and the blocks of the events, so that they are in the processor's caches.
func (h *Heap) prefetch(events []event.Event) {
	a := h.last
	if a == nil || !a.live.Large() {
		return
	}
	var at [prefetchBatch]uint64
	for i := range events {
		at[i] = a.live.Slot(events[i].Addr)
	}
	for _, slot := range at[:len(events)] {
		if slot != 0 {
			h.prefetched += h.blocks.Read(slot)
		}
	}
}

// plausible rejects what no allocator can mean, so that sums cannot overflow and no block has address 0.
func plausible(e *event.Event) bool {
	if !blocks.PlausibleSize(e.Requested) || !blocks.PlausibleSize(e.Allocated) || !blocks.PlausibleSize(e.Reserved) {
		return false
	}
	addressed := e.Addr != 0 && e.Addr < 1<<63
	if e.Layer == event.LayerTorch {
		switch e.Kind {
		case event.KindAlloc, event.KindFree:
			return addressed && (e.Size < blocks.MaxBytes || e.Size == event.Unknown && e.Kind == event.KindFree && !e.Device.Allocator().Totals())
		}
		return e.Kind == event.KindOutOfMemory // a request that was refused can have any size
	}
	if e.Layer > event.LayerHolder || e.Layer == 0 || e.Object > event.ObjectExternal {
		return false
	}
	switch e.Kind {
	case event.KindAlloc, event.KindUnmap:
		return addressed && blocks.PlausibleSize(e.Size)
	case event.KindMap:
		return addressed && e.Size > 0 && e.Size < blocks.MaxBytes
	case event.KindFree:
		return addressed || e.Addr == 0 && e.Object == event.ObjectContext // the primary context is released by device
	case event.KindRetain:
		return addressed
	case event.KindFreeFailed, event.KindReset, event.KindTrim:
		return addressed || e.Addr == 0
	}
	return e.Kind == event.KindOutOfMemory
}

// gapLog keeps the last gaps in a ring.
type gapLog struct {
	ring  []Gap
	total uint64
}

func (l *gapLog) add(g Gap) {
	if len(l.ring) < maxGaps {
		l.ring = append(l.ring, g)
	} else {
		l.ring[l.total%maxGaps] = g
	}
	l.total++
}

// list returns the kept gaps, oldest first.
func (l *gapLog) list() []Gap {
	out := make([]Gap, 0, len(l.ring))
	for i := range l.ring {
		out = append(out, l.ring[(l.total+uint64(i))%uint64(len(l.ring))])
	}
	return out
}
