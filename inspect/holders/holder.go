// SPDX-License-Identifier: Apache-2.0

package holders

import (
	"slices"

	"github.com/gputrace/gputrace/cpython/pyobject"
	"github.com/gputrace/gputrace/inspect/holders/internal/objgraph"
	"github.com/gputrace/gputrace/inspect/holders/internal/torchlayout"
)

// counted adds up the references to the tensors of a block and its storage.
type counted struct {
	holders int
	missing torchlayout.References // known to the counts and not found
	unclear bool                   // a count says nothing, or fewer than were found
	seen    bool
}

// add takes in a target with the references to it that were found. tensors is how many use the storage.
func (c *counted) add(t *torchlayout.Reader, g *target, found []objgraph.Holder, tensors int) {
	c.seen = true
	var refs torchlayout.References
	for i := range found {
		refs.Add(found[i].Kind, found[i].Doubtful)
	}
	c.holders += refs.Native + refs.Python
	n, ok := torchlayout.References{}, false
	if g.impl != 0 {
		n, ok = t.MissingOfTensor(g.impl, g.object, refs)
	} else {
		refs.Native += tensors
		n, ok = t.MissingOfStorage(g.storage, g.object, refs)
	}
	c.missing.Native += n.Native
	c.missing.Python += n.Python
	c.unclear = c.unclear || !ok
}

func (c *counted) complete() Truth {
	switch {
	case !c.seen || c.unclear:
		return Unknown
	case c.missing == torchlayout.References{}:
		return Yes
	}
	return No
}

// onlyNative reports that Python does not hold the tensors, and something else does.
func (c *counted) onlyNative() bool {
	return c.seen && !c.unclear && c.missing.Python == 0 && c.missing.Native > 0
}

// linkName is the name of the attribute or key on the best path to an object; empty when it is another kind of step.
func (r *reading) linkName(n uint32) string {
	switch kind, aux := r.graph.Link(n); kind {
	case pyobject.RefAttribute, pyobject.RefKey, pyobject.RefMember:
		return r.torch.Heap().RefName(r.im, pyobject.Ref{Kind: kind, Aux: aux})
	}
	return ""
}

// kind is what a tensor is to the program, by its holders.
func (r *reading) kind(g *target, found []objgraph.Holder) Kind {
	best := KindPlain
	better := func(k Kind) {
		if best == KindPlain || k < best {
			best = k
		}
	}
	if r.isParameter(g) {
		better(KindParameter)
	}
	for i := range found {
		switch h := &found[i]; h.Kind {
		case pyobject.RefKey:
			switch r.linkName(h.From) {
			case "_parameters":
				better(KindParameter)
			case "_buffers":
				better(KindBuffer)
			}
		case torchlayout.RefGrad:
			better(KindGradient)
		}
		if best == KindPlain && r.inOptimizer(found[i].From) {
			better(KindOptimizer)
		}
	}
	return best
}

func (r *reading) isParameter(g *target) bool {
	if g.object == 0 {
		return false
	}
	t := r.torch.Heap().TypeOf(r.im, g.object)
	return t.Is("Parameter") || t.Is("UninitializedParameter")
}

// maxStateDepth bounds how deep within an optimizer's state a tensor is looked for.
const maxStateDepth = 12

// inOptimizer reports whether the best path to an object goes through the state of an optimizer.
func (r *reading) inOptimizer(n uint32) bool {
	for range maxStateDepth {
		p, ok := r.graph.Parent(n)
		if !ok {
			return false
		}
		if r.linkName(n) == "state" && r.ownedByOptimizer(p) {
			return true
		}
		n = p
	}
	return false
}

// ownedByOptimizer: an object, or the one whose __dict__ it is, is an optimizer.
func (r *reading) ownedByOptimizer(n uint32) bool {
	kind, _ := r.graph.Link(n)
	if p, ok := r.graph.Parent(n); ok && kind == pyobject.RefDict {
		n = p
	}
	at := r.graph.Addr(n)
	if at&1 != 0 {
		return false
	}
	t := r.torch.Heap().TypeOf(r.im, at)
	return t != nil && t.Is("Optimizer")
}

// category is what a block is used for.
func (r *reading) category(b *Block) Category {
	kinds := map[Kind]bool{}
	for i := range b.Tensors {
		kinds[b.Tensors[i].Kind] = true
	}
	switch {
	case kinds[KindParameter]:
		return CategoryParameter
	case kinds[KindBuffer]:
		return CategoryBuffer
	case kinds[KindGradient]:
		return CategoryGradient
	case kinds[KindOptimizer]:
		return CategoryOptimizer
	}
	return pathCategory(b.Path)
}

func pathCategory(p Path) Category {
	if len(p) == 0 {
		return CategoryUnknown
	}
	switch p[0].Kind {
	case StepGarbage:
		return CategoryGarbage
	case StepNative, StepOwnHook:
		return CategoryNative
	}
	for i := range p {
		switch p[i].Kind {
		case StepGradFn, StepNext, StepSaved, StepNode, StepContext:
			return CategoryGraph
		}
	}
	return CategoryTensor
}

// describe fills in what is known of a tensor.
func (r *reading) describe(t *torchlayout.Reader, g *target, found []objgraph.Holder) Tensor {
	out := Tensor{Impl: g.impl, Object: g.object, Storage: g.storage, Kind: r.kind(g, found)}
	if g.object != 0 {
		out.Class = cutText(t.Heap().TypeOf(t.Image(), g.object).Short())
	}
	if s, ok := t.Geometry(g.impl); ok {
		out.Shape, out.Strides, out.Offset, out.DType = s.Sizes, s.Strides, s.Offset, s.DType
	}
	out.Base = len(found) > 0 && !slices.ContainsFunc(found, func(h objgraph.Holder) bool { return h.Kind != torchlayout.RefBase })
	if requires, ok := t.RequiresGrad(g.impl); ok {
		out.RequiresGrad = No
		if requires {
			out.RequiresGrad = Yes
		}
	}
	return out
}
