// SPDX-License-Identifier: Apache-2.0

package heap

import (
	"cmp"
	"maps"
	"slices"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap/internal/blocks"
	"github.com/gputrace/gputrace/heap/internal/ranges"
)

// inFlightFor is the longest time that a call that frees memory is assumed to take: cudaFree waits for the device. The
// driver's event is sent at its entry; the allocator state contains the segment until it returns. Nanoseconds.
const inFlightFor = 60e9

// segmentReconciliation compares the segments of an observation with those known from the driver's events.
type segmentReconciliation struct {
	*reconciliation
	process *process
	driver  *DriverAccount // nil: none yet
	seen    []event.ObservedSegment

	mark          []*object // segments in which no event showed a torch block
	add           []event.ObservedSegment
	retireObjects []*object    // no longer segments
	retirePieces  []pieceRange // likewise, ranges of pieces
}

// reconcileSegments adds and retires segments if the outcome is proved: if it adds up to the allocator's reserved bytes.
func (j *reconciliation) reconcileSegments() {
	p := j.heap.processes[j.observation.PID]
	if !j.observation.Device.Allocator().Totals() { // no event shows its segments: those that were read count until the next reading
		j.result.SegmentsProved = true
		p.regions.Replace(j.observation.Device, j.observation.Segments)
		if p.lastDriverEvent < j.observation.From {
			j.account.Reserved = j.observation.Reserved
		}
		return
	}
	if j.observation.Segments == nil && j.observation.Reserved == event.Unknown {
		return // the segments were not read
	}
	s := &segmentReconciliation{reconciliation: j, process: p,
		driver: j.heap.drivers[driverKey{p.pid, event.LayerDevice, j.observation.Device}]}
	total, ok := s.reserved()
	if !ok || !s.sort() {
		return
	}
	s.cover()
	s.retireUnseen()
	if s.sum() != total {
		return
	}
	s.commit(total)
}

// reserved returns the bytes that the segments must add up to.
func (s *segmentReconciliation) reserved() (uint64, bool) {
	a, o := s.account, s.observation
	quiet := s.process.lastDriverEvent < o.From
	switch {
	case quiet && o.Reserved != event.Unknown:
		return o.Reserved, true
	case a.lastEvent >= o.From && a.lastEvent > s.process.lastDriverEvent:
		return a.Reserved, a.Reserved != event.Unknown
	}
	return 0, false
}

// sort sorts the observed segments by address and rejects overlapping ones.
func (s *segmentReconciliation) sort() bool {
	s.seen = slices.Clone(s.observation.Segments)
	slices.SortFunc(s.seen, func(x, y event.ObservedSegment) int { return ranges.Compare(x.Addr, y.Addr) })
	end := uint64(1)
	for _, g := range s.seen {
		if g.Addr < end || g.Addr >= 1<<63 || g.Size == 0 || g.Size >= blocks.MaxBytes {
			return false
		}
		end = g.Addr + g.Size
	}
	return true
}

// known lists the device memory of the process by address: allocations, pieces, mappings whose memory is known, and segments without
// memory, which have no object.
func (s *segmentReconciliation) known() []span {
	var out []span
	for _, o := range s.process.spaces[spaceKey{event.LayerDevice, event.ObjectMemory}] {
		if o.size != event.Unknown {
			out = append(out, span{o.addr, o.addr + o.size, o})
		}
	}
	for _, o := range s.process.pieces {
		out = append(out, span{o.addr, o.addr + o.size, o})
	}
	for _, m := range s.process.mappings {
		if m.behind != nil {
			out = append(out, span{m.addr, m.addr + m.size, m.behind})
		}
	}
	for _, r := range s.process.asleep {
		out = append(out, span{r.Start, r.End, nil})
	}
	slices.SortFunc(out, func(x, y span) int { return ranges.Compare(x.start, y.start) })
	return out
}

// cover finds which parts of the observed segments are known memory. The others are to be added.
func (s *segmentReconciliation) cover() {
	known := s.known()
	marked := map[*object]bool{}
	for _, g := range s.seen {
		at, end := g.Addr, g.Addr+g.Size
		for len(known) > 0 && known[0].end <= at {
			known = known[1:]
		}
		for _, k := range known {
			if k.start >= end {
				break
			}
			if o := k.object; o != nil && !o.segment && s.heap.key(o).layer == event.LayerDevice && !marked[o] {
				marked[o] = true
				s.mark = append(s.mark, o)
			}
			s.uncovered(g, at, min(k.start, end))
			at = max(at, k.end)
		}
		s.uncovered(g, at, end)
	}
}

// uncovered adds [lo, hi) of an observed segment, unless it is empty or being freed.
func (s *segmentReconciliation) uncovered(g event.ObservedSegment, lo, hi uint64) {
	if lo >= hi {
		return
	}
	since := s.observation.From - min(s.observation.From, inFlightFor)
	for u := range s.heap.undo.latest {
		if u.process == s.process && u.time >= since && u.overlaps(lo, hi) {
			return
		}
	}
	s.add = append(s.add, event.ObservedSegment{Addr: lo, Size: hi - lo, Expandable: g.Expandable})
}

// overlaps reports whether the call freed something in [lo, hi).
func (u *undoRecord) overlaps(lo, hi uint64) bool {
	if o := u.object; o != nil && o.sort == event.ObjectMemory && o.size != event.Unknown && o.addr < hi && lo < o.addr+o.size {
		return true
	}
	return slices.ContainsFunc(u.mappings, func(m *mapping) bool { return m.addr < hi && lo < m.addr+m.size }) ||
		slices.ContainsFunc(u.ranges, func(c pieceRange) bool { return c.lo < hi && lo < c.hi }) ||
		u.unknown && lo <= u.addr && u.addr < hi || u.resetEffect != nil
}

