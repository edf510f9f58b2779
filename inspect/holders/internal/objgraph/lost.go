// SPDX-License-Identifier: Apache-2.0

package objgraph

import (
	"maps"
	"slices"
	"strings"

	"github.com/gputrace/gputrace/cpython/pyobject"
	"github.com/gputrace/gputrace/inspect/holders/internal/memory"
	"github.com/gputrace/gputrace/inspect/holders/internal/torchlayout"
)

// Adrift adds a root for graphs that no Python object leads to: a backward pass that runs, or C++ code that keeps a
// loss. The roots are the hooks that keep their own graph, then the custom functions that do, else the nodes that no other such node
// leads to.
func (w *Graph) Adrift() {
	t := w.t
	if !t.KnowsNodes() {
		return
	}
	below := map[uint64]bool{}
	var nodes []uint64
	var refs []pyobject.Ref
	t.Nodes(func(a uint64) {
		if w.reached(a) {
			return
		}
		refs = t.NodeRefs(refs[:0], a)
		if len(refs) == 0 {
			return
		}
		nodes = append(nodes, a)
		for _, ref := range refs {
			if ref.Kind == torchlayout.RefNext {
				below[ref.Target] = true
			}
		}
	})
	w.ownHooks(nodes)
	w.ownContexts(nodes)
	for _, a := range nodes {
		if !below[a] && !w.reached(a) {
			w.push(a, w.now+costAdrift, noParent, RootNative, a)
		}
	}
	w.Run()
}

// unreached are objects that the collector knows and no root reaches, with what they refer to among themselves and the lost
// goals.
type unreached struct {
	objects []uint64
	number  *memory.Table // address -> place in objects + 1
	up      map[uint64][]upward
	counts  []int64 // references from within
}

// upward is a reference from an unreached object.
type upward struct {
	from uint64
	ref  pyobject.Ref
}

// FindLost looks for what leads to the lost goals: garbage, then values on the stacks of running frames, which may be dead, then
// Python objects that something else than Python holds. What the collector would free is garbage: objects whose references
// all come from objects that no root reaches. lostGoals are, at each call, the goals by address that no path leads to and that are wanted.
func (w *Graph) FindLost(lostGoals func() map[uint64]uint32) {
	lost := lostGoals()
	if len(lost) == 0 {
		return
	}
	u := w.unreachedObjects(lost)
	external := u.external(w)
	for _, addr := range slices.Sorted(maps.Keys(lost)) {
		if !external[addr] {
			w.climb(u, addr, RootGarbage, costGarbage)
		}
	}
	w.Run()
	if lost = lostGoals(); len(lost) > 0 {
		w.believe()
		lost = lostGoals()
	}
	for _, addr := range slices.Sorted(maps.Keys(lost)) {
		w.climb(u, addr, RootNative, costAdrift)
	}
	w.Run()
}

func (w *Graph) unreachedObjects(lost map[uint64]uint32) *unreached {
	u := &unreached{number: memory.NewTable(), up: map[uint64][]upward{}}
	h := w.t.Heap()
	w.collected(func(o uint64) {
		known := w.reached(o) || w.reached(o|1) // to 3.10 the frame of a running function is an object
		if t := h.TypeOf(w.t.Image(), o); t != nil && !t.Leaf() && !known && len(u.objects) < maxUnreached {
			u.objects = append(u.objects, o)
			u.number.Set(o, uint32(len(u.objects)))
		}
	})
	u.counts = make([]int64, len(u.objects))
	for i := 0; i < len(u.objects); i++ {
		u.expand(w, u.objects[i], lost)
	}
	return u
}

// maxUnreached bounds the objects that are looked at.
const maxUnreached = 1 << 22

// expand notes what an unreached object refers to. Tensors and nodes of C++ in between, which the collector does not know,
// are taken in.
func (u *unreached) expand(w *Graph, from uint64, lost map[uint64]uint32) {
	for _, ref := range w.t.Refs(nil, from) {
		to := ref.Target
		if ref.Kind == pyobject.RefActivation {
			to |= 1
		}
		if w.reached(to) {
			continue
		}
		n, known := u.number.Get(to)
		_, wanted := lost[to]
		if !known && !wanted && !w.between(to, ref.Kind) {
			continue
		}
		u.up[to] = append(u.up[to], upward{from, ref})
		if known {
			u.counts[n-1]++
		} else if len(u.objects) < maxUnreached {
			u.objects = append(u.objects, to)
			u.counts = append(u.counts, 1)
			u.number.Set(to, uint32(len(u.objects)))
		}
	}
}

