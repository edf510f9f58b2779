// SPDX-License-Identifier: Apache-2.0

package pytorch

import (
	"iter"
	"maps"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/allocator"
)

func mapKeys(m map[string]int) iter.Seq[string] { return maps.Keys(m) }

// advance adds the next events to the queue, or sets the annotations.
func (s *Source) advance() {
	s.queue = s.queue[:0]
	switch s.stage {
	case stageState:
		s.baselines()
		s.look(s.from-3, s.unnamed)
	case stageBefore:
		for d := range s.devices {
			s.namedSegments(d)
			s.namedBlocks(d)
		}
	case stageChecked:
		s.look(s.from-1, s.atBeginning)
	case stageEntries:
		if s.next < len(s.order) {
			n := s.order[s.next]
			s.next++
			s.follow(int(n.device), int(n.entry))
			return
		}
	case stageEnd:
		s.look(s.to+1, s.atEnd)
	}
	s.stage++
}

// baselines adds annotations for the totals before the history.
func (s *Source) baselines() {
	for d, h := range s.devices {
		m := event.Annotation{Kind: event.AnnotationBaseline, Device: s.cuda(d), Reserved: h.reserved}
		for i := range h.before {
			if b := &h.before[i]; b.allocated && b.stack == 0 {
				m.Allocated += b.size
			}
		}
		if len(h.entries)+len(h.before)+len(h.segments)+len(h.mapped) > 0 { // the device is used
			s.annotations = append(s.annotations, m)
		}
	}
}

// look adds the annotations of one reading of the allocator state.
func (s *Source) look(time uint64, totals func(device int) event.Observation) {
	s.annotations = append(s.annotations, event.Annotation{Kind: event.AnnotationWatch})
	for d := range s.devices {
		o := totals(d)
		o.Device, o.From, o.To = s.cuda(d), time, time
		for _, b := range o.Blocks {
			o.Allocated += b.Size
		}
		for _, g := range o.Segments {
			o.Reserved += g.Size
		}
		s.annotations = append(s.annotations, event.Annotation{Kind: event.AnnotationObserved, Observation: &o})
	}
	s.annotations = append(s.annotations, event.Annotation{Kind: event.AnnotationUnwatch})
}

// cuda returns the device of a number.
func (s *Source) cuda(device int) event.Device {
	d := event.Device{Type: event.DeviceCUDA, Index: int8(device)}
	if c := s.contents; c.allocator != allocator.Torch && device >= c.host {
		d = event.Device{Type: event.DeviceCPU, Index: int8(device - c.host)}
	}
	d.Type = d.Type.Of(s.contents.allocator)
	return d
}

// unnamed returns the blocks from before the history that have no stack.
func (s *Source) unnamed(device int) event.Observation {
	return s.before(device, func(stack uint32) bool { return stack == 0 })
}

// atBeginning returns all blocks from before the history.
func (s *Source) atBeginning(device int) event.Observation {
	return s.before(device, func(uint32) bool { return true })
}

func (s *Source) before(device int, want func(stack uint32) bool) event.Observation {
	h, o := s.devices[device], event.Observation{Segments: []event.ObservedSegment{}}
	for i := range h.before {
		if b := &h.before[i]; b.allocated && want(b.stack) {
			o.Blocks = append(o.Blocks, event.ObservedBlock{Addr: b.addr, Size: b.size, Requested: b.requested, Stream: b.stream})
		}
	}
	for i := range h.segments {
		if g := &h.segments[i]; want(g.stack) {
			o.Segments = append(o.Segments, event.ObservedSegment{Addr: g.addr, Size: g.size})
		}
	}
	for _, m := range h.mapped {
		o.Segments = append(o.Segments, event.ObservedSegment{Addr: m.start, Size: m.end - m.start, Expandable: true})
	}
	return o
}

// atEnd returns the snapshot's own state.
func (s *Source) atEnd(device int) event.Observation {
	o := event.Observation{Segments: []event.ObservedSegment{}}
	for _, g := range s.contents.of(device) {
		o.Segments = append(o.Segments, event.ObservedSegment{Addr: g.addr, Size: g.size, Expandable: g.expandable})
		for _, b := range g.blocks {
			if b.allocated {
				o.Blocks = append(o.Blocks, event.ObservedBlock{Addr: b.addr, Size: b.size, Requested: b.requested, Stream: g.stream})
			}
		}
	}
	return o
}

