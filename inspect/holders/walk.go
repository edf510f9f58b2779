// SPDX-License-Identifier: Apache-2.0

//go:build linux

package holders

import (
	"strings"

	"github.com/gputrace/gputrace/cpython"
)

// Roots of the walk, in the place of a kind of reference. The aux of each is what it says.
const (
	rootModule     cpython.RefKind = 128 + iota // number in walk.modules
	rootFrame                                   // number in walk.frames
	rootException                               // number in walk.threads
	rootThreadDict                              // the same
	rootContext                                 // the same
	rootNative                                  // address of the C++ object
	rootGarbage                                 // address of the Python object
)

const (
	noParent = ^uint32(0)
	noDist   = int32(1 << 30)
	// maxNodes bounds the objects that are walked over: about 5 GiB of objects at least.
	maxNodes = 1 << 27
	// maxCost bounds the cost of a step; it is a power of two.
	maxCost = 128
)

// walk finds, for every object that can be reached, the path that reads best: the one whose steps cost the least. A step that
// people would write costs little, one that is true but says nothing costs much.
type walk struct {
	t       *torch
	index   *table // address -> number + 1
	addrs   []uint64
	dist    []int32
	parents []uint32
	kinds   []cpython.RefKind
	aux     []uint64
	buckets [maxCost][]uint32
	waiting int
	now     int32
	goals   int // the first so many are tensors and storages of live blocks
	holders []holder
	doubts  []doubt
	modules []cpython.Module
	threads []cpython.ThreadState
	frames  []walkedFrame
	names   map[uint64]int32 // cost of an attribute or key, by the address of its name
	refs    []cpython.Ref
	tids    map[uint64]bool // threads of the process, as itself numbers them
	leaves  *leaves
	cut     bool // there were too many objects
}

// holder is a reference to a goal.
type holder struct {
	goal, from uint32
	kind       cpython.RefKind
	doubtful   bool
	aux        uint64
}

// doubt is a value on the stack of a running frame that may be dead.
type doubt struct {
	from uint32
	ref  cpython.Ref
}

// believe follows the doubtful values, for what nothing else leads to.
func (w *walk) believe() {
	for _, d := range w.doubts {
		w.push(d.ref.Target, w.now+costDoubtful, d.from, d.ref.Kind, d.ref.Aux)
	}
	w.run()
}

// walkedFrame is a frame of a running thread.
type walkedFrame struct {
	cpython.Activation
	thread, depth int
}

func newWalk(t *torch) *walk {
	return &walk{t: t, index: newTable(), names: map[uint64]int32{}}
}

// goal adds an object whose holders are wanted. All goals are added before the first root.
func (w *walk) goal(addr uint64) uint32 {
	n, _ := w.number(addr)
	w.goals = len(w.addrs)
	return n
}

// number gives the number of an object, a new one when it has none.
func (w *walk) number(addr uint64) (uint32, bool) {
	if n, ok := w.index.get(addr); ok {
		return n - 1, true
	}
	if len(w.addrs) >= maxNodes {
		w.cut = true
		return 0, false
	}
	n := uint32(len(w.addrs))
	w.index.set(addr, n+1)
	w.addrs = append(w.addrs, addr)
	w.dist = append(w.dist, noDist)
	w.parents = append(w.parents, noParent)
	w.kinds = append(w.kinds, 0)
	w.aux = append(w.aux, 0)
	return n, true
}

// push proposes a path to an object.
func (w *walk) push(addr uint64, dist int32, parent uint32, kind cpython.RefKind, aux uint64) {
	n, ok := w.number(addr)
	if !ok {
		return
	}
	w.propose(n, dist, parent, kind, aux)
}

func (w *walk) propose(n uint32, dist int32, parent uint32, kind cpython.RefKind, aux uint64) {
	if dist >= w.dist[n] {
		return
	}
	w.dist[n], w.parents[n], w.kinds[n], w.aux[n] = dist, parent, kind, aux
	b := &w.buckets[dist&(maxCost-1)]
	*b = append(*b, n)
	w.waiting++
}

