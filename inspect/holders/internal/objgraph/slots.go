// SPDX-License-Identifier: Apache-2.0

package objgraph

import (
	"slices"

	"github.com/gputrace/gputrace/cpython/pyobject"
	"github.com/gputrace/gputrace/inspect/holders/internal/memory"
	"github.com/gputrace/gputrace/inspect/holders/internal/torchlayout"
)

const (
	// maxLoose bounds the slots whose tensors are no goals: those of the CPU, and those that came while the memory was copied.
	maxLoose = 1 << 14
	// maxWay bounds the steps to a slot that is followed again.
	maxWay = 64
)

// isSlot reports whether a reference is a place of the program that can hold another object a moment later: an element, an attribute, a
// variable or the gradient of a tensor.
func isSlot(kind pyobject.RefKind) bool {
	switch kind {
	case pyobject.RefIndex, pyobject.RefKey, pyobject.RefAttribute, pyobject.RefMember, pyobject.RefField,
		pyobject.RefLocal, pyobject.RefSlot, torchlayout.RefGrad:
		return true
	}
	return false
}

// noteLoose notes a slot that holds a tensor which is no goal.
func (w *Graph) noteLoose(from uint32, r *pyobject.Ref) {
	if !r.Doubtful && isSlot(r.Kind) && len(w.loose) < maxLoose && (r.Kind == torchlayout.RefGrad || w.t.IsPythonTensor(r.Target)) {
		w.loose = append(w.loose, Holder{From: from, Kind: r.Kind, Aux: r.Aux})
	}
}

// noteTorn notes a slot of a name whose object was freed by the time it was read: it may be a tensor that is replaced.
func (w *Graph) noteTorn(from uint32, r *pyobject.Ref) {
	named := r.Kind == pyobject.RefKey || r.Kind == pyobject.RefAttribute || r.Kind == pyobject.RefLocal || r.Kind == pyobject.RefIndex
	if named && !r.Doubtful && r.Target >= memory.PageSize && r.Target&7 == 0 && len(w.loose) < maxLoose {
		w.loose = append(w.loose, Holder{From: from, Kind: r.Kind, Aux: r.Aux})
	}
}

// noteTornGrad notes the gradient of a tensor that is a goal, if the gradient was freed by the time it was read: with
// create_graph=True each backward pass puts another tensor there.
func (w *Graph) noteTornGrad(n uint32, refs []pyobject.Ref) {
	isGrad := func(r pyobject.Ref) bool { return r.Kind == torchlayout.RefGrad }
	if int(n) < w.goals && len(w.loose) < maxLoose && !slices.ContainsFunc(refs, isGrad) && w.t.HasGrad(w.nodes.at(n).addr) {
		w.loose = append(w.loose, Holder{From: n, Kind: torchlayout.RefGrad})
	}
}

// Loose lists the slots that hold tensors which are no goals, or that may. Goal says nothing.
func (w *Graph) Loose() []Holder { return w.loose }

// Followable reports whether a holder is a slot to which Python objects alone lead from a module, a frame or a thread: Recheck.Held can
// follow it.
func (w *Graph) Followable(h *Holder) bool {
	if h.Doubtful || !isSlot(h.Kind) || !w.Reached(h.From) {
		return false
	}
	n := h.From
	for range maxWay {
		o := w.nodes.at(n)
		if o.parent == noParent {
			return o.kind >= RootModule && o.kind < RootNative
		}
		if o.kind >= torchlayout.RefGrad || o.kind == pyobject.RefKeyItself || o.kind == pyobject.RefTemporary {
			return false
		}
		n = o.parent
	}
	return false
}

// follow is the object that the way to an object leads to now: the same attributes, keys and positions, whatever objects they have become.
// 0: it leads nowhere.
func (a *Recheck) follow(n uint32) (at uint64) {
	if at, ok := a.ways[n]; ok {
		return at
	}
	switch o := a.w.nodes.at(n); {
	case o.parent != noParent:
		if from := a.follow(o.parent); from != 0 {
			at = a.now(from, o.kind, o.aux)
		}
	case a.root(n):
		at = o.addr
	}
	if a.ways == nil {
		a.ways = map[uint32]uint64{}
	}
	a.ways[n] = at
	return at
}

// Held is what a slot holds now, found by the way that leads there; 0: nothing.
func (a *Recheck) Held(h *Holder) uint64 {
	from := a.follow(h.From)
	if from == 0 {
		return 0
	}
	return a.now(from, h.Kind, h.Aux)
}

// now is what an object refers to in one way.
func (a *Recheck) now(from uint64, kind pyobject.RefKind, aux uint64) uint64 {
	if a.t.Heap() == nil {
		return 0
	}
	if from&1 == 0 {
		if value, sure := a.elementNow(from, kind, aux); sure {
			return value
		}
	}
	refs, ok := a.current[from]
	if !ok {
		refs = a.t.Refs(nil, from)
		if a.current == nil {
			a.current = map[uint64][]pyobject.Ref{}
		}
		if a.edges += len(refs); a.edges <= maxSources {
			a.current[from] = refs
		}
	}
	for i := range refs {
		if r := &refs[i]; r.Kind == kind && r.Aux == aux && !r.Doubtful {
			if kind == pyobject.RefActivation {
				return r.Target | 1
			}
			return r.Target
		}
	}
	return 0
}

// elementNow looks only at the place where a list, or a large dictionary of the copy, has its element. sure is false where it must be
// looked for among all.
func (a *Recheck) elementNow(from uint64, kind pyobject.RefKind, aux uint64) (value uint64, sure bool) {
	h, im := a.t.Heap(), a.t.Image()
	switch kind {
	case pyobject.RefIndex:
		_, value, sure = h.Element(im, from, aux)
		if sure && value == 0 && a.reach(from, aux) {
			_, value, sure = h.Element(im, from, aux)
		}
		return value, sure
	case pyobject.RefKey:
		if a.positions == nil {
			return 0, false
		}
		position, ok := a.position(from, aux)
		if !ok {
			return 0, false
		}
		key, value, ok := h.Element(im, from, uint64(position))
		return value, ok && key == aux && value != 0
	}
	return 0, false
}
