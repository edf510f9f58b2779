// SPDX-License-Identifier: Apache-2.0

package view

import (
	"iter"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
)

// Measure is a figure of which a view's memory is split by stack.
type Measure uint8

const (
	InUse     Measure = iota // in use; the samples add up to View.Total
	Allocated                // allocated since the first event, also what is freed by now; what was allocated before is not in it
)

// Sample is the memory of a view that has one stack, or a name instead of one.
type Sample struct {
	Site   *Site // nil: memory that only the allocator's total tells of
	PID    uint32
	Layer  event.Layer
	Device event.Device
	Name   string // Site.Name; stacks.BeforeAttach or stacks.LostEvents without a site
	Holder string // of stacks.BeforeAttach: what holds it; NoHolder or empty when that is not known
	// Bytes is negative for stacks.LostEvents when more frees than allocations were lost.
	Bytes   int64
	Objects uint64 // 0 where only the bytes are known
}

// Samples yields what a view has of a measure, the sites in their order, then what the allocators' totals contain beside
// them. Every profile and flame graph is made of these. j splits what was allocated before the first event by its holders; nil: it
// is one sample.
func (v *View) Samples(m Measure, j *Joined) iter.Seq[Sample] {
	return func(yield func(Sample) bool) {
		for i := range v.Sites {
			s := &v.Sites[i]
			count := s.Inuse
			if m == Allocated {
				count = s.Alloc
			}
			if !s.Counted() || count.Objects == 0 {
				continue
			}
			p := Sample{Site: s, PID: s.PID, Layer: s.Layer, Device: s.Device, Name: s.Name, Bytes: int64(count.Bytes), Objects: count.Objects}
			if !yield(p) {
				return
			}
		}
		for i := range v.Snapshot.Accounts {
			if m == InUse && !unseen(&v.Snapshot.Accounts[i], j, yield) {
				return
			}
		}
	}
}

// unseen yields what an allocator's total contains beside the blocks that were seen. How many blocks that are is known when
// the allocator state was read.
func unseen(a *heap.Account, j *Joined, yield func(Sample) bool) bool {
	if a.Allocated == event.Unknown {
		return true
	}
	parts := []figures.HeldPart{{Holder: NoHolder, Bytes: a.Before}}
	if a.BeforeBlocks.Bytes == a.Before {
		parts[0].Blocks = a.BeforeBlocks.Objects
	}
	if j != nil {
		parts = j.Before(a)
	}
	p := Sample{PID: a.PID, Layer: event.LayerAllocator, Device: a.Device, Name: stacks.BeforeAttach}
	for _, part := range parts {
		p.Holder, p.Bytes, p.Objects = part.Holder, int64(part.Bytes), part.Blocks
		if p.Bytes != 0 && !yield(p) {
			return false
		}
	}
	p.Name, p.Holder, p.Bytes, p.Objects = stacks.LostEvents, NoHolder, a.Lost, 0
	return p.Bytes == 0 || yield(p)
}

// Frames is what of the sample's stack is worth showing, leaf first, as stacks.VisibleFrames has it; nil when there is only a name.
func (p *Sample) Frames() []event.Frame {
	if p.Site == nil || p.Site.Stack == nil || len(p.Site.Stack.Frames) == 0 {
		return nil
	}
	return stacks.VisibleFrames(p.Site.Stack)
}

// Names is what stands for a sample without frames, leaf first.
func (p *Sample) Names() []string {
	if p.Holder == "" || p.Holder == NoHolder {
		return []string{p.Name}
	}
	return []string{p.Holder, p.Name}
}

// NeedsName says whether the sample's name says more than the leaf of its frames does, so that it is to be shown at the leaf.
func (p *Sample) NeedsName(frames []event.Frame) bool {
	return len(frames) > 0 && frames[0] != *p.Site.Own
}

// Overdrawn is the bytes by which what is known to be in use is more than the allocators' totals, since frees were lost: the
// negative samples, for formats that cannot have any. Their sum is View.Total plus this.
func (v *View) Overdrawn() uint64 {
	var n uint64
	for i := range v.Snapshot.Accounts {
		if a := &v.Snapshot.Accounts[i]; a.Allocated != event.Unknown {
			n += uint64(max(0, -a.Lost))
		}
	}
	return n
}

// Label is one frame as flame graphs show it.
type Label struct {
	Text string // "forward (gpt.py:38)", a native symbol, or a name that stands for a stack. Foreign: it can hold anything
	// Frame is what it is of; shared; nil: the text is all there is.
	Frame *event.Frame
}

// Labels is the sample's stack, leaf first: its frames, below them its name where that says more, or its names alone. It is
// never empty.
func (p *Sample) Labels() []Label {
	frames := p.Frames()
	var out []Label
	if frames == nil || p.NeedsName(frames) {
		for _, name := range p.Names() {
			out = append(out, Label{Text: name})
		}
	}
	for i := range frames {
		out = append(out, Label{Text: frameLabel(&frames[i]), Frame: &frames[i]})
	}
	return out
}

// BlockLabels is the stack of a block, as Sample.Labels.
func (t *Trace) BlockLabels(b *heap.Block) []Label {
	s := t.Site(b)
	return (&Sample{Site: &s, Name: s.Name}).Labels()
}

// frameLabel names a frame with its place: lines of one function are different.
func frameLabel(f *event.Frame) string {
	name := f.Label()
	if f.Kind == event.FramePython && !f.Unread() {
		if name = f.Func; name == "" {
			name = noName
		}
		return name + " (" + stacks.Position(f) + ")"
	}
	return name
}

// noName stands for the empty name that a Python code object can have.
const noName = "[no name]"
