// SPDX-License-Identifier: Apache-2.0

package oom

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gputrace/gputrace/analysis/advice"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/sorts"
	"github.com/gputrace/gputrace/internal/varpath"
)

// A line is named for its allocations within the failing step if they are at least a number of blocks and a share (one in this
// number) of the step's memory and, together with older blocks, exceed the peak of the earlier steps by a share. Blocks from
// many different stacks are more than stored results: the graph of a forward pass, with what each operation saved.
const (
	grownBlocks  = 8
	grownShare   = 2
	grownBeyond  = 10
	graphPlaces  = 2
	spreadPlaces = 8 // of all lines together
	heldShare    = 2 // a holder of less than one part in this number of a line's blocks is not named for them
)

// Growth counts the live blocks of one line that were allocated since the beginning of the failing step.
type Growth struct {
	Site   string
	Holder string // holder of most of them; view.NoHolder: not known
	Held   uint64 // bytes held by Holder
	Places int    // number of different stacks
	Phase  phases.Phase
	Signs  advice.Signs // the signs of its stacks
	Made   int          // blocks that its stacks have allocated in the failing step, with those that were freed again
	From   uint64       // time since which they were allocated, CLOCK_BOOTTIME nanoseconds
	Copy   bool         // the blocks have the sizes of parameters that the line made before, and that are still in use
	heap.Count
}

// keptShare: of what a graph keeps at least one block in this number of a line is still in use; most of the others are temporary.
const keptShare = 8

// replaces reports whether a line frees nearly all that it allocates, as one that lengthens a tensor does: no graph keeps its blocks.
func (g *Growth) replaces() bool { return int(g.Objects)*keptShare < g.Made }

// Loaded reports whether torch.load, or a library that loads tensors from a file, has allocated the blocks.
func (g *Growth) Loaded() bool { return g.Signs.Has(advice.Load) }

// Advice returns advice for an evaluation that keeps what the graph of its forward passes saves: the holder of the
// blocks is a graph or, if it is not known, the blocks come from several operations. Empty: no advice.
func (c *Case) Advice() string {
	const graph = " graph keeps them: evaluate under torch.no_grad()"
	g := &c.Grown
	switch {
	case g.replaces(), c.Spread.replaces():
		return ""
	case c.Phase == phases.Evaluation && c.Spread.Places > 0:
		return "If a" + graph
	case c.Phase != phases.Evaluation || g.Site == "":
		return ""
	case g.Holder == view.NoHolder && g.Places >= graphPlaces:
		return "If a" + graph
	case strings.Contains(g.Holder, "grad_fn"), varpath.IsGraph(g.Holder):
		return "A" + graph
	}
	return ""
}

// stateFunction is the function in which PyTorch's optimizers allocate their state. Their other allocations are temporary.
const stateFunction = "_init_group"

// makesState reports whether a stack of an optimizer's step allocates state: optimizers outside PyTorch may do so anywhere.
func makesState(s *event.Stack) bool {
	torchs := false
	for i := range s.Frames {
		g := &s.Frames[i]
		if strings.HasSuffix(g.Func, stateFunction) {
			return true
		}
		torchs = torchs || strings.Contains(g.File, "/torch/optim/")
	}
	return !torchs
}

// setState adds up what the optimizer has allocated, if the request failed while the optimizer was creating its state:
// it has nothing from before this step.
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
		if st := f.in.Trace.Stack(b.Stack); st != nil && makesState(st) {
			c.State += b.Size
		}
	}
}

// isOptimizers reports whether an optimizer allocated a block of the device.
func (f *follower) isOptimizers(c *Case, b *heap.Block) bool {
	s, ok := f.starts[b.Key()]
	return ok && s.Phase == phases.Optimizer && f.has(c, b)
}

// has reports whether a block is PyTorch's and on the request's device.
func (f *follower) has(c *Case, b *heap.Block) bool {
	return b.PID == c.PID && b.Device == c.Device && b.Layer == c.layer() && (!c.Async || f.async.owns(b.PID, b.Stack, b.Call))
}

