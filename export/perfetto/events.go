// SPDX-License-Identifier: Apache-2.0

package perfetto

import (
	"cmp"
	"slices"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// totals writes those of a device's totals that are known and new.
func (t *trace) totals(time uint64, totals *view.Totals) {
	for rank, value := range [rankUsed + 1]uint64{totals.Allocated, totals.Reserved, totals.Used} {
		if value == event.Unknown {
			continue
		}
		c := t.counter(totals.PID, totals.Device, rank)
		if c.begun && c.last == value {
			continue
		}
		c.begun, c.last = true, value
		m := t.begin(c.sequence, time)
		at := m.open(packetTrackEvent)
		m.number(eventType, typeCounter)
		m.number(eventCounterValue, value)
		m.close(at)
		t.end(c.sequence)
	}
}

// alloc writes an allocation, on the track of its thread too while torch.profiler watches the thread.
func (t *trace) alloc(time uint64, b *heap.Block, e *event.Event) {
	t.thread(b.PID, e.TID)
	t.allocation(t.allocations(b.PID, b.Device, b.Layer).sequence, time, b, e.TID, "")
	if s := t.beside(b.PID, e.TID, time); s != nil {
		t.allocation(s, time, b, e.TID, b.Device.String())
	}
}

// allocation writes an allocation on a track. Perfetto makes flame graphs of a range of them, by their weights and by their numbers. device
// is empty if the device has the track.
func (t *trace) allocation(s *sequence, time uint64, b *heap.Block, tid uint32, device string) {
	name, stack := t.in.Trace.SiteName(b), t.callstack(s, b)
	m := t.begin(s, time)
	at := m.open(packetTrackEvent)
	m.number(eventType, typeInstant)
	m.number(eventName, s.text(internedEventNames, name))
	m.number(eventCallstack, stack)
	if b.Size != event.Unknown {
		m.double(eventCallstackWeight, float64(b.Size))
	}
	annotateDevice(m, s, device)
	annotateBlock(m, s, b, tid)
	m.close(at)
	t.end(s)
}

// annotateDevice adds the name of a device; empty: nothing.
func annotateDevice(m *message, s *sequence, device string) {
	if device != "" {
		annotateValue(m, s, "device", device)
	}
}

// annotateBlock says what is known of a block.
func annotateBlock(m *message, s *sequence, b *heap.Block, tid uint32) {
	at := m.open(eventAnnotation)
	m.number(annotationName, s.text(internedAnnotationNames, "address"))
	m.number(annotationPointer, b.Addr)
	m.close(at)
	thread := uint64(tid)
	if tid == 0 {
		thread = event.Unknown
	}
	annotate(m, s, "size", b.Size)
	annotate(m, s, "requested", b.Requested)
	annotate(m, s, "stream", b.Stream)
	annotate(m, s, "thread", thread)
}

// annotate adds a number; event.Unknown: nothing.
func annotate(m *message, s *sequence, name string, value uint64) {
	if value == event.Unknown {
		return
	}
	at := m.open(eventAnnotation)
	m.number(annotationName, s.text(internedAnnotationNames, name))
	m.number(annotationInt, value)
	m.close(at)
}

// stopped says on the tracks of allocations where they end before the trace does.
func (t *trace) stopped() {
	tl := t.in.Timeline
	if tl.Until >= tl.To {
		return
	}
	for _, d := range t.devices {
		for _, track := range d.allocations {
			m := t.begin(track.sequence, tl.Until)
			at := m.open(packetTrackEvent)
			m.number(eventType, typeInstant)
			m.number(eventName, track.text(internedEventNames, "too many events: later allocations are left out"))
			m.close(at)
			t.end(track.sequence)
		}
	}
}

func (t *trace) outOfMemory(time uint64, e *event.Event) {
	t.thread(e.PID, e.TID)
	t.refusal(t.refused(e.PID, e.Device).sequence, time, e, "")
	if s := t.beside(e.PID, e.TID, time); s != nil {
		t.refusal(s, time, e, e.Device.String())
	}
}

// refusal writes a refused request on a track; device as in allocation.
func (t *trace) refusal(s *sequence, time uint64, e *event.Event, device string) {
	stack := t.callstack(s, &heap.Block{Stack: e.Stack})
	m := t.begin(s, time)
	at := m.open(packetTrackEvent)
	m.number(eventType, typeInstant)
	m.number(eventName, s.text(internedEventNames, "out of memory"))
	m.number(eventCallstack, stack)
	annotateDevice(m, s, device)
	annotate(m, s, "asked", e.Size)
	annotate(m, s, "allocated", e.Allocated)
	annotate(m, s, "reserved", e.Reserved)
	annotate(m, s, "thread", uint64(e.TID))
	m.close(at)
	t.end(s)
}

// lane is a track for blocks that do not live at the same time.
type lane struct {
	uuid, free uint64
}

// boundary is the beginning or the end of a block on its lane.
type boundary struct {
	time uint64
	end  bool
	life *view.Lifetime
	lane uint64
}

// lifetimes writes the largest blocks, from birth to end. Slices of one track must nest, so that there are as many tracks as
// blocks that live at one time; Perfetto shows those of one name as one.
func (t *trace) lifetimes() {
	lifetimes := slices.Clone(t.in.Timeline.Lifetimes)
	slices.SortStableFunc(lifetimes, func(x, y view.Lifetime) int { return cmp.Compare(x.Block.Time, y.Block.Time) })
	lanes := map[heapKey][]*lane{}
	var all []boundary
	for i := range lifetimes {
		l := &lifetimes[i]
		key := heapKey{l.Block.PID, l.Block.Layer, l.Block.Device}
		begin := max(l.Block.Time, t.in.Timeline.From)
		lane := t.lane(lanes, key, begin)
		all = append(all, boundary{time: begin, life: l, lane: lane.uuid})
		if lane.free = l.End; l.End == 0 {
			lane.free = event.Unknown
			continue
		}
		lane.free = max(l.End, begin)
		all = append(all, boundary{time: lane.free, end: true, life: l, lane: lane.uuid})
	}
	// At equal times, the end on a lane comes before the next beginning.
	slices.SortStableFunc(all, func(x, y boundary) int { return cmp.Compare(x.time, y.time) })
	s := t.sequence(0)
	for i := range all {
		t.boundary(s, &all[i])
	}
}

// lane finds a track that is free at a time, or makes one.
func (t *trace) lane(lanes map[heapKey][]*lane, key heapKey, time uint64) *lane {
	for _, l := range lanes[key] {
		if l.free <= time {
			return l
		}
	}
	dev := t.device(key.pid, key.device)
	name := "largest " + layerNames[key.layer]
	l := &lane{uuid: t.uuid("lane ", dev.uuid, " ", name, " ", len(lanes[key]))}
	lanes[key] = append(lanes[key], l)
	t.describe(l.uuid, func(m *message) {
		m.number(trackParent, dev.uuid)
		m.text(trackName, name)
		m.number(trackRank, rankLifetimes+uint64(key.layer))
	})
	return l
}

func (t *trace) boundary(s *sequence, x *boundary) {
	var stack uint64
	if !x.end {
		stack = t.callstack(s, &x.life.Block)
	}
	m := t.begin(s, x.time)
	at := m.open(packetTrackEvent)
	m.number(eventTrack, x.lane)
	if x.end {
		m.number(eventType, typeEnd)
	} else {
		m.number(eventType, typeBegin)
		m.number(eventName, s.text(internedEventNames, t.in.Trace.SiteName(&x.life.Block)))
		m.number(eventCallstack, stack)
		annotateBlock(m, s, &x.life.Block, x.life.TID)
	}
	m.close(at)
	t.end(s)
}
