// SPDX-License-Identifier: Apache-2.0

// Package snapshot writes what torch.cuda.memory._dump_snapshot writes: a pickle for PyTorch's memory viewer
// (torch/cuda/_memory_viz.py and pytorch.org/memory_viz). Its structure is that of torch/csrc/cuda/memory_snapshot.cpp.
package snapshot

import (
	"bufio"
	"fmt"
	"io"
	"time"

	"github.com/gputrace/gputrace/analysis/allocator"
	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/event"
)

// MaxEntries is how many entries of a device's history the viewer can show at an acceptable speed: every free costs it work on
// all blocks above.
const MaxEntries = 100_000

// Sizes of PyTorch's caching allocator (c10/core/AllocatorConfig.h) that tell its pools apart.
const (
	smallBlock   = 1 << 20 // kSmallSize
	smallSegment = 2 << 20 // kSmallBuffer
)

// TraceInput is what WriteTrace writes.
type TraceInput struct {
	Layouts []allocator.Layout // of one process
	// Stack resolves a stack to its frames: view.Trace's Stack.
	Stack func(event.StackID) *event.Stack
	// Boot is when CLOCK_BOOTTIME was 0. The zero value: not known, and the times begin in 1970.
	Boot time.Time
}

// WriteTrace writes segments and blocks at a moment and the history up to it, as a pickle of protocol 2, which every version of
// the viewer reads. What PyTorch always knows and a trace does not is filled in: a block that no one saw the size asked for of
// has its own, a segment without blocks the stream 0, a free is completed at once. An entry about a block whose size is not
// what was asked for has it beside that, as block_size, and block_sizes of the snapshot says so; PyTorch's own do not have these
// keys, and its viewer does not look for them.
func WriteTrace(w io.Writer, in TraceInput) error {
	out := bufio.NewWriterSize(w, 1<<16)
	p := &tracePickler{newPickler(out), &in}
	var segments []laid
	devices := 0
	for i := range in.Layouts {
		l := &in.Layouts[i]
		devices = max(devices, deviceOf(l)+1)
		for j := range l.Segments {
			segments = append(segments, laid{deviceOf(l), &l.Segments[j]})
		}
	}
	p.dict(
		item{"segments", func() { p.list(len(segments), func(i int) { p.segment(&segments[i]) }) }},
		item{"device_traces", func() { p.list(devices, p.history) }},
		item{"external_annotations", func() { p.op(opEmptyList) }},
		p.flag("block_sizes", true),
	)
	p.stop()
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	return nil
}

// laid is a segment with the number of its device.
type laid struct {
	device int
	*allocator.LayoutSegment
}

// deviceOf is the number of a device; one that has none is the first.
func deviceOf(l *allocator.Layout) int { return max(0, int(l.Device.Index)) }

type tracePickler struct {
	*pickler
	in *TraceInput
}

func (p *tracePickler) segment(s *laid) {
	var allocated, requested, largest uint64
	for i := range s.Blocks {
		if b := &s.Blocks[i]; b.Live {
			allocated, requested, largest = allocated+b.Size, requested+requestedSize(b), max(largest, b.Size)
		}
	}
	kind := "large"
	if s.Mapped && largest <= smallBlock && largest > 0 || !s.Mapped && s.Size == smallSegment {
		kind = "small"
	}
	p.dict(
		p.number("device", uint64(s.device)),
		p.number("address", s.Addr),
		p.number("total_size", s.Size),
		p.number("allocated_size", allocated),
		p.number("active_size", allocated),
		p.number("requested_size", requested),
		p.number("stream", streamOf(s.Stream)),
		p.word("segment_type", kind),
		item{"segment_pool_id", func() { p.pair(0, 0) }},
		p.flag("is_expandable", s.Mapped),
		item{"frames", func() { p.stack(s.Stack) }},
		item{"blocks", func() { p.list(len(s.Blocks), func(i int) { p.block(&s.Blocks[i]) }) }},
	)
}

// requestedSize is what was asked for; where no one saw it, the size of the block: the viewer needs a number.
func requestedSize(b *allocator.LayoutBlock) uint64 {
	if b.Requested == event.Unknown {
		return b.Size
	}
	return b.Requested
}

