// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"cmp"
	"fmt"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/sorts"
)

// LayoutOptions say of what a layout is.
type LayoutOptions struct {
	// Selection is the moment, or the range: then the moment is its end. Its least size means nothing.
	Selection view.Selection
	// Entries is how many entries of the history each device has, at most, as PyTorch counts them: a free is two. The last are
	// kept. 0: all.
	Entries int
}

// Layout is where the memory of one caching allocator lies at a moment, and what happened before: what PyTorch calls a memory
// snapshot. The history leads to the moment.
type Layout struct {
	PID      uint32
	Device   event.Device
	Time     uint64          // the moment, CLOCK_BOOTTIME nanoseconds
	Segments []LayoutSegment // by address
	History  []HistoryEvent  // in order
	LeftOut  uint64          // entries of the history before it, as PyTorch counts them

	// Allocated and Reserved are the bytes of the blocks and segments here.
	Allocated, Reserved uint64
	// MadeUp is the blocks that lie in no known segment: each run of them has one that is made up, of its own size.
	MadeUp heap.Count
	// Unplaced is the bytes of the allocator's total that are in no known block; negative when there is less.
	Unplaced int64
}

// LayoutSegment is a segment, with all of it in blocks.
type LayoutSegment struct {
	heap.Segment
	Stream uint64 // raw handle, of its blocks; event.Unknown when it has none, or theirs is not known
	MadeUp bool
	Blocks []LayoutBlock // by address, without a gap
}

// LayoutBlock is a live block, or a gap.
type LayoutBlock struct {
	Live      bool // the program holds it
	Addr      uint64
	Size      uint64        // bytes
	Requested uint64        // bytes; event.Unknown; 0 of a gap
	Stack     event.StackID // of its allocation; 0: not known, or a gap
	Time      uint64        // of its allocation, CLOCK_BOOTTIME nanoseconds; 0: not known, or a gap
	Origin    heap.Origin   // how it became known; means nothing of a gap
}

// Layouts is the layout of every caching allocator, by process and device. At the peak each is at its own; the
// error wraps ErrPeakBefore when that was before the first event.
func Layouts(t *view.Trace, o LayoutOptions) ([]Layout, error) {
	l := &layouter{trace: t, o: o, until: o.Selection.Until(), live: map[allocatorID]*history{}}
	if o.Selection.AtPeak() {
		for _, p := range view.NewPeaks(t.End().Snapshot) {
			if p.Layer == event.LayerAllocator && p.Time == 0 {
				return nil, fmt.Errorf("%w: that of %s was before the first event", view.ErrPeakBefore, p.Device)
			}
			if p.Layer == event.LayerAllocator {
				l.peaks = append(l.peaks, p)
			}
		}
	}
	if err := l.walk(); err != nil {
		return nil, err
	}
	sorts.Func(l.out, func(x, y Layout) int {
		return cmp.Or(cmp.Compare(x.PID, y.PID), cmp.Compare(x.Device.Type, y.Device.Type), cmp.Compare(x.Device.Index, y.Device.Index))
	})
	return l.out, nil
}

// allocatorID names a caching allocator.
type allocatorID struct {
	pid    uint32
	device event.Device
}

// layouter follows a trace up to the moments.
type layouter struct {
	trace *view.Trace
	o     LayoutOptions
	until uint64     // 0: the end
	peaks view.Peaks // that are asked for; nil: one moment for all
	live  map[allocatorID]*history
	done  int // peaks
	out   []Layout
}

func (l *layouter) walk() error {
	v := &view.Visitor{Allocated: l.allocated, Freed: l.freed, Moved: l.moved, Event: func(e *event.Event, h *heap.Heap) {
		l.event(e)
		l.look(h, e)
	}}
	h, err := l.trace.ReplayWhile(func(e *event.Event) bool {
		return (l.until == 0 || e.Time <= l.until) && (len(l.peaks) == 0 || l.done < len(l.peaks))
	}, v)
	if err != nil {
		return err
	}
	if l.peaks == nil {
		for _, a := range h.Totals().Accounts {
			l.capture(h, &a, cmp.Or(l.until, h.Totals().Time))
		}
	}
	return nil
}

// look captures the devices that are at their peak.
func (l *layouter) look(h *heap.Heap, e *event.Event) {
	for k := range l.peaks.Reached(h, e) {
		l.done++
		a, _ := h.Account(k.PID, k.Device)
		l.capture(h, a, e.Time)
	}
}

// capture makes the layout of an account at this moment.
func (l *layouter) capture(h *heap.Heap, a *heap.Account, now uint64) {
	out := LayoutOf(h, a, now, l.trace.Stack)
	if c := l.live[allocatorID{a.PID, a.Device}]; c != nil {
		out.History, out.LeftOut = c.finish(l.o.Entries, &out)
	}
	l.out = append(l.out, out)
}