// run goes on until nothing is left to be visited. What was visited before keeps its path unless a shorter one came up.
func (w *walk) run() {
	for w.waiting > 0 {
		b := &w.buckets[w.now&(maxCost-1)]
		for i := 0; i < len(*b); i++ { // grows by steps that cost nothing
			n := (*b)[i]
			w.waiting--
			if w.dist[n] == w.now {
				w.visit(n)
			}
		}
		*b = (*b)[:0]
		w.now++
	}
}

// visit proposes paths to all that an object refers to.
func (w *walk) visit(n uint32) {
	w.refs = w.t.refs(w.refs[:0], w.addrs[n])
	for i := range w.refs {
		r := &w.refs[i]
		target := r.Target
		if r.Kind == cpython.RefActivation {
			target |= 1
		}
		worth := w.worth(target, r.Kind)
		if worth == worthNothing {
			continue
		}
		to, known := w.index.get(target)
		if !known && worth == worthIfKnown {
			continue
		}
		if known && int(to-1) < w.goals {
			w.holders = append(w.holders, holder{goal: to - 1, from: n, kind: r.Kind, aux: r.Aux, doubtful: r.Doubtful})
		}
		if r.Doubtful && r.Kind == cpython.RefTemporary {
			w.doubts = append(w.doubts, doubt{n, *r})
			continue
		}
		if dist := w.now + w.cost(r); known {
			w.propose(to-1, dist, n, r.Kind, r.Aux)
		} else {
			w.push(target, dist, n, r.Kind, r.Aux)
		}
	}
}

// worth is what a reference is worth to the walk.
type worth uint8

const (
	worthNothing worth = iota // text, a number: most references of a large heap, which are not even looked up
	worthIfKnown              // no object is there; it may have been known as something else
	worthVisit
)

// worth says whether an object may lead to a tensor.
func (w *walk) worth(target uint64, kind cpython.RefKind) worth {
	switch {
	case kind == cpython.RefActivation:
		return worthVisit
	case target&7 != 0 || target < pageSize:
		return worthIfKnown
	case kind >= refGrad && kind != refHook && kind != refContext:
		return worthVisit
	}
	if w.leaves.has(target) {
		return worthNothing
	}
	switch p := w.t.heap.TypeOf(w.t.im, target); {
	case p == nil:
		return worthIfKnown
	case p.Leaf():
		return worthNothing
	}
	return worthVisit
}

// interesting reports whether an object may lead to a tensor.
func (w *walk) interesting(target uint64, kind cpython.RefKind) bool {
	return w.worth(target, kind) == worthVisit
}

// Costs of steps. They decide which of the true names is given.
const (
	costPlain     = 1
	costPart      = 0 // the dictionaries of an nn.Module, a __dict__
	costNode      = 3
	costGraph     = 4 // into the autograd graph
	costClass     = 4 // a class's own
	costPrivate   = 2 // a name that begins with an underscore
	costResult    = 4 // _, __ and _12 of an interactive shell
	costLeaf      = 6 // from a graph back to a parameter
	costDunder    = 9
	costListed    = 12 // an optimizer's list of parameters, a function's globals
	costKeyItself = 30 // a dictionary's key
	costDoubtful  = 40
	costInner     = 4  // a frame, for each between it and main(): it is soon freed
	costLibrary   = 30 // a frame of a library's code
	costModule    = 5  // a library's module
	costException = 4
	costThread    = 6
	costAdrift    = 60
	costGarbage   = 99
)

// nameCosts are the costs of attributes and keys by name.
var nameCosts = map[string]int32{
	"_modules": costPart, "_parameters": costPart, "_buffers": costPart, "__dict__": costPart, "param_groups": costListed, "params": costListed,
}

func (w *walk) cost(r *cpython.Ref) int32 {
	switch r.Kind {
	case cpython.RefAttribute, cpython.RefKey:
		return w.nameCost(r.Aux)
	case cpython.RefMember:
		return w.memberCost(r.Aux)
	case cpython.RefDict:
		return costPart
	case cpython.RefLocal:
		if c := w.nameCost(r.Aux); c < costListed { // a variable may be called params
			return max(c-costPlain, 0)
		}
		return costPart
	case cpython.RefKeyItself:
		return costKeyItself
	case cpython.RefTemporary:
		if r.Doubtful {
			return costDoubtful
		}
		return 2
	case cpython.RefField:
		return fieldCost(cpython.FieldName(r.Aux))
	case cpython.RefSlot, refHook:
		return 2
	case refNode:
		return costNode
	case refGradFn, refBase:
		return costGraph
	case refVariable:
		return costLeaf
	}
	return costPlain
}