// streamOf is a stream, or the default one.
func streamOf(stream uint64) uint64 {
	if stream == event.Unknown {
		return 0
	}
	return stream
}

func (p *tracePickler) block(b *allocator.LayoutBlock) {
	state := "inactive"
	if b.Live {
		state = "active_allocated"
	}
	p.dict(
		p.number("address", b.Addr),
		p.number("size", b.Size),
		p.number("requested_size", requestedSize(b)),
		p.word("state", state),
		item{"frames", func() { p.stack(b.Stack) }},
	)
}

// actions are the entries of a history, as PyTorch names them.
var actions = map[allocator.HistoryKind][]string{
	allocator.HistoryAlloc:        {"alloc"},
	allocator.HistoryFree:         {"free_requested", "free_completed"},
	allocator.HistorySegmentAlloc: {"segment_alloc"},
	allocator.HistorySegmentFree:  {"segment_free"},
	allocator.HistorySegmentMap:   {"segment_map"},
	allocator.HistorySegmentUnmap: {"segment_unmap"},
	allocator.HistoryOutOfMemory:  {"oom"},
}

// Entries is how many entries the history of a layout has in a snapshot.
func Entries(l *allocator.Layout) int {
	n := 0
	for i := range l.History {
		n += len(actions[l.History[i].Kind])
	}
	return n
}

// history writes the entries of one device.
func (p *tracePickler) history(device int) {
	type entry struct {
		*allocator.HistoryEvent
		action string
	}
	var entries []entry
	for i := range p.in.Layouts {
		l := &p.in.Layouts[i]
		if deviceOf(l) != device {
			continue
		}
		for j := range l.History {
			for _, action := range actions[l.History[j].Kind] {
				entries = append(entries, entry{&l.History[j], action})
			}
		}
	}
	p.list(len(entries), func(i int) { p.entry(entries[i].HistoryEvent, entries[i].action) })
}

func (p *tracePickler) entry(x *allocator.HistoryEvent, action string) {
	size := x.Size
	if x.Requested != event.Unknown { // as in PyTorch, of blocks
		size = x.Requested
	}
	items := []item{p.word("action", action)}
	if x.Kind == allocator.HistoryOutOfMemory {
		items = append(items, p.number("device_free", 0)) // not known; the viewer needs a number
	} else {
		items = append(items, p.number("addr", x.Addr))
	}
	us := uint64(max(0, p.in.Boot.UnixMicro())) + x.Time/1000
	if p.in.Boot.IsZero() {
		us = x.Time / 1000
	}
	if size != x.Size {
		items = append(items, p.number("block_size", x.Size))
	}
	p.dict(append(items,
		p.number("size", size),
		p.number("stream", streamOf(x.Stream)),
		p.number("time_us", us),
		item{"frames", func() { p.stack(x.Stack) }},
	)...)
}

// stack writes a list of frames the first time, with what is worth showing, and refers to it from then on.
func (p *tracePickler) stack(id event.StackID) {
	st := p.in.Stack(id)
	if st == nil || len(st.Frames) == 0 {
		p.noFrames()
		return
	}
	p.once(id, func() {
		// Those that ran, as PyTorch has them: not the lines of forward behind a stack of backward.
		frames := stacks.VisibleFrames(&event.Stack{Status: st.Status, Frames: stacks.Ran(st.Frames)})
		p.list(len(frames), func(i int) { p.frame(&frames[i]) })
	})
}

// pickledFrame is a frame as PyTorch has it.
type pickledFrame struct {
	file, name string
	line       uint64
}

// frame writes a frame the first time. A native one without a source file has its library, and no line.
func (p *tracePickler) frame(f *event.Frame) {
	out := pickledFrame{f.File, f.Label(), uint64(max(0, f.Line))}
	switch {
	case out.file != "":
	case f.Module != nil:
		out.file = f.Module.Path
	default:
		out.file = "??"
	}
	p.once(out, func() {
		p.dict(p.word("filename", out.file), p.number("line", out.line), p.word("name", out.name))
	})
}
