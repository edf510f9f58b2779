// SPDX-License-Identifier: Apache-2.0

package oom

import (
	"cmp"
	"maps"
	"slices"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// Passes counts forward passes of the failing step whose activations are all in use: none of them has had its backward pass.
type Passes struct {
	Site  string // line that brings the input of each to the device; empty: there are no such passes
	Count int
	Each  uint64 // activations of a pass, bytes, the median
}

// Passes are counted from leastPasses on, if what they have allocated is at least 1/passesShare of the step's memory, and each has at
// least 1/passShare of the median, except the last, which may be under way.
const (
	leastPasses = 3
	passesShare = 2
	passShare   = 2
)

// stepBlock is a live block of the failing step.
type stepBlock struct {
	heap.Block
	category phases.Category
	phase    phases.Phase
}

// blocksSince returns the live blocks of a case's device from a time on, the oldest first.
func (f *follower) blocksSince(c *Case, h *heap.Heap, from uint64) (out []stepBlock) {
	for b := range h.Blocks() {
		if s, ok := f.starts[b.Key()]; ok && b.Time >= from && f.has(c, &b) {
			out = append(out, stepBlock{b, f.life.InUse(&s), f.in.Trace.Phase(b.Stack)})
		}
	}
	slices.SortFunc(out, func(x, y stepBlock) int { return cmp.Or(cmp.Compare(x.Time, y.Time), cmp.Compare(x.Addr, y.Addr)) })
	return out
}

// blocksOfStep returns the live blocks of a case's step, the oldest first. If the step is not known, it returns the blocks of the rise
// before the failure; nil: there was none.
func (f *follower) blocksOfStep(c *Case, h *heap.Heap) []stepBlock {
	from, _, ok := f.in.Steps.Span(c.Step)
	if !ok || c.Step == 0 {
		if from = c.Since; from == 0 {
			return nil
		}
	}
	return f.blocksSince(c, h, from)
}

// setSince finds the rise of the memory before the failure, if its step is not known.
func (f *follower) setSince(c *Case) {
	if _, _, ok := f.in.Steps.Span(c.Step); ok && c.Step > 0 {
		return
	}
	t := f.totals[accountKey{c.PID, c.Device}]
	if t == nil || c.Torch.Allocated == event.Unknown || t.freed.Bytes <= t.made.Bytes/fillFrees {
		return // Fill has what was allocated since the beginning
	}
	if x, ok := t.climb.began(c.Torch.Allocated, t.made); ok {
		c.Since, c.Low = x.time, x.total
	}
}

// setPasses finds forward passes that wait for one backward pass, as when the losses of several inputs are added up. all is the step's
// blocks.
func (f *follower) setPasses(c *Case, all []stepBlock) {
	if c.Phase != phases.Forward && c.Phase != phases.Input {
		return
	}
	inputs, own := map[event.StackID]int{}, uint64(0)
	for i := range all {
		if own += all[i].Size; all[i].phase == phases.Input {
			inputs[all[i].Stack]++
		}
	}
	most := event.StackID(0)
	for id, n := range inputs {
		if n > inputs[most] || n == inputs[most] && id < most {
			most = id
		}
	}
	if inputs[most] < leastPasses {
		return
	}
	var passes []uint64
	var sum uint64
	site, stacks, under := "", map[event.StackID]bool{}, map[event.StackID]bool{} // of the passes that are over, and of the last
	for i := range all {
		switch b := &all[i]; {
		case b.phase == phases.Input && b.Stack == most:
			passes, site = append(passes, 0), f.in.Trace.SiteName(&b.Block)
			maps.Copy(stacks, under)
			clear(under)
		case len(passes) > 0 && b.phase == phases.Forward:
			passes[len(passes)-1] += b.Size
			sum += b.Size
			under[b.Stack] = true
		}
	}
	if len(stacks) < graphPlaces { // only the results are kept
		return
	}
	sorted := slices.Sorted(slices.Values(passes))
	median := sorted[len(sorted)/2]
	thin := func(n uint64) bool { return n < median/passShare }
	if sum < own/passesShare || median == 0 || slices.ContainsFunc(passes[:len(passes)-1], thin) {
		return
	}
	c.Passes = Passes{site, len(passes), median}
}

// Attempt is memory of a step in which a request was refused before, and which the program has begun again.
type Attempt struct {
	Time      uint64 // of that refusal, CLOCK_BOOTTIME nanoseconds
	Requested uint64 // by it, bytes
	Leftover
}

// broughtInput is the input that was brought last in a step: several blocks, if nothing else that is in use was allocated between them.
type broughtInput struct {
	last heap.BlockKey
	from uint64 // time of the first block, CLOCK_BOOTTIME nanoseconds; 0: no input
}

// lastInput returns the input that was brought last, of a step's blocks.
func lastInput(all []stepBlock) (in broughtInput) {
	for _, b := range slices.Backward(all) {
		switch {
		case b.phase == phases.Input && in.from == 0:
			in.last, in.from = b.Key(), b.Time
		case b.phase == phases.Input:
			in.from = b.Time
		case in.from != 0:
			return in
		}
	}
	return in
}

// setAttempt finds what is still in use of the last attempt that was refused something: what came from its input on, if that is still in
// use too. That the attempt was given up shows in the line of the input, which has brought another one since: a pass that goes on with less
// than it asked for needs what it has.
func (f *follower) setAttempt(c *Case, h *heap.Heap) {
	for i := range slices.Backward(f.cases[:f.done]) {
		p := &f.cases[i]
		if p.PID != c.PID || p.Device != c.Device || !p.Reported {
			continue
		}
		if p.input.from == 0 {
			return
		}
		all := f.blocksSince(c, h, p.input.from)
		later := slices.IndexFunc(all, func(b stepBlock) bool { return b.Time > p.Time })
		input := slices.IndexFunc(all, func(b stepBlock) bool { return b.Key() == p.input.last })
		if later <= 0 || input < 0 || !slices.ContainsFunc(all[later:], func(b stepBlock) bool { return f.isSameLine(&b, &all[input]) }) {
			return
		}
		var left []heap.Block
		for _, b := range all[:later] {
			if b.phase == phases.Input || isPass(b.phase) && !isLasting[b.category] {
				left = append(left, b.Block)
			}
		}
		c.Attempt = Attempt{Time: p.Time, Requested: p.Requested}
		f.sumUp(&c.Attempt.Leftover, left)
		c.nameLeftover(&c.Attempt.Leftover)
		return
	}
}

// isSameLine reports whether two blocks are inputs that one line has brought, whatever called it.
func (f *follower) isSameLine(x, y *stepBlock) bool {
	return x.phase == y.phase && f.in.Trace.SiteName(&x.Block) == f.in.Trace.SiteName(&y.Block)
}

// isLasting has the categories of memory that outlasts a step.
var isLasting = map[phases.Category]bool{phases.Parameters: true, phases.Gradients: true, phases.OptimizerState: true}

// attempted returns what an earlier attempt has left.
func (c *Case) attempted() Cause {
	return Cause{EarlierAttempt, c.Attempt.Bytes, 0, c.suffices(c.Attempt.Bytes)}
}
