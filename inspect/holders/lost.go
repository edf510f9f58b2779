// SPDX-License-Identifier: Apache-2.0

//go:build linux

package holders

import (
	"encoding/binary"
	"slices"
	"strings"

	"github.com/gputrace/gputrace/cpython"
)

// adrift gives graphs that no Python object leads to a root of their own: a backward pass that runs, or C++ code that keeps a
// loss. The roots are the nodes that no other such node leads to.
func (r *reading) adrift() {
	t, w := r.torch, r.walk
	if t.nodeSize == 0 {
		return
	}
	below := map[uint64]bool{}
	var nodes []uint64
	var refs []cpython.Ref
	for _, a := range t.byRole[roleNode] {
		if w.reached(a) || !t.aliveNode(a) {
			continue
		}
		refs = t.nodeRefs(refs[:0], a)
		if len(refs) == 0 {
			continue
		}
		nodes = append(nodes, a)
		for _, ref := range refs {
			if ref.Kind == refNext {
				below[ref.Target] = true
			}
		}
	}
	for _, a := range nodes {
		if !below[a] {
			w.push(a, w.now+costAdrift, noParent, rootNative, a)
		}
	}
	w.run()
}

// aliveNode reports whether a node is alive. One that counts its own references says so; to 2.14 the count is apart from it, and
// what is known is that its table is still there.
func (t *torch) aliveNode(node uint64) bool {
	return t.edgeSize != 16 || t.alive(node)
}

// dropStale forgets tensors that are none any more: memory that was given back may still look like one. A storage counts its
// tensors; when there seem to be more, those that nothing was found to hold are none.
func (r *reading) dropStale() {
	held := make([]bool, r.walk.goals)
	for i := range r.walk.holders {
		held[r.walk.holders[i].goal] = true
	}
	tensors := map[uint64]int{}
	for i := range r.targets {
		if r.targets[i].impl != 0 {
			tensors[r.targets[i].storage]++
		}
	}
	r.targets = slices.DeleteFunc(r.targets, func(g target) bool {
		count := int(r.im.Word(g.storage+countAt) & strong)
		if g.impl == 0 || g.object != 0 || held[g.goal] || tensors[g.storage] <= count {
			return false
		}
		tensors[g.storage]--
		return true
	})
}

// lostGoals are the goals that no path leads to, of storages to which none does: their tensors or, without one, themselves.
func (r *reading) lostGoals() map[uint64]uint32 {
	covered, withTensor := map[uint64]bool{}, map[uint64]bool{}
	for i := range r.targets {
		g := &r.targets[i]
		covered[g.storage] = covered[g.storage] || r.walk.dist[g.goal] != noDist
		withTensor[g.storage] = withTensor[g.storage] || g.impl != 0
	}
	out := map[uint64]uint32{}
	for i := range r.targets {
		if g := &r.targets[i]; !covered[g.storage] && (g.impl != 0 || !withTensor[g.storage]) {
			out[r.walk.addrs[g.goal]] = g.goal
		}
	}
	return out
}

// unreached are objects that the collector knows and no root reaches, with what they refer to among themselves and the lost
// goals.
type unreached struct {
	objects []uint64
	number  *table // address -> place in objects + 1
	up      map[uint64][]upward
	counts  []int64 // references from within
}

// upward is a reference from an unreached object.
type upward struct {
	from uint64
	ref  cpython.Ref
}

// findLost looks for what leads to the lost goals: garbage, then values on the stacks of running frames, which may be dead, then
// Python objects that something else than Python holds. What the collector would free is garbage: objects whose references
// all come from objects that no root reaches.
func (r *reading) findLost() {
	lost := r.lostGoals()
	if len(lost) == 0 {
		return
	}
	u := r.unreachedObjects(lost)
	external := u.external(r)
	for _, addr := range sortedKeys(lost) {
		if !external[addr] {
			r.climb(u, addr, rootGarbage, costGarbage)
		}
	}
	r.walk.run()
	if lost = r.lostGoals(); len(lost) > 0 {
		r.walk.believe()
		lost = r.lostGoals()
	}
	for _, addr := range sortedKeys(lost) {
		r.climb(u, addr, rootNative, costAdrift)
	}
	r.walk.run()
}

