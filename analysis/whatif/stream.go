// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/gputrace/gputrace/analysis/allocator"
	"github.com/gputrace/gputrace/analysis/fragments"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/sorts"
)

// ErrNoStream: a recording has no caching allocator whose requests can be replayed.
var ErrNoStream = errors.New("no requests to a caching allocator from a moment on at which all of its blocks are known")

// opKind is what a program did.
type opKind uint8

const (
	opAlloc   opKind = iota
	opFree           // of the allocation id
	opRefused        // a request that failed when it was recorded
	opEmpty          // empty_cache
)

// op is one thing that a program did with its caching allocator.
type op struct {
	kind     opKind
	id       uint32 // of the allocation
	stream   uint64 // raw handle
	size     uint64 // bytes that were asked for
	time     uint64 // CLOCK_BOOTTIME nanoseconds
	stack    event.StackID
	outside  uint64 // device memory that is not the caching allocator's, bytes
	reserved uint64 // the allocator's own total behind it; event.Unknown
}

// Stream is what a program asked of the caching allocator of one device, in order.
type Stream struct {
	PID    uint32
	Device event.Device
	// Rules are those of the version of PyTorch.
	Rules Rules
	// Begin is when it begins: at the first moment at which all blocks in use are known, CLOCK_BOOTTIME nanoseconds.
	Begin uint64
	// Before is what was reserved then, in segments as the allocator had them. They are the start of every replay: as if the settings had
	// been changed at that moment.
	Before uint64
	// Allocs is how many requests there are; Guessed is those of unknown size, of which the size of the block is taken.
	Allocs, Guessed uint64
	// Lost is gaps in the allocator's totals: what was asked then is missing.
	Lost uint64
	// Emptied is how often the program called empty_cache: segments were returned, and the driver had refused nothing before.
	Emptied int
	// Returned is what these calls returned to the driver, bytes. Regained is what of it the allocator obtained from the driver again before
	// the next call.
	Returned, Regained uint64
	// Expandable: the segments of the recording are.
	Expandable bool
	// Peak is the most that was reserved, as the allocator reported it, bytes; PeakOutside is the most device memory beside it.
	Peak, PeakOutside uint64

	ops      []op
	up       bool           // new segments come behind older ones
	segments []gap          // that the program obtained, in order
	from     *fragments.Map // nil: nothing
	ids      uint32
}

// NewStreams collects the requests of a trace, by process and device. The trace is replayed once.
func NewStreams(t *view.Trace) ([]*Stream, error) {
	c := &collector{trace: t, streams: map[streamID]*collected{}}
	err := t.Replay(&view.Visitor{Allocated: c.allocated, Freed: c.freed, Moved: c.moved, Event: c.event})
	if err != nil {
		return nil, fmt.Errorf("collect the requests: %w", err)
	}
	var out []*Stream
	for _, s := range c.streams {
		if s.begun && s.Allocs > 0 {
			s.up = s.ups > s.downs
			out = append(out, &s.Stream)
		}
	}
	if len(out) == 0 {
		return nil, ErrNoStream
	}
	sorts.Func(out, func(x, y *Stream) int {
		return cmp.Or(cmp.Compare(x.PID, y.PID), cmp.Compare(x.Device.Index, y.Device.Index))
	})
	return out, nil
}

type streamID struct {
	pid    uint32
	device event.Device
}

// collected is a stream that is collected.
type collected struct {
	Stream
	begun       bool
	live        map[uint64]uint32 // id by address
	lastSegment uint64
	ups, downs  int
	threads     map[uint32]*returning
	owed        uint64 // of what the last call of empty_cache returned, what was not obtained again
	again       uint64 // what was obtained since a thread returned segments, before it is known that this was empty_cache
}

// returning is what a thread has returned to the driver since it used the caching allocator last.
type returning struct {
	time    uint64 // of the first segment; 0: none
	bytes   uint64
	refused bool // the driver had refused something before
}

type collector struct {
	trace   *view.Trace
	streams map[streamID]*collected
}

func (c *collector) stream(pid uint32, device event.Device) *collected {
	id := streamID{pid, device}
	s := c.streams[id]
	if s == nil {
		s = &collected{live: map[uint64]uint32{}, threads: map[uint32]*returning{}}
		s.PID, s.Device = pid, device
		c.streams[id] = s
	}
	return s
}

func (s *collected) thread(tid uint32) *returning {
	t := s.threads[tid]
	if t == nil {
		t = &returning{}
		s.threads[tid] = t
	}
	return t
}

// freed notes segments that are returned to the driver.
func (c *collector) freed(b *heap.Block, e *event.Event, time uint64) {
	if e == nil || b.Layer != event.LayerDevice || !b.Segment {
		return
	}
	s := c.stream(b.PID, b.Device)
	s.returns(e.TID, time, b.Size)
}

// returns notes that a thread returns a segment, or a part of one.
func (s *collected) returns(tid uint32, time, bytes uint64) {
	t := s.thread(tid)
	if t.time == 0 {
		t.time, s.again = time, 0
	}
	t.bytes += bytes
}

// allocated notes segments that are obtained from the driver.
func (c *collector) allocated(b *heap.Block, e *event.Event) {
	if e != nil && b.Layer == event.LayerDevice && b.Segment {
		c.stream(b.PID, b.Device).regain(b.Size)
	}
}

