// SPDX-License-Identifier: Apache-2.0

//go:build linux

package holders

import (
	"time"

	"github.com/gputrace/gputrace/cpython"
)

// again reads the process once more, behind the walk: each link that a path needs must still be there. What is read is kept
// for the one pass that it is used in.
type again struct {
	r       *reading
	t       *torch // the same layouts over what the process has now
	roots   map[rootKey]bool
	running map[uint64]bool // frames of running functions; nil: roots has them
	links   map[linkKey]bool
	paths   map[uint32]bool
	sources map[uint64][]cpython.Ref
	edges   int // in sources
	last    time.Time
}

// linkKey is a reference: where from, how, and to what.
type linkKey struct {
	from, to, aux uint64
	kind          cpython.RefKind
}

// rootKey is an object that a root leads to.
type rootKey struct {
	kind cpython.RefKind
	addr uint64
	code uint64 // of a frame
}

// confirmPages bounds what is read again: 512 MiB.
const confirmPages = 1 << 17

// maxSources bounds the references that are remembered of what was read again.
const maxSources = 1 << 24

// newAgain prepares a second reading. It reads the roots at once.
func (r *reading) newAgain() (*again, error) {
	maps, err := r.p.Maps()
	if err != nil {
		return nil, err
	}
	im, err := newImage(r.p, regionsOf(maps), confirmPages)
	if err != nil {
		return nil, err
	}
	classes := *r.torch.classes
	classes.im = im
	n := &natives{classes: &classes, code: r.code}
	t := *r.torch
	t.natives = n
	a := &again{r: r, t: &t, roots: map[rootKey]bool{}, links: map[linkKey]bool{}, paths: map[uint32]bool{}, sources: map[uint64][]cpython.Ref{}}
	a.readRoots(im.regions)
	return a, nil
}

func (a *again) close() {
	a.r.report.Stats.BytesRead += a.t.im.bytes
	a.t.im.close()
}

// readRoots lists what the roots are now.
func (a *again) readRoots(regions []region) {
	h := a.t.heap
	if h == nil {
		return
	}
	for _, m := range h.ModuleObjects(a.t.im) {
		a.roots[rootKey{kind: rootModule, addr: m}] = true
	}
	for _, t := range a.r.threadsNow(h, regions) {
		for _, f := range t.Frames {
			a.roots[rootKey{rootFrame, f.Addr | 1, f.Code}] = true
		}
		for _, e := range t.Exceptions {
			a.roots[rootKey{kind: rootException, addr: e}] = true
		}
		a.roots[rootKey{kind: rootThreadDict, addr: t.Dict}] = true
		a.roots[rootKey{kind: rootContext, addr: t.Context}] = true
	}
	a.last = time.Now()
}

// path reports whether every link from a root to an object still holds. What it finds is remembered for all objects on the
// way: paths have their beginnings in common.
func (a *again) path(n uint32) bool {
	w := a.r.walk
	var open []uint32
	held := false
	for {
		if known, ok := a.paths[n]; ok {
			held = known
			break
		}
		open = append(open, n)
		p := w.parents[n]
		if p == noParent {
			held = a.root(n)
			break
		}
		if !a.link(w.addrs[p], w.addrs[n], w.aux[n], w.kinds[n]) {
			a.paths[n] = false
			break
		}
		n = p
	}
	for _, n := range open {
		a.paths[n] = held
	}
	return held
}

func (a *again) root(n uint32) bool {
	w := a.r.walk
	k := rootKey{kind: w.kinds[n], addr: w.addrs[n]}
	switch k.kind {
	case rootFrame:
		k.code = w.frames[w.aux[n]].Code
		if a.running != nil {
			f, ok := a.t.heap.Activation(a.t.im, k.addr&^1)
			return ok && f.Code == k.code && a.running[k.addr&^1]
		}
	case rootNative, rootGarbage:
		if a.r.torch.role(k.addr) != roleOther {
			return a.same(k.addr)
		}
		return a.same(k.addr) && a.t.heap.Plausible(a.t.im, k.addr)
	}
	return a.roots[k]
}

// link reports whether an object still refers to another one in the same way.
func (a *again) link(from, to, aux uint64, kind cpython.RefKind) bool {
	k := linkKey{from, to, aux, kind}
	if held, ok := a.links[k]; ok {
		return held
	}
	held := false
	for _, ref := range a.refs(from) {
		target := ref.Target
		if ref.Kind == cpython.RefActivation {
			target |= 1
		}
		if target == to && ref.Kind == kind && ref.Aux == aux {
			held = true
			break
		}
	}
	a.links[k] = held
	return held
}

// refs are the references of an object now. An object whose type or class is another one by now has none.
func (a *again) refs(from uint64) []cpython.Ref {
	if refs, ok := a.sources[from]; ok {
		return refs
	}
	var refs []cpython.Ref
	if a.same(from) {
		refs = a.t.refs(nil, from)
		a.last = time.Now()
	}
	if a.edges+len(refs) <= maxSources {
		a.edges += len(refs)
		a.sources[from] = refs
	}
	return refs
}

// same compares an object's type, class or code with those in the copy.
func (a *again) same(at uint64) bool {
	if at&1 != 0 {
		then, ok1 := a.t.heap.Activation(a.r.im, at&^1)
		now, ok2 := a.t.heap.Activation(a.t.im, at&^1)
		return ok1 && ok2 && then.Code == now.Code
	}
	if a.r.torch.role(at) != roleOther {
		return a.t.im.Word(at) == a.r.im.Word(at)
	}
	return a.t.im.Word(at+8) == a.r.im.Word(at+8)
}

// uses reports whether a tensor still has a storage whose memory is that of a block, and the same Python object.
func (a *again) uses(g *target, b *Block) bool {
	t := a.t
	data := t.im.Word(g.storage + t.storageData)
	if t.role(g.storage) != roleStorage || data < b.Addr || data >= b.Addr+b.Size {
		return false
	}
	if g.impl == 0 {
		return t.storageOf(g.storage) == g.object
	}
	return t.role(g.impl) == roleTensor && t.im.Word(g.impl+t.tensorStorage) == g.storage && t.object(g.impl) == g.object
}
