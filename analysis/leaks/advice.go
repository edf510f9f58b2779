// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"math"
	"slices"
	"strings"

	"github.com/gputrace/gputrace/analysis/advice"
	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/varpath"
)

// proof is evidence for a finding's advice, beside the finding's own fields.
type proof struct {
	signs, together advice.Signs
	facts           advice.Facts
	nodes           bool // autograd nodes save most of its blocks, and no variable is known to lead to them
	outside         bool // PyTorch allocates in the same process, and this is not its memory
	grew            varpath.Growth
	cause           bool // its line is the one to change: the backward call that accumulates its gradients
	leads           int  // number of other findings with the same holder to which its line leads
	filled          bool // Finding.hasFilled
	inference       bool // no backward pass or optimizer ran
	tensorKeys      bool // Finding.hasTensorKeys
	calls           bool // another finding shows that the suspended calls that hold its blocks become more
}

// Advice returns what to do if the pattern of the finding is proved; otherwise "".
func (f *Finding) Advice() string {
	e := &advice.Evidence{
		Layer: f.Layer, Allocator: f.Device.Allocator(), Holder: f.Holder, Facts: f.proof.facts, Signs: f.proof.signs, Together: f.proof.together,
		Nodes: f.proof.nodes, Outside: f.proof.outside, Grew: f.proof.grew, Calls: f.Graph, Phase: f.Phase, UsualEnd: f.UsualEnd,
		Inference: f.proof.inference, TensorKeys: f.proof.tensorKeys,
		Longer: f.Blocks == 0 && f.Requested > 0 && !f.proof.calls,
		Unfit:  f.Bound() != nil, // one that fits is no finding: see Report.filling
	}
	if f.Kind == Leak && f.Blocks > 0 {
		e.Block = f.Requested / f.Blocks
	}
	return advice.Text(e)
}

// byNodes reports whether autograd nodes hold at least half of a finding's blocks whose holder is known.
func (f *Finding) byNodes(all []Holder) bool {
	var sum, nodes uint64
	for _, h := range all {
		if !slices.Contains(f.Sites, h.Site) || h.Name == "" || h.Name[0] == '[' {
			continue
		}
		sum += h.Bytes
		if varpath.IsGraph(h.Name) {
			nodes += h.Bytes
		}
	}
	return nodes > 0 && 2*nodes >= sum
}

// hasTensorKeys reports whether a reading has found tensors that are keys of the container which holds the blocks.
func (f *Finding) hasTensorKeys(o *Options) bool {
	for _, all := range append(slices.Clip(o.Earlier), o.Holders) {
		for _, h := range all {
			if kept, ok := strings.CutSuffix(h.Name, "{Tensor}"); ok && strings.HasPrefix(f.Holder, kept+"[") {
				return true
			}
		}
	}
	return false
}

// isBelow reports whether a finding was allocated in a call made by the line of another one.
func (f *Finding) isBelow(other *Finding) bool {
	if f.Stack == nil || other.File == "" || other.Backward || f.File == other.File && f.Line == other.Line {
		return false
	}
	return slices.ContainsFunc(stacks.Ran(f.Stack.Frames), func(c event.Frame) bool {
		return c.Kind == event.FramePython && c.File == other.File && c.Line == other.Line && c.Func == other.Function
	})
}

// grew compares the holder with the first of the earlier readings that has it.
func (f *Finding) grew(readings [][]Holder) varpath.Growth {
	for _, all := range readings {
		var before Holder
		for _, h := range all {
			if slices.Contains(f.Sites, h.Site) && h.Bytes > before.Bytes && varpath.Key(h.Name) == varpath.Key(f.Holder) {
				before = h
			}
		}
		if g, ok := varpath.Grew(before.Name, f.Holder); ok {
			return g
		}
	}
	if f.hadAll(readings) {
		return varpath.Growth{}
	}
	return f.gets()
}

// hadAll reports whether the first reading that has the holder, of blocks of other lines only, has it with the same elements: they were
// there before the line's own.
func (f *Finding) hadAll(readings [][]Holder) bool {
	for _, all := range readings {
		for _, h := range all {
			if varpath.Key(h.Name) == varpath.Key(f.Holder) {
				return h.Name == f.Holder && !slices.Contains(f.Sites, h.Site)
			}
		}
	}
	return false
}

// fewGets is how many times as many elements as blocks of one rise a container must have to be the one that gets them.
const fewGets = 4

// gets returns the container whose elements the growth adds to, where one reading tells: it has many more elements than one rise adds
// blocks, or is a queue, whose elements come one by one.
func (f *Finding) gets() varpath.Growth {
	if f.Blocks <= 0 {
		return varpath.Growth{}
	}
	g, ok := varpath.Many(f.Holder, leastGets)
	if !ok || !g.IsQueue() && float64(g.To) < fewGets*math.Ceil(f.Blocks*float64(f.Period)) {
		return varpath.Growth{}
	}
	return g
}

// leastGets is the least number of elements of a container of which one reading tells that it gets more.
const leastGets = 10

// moreCalls marks findings whose blocks are held by suspended calls of which another finding shows that they become more: it has more
// blocks with each.
func moreCalls(all []Finding) {
	more := map[string]bool{}
	for i := range all {
		if f := &all[i]; f.Blocks > 0 {
			more[advice.SuspendedCalls(f.Holder)] = true
		}
	}
	for i := range all {
		calls := advice.SuspendedCalls(all[i].Holder)
		all[i].proof.calls = calls != "" && more[calls]
	}
}

// prove collects the evidence for advice.
func (d *detector) prove(all []Finding, source steps.Source, o *Options) {
	moreCalls(all)
	together, inference := advice.Signs(0), len(all) > 0 && !d.trains(source)
	for i := range all {
		f := &all[i]
		f.proof.facts = advice.FactsOf(f.Holder, o.Facts)
		f.proof.filled = f.hasFilled(o.Holders, o.Earlier)
		f.proof.tensorKeys = f.hasTensorKeys(o)
		f.proof.outside = f.Layer == event.LayerDevice && d.allocs > 0
		f.proof.nodes = f.Holder == "" && (f.byNodes(d.held.of(f)) || f.byNodes(o.Holders))
		f.proof.grew, f.proof.inference = f.grew(o.Earlier), inference
		for _, id := range f.Stacks {
			if st := d.resolve(id); st != nil {
				f.proof.signs |= advice.SignsOf(st.Frames)
			}
		}
		f.proof.cause = f.File != "" && !f.Backward && f.proof.signs.Has(advice.Gradient)
		if !advice.Named(f.Holder) {
			together |= f.proof.signs
		}
	}
	fillTogether(all)
	for i := range all {
		f := &all[i]
		if !advice.Named(f.Holder) {
			f.proof.together = together
		}
		for k := range all {
			if k != i && all[k].Holder == f.Holder && all[k].isBelow(f) {
				f.proof.leads++
			}
		}
	}
}
