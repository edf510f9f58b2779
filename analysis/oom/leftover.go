// SPDX-License-Identifier: Apache-2.0

package oom

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gputrace/gputrace/analysis/advice"
	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// Leftover is memory that the program no longer needs, according to its calls.
type Leftover struct {
	Site   string // line that allocated most of it; empty: none
	Call   string // function that has returned; empty: not known
	Holder string // holder of most of it; view.NoHolder: not known
	Held   uint64 // bytes held by Holder
	heap.Count
}

// An optimizer's state is left over from an earlier phase if another optimizer creates its own, leastApart steps later;
// or fewApart steps later, if the sizes of all its state so far also occur in the older state. Optimizers that take
// turns begin closer together.
const (
	leastApart = 8
	fewApart   = 2
)

// optimizerBlocks returns the blocks of optimizers' state from before a time and from after it.
func (f *follower) optimizerBlocks(c *Case, h *heap.Heap, from uint64) (older, newer []heap.Block) {
	for b := range h.Blocks() {
		if !f.isOptimizers(c, &b) {
			continue
		}
		if st := f.in.Trace.Stack(b.Stack); st == nil || !makesState(st) {
			continue
		}
		if b.Time < from {
			older = append(older, b)
		} else {
			newer = append(newer, b)
		}
	}
	return older, newer
}

// setEnded finds the state of an optimizer that was used by a call which has returned, if the request is for the first
// state of another optimizer.
func (f *follower) setEnded(c *Case, h *heap.Heap) {
	from, _, ok := f.in.Steps.Span(c.Step)
	if c.Phase != phases.Optimizer || c.Step == 0 || !ok || c.Stack == nil {
		return
	}
	older, newer := f.optimizerBlocks(c, h, from)
	now := c.Stack
	if len(newer) > 0 {
		now = f.in.Trace.Stack(newer[0].Stack)
	}
	if !makesState(now) {
		return
	}
	var of []heap.Block
	calls := map[event.StackID]string{}
	for i := range older {
		call, known := calls[older[i].Stack]
		if !known {
			call = endedCall(f.in.Trace.Stack(older[i].Stack), now)
			calls[older[i].Stack] = call
		}
		if call != "" {
			c.Ended.Call = call
			of = append(of, older[i])
		}
	}
	apart := leastApart
	if sameSizes(of, newer, c.Requested) {
		apart = fewApart
	}
	of = slices.DeleteFunc(of, func(b heap.Block) bool { return c.Step-f.stepAt(b.Time) < apart })
	if f.sumUp(&c.Ended, of); c.Ended.Bytes == 0 {
		return
	}
	c.State = 0
	for i := range newer {
		c.State += newer[i].Size
	}
}

// sumUp adds up blocks.
func (f *follower) sumUp(l *Leftover, blocks []heap.Block) {
	sites := map[string]uint64{}
	for i := range blocks {
		b := &blocks[i]
		l.Count = l.Plus(heap.CountOf(b.Size, b.Requested))
		name := f.in.Trace.SiteName(b)
		if sites[name] += b.Size; l.Site == "" || sites[name] > sites[l.Site] {
			l.Site = name
		}
	}
}

// sameSizes reports whether all sizes of some blocks, and of a request, also occur in others.
func sameSizes(others, blocks []heap.Block, request uint64) bool {
	known := map[uint64]bool{}
	for i := range others {
		known[others[i].Size] = true
	}
	return known[request] && !slices.ContainsFunc(blocks, func(b heap.Block) bool { return !known[b.Size] })
}

// endedCall returns the function in one stack that has returned by the time of another stack of the same thread: the
// stacks diverge in its caller. Empty: they do not diverge in the program's own code.
func endedCall(old, now *event.Stack) string {
	if old == nil || now == nil {
		return ""
	}
	x, y := pythonPath(old), pythonPath(now)
	switch i, same := divergence(x, y); {
	case i == min(len(x), len(y)):
		return ""
	case same:
		return calledAt(x, i+1)
	default:
		return calledAt(x, i)
	}
}

// divergence returns the first position at which two paths differ, or the length of the shorter one. same: it is another line of the same
// function.
func divergence(x, y []*event.Frame) (i int, same bool) {
	for ; i < len(x) && i < len(y); i++ {
		switch a, b := x[i], y[i]; {
		case a.File != b.File || a.Func != b.Func:
			return i, false
		case a.Line != b.Line:
			return i, true
		}
	}
	return i, false
}

// calledAt returns the function at a place of a path. For a frame of PyTorch it returns the caller's function, and for
// the root the empty string.
func calledAt(path []*event.Frame, i int) string {
	if i >= len(path) || i == 0 {
		return ""
	}
	if strings.Contains(path[i].File, "/torch/") {
		return path[i-1].Func
	}
	return path[i].Func
}