// setGrown finds what the failing step has allocated and kept, which a comparison of steps does not show: for example,
// an evaluation after the last step that keeps its results. Without steps, it finds what one line has allocated. Site
// is empty if no line stands out.
func (f *follower) setGrown(c *Case, h *heap.Heap) {
	t := f.totals[accountKey{c.PID, c.Device}]
	if t == nil || c.Torch.Allocated == event.Unknown {
		return
	}
	if from, _, ok := f.in.Steps.Span(c.Step); ok && c.Step > 0 && c.Healthy != event.Unknown {
		c.setLargestGrowth(f.bySite(c, h, from), c.Healthy)
		f.setCopy(c, h)
		return
	}
	if c.Since > 0 {
		c.setLargestGrowth(f.bySite(c, h, c.Since), c.Low)
		return
	}
	if keeps := t.freed.Bytes <= t.made.Bytes/fillFrees; keeps && c.State == 0 && !c.hasEarlier() {
		c.setFill(f.bySite(c, h, 0))
	}
}

// bySite adds up, by line, the live blocks allocated since a time.
func (f *follower) bySite(c *Case, h *heap.Heap, from uint64) []Growth {
	sites, places := map[string]*Growth{}, map[event.StackID]bool{}
	for b := range h.Blocks() {
		if !f.has(c, &b) || b.Time < from {
			continue
		}
		name := f.in.Trace.SiteName(&b)
		g := sites[name]
		if g == nil {
			g = &Growth{Site: name, Holder: view.NoHolder, Phase: f.in.Trace.Phase(b.Stack), From: from}
			sites[name] = g
		}
		g.Count = g.Plus(heap.CountOf(b.Size, b.Requested))
		if !places[b.Stack] {
			places[b.Stack] = true
			g.Places++
			g.Made += f.made[b.Stack]
			g.Signs |= f.signsOf(b.Stack)
		}
	}
	var rows []Growth
	for _, g := range sites {
		rows = append(rows, *g)
	}
	return rows
}

const (
	// copyShare is the share of a line's bytes that must have a block of the same size from before for it to be a copy.
	copyShare = 0.95
	// copySizes is the least number of different sizes of a copy: layers of a model have several, where a list of results has one.
	copySizes = 2
)

// setCopy finds out whether the growth of the failing step is a second copy of a model: while a model is made, a line made blocks of the
// sizes of older ones of its own, which are parameters.
func (f *follower) setCopy(c *Case, h *heap.Heap) {
	g, parameters := &c.Grown, uint64(0)
	for i := range c.Top {
		if t := &c.Top[i]; t.Site == g.Site && t.Category == phases.Parameters {
			parameters += t.Bytes
		}
	}
	if c.Phase != phases.Setup || g.Site == "" || float64(parameters) < copyShare*float64(g.Bytes) {
		return
	}
	var older, newer []uint64
	for b := range h.Blocks() {
		switch {
		case !f.has(c, &b) || f.in.Trace.SiteName(&b) != g.Site:
		case b.Time < g.From:
			older = append(older, b.Size)
		default:
			newer = append(newer, b.Size)
		}
	}
	g.Copy = copies(older, newer)
}

// copies reports whether blocks of some sizes are a copy of older ones.
func copies(older, newer []uint64) bool {
	left, sizes := map[uint64]int{}, map[uint64]bool{}
	for _, size := range older {
		left[size]++
	}
	var same, all uint64
	for _, size := range newer {
		all += size
		if left[size]--; left[size] >= 0 {
			sizes[size], same = true, same+size
		}
	}
	return len(sizes) >= copySizes && float64(same) >= copyShare*float64(all)
}

// joinedNear: the blocks of a line are those that a request joins if their sizes add up to what it asks for, but for 1/joinedNear.
const joinedNear = 16

// setJoined finds the blocks that a request of torch.cat or torch.stack was to copy into one: until it has, both are in use.
func (f *follower) setJoined(c *Case, h *heap.Heap) {
	if c.Stack == nil || c.Requested == event.Unknown || !advice.SignsOf(stacks.Ran(c.Stack.Frames)).Has(advice.Join) {
		return
	}
	rows := f.bySite(c, h, 0)
	differs := func(g *Growth) uint64 { return max(g.Bytes, c.Requested) - min(g.Bytes, c.Requested) }
	sorts.Func(rows, func(x, y Growth) int {
		return cmp.Or(cmp.Compare(differs(&x), differs(&y)), cmp.Compare(x.Site, y.Site))
	})
	for i := range rows {
		if g := &rows[i]; g.Objects > 1 && differs(g) <= c.Requested/joinedNear {
			c.Joined = *g
			c.hold(&c.Joined)
			return
		}
	}
}

func sortGrowth(rows []Growth) {
	sorts.Func(rows, func(x, y Growth) int { return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.Site, y.Site)) })
}

