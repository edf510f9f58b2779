// SPDX-License-Identifier: Apache-2.0

// Package objgraph walks over the objects of a process, Python's and PyTorch's, from the modules and threads of its interpreter:
// to each object the path that reads best, and to some all that hold them. It reads paths again to tell which still hold.
package objgraph

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gputrace/gputrace/cpython/pyobject"
	"github.com/gputrace/gputrace/inspect/holders/internal/memory"
	"github.com/gputrace/gputrace/inspect/holders/internal/torchlayout"
)

// Roots of the walk, in the place of a kind of reference. The Aux of each is what it says.
const (
	RootModule     pyobject.RefKind = 128 + iota // for Module
	RootFrame                                    // for Frame
	RootException                                // for Thread
	RootThreadDict                               // the same
	RootContext                                  // the same
	RootNative                                   // address of the C++ object
	RootGarbage                                  // address of the Python object
	RootHook                                     // the same, of a hook: see HookCycle
)

// MaxObjects bounds the objects that are walked over: about 5 GiB of objects at least.
const MaxObjects = 1 << 27

const (
	noParent = ^uint32(0)
	noDist   = int32(1 << 30)
	// maxCost bounds the cost of a step; it is a power of two.
	maxCost = 128
)

// Graph finds, for every object that can be reached, the path that reads best: the one whose steps cost the least. A step that
// people would write costs little, one that is true but says nothing costs much.
type Graph struct {
	t        *torchlayout.Reader
	index    *memory.Table // address -> number + 1
	nodes    nodes
	buckets  [maxCost][]uint32
	waiting  int
	now      int32
	goals    int // the first so many are tensors and storages of live blocks
	holders  []Holder
	loose    []Holder
	doubts   []doubt
	modules  []pyobject.Module
	threads  []pyobject.ThreadState
	frames   []walkedFrame
	names    map[uint64]int32 // cost of an attribute or key, by the address of its name
	refs     []pyobject.Ref
	tids     map[uint64]bool // threads of the process, as itself numbers them
	leaves   *memory.Leaves  // they lead to nothing
	cut      bool            // there were too many objects
	cycles   map[uint64][]Turn
	hooks    map[uint64]ownHook  // roots, by address
	selfKept map[uint64]bool     // nodes that are roots and are kept by their own ctx
	torchs   map[uint64]bool     // by address of a class: it is of PyTorch
	loops    map[uint64][]uint64 // variables of for loops, as addresses of names, by the address of a frame, as Addr, or a dictionary
	globals  map[uint64]bool     // dictionaries that have the variables of frames
}

// Holder is a reference to a goal.
type Holder struct {
	Goal, From uint32 // numbers of objects
	Kind       pyobject.RefKind
	Doubtful   bool   // see pyobject.Ref
	Aux        uint64 // see pyobject.RefKind
}

// doubt is a value on the stack of a running frame that may be dead.
type doubt struct {
	from uint32
	ref  pyobject.Ref
}

// believe follows the doubtful values, for what nothing else leads to.
func (w *Graph) believe() {
	for _, d := range w.doubts {
		w.push(d.ref.Target, w.now+costDoubtful, d.from, d.ref.Kind, d.ref.Aux)
	}
	w.Run()
}

// walkedFrame is a frame of a running thread.
type walkedFrame struct {
	pyobject.Activation
	thread, depth int
}

// New begins a walk. tids are the threads of the process, as itself numbers them, nil when they are not known; what
// leaves knows is passed by.
func New(t *torchlayout.Reader, tids map[uint64]bool, leaves *memory.Leaves) *Graph {
	return &Graph{
		t: t, tids: tids, leaves: leaves, index: memory.NewTable(), names: map[uint64]int32{}, loops: map[uint64][]uint64{},
		globals: map[uint64]bool{},
	}
}

// Goal adds an object whose holders are wanted. All goals are added before the first root.
func (w *Graph) Goal(addr uint64) uint32 {
	n, _ := w.number(addr)
	w.goals = w.nodes.count
	return n
}

// number returns the number of an object, a new one when it has none.
func (w *Graph) number(addr uint64) (uint32, bool) {
	if n, ok := w.index.Get(addr); ok {
		return n - 1, true
	}
	if w.nodes.count >= MaxObjects {
		w.cut = true
		return 0, false
	}
	n := w.nodes.add(node{addr: addr, dist: noDist, parent: noParent})
	w.index.Set(addr, n+1)
	return n, true
}

// push proposes a path to an object.
func (w *Graph) push(addr uint64, dist int32, parent uint32, kind pyobject.RefKind, aux uint64) {
	n, ok := w.number(addr)
	if !ok {
		return
	}
	w.propose(n, dist, parent, kind, aux)
}