// memberCost is that of a field, by the address of its name. An AttributeError's obj is what lacked the attribute: the frames
// that its traceback keeps say more.
func (w *walk) memberCost(name uint64) int32 {
	if b := w.t.im.View(name, 4); string(b) == "obj\x00" {
		return costListed
	}
	return costPlain
}

func fieldCost(f cpython.FieldName) int32 {
	switch f {
	case cpython.FieldGlobals:
		return costListed
	case cpython.FieldBase, cpython.FieldMRO, cpython.FieldClass:
		return costClass
	case cpython.FieldLocals:
		return costPart
	}
	return costPlain
}

// nameCost is that of an attribute or key, by the address of its name.
func (w *walk) nameCost(name uint64) int32 {
	if c, ok := w.names[name]; ok {
		return c
	}
	text := w.t.heap.Text(w.t.im, name)
	c, ok := nameCosts[text]
	switch {
	case ok:
	case strings.Trim(text, "_0123456789") == "" && strings.HasPrefix(text, "_"):
		c = costResult
	case strings.HasPrefix(text, "__"):
		c = costDunder
	case strings.HasPrefix(text, "_"):
		c = costPrivate
	default:
		c = costPlain
	}
	if len(w.names) < 1<<20 {
		w.names[name] = c
	}
	return c
}

// roots starts from the modules and the threads. Frames that are not in the copy as they were found are left out.
func (w *walk) roots(threads []cpython.ThreadState) {
	im, heap := w.t.im, w.t.heap
	w.modules = heap.Modules(im)
	for i, m := range w.modules {
		cost := int32(costModule)
		switch {
		case m.Name == "__main__":
			cost = 0
		case m.File != "" && !library(m.File):
			cost = 1
		}
		w.push(m.Object, cost, noParent, rootModule, uint64(i))
	}
	w.threads = threads
	for i := range w.threads {
		t := &w.threads[i]
		if !w.tids[t.TID] {
			t.TID = 0
		}
		own := int32(-1)                                      // frames of the program's own code, without the module's
		for depth := len(t.Frames) - 1; depth >= 0; depth-- { // of equal paths the first is taken: that of the outer frame
			a := t.Frames[depth]
			if then, ok := heap.Activation(im, a.Addr); !ok || then.Code != a.Code {
				continue
			}
			cost := int32(costLibrary)
			if c, err := heap.CodeAt(im, a.Code); err == nil && !library(c.Filename) {
				cost = min(max(own, 0)*costInner, costLibrary-costInner)
				own++
			}
			w.frames = append(w.frames, walkedFrame{a, i, depth})
			w.push(a.Addr|1, cost, noParent, rootFrame, uint64(len(w.frames)-1))
		}
		for _, e := range t.Exceptions {
			if w.interesting(e, cpython.RefIndex) {
				w.push(e, costException, noParent, rootException, uint64(i))
			}
		}
		if w.interesting(t.Dict, cpython.RefIndex) {
			w.push(t.Dict, costThread, noParent, rootThreadDict, uint64(i))
		}
		if w.interesting(t.Context, cpython.RefIndex) {
			w.push(t.Context, costThread, noParent, rootContext, uint64(i))
		}
	}
}

// library tells files that belong to Python or were installed from those of the program.
func library(file string) bool {
	return strings.Contains(file, "/site-packages/") || strings.Contains(file, "/dist-packages/") ||
		strings.HasPrefix(file, "<frozen ") || strings.Contains(file, "/lib/python3")
}

// reached reports whether a path to an object was found.
func (w *walk) reached(addr uint64) bool {
	n, ok := w.index.get(addr)
	return ok && w.dist[n-1] != noDist
}

// chain is the numbers from a root to an object.
func (w *walk) chain(n uint32) []uint32 {
	var out []uint32
	for n != noParent {
		out = append(out, n)
		n = w.parents[n]
	}
	for i, j := 0, len(out)-1; i < j; i, j = i+1, j-1 {
		out[i], out[j] = out[j], out[i]
	}
	return out
}