// pythonPath returns the Python frames of a stack, root first.
func pythonPath(s *event.Stack) (out []*event.Frame) {
	for i := range slices.Backward(s.Frames) {
		if g := &s.Frames[i]; g.Kind == event.FramePython {
			out = append(out, g)
		}
	}
	return out
}

// leastCopied is the smallest block that counts as a copy, bytes: small blocks have equal sizes by chance.
const leastCopied = 64 << 10

// setLoaded finds memory that was loaded from a file to the device in addition to parameters of the same sizes.
func (f *follower) setLoaded(c *Case, h *heap.Heap) {
	if c.Stack != nil && advice.SignsOf(c.Stack.Frames).Has(advice.Load) {
		f.setLoading(c, h)
		return // not copied yet
	}
	parameters, whole := map[uint64]int{}, uint64(0)
	var loaded []heap.Block
	for b := range h.Blocks() {
		s, ok := f.starts[b.Key()]
		if !ok || !f.has(c, &b) || b.Size < leastCopied {
			continue
		}
		switch {
		case f.signsOf(b.Stack).Has(advice.Load):
			loaded = append(loaded, b)
		case f.life.InUse(&s) == phases.Parameters:
			parameters[b.Size]++
			whole += b.Size
		}
	}
	slices.SortFunc(loaded, func(x, y heap.Block) int { return cmp.Compare(x.Addr, y.Addr) })
	var copies []heap.Block
	for i := range loaded {
		if n := loaded[i].Size; parameters[n] > 0 {
			parameters[n]--
			copies = append(copies, loaded[i])
		}
	}
	var l Leftover
	if f.sumUp(&l, copies); l.Bytes >= whole/2 && l.Bytes > 0 {
		c.Loaded = l
	}
}

// setLoading finds what the failing call has loaded from a file to the device, if most of it has the sizes of other blocks there: a
// checkpoint that is to replace parameters and the state of an optimizer.
func (f *follower) setLoading(c *Case, h *heap.Heap) {
	others := map[uint64]int{}
	var loaded []heap.Block
	for b := range h.Blocks() {
		switch {
		case !f.has(c, &b) || b.Size < leastCopied:
		case f.signsOf(b.Stack).Has(advice.Load) && f.in.Trace.SiteName(&b) == c.Site:
			loaded = append(loaded, b)
		default:
			others[b.Size]++
		}
	}
	var all, alike uint64
	for i := range loaded {
		n := loaded[i].Size
		all += n
		if others[n] > 0 {
			others[n]--
			alike += n
		}
	}
	if all > 0 && 2*alike >= all {
		f.sumUp(&c.Loading, loaded)
	}
}

// signsOf returns advice.SignsOf for a stack.
func (f *follower) signsOf(id event.StackID) advice.Signs {
	s, ok := f.signs[id]
	if !ok {
		if st := f.in.Trace.Stack(id); st != nil {
			s = advice.SignsOf(st.Frames)
		}
		f.signs[id] = s
	}
	return s
}

// nameLeftover sets the holder of a leftover: the one with the most bytes of its line that do not exceed it.
func (c *Case) nameLeftover(l *Leftover) {
	l.Holder = view.NoHolder
	for i := range c.Top {
		t := &c.Top[i]
		if t.Site != l.Site || t.Holder == view.NoHolder || t.Bytes > l.Bytes {
			continue
		}
		if t.Bytes > l.Held {
			l.Holder, l.Held = t.Holder, t.Bytes
		}
	}
}

// moreLoaded extends what was loaded twice to what the variable that holds it has of the same line, if that is the same several times
// over: a checkpoint can have weights and their average.
func (c *Case) moreLoaded() {
	l := &c.Loaded
	if l.Bytes == 0 || l.Holder != view.NoHolder {
		return
	}
	for i := range c.Top {
		t := &c.Top[i]
		if t.Site == l.Site && t.Holder != view.NoHolder && t.Category != phases.OptimizerState && isTimes(t.Bytes, l.Bytes) {
			l.Holder, l.Held, l.Count = t.Holder, t.Bytes, t.Count
			return
		}
	}
}

// isTimes reports whether a number of bytes is another two times or more, but for a hundredth: small blocks are not counted as copies.
func isTimes(bytes, of uint64) bool {
	times := (bytes + of/2) / of
	return times >= 2 && max(bytes, times*of)-min(bytes, times*of) <= of/100
}

// ended returns the state of an optimizer that no call uses any more.
func (c *Case) ended() Cause {
	return Cause{EarlierPhase, c.Ended.Bytes, 0, c.suffices(c.Ended.Bytes)}
}

// loadedTwice returns the memory that was loaded in addition to the parameters to which it was copied.
func (c *Case) loadedTwice() Cause {
	return Cause{LoadedTwice, c.Loaded.Bytes, 0, c.suffices(c.Loaded.Bytes)}
}