// moved notes device memory that turns out to be a segment.
func (c *collector) moved(from, to *heap.Block) {
	if to.Segment && !from.Segment {
		c.stream(to.PID, to.Device).regain(to.Size)
	}
}

// regain notes that the allocator obtained memory from the driver.
func (s *collected) regain(bytes uint64) {
	n := min(s.owed, bytes)
	s.owed, s.Regained, s.again = s.owed-n, s.Regained+n, s.again+bytes-n
}

func (c *collector) event(e *event.Event, h *heap.Heap) {
	switch e.Layer {
	case event.LayerDevice:
		c.driver(e)
	case event.LayerAllocator:
		a, ok := h.Account(e.PID, e.Device)
		if !ok || !e.Device.Allocator().Simulated() {
			return
		}
		s := c.stream(e.PID, e.Device)
		if !s.begun && !s.begin(h, a, e, c.trace) {
			return
		}
		s.take(e, outside(h, e))
		s.Lost = a.Gaps
	}
}

// driver notes what the driver refused, and where it puts segments.
func (c *collector) driver(e *event.Event) {
	if e.Device.Index >= 0 {
		c.stream(e.PID, e.Device) // its first segment comes before its first block
	}
	for id, s := range c.streams {
		if id.pid != e.PID {
			continue
		}
		switch e.Kind {
		case event.KindOutOfMemory:
			s.thread(e.TID).refused = true
		case event.KindUnmap:
			if id.device == e.Device {
				s.returns(e.TID, e.Time, e.Size)
			}
		case event.KindMap:
			s.Expandable = true
			if id.device == e.Device {
				s.regain(e.Size)
			}
		case event.KindAlloc:
			if id.device == e.Device || e.Device.Index < 0 {
				s.order(e)
			}
		}
	}
}

// order learns in which direction new segments are placed.
func (s *collected) order(e *event.Event) {
	if e.Object != event.ObjectMemory || e.Size < smallBuffer || e.Size == event.Unknown {
		return
	}
	switch {
	case s.lastSegment == 0:
	case e.Addr > s.lastSegment:
		s.ups++
	default:
		s.downs++
	}
	s.lastSegment = e.Addr
	s.segments = append(s.segments, gap{e.Addr, e.Size})
}

// outside is the device memory that is not the caching allocator's.
func outside(h *heap.Heap, e *event.Event) uint64 {
	d, ok := h.Driver(e.PID, event.LayerDevice, e.Device)
	if !ok {
		return 0
	}
	return d.Live.Bytes - min(d.Live.Bytes, d.Segments.Bytes)
}

// begin begins a stream behind an event, once all blocks in use are known. It reports whether the event is part of it.
func (s *collected) begin(h *heap.Heap, a *heap.Account, e *event.Event, t *view.Trace) bool {
	if a.Allocated == event.Unknown || a.Before != a.BeforeBlocks.Bytes || a.Lost != 0 {
		return false
	}
	s.begun, s.Begin = true, e.Time
	first := a.Allocs+a.Frees+a.OOMs == 1 && a.Baseline == 0 && e.Kind == event.KindAlloc && a.Live.Bytes == e.Size
	if l := allocator.LayoutOf(h, a, e.Time, t.Stack); !first || l.Reserved > segment(e.Size) {
		s.Before, s.from = l.Reserved, fragments.OfLayout(&l)
		s.Peak = a.Reserved
		for i := range s.from.Segments {
			for _, b := range s.from.Segments[i].Pins() {
				s.live[b.Addr] = s.ids
				s.ids++
			}
		}
		return false
	}
	return true
}

// take adds an event to the stream.
func (s *collected) take(e *event.Event, outside uint64) {
	s.emptied(e)
	if e.Reserved != event.Unknown {
		s.Peak = max(s.Peak, e.Reserved)
	}
	s.PeakOutside = max(s.PeakOutside, outside)
	o := op{time: e.Time, stream: e.Stream, size: e.Requested, stack: e.Stack, outside: outside, reserved: e.Reserved}
	if o.stream == event.Unknown {
		o.stream = 0
	}
	switch e.Kind {
	case event.KindAlloc:
		if s.Allocs++; o.size == event.Unknown {
			s.Guessed++
			o.size = e.Size
		}
		o.id = s.ids
		s.live[e.Addr] = o.id
		s.ids++
	case event.KindFree:
		id, ok := s.live[e.Addr]
		if !ok {
			return
		}
		delete(s.live, e.Addr)
		o.kind, o.id = opFree, id
	case event.KindOutOfMemory:
		o.kind, o.size = opRefused, e.Size
	default:
		return
	}
	s.ops = append(s.ops, o)
}

// emptied notes that the program called empty_cache before an event of the same thread.
func (s *collected) emptied(e *event.Event) {
	t := s.threads[e.TID]
	if t == nil {
		return
	}
	if t.time != 0 && !t.refused {
		s.Emptied++
		n := min(s.again, t.bytes)
		s.Returned, s.Regained, s.owed, s.again = s.Returned+t.bytes, s.Regained+n, t.bytes-n, 0
		s.ops = append(s.ops, op{kind: opEmpty, time: t.time, reserved: event.Unknown})
	}
	*t = returning{}
}
