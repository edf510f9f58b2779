// SPDX-License-Identifier: Apache-2.0

package heap

import (
	"slices"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap/internal/ranges"
)

// span is a range of device memory: an allocation, or one mapping of physical memory.
type span struct {
	start, end uint64
	object     *object
}

func compareSpan(s span, addr uint64) int { return ranges.Compare(s.start, addr) }

// addUnclaimed adds a range to the list of unclaimed memory, in which no torch block was seen.
func (p *process) addUnclaimed(s span) {
	at, _ := slices.BinarySearchFunc(p.unclaimed, s.start, compareSpan)
	p.unclaimed = slices.Insert(p.unclaimed, at, s)
}

// removeUnclaimed removes an object's range from that list, if present.
func (p *process) removeUnclaimed(start uint64, o *object) {
	at, _ := slices.BinarySearchFunc(p.unclaimed, start, compareSpan)
	for ; at < len(p.unclaimed) && p.unclaimed[at].start == start; at++ {
		if p.unclaimed[at].object == o {
			p.unclaimed = slices.Delete(p.unclaimed, at, at+1)
			return
		}
	}
}

// markSegments counts the device memory at [lo, hi), which contains a torch block, as segments of the caching
// allocator. A block can span several, because an expandable segment is mapped piece by piece.
func (h *Heap) markSegments(p *process, lo, hi uint64, device event.Device) {
	at, _ := slices.BinarySearchFunc(p.unclaimed, hi, compareSpan)
	from := at
	for from > 0 && p.unclaimed[from-1].end > lo {
		from--
		h.markSegment(p.unclaimed[from].object, device)
	}
	p.unclaimed = slices.Delete(p.unclaimed, from, at)
}

// markSegment counts an object as a segment on the device of its torch blocks, because the driver's call may lack the
// device or have another type for it.
func (h *Heap) markSegment(o *object, device event.Device) {
	if o.segment {
		return
	}
	key := *h.key(o)
	from := h.accountOf(o)
	from.remove(o, OriginEvent) // memory known from the allocator state is a segment from the beginning
	key.segment, key.device = true, device.Physical()
	o.segment = true
	o.touched = h.now
	to := h.driver(key.pid, key.layer, key.device)
	if to != from {
		from.Allocs--
		to.Allocs++
	}
	to.add(o, OriginEvent)
	if to.Live.Bytes > 0 && isPeak(to.Live.Bytes, h.now, to.Peak, to.PeakTime) {
		to.Peak, to.PeakTime = to.Live.Bytes, h.now
		h.setPeak(h.driverPeak(driverKey{to.PID, to.Layer, to.Device}))
	}
	site := h.sites.find(key)
	src, dst := h.siteForChange(o.site), h.siteForChange(site)
	src.Inuse.Remove(o.size, event.Unknown)
	dst.Inuse.Add(o.size, event.Unknown)
	src.Alloc.Remove(o.size, event.Unknown)
	dst.Alloc.Add(o.size, event.Unknown)
	if h.follower != nil && o.live {
		old := h.driverBlock(o)
		o.site = site
		b := h.driverBlock(o)
		h.follower.Moved(&old, &b)
	}
	o.site = site
}

// compareSegments records the sum of the segments at an event that also carries the allocator's own figure.
func (a *account) compareSegments() {
	bytes := a.segmentBytes()
	a.complete = a.complete || bytes == a.Reserved // the known segments are a subset, so equal sums mean that all are known
	if a.complete {
		a.SegmentBytes = bytes
	}
}

// followSegments updates Reserved between reports of the allocator, which frees segments silently (empty_cache, or to make room)
// and reports the rest with its next block. If the sum of the driver's events was equal to the allocator's figure, it still is.
func (a *account) followSegments() {
	if a.driver == nil || a.SegmentBytes != a.Reserved || a.Reserved == event.Unknown {
		return
	}
	a.SegmentBytes = a.segmentBytes()
	a.Reserved = a.SegmentBytes
}