func (r *reading) unreachedObjects(lost map[uint64]uint32) *unreached {
	u := &unreached{number: newTable(), up: map[uint64][]upward{}}
	h, w := r.torch.heap, r.walk
	h.Collected(r.im, func(o uint64) bool {
		known := w.reached(o) || w.reached(o|1) // to 3.10 the frame of a running function is an object
		if t := h.TypeOf(r.im, o); t != nil && !t.Leaf() && !known && len(u.objects) < maxUnreached {
			u.objects = append(u.objects, o)
			u.number.set(o, uint32(len(u.objects)))
		}
		return true
	})
	u.counts = make([]int64, len(u.objects))
	for i := 0; i < len(u.objects); i++ {
		u.expand(r, u.objects[i], lost)
	}
	return u
}

// maxUnreached bounds the objects that are looked at.
const maxUnreached = 1 << 22

// expand notes what an unreached object refers to. Tensors and nodes of C++ in between, which the collector does not know,
// are taken in.
func (u *unreached) expand(r *reading, from uint64, lost map[uint64]uint32) {
	for _, ref := range r.torch.refs(nil, from) {
		to := ref.Target
		if ref.Kind == cpython.RefActivation {
			to |= 1
		}
		if r.walk.reached(to) {
			continue
		}
		n, known := u.number.get(to)
		_, wanted := lost[to]
		if !known && !wanted && !r.between(to, ref.Kind) {
			continue
		}
		u.up[to] = append(u.up[to], upward{from, ref})
		if known {
			u.counts[n-1]++
		} else if len(u.objects) < maxUnreached {
			u.objects = append(u.objects, to)
			u.counts = append(u.counts, 1)
			u.number.set(to, uint32(len(u.objects)))
		}
	}
}

// between reports objects that the collector does not know and that may lie on a path: frames, objects of C++, and Python
// objects that it does not track.
func (r *reading) between(to uint64, kind cpython.RefKind) bool {
	if kind == cpython.RefActivation {
		return true
	}
	return r.walk.interesting(to, kind)
}

// external marks the unreached objects that are held from outside, and all that these lead to.
func (u *unreached) external(r *reading) map[uint64]bool {
	out := map[uint64]bool{}
	var todo []uint64
	for i, o := range u.objects {
		if o&1 != 0 || r.torch.role(o) != roleOther {
			continue
		}
		if n, ok := r.torch.heap.ReferenceCount(r.im, o); ok && n > u.counts[i]+r.owned(o) {
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
func (r *reading) owned(object uint64) int64 {
	if a := r.torch.impl(object); a != 0 {
		return 1
	}
	return 0
}

// maxClimb bounds how far up from a tensor the object is looked for that gives the garbage its name.
const maxClimb = 12

// climb makes a root of an unreached object above a lost goal: the first that has a class of the program, else the highest. A
// goal that nothing refers to has none.
func (r *reading) climb(u *unreached, goal uint64, kind cpython.RefKind, cost int32) {
	top, seen := goal, map[uint64]bool{goal: true}
	for len(seen) < maxClimb && (top == goal || !r.classOfProgram(top)) {
		next := slices.IndexFunc(u.up[top], func(up upward) bool { return !seen[up.from] })
		if next < 0 {
			break
		}
		top = u.up[top][next].from
		seen[top] = true
	}
	if top != goal && !r.walk.reached(top) {
		r.walk.push(top, r.walk.now+cost, noParent, kind, top)
	}
}

// classOfProgram reports whether an object is an instance of a class that Python code made.
func (r *reading) classOfProgram(o uint64) bool {
	if o&1 != 0 || r.torch.role(o) != roleOther {
		return false
	}
	t := r.torch.heap.TypeOf(r.im, o)
	return t != nil && t.Heap() && !strings.HasPrefix(t.Name, "torch.")
}

// words finds where some words are in the process's own memory.
func (r *reading) words(wanted *table, visit func(at, word uint64)) {
	if wanted.count == 0 {
		return
	}
	const bits = 1 << 16 // a filter: most words are none of the wanted
	filter := make([]uint64, bits/64)
	low, high := ^uint64(0), uint64(0)
	for _, k := range wanted.keys {
		if k != 0 {
			low, high = min(low, k), max(high, k)
			filter[k>>3&(bits-1)/64] |= 1 << (k >> 3 % 64)
		}
	}
	r.im.pagesOf(r.runs, func(addr uint64, page []byte) uint64 {
		for i := 0; i+8 <= len(page); i += 8 {
			w := binary.LittleEndian.Uint64(page[i:])
			if w-low <= high-low && filter[w>>3&(bits-1)/64]>>(w>>3%64)&1 != 0 && wanted.has(w) {
				visit(addr+uint64(i), w)
			}
		}
		return r.im.buffer(addr, page)
	})
}
