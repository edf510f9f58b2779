// SPDX-License-Identifier: Apache-2.0

//go:build linux

package snapshot

import (
	"bufio"
	"fmt"
	"io"
	"slices"

	"github.com/gputrace/gputrace/analysis/allocator"
	"github.com/gputrace/gputrace/analysis/holders"
	"github.com/gputrace/gputrace/event"
	allocators "github.com/gputrace/gputrace/event/allocator"
)

// Write writes the segments and blocks of all devices as a pickle of protocol 2, which every version of the viewer reads.
// There are no stacks and no history in it: each list of frames and each device's trace is empty. requested_size of a free
// block is 0, where PyTorch leaves what its last owner asked for.
func Write(w io.Writer, b *allocator.State) error { return write(w, b, nil) }

func write(w io.Writer, b *allocator.State, held *holders.Index) error {
	out := bufio.NewWriter(w)
	if !isBFC(b) { // beside PyTorch's memory, readers would take other allocators' memory for PyTorch's
		other := func(d allocator.DeviceState) bool { return d.Allocator != allocators.Torch }
		b = &allocator.State{Devices: slices.DeleteFunc(slices.Clone(b.Devices), other)}
	}
	p := &statePickler{newPickler(out), held}
	segments := allSegments(b)
	items := []item{
		{"segments", func() { p.list(len(segments), func(i int) { p.segment(&segments[i]) }) }},
		{"device_traces", func() { p.list(traces(b), func(int) { p.op(opEmptyList) }) }},
		{"external_annotations", func() { p.op(opEmptyList) }},
	}
	if isBFC(b) {
		items = append(items, p.word("allocator", allocators.BFC.String()), p.number("host_devices_from", uint64(traces(b)-hosts(b))))
	}
	p.dict(items...)
	p.stop()
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	return nil
}

// isBFC reports whether all memory is of TensorFlow's or JAX's allocators. Readers of ours must not take it for PyTorch's.
func isBFC(b *allocator.State) bool {
	other := func(d allocator.DeviceState) bool { return d.Allocator != allocators.BFC }
	return len(b.Devices) > 0 && !slices.ContainsFunc(b.Devices, other)
}

// statePickler writes the allocator state.
type statePickler struct {
	*pickler
	held *holders.Index // nil: blocks have no frames
}

// segment is a segment with the number of its device, or the region of a BFC allocator.
type segment struct {
	device int
	*allocator.SegmentState
	frames []frame // the allocator's name; nil: it is PyTorch's
}

// allSegments lists the segments. The viewer knows devices only, so an allocator of host memory gets the next number.
func allSegments(b *allocator.State) []segment {
	var out []segment
	next := traces(b) - hosts(b)
	for i := range b.Devices {
		d := &b.Devices[i]
		device := d.Counted.Device
		var frames []frame
		if d.Name != "" {
			frames = []frame{{"allocator", d.Name}}
		}
		if d.Host {
			device, next = next, next+1
			frames = append(frames, frame{"memory", "host memory"})
		}
		for j := range d.Segments {
			out = append(out, segment{device, &d.Segments[j], frames})
		}
	}
	return out
}

// traces is how many lists of events there must be: the viewer looks a device's up by its number.
func traces(b *allocator.State) int {
	n := 0
	for i := range b.Devices {
		if !b.Devices[i].Host {
			n = max(n, b.Devices[i].Counted.Device+1)
		}
	}
	return n + hosts(b)
}

// hosts is how many allocators of host memory there are.
func hosts(b *allocator.State) (n int) {
	for i := range b.Devices {
		if b.Devices[i].Host {
			n++
		}
	}
	return n
}

func (p *statePickler) segment(s *segment) {
	kind := "large"
	if s.Pool.Small {
		kind = "small"
	}
	active, requested := requestedOf(s)
	items := []item{
		p.number("device", uint64(s.device)),
		p.number("address", s.Addr),
		p.number("total_size", s.Size),
		p.number("allocated_size", s.Allocated),
		p.number("active_size", active),
		p.number("stream", s.Stream),
		p.word("segment_type", kind),
		{"segment_pool_id", func() { p.pair(s.Pool.ID[0], s.Pool.ID[1]) }},
		p.flag("is_expandable", s.Expandable),
		{"frames", func() { p.frames(s.frames) }},
		{"blocks", func() { p.list(len(s.Blocks), func(i int) { p.block(s, i) }) }},
	}
	p.dict(p.withRequested(items, requested)...)
}

// requestedOf is the bytes of the blocks in use, and what was asked for, which can be event.Unknown. PyTorch counts what is
// pending in both.
func requestedOf(s *segment) (active, requested uint64) {
	for _, b := range s.Pins() {
		active += b.Size
		if requested != event.Unknown {
			requested += b.Requested
		}
		if b.Requested == event.Unknown {
			requested = event.Unknown
		}
	}
	return active, requested
}

func (p *statePickler) block(s *segment, i int) {
	b := &s.Blocks[i]
	state, frames := b.State.String(), framesOf(p.held, b)
	if allocator.Changing(b) { // the viewer knows three states: this one is neither held nor free
		state, frames = "active_pending_free", []frame{{"holder", "changing while it was read"}}
	}
	items := []item{
		p.number("address", b.Addr),
		p.number("size", b.Size),
		p.word("state", state),
		{"frames", func() { p.frames(frames) }},
	}
	if b.ID != 0 {
		items = append(items, p.number("allocation_id", b.ID))
	}
	p.dict(p.withRequested(items, b.Requested)...)
}
