// SPDX-License-Identifier: Apache-2.0

//go:build linux

package holders

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gputrace/gputrace/cpython"
)

// groupHolders sorts the references to goals and gives, for each goal, those to it, the best path first.
func (r *reading) groupHolders() [][]holder {
	w := r.walk
	slices.SortStableFunc(w.holders, func(a, b holder) int {
		if c := cmp.Compare(a.goal, b.goal); c != 0 {
			return c
		}
		return cmp.Compare(w.dist[a.from]+w.holderCost(&a), w.dist[b.from]+w.holderCost(&b))
	})
	out := make([][]holder, w.goals)
	for i := 0; i < len(w.holders); {
		j := i
		for j < len(w.holders) && w.holders[j].goal == w.holders[i].goal {
			j++
		}
		out[w.holders[i].goal] = w.holders[i:j]
		i = j
	}
	return out
}

func (w *walk) holderCost(h *holder) int32 {
	return w.cost(&cpython.Ref{Kind: h.kind, Aux: h.aux, Doubtful: h.doubtful})
}

// native reports whether the reference is one of C++: it is counted in the tensor, not in its Python object.
func (h *holder) native() bool {
	switch h.kind {
	case refGrad, refSaved, refVariable, refBase, refStorage, refInner:
		return true
	}
	return false
}

// Marks in a tensor, beside its counts, of who keeps whom alive, it or its Python object.
const (
	ownsBit = 1       // of the address of the Python object: the tensor owns it, not the other way round (1.13 to 2.14)
	mutual  = 1 << 63 // of the count: each owns the other while others own the tensor too (2.15)
	strong  = 1<<32 - 1
	noCount = -1 << 30
)

// counted adds up the references to the tensors of a block and its storage.
type counted struct {
	holders int
	missing references // known to the counts and not found
	unclear bool       // a count says nothing, or fewer than were found
	seen    bool
}

// references counts references to an object of C++ and to its Python object. The doubtful ones count as far as the object's
// own count needs them.
type references struct{ native, python, doubtfulNative, doubtful int }

func (r *references) add(h *holder) {
	switch {
	case h.native() && h.doubtful:
		r.doubtfulNative++
	case h.native():
		r.native++
	case h.doubtful:
		r.doubtful++
	default:
		r.python++
	}
}

// add takes in a target with the references to it that were found. tensors is how many use the storage.
func (c *counted) add(t *torch, g *target, found []holder, tensors int) {
	c.seen = true
	var refs references
	for i := range found {
		refs.add(&found[i])
	}
	c.holders += refs.native + refs.python
	n, ok := references{}, false
	if g.impl != 0 {
		n, ok = t.missing(g.impl, t.pythonObject, g.object, refs)
	} else {
		refs.native += tensors
		n, ok = t.missing(g.storage, t.storageObject, g.object, refs)
	}
	c.missing.native += n.native
	c.missing.python += n.python
	c.unclear = c.unclear || !ok
}

func (c *counted) complete() Truth {
	switch {
	case !c.seen || c.unclear:
		return Unknown
	case c.missing == references{}:
		return Yes
	}
	return No
}

// onlyNative reports that Python does not hold the tensors, and something else does.
func (c *counted) onlyNative() bool {
	return c.seen && !c.unclear && c.missing.python == 0 && c.missing.native > 0
}

// missing is how many references to a tensor or storage the counts know beside those that were found. slot is where it has its
// Python object, object that object or 0. ok is false when the counts know fewer, or say nothing.
func (t *torch) missing(native, slot, object uint64, found references) (n references, ok bool) {
	head := t.im.Word(native + countAt)
	inC, inPython := int(head&strong)-found.native, -found.python
	if object != 0 {
		count, ok := t.heap.ReferenceCount(t.im, object)
		if !ok {
			return n, false
		}
		inPython += int(count)
	}
	switch {
	case object == 0:
	case head&mutual != 0:
		if head&strong > 1 {
			inPython--
		}
		inC--
	case t.im.Word(native+slot)&ownsBit != 0:
		inPython--
	default:
		inC--
	}
	n = references{native: beyond(inC, found.doubtfulNative), python: beyond(inPython, found.doubtful)}
	return n, inC >= 0 && inPython >= 0
}

// beyond is what remains of a count when doubtful references are taken off as far as it goes.
func beyond(n, doubtful int) int { return max(0, n-doubtful) }

// linkName is the name of the attribute or key on the best path to an object; empty when it is another kind of step.
func (r *reading) linkName(n uint32) string {
	w := r.walk
	switch w.kinds[n] {
	case cpython.RefAttribute, cpython.RefKey, cpython.RefMember:
		return r.torch.heap.RefName(r.im, cpython.Ref{Kind: w.kinds[n], Aux: w.aux[n]})
	}
	return ""
}

// kind is what a tensor is to the program, by its holders.
func (r *reading) kind(g *target, found []holder) Kind {
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
		switch h := &found[i]; h.kind {
		case cpython.RefKey:
			switch r.linkName(h.from) {
			case "_parameters":
				better(KindParameter)
			case "_buffers":
				better(KindBuffer)
			}
		case refGrad:
			better(KindGradient)
		}
		if best == KindPlain && r.inOptimizer(found[i].from) {
			better(KindOptimizer)
		}
	}
	return best
}

func (r *reading) isParameter(g *target) bool {
	if g.object == 0 {
		return false
	}
	t := r.torch.heap.TypeOf(r.im, g.object)
	return t.Is("Parameter") || t.Is("UninitializedParameter")
}

// maxStateDepth bounds how deep within an optimizer's state a tensor is looked for.
const maxStateDepth = 12

// inOptimizer reports whether the best path to an object goes through the state of an optimizer.
func (r *reading) inOptimizer(n uint32) bool {
	w := r.walk
	for range maxStateDepth {
		p := w.parents[n]
		if p == noParent {
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
	w := r.walk
	if w.kinds[n] == cpython.RefDict && w.parents[n] != noParent {
		n = w.parents[n]
	}
	if w.addrs[n]&1 != 0 {
		return false
	}
	t := r.torch.heap.TypeOf(r.im, w.addrs[n])
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
	case StepNative:
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
func (r *reading) describe(t *torch, g *target, found []holder) Tensor {
	out := Tensor{Impl: g.impl, Object: g.object, Storage: g.storage, Kind: r.kind(g, found)}
	if g.object != 0 {
		out.Class = cutText(t.heap.TypeOf(t.im, g.object).Short())
	}
	if s, ok := t.geometry(&t.layout, g.impl); ok {
		out.Shape, out.Strides, out.Offset, out.DType = s.sizes, s.strides, s.offset, dtypes[s.dtype].name
	}
	out.RequiresGrad = t.requires(g.impl)
	return out
}

// requires is whether a tensor requires a gradient: the result of a graph does, and a leaf whose flag says so.
func (t *torch) requires(impl uint64) Truth {
	if t.tensorMeta == 0 {
		return Unknown
	}
	meta := t.im.Word(impl + t.tensorMeta)
	if meta == 0 {
		return No
	}
	if t.role(meta) != roleMeta || t.grad == 0 {
		return Unknown
	}
	if t.role(t.im.Word(meta+t.gradFn)) == roleNode {
		return Yes
	}
	if t.requiresGrad == 0 {
		return Unknown
	}
	switch b := t.im.View(meta+t.layout.requiresGrad, 1); {
	case b == nil || b[0] > 1:
		return Unknown
	case b[0] == 1:
		return Yes
	}
	return No
}

// title is a class for people, cut.
func title(c *class) string { return cutText(strings.TrimPrefix(c.title(), "::")) }
