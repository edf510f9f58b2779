// SPDX-License-Identifier: Apache-2.0

package objgraph

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/gputrace/gputrace/cpython/pyobject"
	"github.com/gputrace/gputrace/inspect/holders/internal/memory"
	"github.com/gputrace/gputrace/inspect/holders/internal/torchlayout"
	"github.com/gputrace/gputrace/process"
)

// Recheck reads the process once more, behind the walk: each link that a path needs must still be there. What is read is kept
// for the one pass that it is used in.
type Recheck struct {
	w         *Graph
	t         *torchlayout.Reader // the same layouts over what the process has now
	roots     map[rootKey]bool
	running   map[uint64]bool   // frames of running functions; nil: roots has them
	alive     []uint64          // states of the threads, likewise
	outermost map[uint64]uint64 // frame of a thread that stays the same until it ends, by its state
	pair      *Recheck          // see Pair; nil: none
	links     map[linkKey]bool
	paths     map[uint32]bool
	sources   map[uint64][]pyobject.Ref
	ways      map[uint32]uint64         // what follow found
	moves     map[uint32]*Move          // what follows found
	current   map[uint64][]pyobject.Ref // references of objects that need not be in the copy
	edges     int                       // in sources and current
	last      time.Time
	read      uint64    // bytes, of the threads
	positions positions // where an element is looked for alone; nil: all of an object is read
	known     positions // of those that On makes
}

// positions says where large dictionaries of the copy have their keys: by dictionary and key. Of a small one there is nil.
type positions map[uint64]map[uint64]uint32

// positionsFrom is how many entries a dictionary has of which one is read without the others.
const positionsFrom = 256

// linkKey is a reference: where from, how, and to what.
type linkKey struct {
	from, to, aux uint64
	kind          pyobject.RefKind
}

// rootKey is an object that a root leads to.
type rootKey struct {
	kind pyobject.RefKind
	addr uint64
	code uint64 // of a frame
}

// maxSources bounds the references that are remembered of what was read again.
const maxSources = 1 << 24

// NewRecheck prepares a second reading, of an image that has nothing yet. It reads the roots at once: the threads from m.
func (w *Graph) NewRecheck(ctx context.Context, m process.Memory, im *memory.Image) *Recheck {
	a := newRecheck(w, w.t.On(im))
	a.roots, a.outermost = map[rootKey]bool{}, map[uint64]uint64{}
	a.readRoots(ctx, m)
	return a
}

func newRecheck(w *Graph, t *torchlayout.Reader) *Recheck {
	return &Recheck{w: w, t: t, links: map[linkKey]bool{}, paths: map[uint32]bool{}, sources: map[uint64][]pyobject.Ref{}}
}

// On looks at another image, of one moment, for the same roots. Running frames are those of that moment. Of a list or a large dictionary
// only the element of the link is read, where it is in its place: a moment is too short for a dictionary of 400,000 entries.
func (a *Recheck) On(im *memory.Image) *Recheck {
	out := newRecheck(a.w, a.t.On(im))
	if a.known == nil {
		a.known = positions{}
	}
	out.roots, out.positions, out.outermost = a.roots, a.known, a.outermost
	if h := a.t.Heap(); h != nil {
		out.running, out.alive = h.RunningFrames(im)
	}
	return out
}

// Broken reports that the frames of a thread could not be followed to its outermost one: a function was called or returned while they were
// read. Then a frame that is not among them may run nevertheless.
func (a *Recheck) Broken() bool {
	return slices.ContainsFunc(a.alive, func(thread uint64) bool {
		f, ok := a.outermost[thread]
		return ok && !a.running[f]
	})
}

// outermost is the frame that a thread began with when the copy was made; 0: there is none. A thread that is not Python's own, such as the
// autograd engine's, has another one each time that it calls Python.
func (w *Graph) outermost(thread uint64) uint64 {
	for i := range w.threads {
		if t := &w.threads[i]; t.Addr == thread && len(t.Frames) > 0 {
			return t.Frames[len(t.Frames)-1].Addr
		}
	}
	return 0
}

// Pair has two readings of nearly the same moment help each other: a frame that one of them shows to run does so where the other is broken.
func (a *Recheck) Pair(b *Recheck) { a.pair, b.pair = b, a }

// runs reports whether a frame was one of a thread's.
func (a *Recheck) runs(frame uint64) bool {
	return a.running[frame] || a.pair != nil && a.pair.running[frame] && a.Broken()
}

// Reader reads PyTorch's objects as they are now.
func (a *Recheck) Reader() *torchlayout.Reader { return a.t }

// Last is when something was read last.
func (a *Recheck) Last() time.Time { return a.last }

// Proved says that paths were read once more, at a time.
func (a *Recheck) Proved(at time.Time) { a.last = at }

// BytesRead is how much was read of the process beside the image.
func (a *Recheck) BytesRead() uint64 { return a.read }

// readRoots lists what the roots are now.
func (a *Recheck) readRoots(ctx context.Context, m process.Memory) {
	h := a.t.Heap()
	if h == nil {
		return
	}
	for _, m := range h.ModuleObjects(a.t.Image()) {
		a.roots[rootKey{kind: RootModule, addr: m}] = true
	}
	threads, read := ThreadsNow(ctx, m, h, a.t.Image().Regions())
	a.read = read
	for _, t := range threads {
		for _, f := range t.Frames {
			a.roots[rootKey{RootFrame, f.Addr | 1, f.Code}] = true
		}
		if n := len(t.Frames); n > 0 && a.w.outermost(t.Addr) == t.Frames[n-1].Addr {
			a.outermost[t.Addr] = t.Frames[n-1].Addr
		}
		for _, e := range t.Exceptions {
			a.roots[rootKey{kind: RootException, addr: e}] = true
		}
		a.roots[rootKey{kind: RootThreadDict, addr: t.Dict}] = true
		a.roots[rootKey{kind: RootContext, addr: t.Context}] = true
	}
	a.last = time.Now()
}

