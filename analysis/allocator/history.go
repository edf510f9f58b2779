// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"cmp"
	"slices"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/sorts"
)

// HistoryKind says what an entry of a history is.
type HistoryKind uint8

// The kinds are those of PyTorch's history; two of them describe the freeing of one block and share a layout event.
const (
	HistoryAlloc        HistoryKind = iota
	HistoryFree                     // requested and completed: when a block can be used again was not observed
	HistorySegmentAlloc             // memory was obtained from the driver
	HistorySegmentFree
	HistorySegmentMap // of an expandable segment
	HistorySegmentUnmap
	HistoryOutOfMemory
)

// HistoryEvent is an entry of the history of a caching allocator.
type HistoryEvent struct {
	Kind      HistoryKind
	Time      uint64 // CLOCK_BOOTTIME nanoseconds
	Addr      uint64 // 0 of a refused request
	Size      uint64 // bytes: of the block or segment
	Requested uint64 // of a block, bytes; event.Unknown
	Stream    uint64 // raw handle; event.Unknown
	Stack     event.StackID
}

// weight is how many entries PyTorch has of it.
func (x *HistoryEvent) weight() int {
	if x.Kind == HistoryFree {
		return 2
	}
	return 1
}

// history is the history of one account as it is collected.
type history struct {
	entries []HistoryEvent
	dropped uint64 // entries as PyTorch counts
}

// note adds an entry, unless it is from before the range.
func (l *layouter) note(pid uint32, device event.Device, x HistoryEvent) {
	id := allocatorID{pid, device}
	c := l.live[id]
	if c == nil {
		c = &history{}
		l.live[id] = c
	}
	if l.o.Selection.To != 0 && x.Time <= l.o.Selection.From {
		c.dropped += uint64(x.weight())
		return
	}
	if n := l.o.Entries; n > 0 && len(c.entries) >= 2*n {
		c.drop(len(c.entries) - n)
	}
	c.entries = append(c.entries, x)
}

// drop forgets the first entries.
func (c *history) drop(n int) {
	for i := range c.entries[:n] {
		c.dropped += uint64(c.entries[i].weight())
	}
	c.entries = slices.Delete(c.entries, 0, n)
}

func (l *layouter) allocated(b *heap.Block, e *event.Event) {
	if e == nil {
		return
	}
	x := historyEvent(HistoryAlloc, b, e.Time)
	switch {
	case b.Layer == event.LayerAllocator:
	case b.Layer == event.LayerDevice && b.Object == event.ObjectMemory && b.Size != event.Unknown && l.dealsOut(b):
		x.Kind = HistorySegmentAlloc
	default:
		return
	}
	l.note(b.PID, b.Device, x)
}

func (l *layouter) freed(b *heap.Block, e *event.Event, time uint64) {
	x := historyEvent(HistoryFree, b, time)
	switch {
	case b.Layer == event.LayerAllocator:
	case b.Layer == event.LayerDevice && b.Object == event.ObjectMemory && b.Size != event.Unknown && l.dealsOut(b):
		x.Kind = HistorySegmentFree
	default:
		return
	}
	if x.Stack = 0; e != nil {
		x.Stack = e.Stack
	}
	l.note(b.PID, b.Device, x)
}

// moved: memory turned out to be a segment, now that the first block in it was seen. It was one from the beginning.
func (l *layouter) moved(from, to *heap.Block) {
	if !l.dealsOut(from) && to.Layer == event.LayerDevice && to.Object == event.ObjectMemory && to.Size != event.Unknown {
		l.note(to.PID, to.Device, historyEvent(HistorySegmentAlloc, to, to.Time))
	}
}

// happened notes events that are about no block.
func (l *layouter) event(e *event.Event) {
	x := HistoryEvent{Time: e.Time, Addr: e.Addr, Size: e.Size, Requested: event.Unknown, Stream: e.Stream, Stack: e.Stack}
	switch {
	case e.Kind == event.KindOutOfMemory && e.Layer == event.LayerAllocator:
		x.Kind, x.Addr = HistoryOutOfMemory, 0
	case e.Layer != event.LayerDevice || e.Size == event.Unknown:
		return
	case e.Kind == event.KindMap:
		x.Kind = HistorySegmentMap
	case e.Kind == event.KindUnmap:
		x.Kind = HistorySegmentUnmap
	default:
		return
	}
	l.note(e.PID, e.Device, x)
}

func historyEvent(kind HistoryKind, b *heap.Block, time uint64) HistoryEvent {
	return HistoryEvent{Kind: kind, Time: time, Addr: b.Addr, Size: b.Size, Requested: b.Requested, Stream: b.Stream, Stack: b.Stack}
}

// finish returns the entries up to the moment, and how many there were before. What was mapped, but held no block, is not the
// allocator's.
func (c *history) finish(entries int, at *Layout) ([]HistoryEvent, uint64) {
	used := c.used(at)
	c.entries = slices.DeleteFunc(c.entries, func(x HistoryEvent) bool {
		if x.Kind != HistorySegmentMap && x.Kind != HistorySegmentUnmap {
			return false
		}
		i, _ := slices.BinarySearchFunc(used, x.Addr, func(u extent, addr uint64) int {
			if u.end <= addr {
				return -1
			}
			return 1
		})
		return i == len(used) || used[i].start >= x.Addr+x.Size
	})
	slices.SortStableFunc(c.entries, func(x, y HistoryEvent) int { return cmp.Compare(x.Time, y.Time) })
	if entries > 0 {
		first, left := len(c.entries), entries
		for first > 0 && left >= c.entries[first-1].weight() {
			first--
			left -= c.entries[first].weight()
		}
		c.drop(first)
	}
	out, dropped := c.entries, c.dropped
	*c = history{}
	return out, dropped
}

type extent struct{ start, end uint64 }

// used is where the allocator had segments or blocks, by address.
func (c *history) used(at *Layout) []extent {
	var all []extent
	for i := range at.Segments {
		s := &at.Segments[i]
		all = append(all, extent{s.Addr, s.Addr + s.Size})
	}
	for i := range c.entries {
		if x := &c.entries[i]; x.Kind == HistoryAlloc || x.Kind == HistoryFree {
			all = append(all, extent{x.Addr, x.Addr + x.Size})
		}
	}
	sorts.Func(all, func(x, y extent) int { return cmp.Compare(x.start, y.start) })
	var out []extent
	for _, x := range all {
		if last := len(out) - 1; last >= 0 && x.start <= out[last].end {
			out[last].end = max(out[last].end, x.end)
			continue
		}
		out = append(out, x)
	}
	return out
}
