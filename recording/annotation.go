// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"github.com/gputrace/gputrace/event"
)

// An annotation consists of its kind, its length and its fields, so that an unknown kind can be skipped. Numbers are
// varints; those that can be event.Unknown are written plus one, modulo 2^64.
//
//	watch, unwatch, from start   pid
//	baseline                     pid, device, allocated + 1, reserved + 1
//	lost                         pid, from, to - from, events
//	steps                        pid, numbering, source, on, chosen, first, n, then n times: time - the one before
//	held                         pid, time, n, then n times: site, holder, bytes, blocks
//	reading                      pid, a text: JSON of a figures.Reading
//	observed                     pid, device, from, to, allocated + 1, reserved + 1,
//	                             blocks    n, then n times: address - end of the last (signed), size, size - requested
//	                                       (signed; 0 when that is Unknown), stream + 1, is requested known
//	                             segments  n + 1 (0: nil), then n times: address - end of the last (signed), size, expandable
//
// A text is its length in bytes, then the bytes. A device is its type and its index, signed. A checkpoint is a frame of its own.

func appendAnnotation(out *column, m *event.Annotation) {
	var c column
	c.number(uint64(m.PID))
	switch m.Kind {
	case event.AnnotationBaseline:
		c.device(m.Device)
		c.number(m.Allocated + 1)
		c.number(m.Reserved + 1)
	case event.AnnotationObserved:
		c.observation(m.Observation)
	case event.AnnotationLost:
		c.number(m.Loss.From)
		c.number(m.Loss.To - m.Loss.From)
		c.number(m.Loss.Events)
	case event.AnnotationSteps:
		c.steps(m.Steps)
	case event.AnnotationHeld:
		c.held(m.Held)
	case event.AnnotationReading:
		c.text(string(m.Reading))
	}
	out.number(uint64(m.Kind))
	out.number(uint64(len(c)))
	*out = append(*out, c...)
}

func (c *column) steps(s *event.Steps) {
	c.number(uint64(s.Numbering))
	c.text(s.Source)
	c.text(s.On)
	c.text(s.Chosen)
	c.number(uint64(s.First))
	c.number(uint64(len(s.Begins)))
	last := uint64(0)
	for _, at := range s.Begins {
		c.number(at - last)
		last = at
	}
}

func (c *cursor) steps() *event.Steps {
	s := &event.Steps{Numbering: c.index(1 << 31), Source: c.text(), On: c.text(), Chosen: c.text(), First: c.index(1 << 31)}
	at := uint64(0)
	for range c.count(1) {
		at += c.number()
		s.Begins = append(s.Begins, at)
	}
	return s
}

func (c *column) held(h *event.Held) {
	c.number(h.Time)
	c.number(uint64(len(h.Rows)))
	for i := range h.Rows {
		r := &h.Rows[i]
		c.text(r.Site)
		c.text(r.Holder)
		c.number(r.Bytes)
		c.number(r.Blocks)
	}
}

func (c *cursor) held() *event.Held {
	h := &event.Held{Time: c.number()}
	for range c.count(4) {
		h.Rows = append(h.Rows, event.HeldRow{Site: c.text(), Holder: c.text(), Bytes: c.number(), Blocks: c.number()})
	}
	return h
}

func (c *column) device(d event.Device) {
	c.number(uint64(d.Type))
	c.signed(uint64(d.Index))
}

func (c *cursor) device() event.Device {
	return event.Device{Type: event.DeviceType(c.index(256)), Index: int8(c.signed())}
}

func (c *column) observation(o *event.Observation) {
	c.device(o.Device)
	for _, v := range []uint64{o.From, o.To, o.Allocated + 1, o.Reserved + 1, uint64(len(o.Blocks))} {
		c.number(v)
	}
	end := uint64(0)
	for i := range o.Blocks {
		b := &o.Blocks[i]
		c.signed(b.Addr - end)
		c.number(b.Size)
		if b.Requested == event.Unknown {
			c.signed(0)
		} else {
			c.signed(b.Size - b.Requested)
		}
		c.number(b.Stream + 1)
		c.truth(b.Requested != event.Unknown)
		end = b.Addr + b.Size
	}
	c.segments(o.Segments)
	if o.Allocators > 0 {
		c.number(o.Allocators)
		c.number(o.Counted)
	}
}

func (c *column) segments(list []event.ObservedSegment) {
	if list == nil {
		c.number(0)
		return
	}
	c.number(uint64(len(list)) + 1)
	end := uint64(0)
	for _, s := range list {
		c.signed(s.Addr - end)
		c.number(s.Size)
		c.truth(s.Expandable)
		end = s.Addr + s.Size
	}
}

func (c *column) truth(b bool) {
	if b {
		c.number(1)
	} else {
		c.number(0)
	}
}

// readAnnotation reads an annotation. For an unknown kind it sets only Kind.
func readAnnotation(c *cursor) event.Annotation {
	m := event.Annotation{Kind: event.AnnotationKind(c.index(256))}
	body := cursor{data: c.bytes(c.number())}
	if c.err != nil || m.Kind == 0 || m.Kind == event.AnnotationCheckpoint || m.Kind > event.AnnotationReading {
		return m
	}
	m.PID = uint32(body.index(1 << 32))
	switch m.Kind {
	case event.AnnotationBaseline:
		m.Device, m.Allocated, m.Reserved = body.device(), body.number()-1, body.number()-1
	case event.AnnotationObserved:
		m.Observation = body.observation(m.PID)
	case event.AnnotationLost:
		m.Loss.From = body.number()
		m.Loss.To = m.Loss.From + body.number()
		m.Loss.Events = body.number()
	case event.AnnotationSteps:
		m.Steps = body.steps()
	case event.AnnotationHeld:
		m.Held = body.held()
	case event.AnnotationReading:
		m.Reading = []byte(body.text())
	}
	if body.err != nil {
		c.fail("annotation %s: %w", m.Kind, body.err)
	}
	return m
}

func (c *cursor) observation(pid uint32) *event.Observation {
	o := &event.Observation{
		PID: pid, Device: c.device(), From: c.number(), To: c.number(), Allocated: c.number() - 1, Reserved: c.number() - 1,
	}
	end := uint64(0)
	for range c.count(5) {
		b := event.ObservedBlock{Addr: end + c.signed(), Size: c.number()}
		b.Requested, b.Stream = b.Size-c.signed(), c.number()-1
		if c.number() == 0 {
			b.Requested = event.Unknown
		}
		o.Blocks = append(o.Blocks, b)
		end = b.Addr + b.Size
	}
	o.Segments = c.segments()
	if len(c.data) > 0 {
		o.Allocators, o.Counted = c.number(), c.number()
	}
	return o
}

func (c *cursor) segments() []event.ObservedSegment {
	n := c.number()
	if n == 0 {
		return nil
	}
	if n-1 > uint64(len(c.data)/3) {
		c.fail("%d segments in %d bytes", n-1, len(c.data))
		return nil
	}
	out, end := make([]event.ObservedSegment, 0, n-1), uint64(0)
	for range n - 1 {
		s := event.ObservedSegment{Addr: end + c.signed(), Size: c.number(), Expandable: c.number() != 0}
		out = append(out, s)
		end = s.Addr + s.Size
	}
	return out
}
