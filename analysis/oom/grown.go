// SPDX-License-Identifier: Apache-2.0

package oom

import (
	"cmp"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/sorts"
)

// A line is named for what it allocated within the step of the failure where these are many blocks and a large part of all: so many blocks
// at least, one part in so many of what is allocated, and so many times as much in use as at the peak of the steps before.
const (
	grownBlocks = 8
	grownShare  = 2
	grownTimes  = 2
)

// Growth is blocks of one line that were allocated since the step began in which a request failed, and are in use.
type Growth struct {
	Site   string
	Holder string // of the most of them; view.NoHolder: not known
	Held   uint64 // by Holder, bytes
	heap.Count
}

// setState adds up what the optimizer has allocated where the request failed while it made its state: it has nothing from before this step.
func (f *follower) setState(c *Case, h *heap.Heap) {
	if c.Phase != phases.Optimizer {
		return
	}
	from, _, _ := f.in.Steps.Span(c.Step)
	for b := range h.Blocks() {
		if !f.isOptimizers(c, &b) {
			continue
		}
		if b.Time < from {
			c.State = 0
			return
		}
		c.State += b.Size
	}
}

// isOptimizers reports whether a block of the device was allocated by an optimizer.
func (f *follower) isOptimizers(c *Case, b *heap.Block) bool {
	s, ok := f.starts[b.Key()]
	return ok && s.Phase == phases.Optimizer && f.has(c, b)
}

// has reports whether a block is one of PyTorch's on the device of the request.
func (f *follower) has(c *Case, b *heap.Block) bool {
	return b.PID == c.PID && b.Device == c.Device && b.Layer == c.layer() && (!c.Async || f.async.owns(b.PID, b.Stack, b.Call))
}

// setGrown finds what the step of the failure has allocated and kept, which no comparison of steps shows: an evaluation behind the last
// step, say, that keeps its results. Site is empty where no line stands out.
func (f *follower) setGrown(c *Case, h *heap.Heap) {
	from, _, ok := f.in.Steps.Span(c.Step)
	if !ok || c.Healthy == event.Unknown || c.Torch.Allocated == event.Unknown {
		return
	}
	sites := map[string]heap.Count{}
	for b := range h.Blocks() {
		if f.has(c, &b) && b.Time >= from {
			name := f.in.Trace.SiteName(&b)
			sites[name] = sites[name].Plus(heap.CountOf(b.Size, b.Requested))
		}
	}
	c.setLargestGrowth(sites)
}

func (c *Case) setLargestGrowth(sites map[string]heap.Count) {
	var rows []Growth
	for name, count := range sites {
		rows = append(rows, Growth{Site: name, Holder: view.NoHolder, Count: count})
	}
	sorts.Func(rows, func(x, y Growth) int { return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.Site, y.Site)) })
	if len(rows) == 0 {
		return
	}
	g, all := rows[0], c.Torch.Allocated
	if g.Objects >= grownBlocks && g.Bytes >= all/grownShare && all >= grownTimes*c.Healthy {
		c.Grown = g
	}
	for i := range c.Top {
		if t := &c.Top[i]; t.Site == c.Grown.Site && t.Holder != view.NoHolder && t.Bytes > c.Grown.Held {
			c.Grown.Holder, c.Grown.Held = t.Holder, t.Bytes
		}
	}
}
