// SPDX-License-Identifier: Apache-2.0

package oom

import (
	"cmp"
	"slices"

	"github.com/gputrace/gputrace/analysis/allocator"
	"github.com/gputrace/gputrace/analysis/fragments"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/sorts"
)

// shownPins is the number of segments whose blocks are listed, pinRows the number of rows of blocks that each has.
const (
	shownPins = 5
	pinRows   = 3
)

// privatePool stands for the ids of private pools: a reading has the segments that are of one, not of which.
var privatePool = [2]uint64{1, 0}

// setFree computes the free memory in the segments. Where not every block is known, nothing is set.
func (f *follower) setFree(c *Case, h *heap.Heap) {
	m := f.segments(c, h)
	if m == nil {
		return
	}
	r := fragments.New(m, fragments.Request{Bytes: c.Requested, Stream: streamOf(m)})
	for i := range r.Pools {
		p := &r.Pools[i]
		c.Pools = append(c.Pools, PoolFree{
			Small: p.Small, Private: p.ID == privatePool, Stream: p.Stream, Request: p.OfRequest, Reserved: p.Reserved,
			Free: p.Inactive + p.Free, FreeWhole: p.Free, Largest: p.Largest,
		})
		if p.OfRequest {
			c.Pieces += p.Inactive
		}
	}
	c.Largest = r.Largest
	sorts.Func(c.Pools, func(x, y PoolFree) int {
		return cmp.Or(-cmp.Compare(rank(&x), rank(&y)), cmp.Compare(y.Free, x.Free), cmp.Compare(x.Stream, y.Stream))
	})
	f.setPins(c, m, r)
}

func rank(p *PoolFree) int {
	if p.Request {
		return 1
	}
	return 0
}

// segments is the map of the device, with the pools that are known to be private; nil where a block lies in no known segment or
// the allocator's total has more bytes than the known blocks.
func (f *follower) segments(c *Case, h *heap.Heap) *fragments.Map {
	a, ok := h.Account(c.PID, c.Device)
	if !ok {
		return nil
	}
	l := allocator.LayoutOf(h, &a, c.Time, f.in.Trace.Stack)
	if l.MadeUp.Objects > 0 || l.Unplaced != 0 {
		return nil
	}
	m, private := fragments.OfLayout(&l), f.private(c)
	for i := range m.Segments {
		s := &m.Segments[i]
		if slices.ContainsFunc(private, func(g figures.Range) bool { return s.Addr >= g.Addr && s.Addr < g.Addr+g.Size }) {
			s.ID = privatePool
		}
	}
	return m
}

// streamOf is the stream of a request: the one that all segments have, or event.Unknown. PyTorch's report does not name it.
func streamOf(m *fragments.Map) uint64 {
	out := event.Unknown
	for i := range m.Segments {
		switch s := m.Segments[i].Stream; {
		case s == event.Unknown:
		case out == event.Unknown:
			out = s
		case out != s:
			return event.Unknown
		}
	}
	return out
}

// setPins lists the segments with the most inactive bytes, and the blocks in them by line.
func (f *follower) setPins(c *Case, m *fragments.Map, r *fragments.Report) {
	names := func(m *fragments.Map, b *fragments.Block) (site, holder string) {
		known := m.Block(b)
		return f.in.Trace.SiteName(&known), view.NoHolder
	}
	for i := range r.Stranded[:min(shownPins, len(r.Stranded))] {
		s := &r.Stranded[i]
		p := Pin{Addr: s.Addr, Size: s.Size, Free: s.Inactive, Largest: s.Largest}
		for _, by := range r.Pins(m, names, r.Stranded[i:i+1]) {
			p.By = append(p.By, Holding{Site: by.Site, Holder: by.Holder, Count: heap.Count{Objects: by.Blocks, Bytes: by.Bytes}})
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
