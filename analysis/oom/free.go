// SPDX-License-Identifier: Apache-2.0

package oom

import (
	"cmp"
	"slices"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/sorts"
)

// smallSize is the largest request of the small pool, bytes (kSmallSize of CUDACachingAllocator.cpp).
const smallSize = 1 << 20

// shownPins is of how many segments is said what keeps them, and pinRows how many rows of blocks each has.
const (
	shownPins = 5
	pinRows   = 3
)

// area is a segment with its blocks.
type area struct {
	heap.Segment
	blocks  []heap.Block
	stream  uint64
	free    uint64
	largest uint64
}

// setFree says what of the segments no block is in.
func (f *follower) setFree(c *Case, h *heap.Heap) {
	areas := f.areas(c, h)
	pools := map[PoolFree]*PoolFree{}
	stream, private := c.stream(areas), f.private(c)
	for i := range areas {
		a := &areas[i]
		key := PoolFree{Small: a.small(), Stream: a.stream, Private: a.isIn(private)}
		p := pools[key]
		if p == nil {
			p = &PoolFree{Small: key.Small, Stream: key.Stream, Private: key.Private}
			p.Request = !key.Private && key.Small == (c.Requested <= smallSize) && (a.stream == stream || stream == event.Unknown || a.stream == event.Unknown)
			pools[key] = p
		}
		p.Reserved, p.Free, p.Largest = p.Reserved+a.Size, p.Free+a.free, max(p.Largest, a.largest)
		if len(a.blocks) == 0 {
			p.FreeWhole += a.Size
		}
	}
	for _, p := range pools {
		c.Pools = append(c.Pools, *p)
		if p.Request {
			c.Pieces, c.Largest = c.Pieces+p.Free-p.FreeWhole, max(c.Largest, p.Largest)
		}
	}
	sorts.Func(c.Pools, func(x, y PoolFree) int {
		return cmp.Or(-cmp.Compare(rank(&x), rank(&y)), cmp.Compare(y.Free, x.Free), cmp.Compare(x.Stream, y.Stream))
	})
	f.setPins(c, areas)
}

func rank(p *PoolFree) int {
	if p.Request {
		return 1
	}
	return 0
}

// stream is that of the request: the one that all blocks have, as far as there is one. PyTorch's report does not name it.
func (c *Case) stream(areas []area) uint64 {
	out := event.Unknown
	for i := range areas {
		switch s := areas[i].stream; {
		case s == event.Unknown:
		case out == event.Unknown:
			out = s
		case out != s:
			return event.Unknown
		}
	}
	return out
}

// areas is the segments of the device with their blocks, by address; nil where not all are known.
func (f *follower) areas(c *Case, h *heap.Heap) []area {
	var blocks []heap.Block
	segments := h.Segments(c.PID, c.Device)
	for b := range h.Blocks() {
		switch {
		case b.PID != c.PID || b.Device != c.Device:
		case b.Layer == event.LayerTorch:
			blocks = append(blocks, b)
		case b.Layer == event.LayerDevice && b.Object == event.ObjectMemory && !b.Segment && b.Size != event.Unknown && f.isSegment(&b):
			segments = append(segments, heap.Segment{Addr: b.Addr, Size: b.Size, Stack: b.Stack})
		}
	}
	sorts.Func(blocks, func(x, y heap.Block) int { return cmp.Compare(x.Addr, y.Addr) })
	slices.SortFunc(segments, func(x, y heap.Segment) int { return cmp.Compare(x.Addr, y.Addr) })
	var out []area
	for _, s := range segments {
		a := area{Segment: s, stream: event.Unknown}
		blocks = a.take(blocks)
		if len(blocks) > 0 && blocks[0].Addr < s.Addr+s.Size {
			return nil
		}
		out = append(out, a)
	}
	if len(blocks) > 0 {
		return nil
	}
	return out
}

func (f *follower) isSegment(b *heap.Block) bool {
	st := f.in.Trace.Stack(b.Stack)
	return st != nil && stacks.IsSegment(st)
}

// take takes the blocks that lie in the segment from the front of a list.
func (a *area) take(blocks []heap.Block) []heap.Block {
	at := a.Addr
	for len(blocks) > 0 && blocks[0].Addr >= at && blocks[0].Addr+blocks[0].Size <= a.Addr+a.Size {
		b := blocks[0]
		blocks = blocks[1:]
		a.gap(b.Addr - at)
		at = b.Addr + b.Size
		a.blocks = append(a.blocks, b)
		if a.stream == event.Unknown {
			a.stream = b.Stream
		}
	}
	a.gap(a.Addr + a.Size - at)
	return blocks
}

func (a *area) gap(size uint64) { a.free, a.largest = a.free+size, max(a.largest, size) }

// small reports whether the segment is of a small pool: its blocks have at most 1 MiB.
func (a *area) small() bool {
	if len(a.blocks) > 0 {
		return a.blocks[0].Size <= smallSize
	}
	return a.Size <= 2*smallSize
}

// setPins says what keeps the segments with most free memory.
func (f *follower) setPins(c *Case, areas []area) {
	cut := slices.DeleteFunc(slices.Clone(areas), func(a area) bool { return len(a.blocks) == 0 || a.free == 0 })
	sorts.Func(cut, func(x, y area) int { return cmp.Or(cmp.Compare(y.free, x.free), cmp.Compare(x.Addr, y.Addr)) })
	for i := range cut[:min(shownPins, len(cut))] {
		a := &cut[i]
		p := Pin{Addr: a.Addr, Size: a.Size, Free: a.free, Largest: a.largest}
		rows := map[string]heap.Count{}
		for k := range a.blocks {
			b := &a.blocks[k]
			name := f.in.Trace.SiteName(b)
			rows[name] = rows[name].Plus(heap.CountOf(b.Size, b.Requested))
		}
		for name, count := range rows {
			p.By = append(p.By, Holding{Site: name, Holder: view.NoHolder, Count: count})
		}
		sortHoldings(p.By)
		p.By = p.By[:min(pinRows, len(p.By))]
		c.Pins = append(c.Pins, p)
	}
}

// private is the segments of private pools, by the reading that was made for the failure, else by the last one before.
func (f *follower) private(c *Case) []figures.Range {
	var out []figures.Range
	for i := range f.in.Readings {
		if r := &f.in.Readings[i]; r.Private != nil && (r.Time <= c.Time || r.Failed == c.Time) {
			out = r.Private
		}
	}
	return slices.DeleteFunc(slices.Clone(out), func(g figures.Range) bool { return g.Device != int(c.Device.Index) })
}

// isIn reports whether a segment lies in one of the ranges.
func (a *area) isIn(ranges []figures.Range) bool {
	return slices.ContainsFunc(ranges, func(g figures.Range) bool { return a.Addr >= g.Addr && a.Addr < g.Addr+g.Size })
}
