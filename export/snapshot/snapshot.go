// SPDX-License-Identifier: Apache-2.0

//go:build linux

package snapshot

import (
	"bufio"
	"fmt"
	"io"

	"github.com/gputrace/gputrace/analysis/allocator"
	"github.com/gputrace/gputrace/analysis/holders"
	"github.com/gputrace/gputrace/event"
)

// Write writes the segments and blocks of all devices as a pickle of protocol 2, which every version of the viewer reads.
// There are no stacks and no history in it: each list of frames and each device's trace is empty. requested_size of a free
// block is 0, where PyTorch leaves what its last owner asked for.
func Write(w io.Writer, b *allocator.State) error { return write(w, b, nil) }

func write(w io.Writer, b *allocator.State, held *holders.Index) error {
	out := bufio.NewWriter(w)
	p := &statePickler{newPickler(out), held}
	segments := allSegments(b)
	p.dict(
		item{"segments", func() { p.list(len(segments), func(i int) { p.segment(&segments[i]) }) }},
		item{"device_traces", func() { p.list(traces(b), func(int) { p.op(opEmptyList) }) }},
		item{"external_annotations", func() { p.op(opEmptyList) }},
	)
	p.stop()
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	return nil
}

// statePickler writes the allocator state.
type statePickler struct {
	*pickler
	held *holders.Index // nil: blocks have no frames
}

// segment is a segment with the number of its device.
type segment struct {
	device int
	*allocator.SegmentState
}

func allSegments(b *allocator.State) []segment {
	var out []segment
	for i := range b.Devices {
		d := &b.Devices[i]
		for j := range d.Segments {
			out = append(out, segment{d.Counted.Device, &d.Segments[j]})
		}
	}
	return out
}

// traces is how many lists of events there must be: the viewer looks a device's up by its number.
func traces(b *allocator.State) int {
	n := 0
	for i := range b.Devices {
		n = max(n, b.Devices[i].Counted.Device+1)
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
		{"frames", p.noFrames},
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
	p.dict(p.withRequested(items, b.Requested)...)
}