// A line fills the device if it is that of the request or has put as many blocks there as a line that stands out, half of what is allocated
// together with the other lines of its file, and no more than one part in fillFrees of all that was made was freed.
const fillFrees = 4

// setFill takes the largest line, if it is one that fills the device.
func (c *Case) setFill(rows []Growth) {
	if sortGrowth(rows); len(rows) == 0 {
		return
	}
	g := rows[0]
	if g.Objects < grownBlocks || g.Bytes < c.Torch.Allocated/grownShare {
		return
	}
	c.Fill = g
	c.hold(&c.Fill)
}

// hold sets the holder of most blocks of a line. A reading from before they were allocated found other blocks of that line.
func (c *Case) hold(g *Growth) {
	if c.HeldAt < g.From {
		return
	}
	for i := range c.Top {
		if t := &c.Top[i]; t.Site == g.Site && t.Holder != view.NoHolder && t.Bytes > g.Held {
			g.Holder, g.Held = t.Holder, t.Bytes
		}
	}
	if g.Held < g.Bytes/heldShare {
		g.Holder, g.Held = view.NoHolder, 0
	}
}

// setLargestGrowth takes the largest line, or all lines of an evaluation. They must exceed what is usual, bytes.
func (c *Case) setLargestGrowth(rows []Growth, usual uint64) {
	if sortGrowth(rows); len(rows) == 0 {
		return
	}
	var own uint64
	for i := range rows {
		if own += rows[i].Bytes; rows[i].Phase == phases.Evaluation {
			c.Spread.Count = c.Spread.Plus(rows[i].Count)
			c.Spread.Places += rows[i].Places
			c.Spread.Made += rows[i].Made
		}
	}
	g, older := rows[0], c.Torch.Allocated-min(c.Torch.Allocated, own)
	if g.Objects >= grownBlocks && g.Bytes >= own/grownShare && older+g.Bytes > usual+usual/grownBeyond {
		c.Grown = g
	}
	few := c.Spread.Places < spreadPlaces || c.Spread.Bytes < own/grownShare
	if c.Grown.Site != "" || few || older+own <= usual+usual/grownBeyond {
		c.Spread = Growth{}
	}
	c.hold(&c.Grown)
}

// setFindings stores the growth from step to step: how much of it was there when the request failed, and by how much
// the memory between steps had risen.
func (f *follower) setFindings(c *Case, h *heap.Heap) {
	if f.in.Leaks == nil {
		return
	}
	c.Doubt = f.in.Leaks.Doubt
	t, now := f.totals[accountKey{c.PID, c.Device}], uint64(0)
	for _, found := range f.in.Leaks.Findings {
		switch {
		case found.Device != c.Device:
		case found.Layer == event.LayerDevice && !c.Async:
			c.Outside = append(c.Outside, found)
		case found.Layer != c.layer() || t == nil || !f.knowsSteps(t):
		default:
			if now += f.setGrownBy(c, &found, h); found.LiveBytes > 0 && !c.joins(&found) {
				c.Findings = append(c.Findings, found)
			}
		}
	}
	if len(c.Findings) == 0 || c.floor == event.Unknown {
		return
	}
	first := t.steps[0].floor
	for i := range t.steps {
		if t.steps[i].Step <= max(1, c.Findings[0].First) {
			first = t.steps[i].floor
		}
	}
	c.net = c.floor - min(c.floor, first) + now
}

// joins reports whether the request was to join the blocks of a finding: they are needed for it, and do not grow any more.
func (c *Case) joins(f *leaks.Finding) bool { return c.Joined.Site != "" && f.Name() == c.Joined.Site }

// setGrownBy sets how much of a finding was there when a request failed. It returns the bytes of the failing step.
func (f *follower) setGrownBy(c *Case, found *leaks.Finding, h *heap.Heap) (now uint64) {
	if len(found.Stacks) == 0 {
		return 0
	}
	from, _, _ := f.in.Steps.Span(found.First)
	this, _, _ := f.in.Steps.Span(c.Step)
	var sum heap.Count
	for b := range h.Blocks() {
		if b.Time >= from && f.has(c, &b) && slices.Contains(found.Stacks, b.Stack) {
			if sum = sum.Plus(heap.CountOf(b.Size, b.Requested)); b.Time >= this {
				now += b.Size
			}
		}
	}
	if sum.Bytes < found.LiveBytes {
		found.LiveBytes, found.LiveBlocks = sum.Bytes, sum.Objects
	}
	return now
}