// between reports objects that the collector does not know and that may lie on a path: frames, objects of C++, and Python
// objects that it does not track.
func (w *Graph) between(to uint64, kind pyobject.RefKind) bool {
	if kind == pyobject.RefActivation {
		return true
	}
	return w.interesting(to, kind)
}

// external marks the unreached objects that are held from outside, and all that these lead to.
func (u *unreached) external(w *Graph) map[uint64]bool {
	out := map[uint64]bool{}
	var todo []uint64
	for i, o := range u.objects {
		if o&1 != 0 || w.t.IsNative(o) {
			continue
		}
		if n, ok := w.t.Heap().ReferenceCount(w.t.Image(), o); ok && n > u.counts[i]+w.owned(o) {
			todo = append(todo, o)
		}
	}
	down := map[uint64][]uint64{}
	for to, ups := range u.up {
		for _, up := range ups {
			down[up.from] = append(down[up.from], to)
		}
	}
	for len(todo) > 0 {
		o := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if !out[o] {
			out[o] = true
			todo = append(todo, down[o]...)
		}
	}
	return out
}

// owned is 1 for the Python object of a tensor that may own it.
func (w *Graph) owned(object uint64) int64 {
	if a := w.t.Impl(object); a != 0 {
		return 1
	}
	return 0
}

// maxClimb bounds how far up from a tensor the object is looked for by which the garbage is named, and maxAbove how many are looked at.
const (
	maxClimb = 12
	maxAbove = 512
)

// climb makes a root of an unreached object above a lost goal: the nearest one of a class of the program, else the nearest one of a
// class of PyTorch's, such as Linear, else the highest on a way up. A goal that nothing refers to has none.
func (w *Graph) climb(u *unreached, goal uint64, kind pyobject.RefKind, cost int32) {
	top := w.nearest(u, goal)
	if top == 0 {
		top = u.highest(goal)
	}
	if top != goal && kind == RootGarbage {
		w.noteCycle(u, top)
	}
	if top != goal && !w.reached(top) {
		w.push(top, w.now+cost, noParent, kind, top)
	}
}

// nearest returns the nearest object above a goal that has a class of the program or, without one, of PyTorch's; 0: none has.
func (w *Graph) nearest(u *unreached, goal uint64) (torchs uint64) {
	seen, level := map[uint64]bool{goal: true}, []uint64{goal}
	for range maxClimb {
		var above []uint64
		for _, o := range level {
			for _, up := range u.up[o] {
				if seen[up.from] || len(seen) > maxAbove {
					continue
				}
				seen[up.from] = true
				made, program := w.classOf(up.from)
				if program {
					return up.from
				}
				if made && torchs == 0 {
					torchs = up.from
				}
				above = append(above, up.from)
			}
		}
		level = above
	}
	return torchs
}

// highest goes up from a goal as far as there is a way, up to maxClimb objects.
func (u *unreached) highest(goal uint64) uint64 {
	top, seen := goal, map[uint64]bool{goal: true}
	for len(seen) < maxClimb {
		next := slices.IndexFunc(u.up[top], func(up upward) bool { return !seen[up.from] })
		if next < 0 {
			break
		}
		top = u.up[top][next].from
		seen[top] = true
	}
	return top
}

// classOf reports whether an object is an instance of a class that Python code made, and whether that is the program's or a library's and
// not PyTorch's own. A tensor is neither: what refers to it says more.
func (w *Graph) classOf(o uint64) (made, program bool) {
	if o&1 != 0 || w.t.IsNative(o) || w.t.Impl(o) != 0 {
		return false, false
	}
	h, img := w.t.Heap(), w.t.Image()
	t := h.TypeOf(img, o)
	if t == nil || !t.Heap() || strings.Contains(t.Name, ".") { // a dot: it is written in C
		return false, false
	}
	torchs, known := w.torchs[t.Addr]
	if !known {
		if w.torchs == nil {
			w.torchs = map[uint64]bool{}
		}
		torchs = strings.HasPrefix(h.Text(img, h.Attribute(img, t.Addr, "__module__"))+".", "torch.")
		w.torchs[t.Addr] = torchs
	}
	return true, !torchs
}