// LayoutOf is the layout of an account of a live set as it is, without history. now is the moment, CLOCK_BOOTTIME nanoseconds.
func LayoutOf(h *heap.Heap, a *heap.Account, now uint64, resolve event.Resolve) Layout {
	out := Layout{PID: a.PID, Device: a.Device, Time: now}
	segments := h.Segments(a.PID, a.Device)
	var blocks []heap.Block
	for b := range h.Blocks() {
		switch {
		case b.PID != a.PID || b.Device != a.Device:
		case b.Layer == event.LayerAllocator:
			blocks = append(blocks, b)
		case b.Layer == event.LayerDevice && b.Object == event.ObjectMemory && !b.Segment && b.Size != event.Unknown && dealsOut(&b, resolve):
			segments = append(segments, heap.Segment{Addr: b.Addr, Size: b.Size, Stack: b.Stack})
		}
	}
	sorts.Func(blocks, func(x, y heap.Block) int { return cmp.Compare(x.Addr, y.Addr) })
	sorts.Func(segments, func(x, y heap.Segment) int { return cmp.Compare(x.Addr, y.Addr) })
	out.place(segments, blocks)
	if a.Allocated != event.Unknown {
		out.Unplaced = int64(a.Allocated) - int64(out.Allocated)
	}
	return out
}

// dealsOut reports whether device memory is a segment although no block was seen in it.
func (l *layouter) dealsOut(b *heap.Block) bool { return dealsOut(b, l.trace.Stack) }

func dealsOut(b *heap.Block, resolve event.Resolve) bool {
	st := resolve(b.Stack)
	return b.Segment || st != nil && stacks.IsSegment(st)
}

// place puts the blocks into the segments; both are by address.
func (l *Layout) place(segments []heap.Segment, blocks []heap.Block) {
	for _, s := range segments {
		for len(blocks) > 0 && blocks[0].Addr < s.Addr {
			blocks = l.makeUp(blocks, s.Addr)
		}
		out := LayoutSegment{Segment: s, Stream: event.Unknown}
		for len(blocks) > 0 && blocks[0].Addr+blocks[0].Size <= s.Addr+s.Size {
			out.add(&blocks[0])
			blocks = blocks[1:]
		}
		l.add(out)
	}
	for len(blocks) > 0 {
		blocks = l.makeUp(blocks, 0)
	}
	sorts.Func(l.Segments, func(x, y LayoutSegment) int { return cmp.Compare(x.Addr, y.Addr) })
}

// makeUp makes a segment of the run of blocks that comes first, up to an address; 0: up to the last.
func (l *Layout) makeUp(blocks []heap.Block, end uint64) []heap.Block {
	first := &blocks[0]
	if n := len(l.Segments); n > 0 && first.Addr < l.Segments[n-1].Addr+l.Segments[n-1].Size {
		return blocks[1:] // it lies across the end of a segment: one of both is not what it was
	}
	out := LayoutSegment{Segment: heap.Segment{Addr: first.Addr}, Stream: event.Unknown, MadeUp: true}
	at := first.Addr
	for len(blocks) > 0 && blocks[0].Addr == at && (end == 0 || at < end) && (at == first.Addr || blocks[0].Stream == first.Stream) {
		out.add(&blocks[0])
		at += blocks[0].Size
		l.MadeUp = l.MadeUp.Plus(heap.CountOf(blocks[0].Size, blocks[0].Requested))
		blocks = blocks[1:]
	}
	out.Size = at - out.Addr
	l.add(out)
	return blocks
}

// add adds a complete segment.
func (l *Layout) add(s LayoutSegment) {
	s.fill(s.Addr + s.Size)
	l.Reserved += s.Size
	for i := range s.Blocks {
		if s.Blocks[i].Live {
			l.Allocated += s.Blocks[i].Size
		}
	}
	l.Segments = append(l.Segments, s)
}

// add adds a block, behind the gap before it.
func (s *LayoutSegment) add(b *heap.Block) {
	s.fill(b.Addr)
	if s.Stream == event.Unknown {
		s.Stream = b.Stream
	}
	s.Blocks = append(s.Blocks, LayoutBlock{true, b.Addr, b.Size, b.Requested, b.Stack, b.Time, b.Origin})
}

// fill makes a gap of what comes before an address.
func (s *LayoutSegment) fill(end uint64) {
	at := s.Addr
	if n := len(s.Blocks); n > 0 {
		at = s.Blocks[n-1].Addr + s.Blocks[n-1].Size
	}
	if at < end {
		s.Blocks = append(s.Blocks, LayoutBlock{Addr: at, Size: end - at})
	}
}