// retireUnseen finds the segments that the observation lacks, although nothing happened to them in the meantime.
func (s *segmentReconciliation) retireUnseen() {
	p := s.process
	mapped := map[*object]bool{} // physical memory mapped into an observed segment
	for _, m := range p.mappings {
		if m.behind != nil && s.inSegment(m.addr, m.addr+m.size) {
			mapped[m.behind] = true
		}
	}
	unseen := func(o *object) bool {
		return o.segment && o.touched < s.observation.From && s.heap.key(o).device == s.observation.Device
	}
	for _, o := range p.inSpace(spaceKey{event.LayerDevice, event.ObjectMemory}) {
		if unseen(o) && (o.size == event.Unknown || !s.inSegment(o.addr, o.addr+o.size)) {
			s.retireObjects = append(s.retireObjects, o)
		}
	}
	for _, o := range p.inSpace(spaceKey{event.LayerDevice, event.ObjectPhysical}) {
		if unseen(o) && !mapped[o] {
			s.retireObjects = append(s.retireObjects, o)
		}
	}
	for _, o := range sortedObjects(maps.Keys(p.orphans)) {
		if unseen(o) && !mapped[o] {
			s.retireObjects = append(s.retireObjects, o)
		}
	}
	for _, o := range p.pieces {
		if unseen(o) {
			s.retireParts(o)
		}
	}
}

// inSegment reports whether [lo, hi) overlaps an observed segment.
func (s *segmentReconciliation) inSegment(lo, hi uint64) bool {
	from, to := ranges.Overlapping(s.seen, segmentBounds, lo, hi)
	return from != to
}

func segmentBounds(g event.ObservedSegment) (uint64, uint64) { return g.Addr, g.Addr + g.Size }

// retireParts finds the parts of a piece that the observation lacks.
func (s *segmentReconciliation) retireParts(o *object) {
	at, end := o.bounds()
	from, to := ranges.Overlapping(s.seen, segmentBounds, at, end)
	for _, g := range s.seen[from:to] {
		if at < g.Addr {
			s.retirePieces = append(s.retirePieces, pieceRange{o.segmentOf, at, g.Addr})
		}
		at = g.Addr + g.Size
	}
	if at < end {
		s.retirePieces = append(s.retirePieces, pieceRange{o.segmentOf, at, end})
	}
}

// sum returns what the segments will add up to, bytes.
func (s *segmentReconciliation) sum() uint64 {
	sum := uint64(0)
	if s.driver != nil {
		sum = s.driver.Segments.Bytes
	}
	for _, r := range s.process.asleep {
		if r.Device == s.observation.Device && s.inSegment(r.Start, r.End) {
			sum += r.End - r.Start
		}
	}
	for _, o := range s.mark {
		if o.size != event.Unknown {
			sum += o.size
		}
	}
	for _, g := range s.add {
		sum += g.Size
	}
	for _, o := range s.retireObjects {
		if o.size != event.Unknown {
			sum -= o.size
		}
	}
	for _, c := range s.retirePieces {
		sum -= c.hi - c.lo
	}
	return sum
}

func (s *segmentReconciliation) commit(total uint64) {
	h, p, a := s.heap, s.process, s.account
	s.result.SegmentsProved, s.result.SegmentsFirst = true, !p.segmentsObserved[a.Device]
	for _, c := range s.retirePieces {
		s.result.SegmentsRetired.Add(c.hi-c.lo, event.Unknown)
		h.retireLostPieces(p, c.lo, c.hi)
	}
	for _, o := range s.retireObjects {
		s.result.SegmentsRetired.Add(o.size, event.Unknown)
		h.retireLostMapped(p, o)
	}
	for _, o := range s.mark {
		h.markSegment(o, a.Device)
	}
	for _, g := range s.add {
		s.addSegment(g)
	}
	p.asleep = slices.DeleteFunc(p.asleep, func(r ranges.Range) bool { return r.Device == a.Device && !s.inSegment(r.Start, r.End) })
	p.segmentsObserved[a.Device] = true
	a.Reserved = total
	a.compareSegments()
}

// addSegment counts a segment that only the observation had. A segment from before the first event was also there at the peak.
func (s *segmentReconciliation) addSegment(g event.ObservedSegment) {
	h, a := s.heap, s.account
	s.result.SegmentsAdded.Add(g.Size, event.Unknown)
	if s.result.SegmentsFirst {
		d := h.driver(a.PID, event.LayerDevice, a.Device)
		d.Peak += g.Size
		d.PeakTime = cmp.Or(d.PeakTime, s.observation.From)
	}
	site := h.sites.find(siteKey{pid: a.PID, device: a.Device, layer: event.LayerDevice, segment: true,
		origin: origin(s.result.SegmentsFirst)})
	h.addPiece(s.process, &pieceSegment{site, g.Expandable}, g.Addr, g.Addr+g.Size)
}

// retireLostMapped retires memory and all its mappings, because the call that freed it was lost.
func (h *Heap) retireLostMapped(p *process, o *object) {
	for i := 0; o.maps > 0 && i < len(p.mappings); {
		if m := p.mappings[i]; m.behind == o {
			h.unmap(p, m.addr, m.addr+m.size, h.now)
			continue
		}
		i++
	}
	h.retireLost(p, o)
}
