// SPDX-License-Identifier: Apache-2.0

package oom

import (
	"cmp"

	"github.com/gputrace/gputrace/analysis/allocator"
	"github.com/gputrace/gputrace/analysis/fragments"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/sorts"
)

// shownPins is the number of segments whose blocks are listed, pinRows the number of rows of blocks for each.
const (
	shownPins = 5
	pinRows   = 3
)

// setFree computes the free memory in the segments. If some block is not known, it sets nothing.
func (f *follower) setFree(c *Case, h *heap.Heap) {
	m := f.segments(c, h)
	if m == nil {
		return
	}
	c.setUnreturned(m)
	r := fragments.New(m, fragments.Request{Bytes: c.Requested, Stream: f.streamOf(c, m)})
	for i := range r.Pools {
		p := &r.Pools[i]
		c.addPool(PoolFree{
			Small: p.Small, Private: p.IsPrivate(), Owner: ownerOf(&p.Pool), Stream: p.Stream, Request: p.OfRequest, Reserved: p.Reserved,
			Free: p.Inactive + p.Free, FreeWhole: p.Free, Largest: p.Largest,
		})
		if p.OfRequest {
			c.Pieces += p.Inactive
		}
	}
	c.setKept(m, f.free)
	c.Largest = r.Largest
	sorts.Func(c.Pools, func(x, y PoolFree) int {
		return cmp.Or(-cmp.Compare(rank(&x), rank(&y)), cmp.Compare(y.Free, x.Free), cmp.Compare(x.Stream, y.Stream))
	})
	f.setPins(c, m, r)
}

// addPool adds a pool; private pools of one owner are added up.
func (c *Case) addPool(p PoolFree) {
	for i := range c.Pools {
		q := &c.Pools[i]
		if p.Private && q.Private && q.Small == p.Small && q.Owner == p.Owner && q.Stream == p.Stream && q.Request == p.Request {
			q.Reserved, q.Free, q.FreeWhole, q.Largest = q.Reserved+p.Reserved, q.Free+p.Free, q.FreeWhole+p.FreeWhole, max(q.Largest, p.Largest)
			return
		}
	}
	c.Pools = append(c.Pools, p)
}

// streamOf returns the stream of the request: that of all segments or, otherwise, the one in which its line has always
// allocated. event.Unknown: not known.
func (f *follower) streamOf(c *Case, m *fragments.Map) uint64 {
	if s := m.Stream(); s != event.Unknown {
		return s
	}
	if s, ok := f.lines[lineKey{c.PID, c.Site}]; ok {
		return s
	}
	return event.Unknown
}

// setUnreturned determines which segments belong to private pools: PyTorch returns all free segments of its own pools to the driver
// before it reports a failure (release_cached_blocks of CUDACachingAllocator.cpp). It returns expandable segments page by page.
func (c *Case) setUnreturned(m *fragments.Map) {
	if !c.Reported || c.Device.Type.MPS() || m.Reserved() != c.Torch.Reserved {
		return
	}
	for i := range m.Segments {
		if s := &m.Segments[i]; !s.Expandable && !s.IsPrivate() && s.Held() == 0 {
			s.ID = fragments.Private
		}
	}
}

// setKept adds up the memory in pools other than the request's that was already free when the step began.
func (c *Case) setKept(m *fragments.Map, before map[uint64]uint64) {
	if before == nil {
		return
	}
	c.kept = 0
	for i := range m.Segments {
		if s := &m.Segments[i]; s.IsPrivate() {
			c.kept += min(s.Size-s.Held(), before[s.Addr])
		}
	}
}

func rank(p *PoolFree) int {
	if p.Request {
		return 1
	}
	return 0
}

// segments returns the map of the device, with the pools known to be private; nil if a block is in no known segment, or
// the allocator's total exceeds the known blocks.
func (f *follower) segments(c *Case, h *heap.Heap) *fragments.Map {
	a, ok := h.Account(c.PID, c.Device)
	if !ok {
		return nil
	}
	l := allocator.LayoutOf(h, a, c.Time, f.in.Trace.Stack)
	if l.MadeUp.Objects > 0 || l.Unplaced != 0 {
		return nil
	}
	m := fragments.OfLayout(&l)
	m.SetPrivate(f.in.Readings)
	return m
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