// Path reports whether every link from a root to an object still holds, or leads to it by what took its place, see Move. What it finds is
// remembered for all objects on the way: paths have their beginnings in common.
func (a *Recheck) Path(n uint32) bool {
	w := a.w
	var open []uint32
	held := false
	for {
		if known, ok := a.paths[n]; ok {
			held = known
			break
		}
		open = append(open, n)
		o := w.nodes.at(n)
		if o.parent == noParent {
			held = a.root(n)
			break
		}
		if !a.Link(w.nodes.at(o.parent).addr, o.addr, o.aux, o.kind) && !a.follows(n) {
			a.paths[n] = false
			break
		}
		n = o.parent
	}
	for _, n := range open {
		a.paths[n] = held
	}
	return held
}

func (a *Recheck) root(n uint32) bool {
	w := a.w
	o := w.nodes.at(n)
	k := rootKey{kind: o.kind, addr: o.addr}
	switch k.kind {
	case RootFrame:
		k.code = w.frames[o.aux].Code
		if a.running != nil {
			f, ok := a.t.Heap().Activation(a.t.Image(), k.addr&^1)
			// A coroutine that ran when the copy was made can be suspended by now: its variables are what they were.
			return ok && f.Code == k.code && (a.runs(k.addr&^1) || a.t.Heap().Suspended(a.t.Image(), k.addr&^1))
		}
	case RootHook:
		return a.hasHook(k.addr)
	case RootNative, RootGarbage:
		if a.w.t.IsNative(k.addr) {
			return a.same(k.addr)
		}
		return a.same(k.addr) && a.t.Heap().Plausible(a.t.Image(), k.addr)
	}
	return a.roots[k]
}

// Link reports whether an object still refers to another one in the same way.
func (a *Recheck) Link(from, to, aux uint64, kind pyobject.RefKind) bool {
	k := linkKey{from, to, aux, kind}
	if held, ok := a.links[k]; ok {
		return held
	}
	held, sure := a.element(k)
	if sure {
		a.links[k] = held
		return held
	}
	_, held = slices.BinarySearchFunc(a.refs(from), pyobject.Ref{Target: to, Aux: aux, Kind: kind}, compareRefs)
	a.links[k] = held
	return held
}

// element looks only at the place where an object has its reference. sure is false where it must be looked for among all.
func (a *Recheck) element(k linkKey) (held, sure bool) {
	if a.positions == nil || k.from&1 != 0 || a.w.t.IsNative(k.from) || a.t.Heap() == nil || !a.same(k.from) {
		return false, false
	}
	switch k.kind {
	case pyobject.RefIndex:
		_, value, ok := a.t.Heap().Element(a.t.Image(), k.from, k.aux)
		if ok && value == 0 && a.reach(k.from, k.aux) {
			_, value, ok = a.t.Heap().Element(a.t.Image(), k.from, k.aux)
		}
		a.last = time.Now()
		return value == k.to, ok
	case pyobject.RefKey:
		position, ok := a.position(k.from, k.aux)
		if !ok {
			return false, false
		}
		key, value, ok := a.t.Heap().Element(a.t.Image(), k.from, uint64(position))
		a.last = time.Now()
		held = ok && key == k.aux && value == k.to
		return held, held
	}
	return false, false
}

// reach reads the place of an element of a list that could not be read: a list that grows moves to memory that was not mapped before.
func (a *Recheck) reach(list, index uint64) bool {
	items, bytes := a.t.Heap().Apart(a.t.Image(), list)
	return bytes > 0 && a.t.Image().Again(items+8*index, 8)
}

// position is where a large dictionary had a key when it was copied.
func (a *Recheck) position(dict, key uint64) (uint32, bool) {
	keys, ok := a.positions[dict]
	if !ok {
		keys = a.w.t.Heap().Positions(a.w.t.Image(), dict, positionsFrom)
		a.positions[dict] = keys
	}
	at, ok := keys[key]
	return at, ok
}

// compareRefs is the order in which a link is looked up: a list of a job that leaks has a million of them.
func compareRefs(a, b pyobject.Ref) int {
	return cmp.Or(cmp.Compare(a.Target, b.Target), cmp.Compare(a.Aux, b.Aux), cmp.Compare(a.Kind, b.Kind))
}

// refs are the references of an object now, in the order of compareRefs. An object whose type or class is another one by now has none.
func (a *Recheck) refs(from uint64) []pyobject.Ref {
	if refs, ok := a.sources[from]; ok {
		return refs
	}
	var refs []pyobject.Ref
	if a.same(from) {
		a.t.Renew(from)
		refs = a.t.Refs(nil, from)
		for i := range refs {
			if refs[i].Kind == pyobject.RefActivation {
				refs[i].Target |= 1
			}
		}
		slices.SortFunc(refs, compareRefs)
		a.last = time.Now()
	}
	if a.edges+len(refs) <= maxSources {
		a.edges += len(refs)
		a.sources[from] = refs
	}
	return refs
}

// same compares an object's type, class or code with those in the copy.
func (a *Recheck) same(at uint64) bool {
	if at&1 != 0 {
		then, ok1 := a.t.Heap().Activation(a.w.t.Image(), at&^1)
		now, ok2 := a.t.Heap().Activation(a.t.Image(), at&^1)
		return ok1 && ok2 && then.Code == now.Code
	}
	if a.w.t.IsNative(at) {
		return a.t.Image().Word(at) == a.w.t.Image().Word(at)
	}
	return a.t.Image().Word(at+8) == a.w.t.Image().Word(at+8)
}