// namedSegments queues the segments from before the history whose stack is known.
func (s *Source) namedSegments(device int) {
	h := s.devices[device]
	s.totals[device].reserved = h.reserved
	for i := range h.segments {
		if g := &h.segments[i]; g.stack != 0 {
			e := s.event(device, event.KindAlloc, event.LayerDevice, s.from-2)
			e.Addr, e.Size, e.Stack, e.Call = g.addr, g.size, event.StackID(g.stack), callSegment
			s.queue = append(s.queue, e)
		}
	}
}

// namedBlocks queues the blocks from before the history whose stack is known.
func (s *Source) namedBlocks(device int) {
	h, t := s.devices[device], &s.totals[device]
	for i := range h.before {
		if b := &h.before[i]; b.allocated && b.stack == 0 {
			t.allocated += b.size
		}
	}
	for i := range h.before {
		if b := &h.before[i]; b.allocated && b.stack != 0 {
			t.allocated += b.size
			e := s.torch(device, event.KindAlloc, s.from-2)
			e.Addr, e.Size, e.Requested, e.Stream, e.Stack = b.addr, b.size, b.requested, b.stream, event.StackID(b.stack)
			s.queue = append(s.queue, e)
		}
	}
}

func (s *Source) event(device int, kind event.Kind, layer event.Layer, time uint64) event.Event {
	where := s.cuda(device)
	if layer == event.LayerDevice {
		where = where.Physical()
	}
	return event.Event{
		Time: time, Kind: kind, Layer: layer, Device: where, Size: event.Unknown, Handle: event.Unknown, Context: event.Unknown,
		Requested: event.Unknown, Stream: event.Unknown, Allocated: event.Unknown, Reserved: event.Unknown,
	}
}

// torch returns an event of the caching allocator, with its totals.
func (s *Source) torch(device int, kind event.Kind, time uint64) event.Event {
	e := s.event(device, kind, event.LayerAllocator, time)
	e.Allocated, e.Reserved = s.totals[device].allocated, s.totals[device].reserved
	return e
}

// follow queues the events of one entry.
func (s *Source) follow(device, i int) {
	x, t := &s.contents.entries[device][i], &s.totals[device]
	size := s.devices[device].sizes[i]
	switch x.action {
	case actionAlloc:
		t.allocated += size
		e := s.torch(device, event.KindAlloc, x.time)
		e.Addr, e.Size, e.Requested, e.Stream = x.addr, size, x.size, x.stream
		s.push(e, x)
	case actionFreeRequested:
		t.allocated -= min(size, t.allocated)
		e := s.torch(device, event.KindFree, x.time)
		e.Addr, e.Size, e.Requested, e.Stream = x.addr, size, x.size, x.stream
		s.push(e, x)
	case actionOOM:
		e := s.torch(device, event.KindOutOfMemory, x.time)
		e.Size, e.Stream = x.size, x.stream
		s.push(e, x)
	case actionSegmentAlloc:
		t.reserved += x.size
		e := s.event(device, event.KindAlloc, event.LayerDevice, x.time)
		e.Addr, e.Size, e.Call = x.addr, x.size, callSegment
		s.push(e, x)
	case actionSegmentFree:
		t.reserved -= min(x.size, t.reserved)
		e := s.event(device, event.KindFree, event.LayerDevice, x.time)
		e.Addr, e.Call = x.addr, "segment_free"
		s.push(e, x)
	case actionSegmentMap:
		t.reserved += x.size
		s.mapParts(device, x)
	case actionSegmentUnmap:
		t.reserved -= min(x.size, t.reserved)
		e := s.event(device, event.KindUnmap, event.LayerDevice, x.time)
		e.Object, e.Addr, e.Size, e.Call = event.ObjectPhysical, x.addr, x.size, "segment_unmap"
		s.push(e, x)
	}
}

func (s *Source) push(e event.Event, x *entry) {
	e.Stack = event.StackID(x.stack)
	s.queue = append(s.queue, e)
}

// mapParts queues the mapping of memory. Each part that can be unmapped separately is physical memory of its own, which
// exists as long as it is mapped.
func (s *Source) mapParts(device int, x *entry) {
	cuts := s.parts[device]
	from, to := within(cuts, x.addr, x.addr+x.size)
	for _, at := range cuts[from:to] {
		from++
		s.handles++
		e := s.event(device, event.KindAlloc, event.LayerDevice, x.time)
		e.Object, e.Addr, e.Size, e.Call = event.ObjectPhysical, s.handles, cuts[from]-at, callMap
		s.push(e, x)
		e.Kind, e.Addr, e.Handle = event.KindMap, at, s.handles
		s.push(e, x)
		e.Kind, e.Addr, e.Size, e.Handle = event.KindFree, s.handles, event.Unknown, event.Unknown
		s.push(e, x)
	}
}