func (w *Graph) propose(n uint32, dist int32, parent uint32, kind pyobject.RefKind, aux uint64) {
	o := w.nodes.at(n)
	if dist >= o.dist {
		return
	}
	o.dist, o.parent, o.kind, o.aux = dist, parent, kind, aux
	b := &w.buckets[dist&(maxCost-1)]
	*b = append(*b, n)
	w.waiting++
}

// visitsAtOnce is how many objects are visited before it is looked whether somebody still waits for the graph.
const visitsAtOnce = 1 << 12

// Run goes on until nothing is left to be visited, or Image.Over. What was visited before keeps its path unless a shorter one came up.
func (w *Graph) Run() {
	for visits := 0; w.waiting > 0; {
		b := &w.buckets[w.now&(maxCost-1)]
		for i := 0; i < len(*b); i++ { // grows by steps that cost nothing
			n := (*b)[i]
			w.waiting--
			if w.nodes.at(n).dist == w.now {
				if visits++; visits%visitsAtOnce == 0 && w.t.Image().Over() {
					return
				}
				w.visit(n)
			}
		}
		*b = (*b)[:0]
		w.now++
	}
}

// visit proposes paths to all that an object refers to.
func (w *Graph) visit(n uint32) {
	addr := w.nodes.at(n).addr
	w.t.Renew(addr)
	w.refs = w.t.Refs(w.refs[:0], addr)
	w.noteTornGrad(n, w.refs)
	for i := range w.refs {
		r := &w.refs[i]
		target := r.Target
		if r.Kind == pyobject.RefActivation {
			target |= 1
		}
		worth := w.worth(target, r.Kind)
		if worth == worthNothing {
			continue
		}
		to, known := w.index.Get(target)
		if !known && worth == worthIfKnown {
			w.noteTorn(n, r)
			continue
		}
		goal := known && int(to-1) < w.goals
		if goal {
			w.holders = append(w.holders, Holder{Goal: to - 1, From: n, Kind: r.Kind, Aux: r.Aux, Doubtful: r.Doubtful})
		}
		if !goal {
			w.noteLoose(n, r)
		}
		if r.Doubtful && r.Kind == pyobject.RefTemporary {
			w.doubts = append(w.doubts, doubt{n, *r})
			continue
		}
		if dist := w.now + w.costFrom(addr, r) + w.costOfGoal(addr, r, goal); known {
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
func (w *Graph) worth(target uint64, kind pyobject.RefKind) worth {
	switch {
	case kind == pyobject.RefActivation:
		return worthVisit
	case target&7 != 0 || target < memory.PageSize:
		return worthIfKnown
	case kind >= torchlayout.RefGrad && kind != torchlayout.RefHook && kind != torchlayout.RefContext:
		return worthVisit
	}
	if w.leaves.Has(target) {
		return worthNothing
	}
	switch p := w.t.Heap().TypeOf(w.t.Image(), target); {
	case p == nil:
		return worthIfKnown
	case p.Leaf():
		return worthNothing
	}
	return worthVisit
}

// interesting reports whether an object may lead to a tensor.
func (w *Graph) interesting(target uint64, kind pyobject.RefKind) bool {
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
	costGenerator = 40 // a frame of a generator or coroutine that runs: a moment later it is suspended, and no root
	costLibrary   = 30 // a frame of a library's code, and one more for each around it, up to as many again
	costModule    = 5  // a library's module
	costException = 4
	costSlot      = 5  // a field of a C type: an event loop keeps its timers behind several
	costThread    = 40 // what a thread's state keeps, an event loop's timers for one, which come and go
	costAdrift    = 60
	costGarbage   = 99
	// costSelf is of the object of a method that runs: a variable that has the object is there after the method, and says which it is.
	costSelf = 4
	// costLoop is added for the variable of a for loop: a path through what is iterated says which element it is, and stays the same.
	costLoop = 3
	// costItself is added for a variable that is the tensor itself: if an object or a container has it too, the variable is most often
	// what a call returned, and has another tensor in the next step.
	costItself = 2
)

// nameCosts are the costs of attributes and keys by name.
var nameCosts = map[string]int32{
	"_modules": costPart, "_parameters": costPart, "_buffers": costPart, "__dict__": costPart, "param_groups": costListed,
	"params": costListed, "self": costSelf,
	"_scheduled": costThread, "_ready": costThread, // of an asyncio event loop
}

// costFrom is the cost of a step from an object.
func (w *Graph) costFrom(addr uint64, r *pyobject.Ref) int32 {
	c := w.cost(r)
	if (r.Kind == pyobject.RefLocal || r.Kind == pyobject.RefKey) && slices.Contains(w.loops[addr], r.Aux) {
		c += costLoop
	}
	return c
}

// costOfGoal is costItself if a step from an object leads to a goal that it is for. Of a tensor with a graph the variable is often what
// carries the graph into the next step, and the object has it to show it.
func (w *Graph) costOfGoal(addr uint64, r *pyobject.Ref, goal bool) int32 {
	if !goal || r.Kind != pyobject.RefLocal && (r.Kind != pyobject.RefKey || !w.globals[addr]) {
		return 0
	}
	if impl := w.t.Impl(r.Target); impl != 0 && w.t.GradFn(impl) != 0 {
		return 0
	}
	return costItself
}

func (w *Graph) cost(r *pyobject.Ref) int32 {
	switch r.Kind {
	case pyobject.RefAttribute, pyobject.RefKey:
		return w.nameCost(r.Aux)
	case pyobject.RefMember:
		return w.memberCost(r.Aux)
	case pyobject.RefDict:
		return costPart
	case pyobject.RefLocal:
		if c := w.nameCost(r.Aux); c < costListed { // a variable may be called params
			return max(c-costPlain, 0)
		}
		return costPart
	case pyobject.RefKeyItself:
		return costKeyItself
	case pyobject.RefTemporary:
		if r.Doubtful {
			return costDoubtful
		}
		return 2
	case pyobject.RefField:
		return fieldCost(pyobject.FieldName(r.Aux))
	case pyobject.RefSlot:
		return costSlot
	case torchlayout.RefHook:
		return 2
	case torchlayout.RefNode:
		return costNode
	case torchlayout.RefGradFn, torchlayout.RefBase:
		return costGraph
	case torchlayout.RefVariable:
		return costLeaf
	}
	return costPlain
}

// memberCost is that of a field, by the address of its name. An AttributeError's obj is what lacked the attribute: the frames
// that its traceback keeps say more.
func (w *Graph) memberCost(name uint64) int32 {
	if b := w.t.Image().View(name, 4); string(b) == "obj\x00" {
		return costListed
	}
	return costPlain
}

func fieldCost(f pyobject.FieldName) int32 {
	switch f {
	case pyobject.FieldGlobals:
		return costListed
	case pyobject.FieldBase, pyobject.FieldMRO, pyobject.FieldClass:
		return costClass
	case pyobject.FieldLocals:
		return costPart
	}
	return costPlain
}

// nameCost is that of an attribute or key, by the address of its name.
func (w *Graph) nameCost(name uint64) int32 {
	if c, ok := w.names[name]; ok {
		return c
	}
	text := w.t.Heap().Text(w.t.Image(), name)
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

// Roots starts from the modules and the threads. Frames that are not in the copy as they were found are left out.
func (w *Graph) Roots(threads []pyobject.ThreadState) {
	im, heap := w.t.Image(), w.t.Heap()
	w.modules = heap.Modules(im)
	for i, m := range w.modules {
		cost := int32(costModule)
		switch {
		case m.Name == "__main__":
			cost = 0
		case m.File != "" && !library(m.File):
			cost = 1
		}
		w.push(m.Object, cost, noParent, RootModule, uint64(i))
	}
	w.threads = threads
	for i := range w.threads {
		t := &w.threads[i]
		if w.tids != nil && !w.tids[t.TID] {
			t.TID = 0
		}
		own := int32(-1)                                      // frames of the program's own code, without the module's
		for depth := len(t.Frames) - 1; depth >= 0; depth-- { // of equal paths the first is taken: that of the outer frame
			a := t.Frames[depth]
			if then, ok := heap.Activation(im, a.Addr); !ok || then.Code != a.Code {
				continue
			}
			cost := int32(costLibrary + min(len(t.Frames)-1-depth, costLibrary))
			c, err := heap.CodeAt(im, a.Code)
			switch {
			case err == nil && !library(c.Filename):
				cost = min(max(own, 0)*costInner, costLibrary-costInner)
				own++
			case own == 0: // a library calls the function behind it, which is not main()
				own++
			}
			if heap.OfGenerator(im, a.Addr) {
				cost += costGenerator
			}
			w.frames = append(w.frames, walkedFrame{a, i, depth})
			w.noteLoops(a)
			w.push(a.Addr|1, cost, noParent, RootFrame, uint64(len(w.frames)-1))
		}
		for _, e := range t.Exceptions {
			if w.interesting(e, pyobject.RefIndex) {
				w.push(e, costException, noParent, RootException, uint64(i))
			}
		}
		if w.interesting(t.Dict, pyobject.RefIndex) {
			w.push(t.Dict, costThread, noParent, RootThreadDict, uint64(i))
		}
		if w.interesting(t.Context, pyobject.RefIndex) {
			w.push(t.Context, costThread, noParent, RootContext, uint64(i))
		}
	}
}

// noteLoops notes the variables of a frame that for loops assign to.
func (w *Graph) noteLoops(a pyobject.Activation) {
	locals, names := w.t.Heap().LoopVariables(w.t.Image(), a)
	if len(locals) > 0 {
		w.loops[a.Addr|1] = append(w.loops[a.Addr|1], locals...)
	}
	if dict := w.t.Heap().LocalsDict(w.t.Image(), a); dict != 0 {
		w.globals[dict] = true
		if len(names) > 0 {
			w.loops[dict] = append(w.loops[dict], names...)
		}
	}
}

// library tells files that belong to Python or were installed from those of the program.
func library(file string) bool {
	return strings.Contains(file, "/site-packages/") || strings.Contains(file, "/dist-packages/") ||
		strings.HasPrefix(file, "<frozen ") || strings.Contains(file, "/lib/python3")
}

// Number is the number of an object; ok is false when the walk did not reach it.
func (w *Graph) Number(addr uint64) (n uint32, ok bool) {
	n, ok = w.index.Get(addr)
	return n - 1, ok
}

// Len is how many objects have a number.
func (w *Graph) Len() int { return w.nodes.count }

// Cut reports that there were more objects than MaxObjects: some were not looked at.
func (w *Graph) Cut() bool { return w.cut }

// Addr is the address of an object; of a frame, with the lowest bit set.
func (w *Graph) Addr(n uint32) uint64 { return w.nodes.at(n).addr }

// Reached reports whether a path leads to an object.
func (w *Graph) Reached(n uint32) bool { return w.nodes.at(n).dist != noDist }

// Cost is that of the best path to an object that Reached.
func (w *Graph) Cost(n uint32) int32 { return w.nodes.at(n).dist }

// Parent is the object before another one on the best path to that; ok is false for a root.
func (w *Graph) Parent(n uint32) (parent uint32, ok bool) {
	parent = w.nodes.at(n).parent
	return parent, parent != noParent
}

// Link is how the best path gets to an object: a kind of root, or of reference from its parent, and what that says.
func (w *Graph) Link(n uint32) (kind pyobject.RefKind, aux uint64) {
	o := w.nodes.at(n)
	return o.kind, o.aux
}

// Module is a root that is a module.
func (w *Graph) Module(aux uint64) pyobject.Module { return w.modules[aux] }

// ModuleNamed is the address of a module, of the main interpreter if it has it; 0 when there is none.
func (w *Graph) ModuleNamed(name string) (object uint64) {
	for i := range w.modules { // the main interpreter's are the last
		if w.modules[i].Name == name {
			object = w.modules[i].Object
		}
	}
	return object
}

// Frame is a root that is a frame of a running thread: the thread's id, or 0 where it is not known, and how many frames are
// inside of it.
func (w *Graph) Frame(aux uint64) (a pyobject.Activation, tid uint64, depth int) {
	f := &w.frames[aux]
	return f.Activation, w.threads[f.thread].TID, f.depth
}

// Thread is the id of the thread that another root is of, or 0.
func (w *Graph) Thread(aux uint64) uint64 { return w.threads[aux].TID }

// IsHeld reports, for each goal, whether something refers to it.
func (w *Graph) IsHeld() []bool {
	held := make([]bool, w.goals)
	for i := range w.holders {
		held[w.holders[i].Goal] = true
	}
	return held
}

// Holders returns, for each goal, the references to it, the one on the best path first.
func (w *Graph) Holders() [][]Holder {
	slices.SortStableFunc(w.holders, func(a, b Holder) int {
		if c := cmp.Compare(a.Goal, b.Goal); c != 0 {
			return c
		}
		return cmp.Compare(w.HolderCost(&a), w.HolderCost(&b))
	})
	out := make([][]Holder, w.goals)
	for i := 0; i < len(w.holders); {
		j := i
		for j < len(w.holders) && w.holders[j].Goal == w.holders[i].Goal {
			j++
		}
		out[w.holders[i].Goal] = w.holders[i:j]
		i = j
	}
	return out
}

// HolderCost is the cost of the path through a holder.
func (w *Graph) HolderCost(h *Holder) int32 {
	from := w.nodes.at(h.From)
	r := &pyobject.Ref{Kind: h.Kind, Aux: h.Aux, Doubtful: h.Doubtful, Target: w.nodes.at(h.Goal).addr}
	return from.dist + w.costFrom(from.addr, r) + w.costOfGoal(from.addr, r, true)
}

// reached reports whether a path to an object was found.
func (w *Graph) reached(addr uint64) bool {
	n, ok := w.index.Get(addr)
	return ok && w.Reached(n-1)
}

// Chain is the numbers from a root to an object.
func (w *Graph) Chain(n uint32) []uint32 {
	var out []uint32
	for n != noParent {
		out = append(out, n)
		n = w.nodes.at(n).parent
	}
	for i, j := 0, len(out)-1; i < j; i, j = i+1, j-1 {
		out[i], out[j] = out[j], out[i]
	}
	return out
}
