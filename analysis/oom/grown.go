// SPDX-License-Identifier: Apache-2.0

package oom

import (
	"cmp"
	"strings"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/sorts"
)

// A line is named for what it allocated within the step of the failure where these are many blocks and a large part of what the step has: so
// many blocks at least, one part in so many of it, and with what is older more than the peak of the steps before, by one part in so many. Blocks
// of so many places are more than results that are kept: the graph of a forward pass has what each operation saved.
const (
	grownBlocks = 8
	grownShare  = 2
	grownBeyond = 10
	graphPlaces = 3
)

// Growth is blocks of one line that were allocated since the step began in which a request failed, and are in use.
type Growth struct {
	Site   string
	Holder string // of the most of them; view.NoHolder: not known
	Held   uint64 // by Holder, bytes
	Places int    // different stacks
	heap.Count
}

// Advice is what helps an evaluation that keeps what the graph of its forward passes saves: the holder of the blocks is a graph. Where it is not
// known, blocks of several operations can be such. Empty: there is none.
func (c *Case) Advice() string {
	const graph = " graph keeps them: evaluate under torch.no_grad()"
	g := &c.Grown
	switch {
	case c.Phase != phases.Evaluation || g.Site == "":
		return ""
	case g.Holder == view.NoHolder && g.Places >= graphPlaces:
		return "If a" + graph
	case strings.Contains(g.Holder, "grad_fn"), strings.Contains(g.Holder, "torch::autograd::"):
		return "A" + graph
	}
	return ""
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
	sites, places := map[string]*Growth{}, map[event.StackID]bool{}
	for b := range h.Blocks() {
		if !f.has(c, &b) || b.Time < from {
			continue
		}
		name := f.in.Trace.SiteName(&b)
		g := sites[name]
		if g == nil {
			g = &Growth{Site: name, Holder: view.NoHolder}
			sites[name] = g
		}
		g.Count = g.Plus(heap.CountOf(b.Size, b.Requested))
		if !places[b.Stack] {
			places[b.Stack] = true
			g.Places++
		}
	}
	var rows []Growth
	for _, g := range sites {
		rows = append(rows, *g)
	}
	c.setLargestGrowth(rows)
}

func (c *Case) setLargestGrowth(rows []Growth) {
	sorts.Func(rows, func(x, y Growth) int { return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.Site, y.Site)) })
	if len(rows) == 0 {
		return
	}
	var own uint64
	for i := range rows {
		own += rows[i].Bytes
	}
	g, older := rows[0], c.Torch.Allocated-min(c.Torch.Allocated, own)
	if g.Objects >= grownBlocks && g.Bytes >= own/grownShare && older+g.Bytes > c.Healthy+c.Healthy/grownBeyond {
		c.Grown = g
	}
	for i := range c.Top {
		if t := &c.Top[i]; t.Site == c.Grown.Site && t.Holder != view.NoHolder && t.Bytes > c.Grown.Held {
			c.Grown.Holder, c.Grown.Held = t.Holder, t.Bytes
		}
	}
}
