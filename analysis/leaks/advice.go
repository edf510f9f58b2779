// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"slices"
	"strings"

	"github.com/gputrace/gputrace/analysis/advice"
	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/event"
)

// proof is what is known of a finding for its advice, beside its own fields.
type proof struct {
	signs, together advice.Signs
	facts           advice.Facts
	nodes           bool // nodes of autograd save most of its blocks, and no variable is known that leads to them
	cause           bool // its line is the one to change: the call of the backward pass that adds up its gradients
	leads           int  // to how many of the others with the same holder its line leads
}

// Advice is what to do if the pattern of a finding is proved; else empty.
func (f *Finding) Advice() string {
	e := &advice.Evidence{
		Layer: f.Layer, Holder: f.Holder, Facts: f.proof.facts, Signs: f.proof.signs, Together: f.proof.together,
		Nodes: f.proof.nodes, Calls: f.Graph, Phase: f.Phase, UsualEnd: f.UsualEnd, Longer: f.Blocks == 0 && f.Requested > 0,
	}
	if f.Kind == Leak && f.Blocks > 0 {
		e.Block = f.Requested / f.Blocks
	}
	return advice.Text(e)
}

// nodeClass begins the name of a holder that is a node of autograd, of which only the class was found.
const nodeClass = "<torch::autograd::"

// byNodes reports whether nodes of autograd hold half or more of a finding's blocks, as far as a reading knows them.
func (f *Finding) byNodes(all []Holder) bool {
	var sum, nodes uint64
	for _, h := range all {
		if !slices.Contains(f.Sites, h.Site) || h.Name == "" || h.Name[0] == '[' {
			continue
		}
		sum += h.Bytes
		if strings.HasPrefix(h.Name, nodeClass) {
			nodes += h.Bytes
		}
	}
	return nodes > 0 && 2*nodes >= sum
}

// isBelow reports whether a finding was allocated in what the line of another calls.
func (f *Finding) isBelow(other *Finding) bool {
	if f.Stack == nil || other.File == "" || other.Backward || f.File == other.File && f.Line == other.Line {
		return false
	}
	return slices.ContainsFunc(stacks.Ran(f.Stack.Frames), func(c event.Frame) bool {
		return c.Kind == event.FramePython && c.File == other.File && c.Line == other.Line && c.Func == other.Function
	})
}

// prove collects what advice needs as proof.
func (d *detector) prove(all []Finding, o *Options) {
	together := advice.Signs(0)
	for i := range all {
		f := &all[i]
		f.proof.facts = advice.FactsOf(f.Holder, o.Facts)
		f.proof.nodes = f.Holder == "" && (f.byNodes(d.held.of(f)) || f.byNodes(o.Holders))
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
