// SPDX-License-Identifier: Apache-2.0

package objgraph

import (
	"slices"

	"github.com/gputrace/gputrace/cpython/pyobject"
	"github.com/gputrace/gputrace/inspect/holders/internal/torchlayout"
)

const (
	// maxHookWay bounds the objects that are looked at between a hook and a tensor to which it refers, and maxHookGraph the nodes between
	// that tensor and the node that has the hook.
	maxHookWay   = 1 << 9
	maxHookGraph = 1 << 14
	// costHook is less than what a graph without a variable costs: its hook says more.
	costHook = 40
	// costContext is the same of a custom function that keeps itself.
	costContext = 50
)

// ownHooks adds a root for each hook of a graph that refers back to a tensor of the same graph, or of one that goes on from it: the node
// has the hook, and the hook has the node. The reference from the node is one of C++, so the collector does not see the cycle.
func (w *Graph) ownHooks(nodes []uint64) {
	var refs []pyobject.Ref
	for _, node := range nodes {
		refs = w.t.NodeRefs(refs[:0], node)
		for i := range refs {
			r := refs[i]
			if _, position := torchlayout.SavedAt(r.Aux); r.Kind != torchlayout.RefHook || position >= 0 || w.reached(r.Target) {
				continue
			}
			for _, way := range w.waysBack(node, r) {
				w.noteHook(way)
			}
		}
	}
	w.Run()
}

// maxContexts bounds the custom functions that are looked at.
const maxContexts = 1 << 13

// ownContexts adds a root for the node of each custom function whose ctx refers to an output of the function, or to what was computed from
// one: the node keeps its ctx, and the ctx keeps the node. Such a node stays whatever else of its graph is freed.
func (w *Graph) ownContexts(nodes []uint64) {
	var refs []pyobject.Ref
	n := 0
	w.selfKept = map[uint64]bool{}
	for _, node := range nodes {
		refs = w.t.NodeRefs(refs[:0], node)
		for _, r := range refs {
			if r.Kind != torchlayout.RefContext || w.reached(node) || w.reached(r.Target) || n == maxContexts {
				continue
			}
			n++
			if len(w.waysBack(node, r)) > 0 {
				w.selfKept[node] = true
				w.push(node, w.now+costContext, noParent, RootNative, node)
			}
		}
	}
	w.Run()
}

// SelfKept reports whether a node that is a root is kept by its own ctx.
func (w *Graph) SelfKept(node uint64) bool { return w.selfKept[node] }

// ownHook is the way from a node to a hook that is a root, and from there to a tensor, or node, whose graph has the first node.
type ownHook struct{ to, back []Turn }

func (w *Graph) noteHook(way []Turn) {
	n := untilHook(way)
	hook := way[n-1].To
	if _, known := w.hooks[hook]; known {
		return
	}
	if w.hooks == nil {
		w.hooks = map[uint64]ownHook{}
	}
	w.hooks[hook] = ownHook{way[:n], way[n:]}
	w.push(hook, w.now+costHook, noParent, RootHook, hook)
}

// untilHook is how many references lead to the hook itself: a tensor has its hooks in a dictionary.
func untilHook(way []Turn) int {
	if len(way) > 1 && way[1].Ref.Kind == pyobject.RefKey {
		return 2
	}
	return 1
}

// waysBack follows what a hook of a node refers to, and lists a way for each of its functions that leads to a tensor whose graph has the
// node.
func (w *Graph) waysBack(node uint64, hook pyobject.Ref) (out [][]Turn) {
	if w.t.Heap() == nil {
		return nil
	}
	from := map[uint64]Turn{hook.Target: {From: node, To: hook.Target, Ref: hook}}
	found := map[uint64]bool{}
	todo := []uint64{hook.Target}
	for n := 0; len(todo) > 0 && n < maxHookWay; n++ {
		at := todo[0]
		todo = todo[1:]
		if graph, ok := w.graphOf(at); ok {
			way := unwound(from, at, node)
			if hook := way[untilHook(way)-1].To; !found[hook] && w.leadsTo(graph, node) {
				found[hook] = true
				out = append(out, way)
			}
			continue // what follows is its graph
		}
		for _, r := range w.t.Refs(nil, at) {
			if _, seen := from[r.Target]; !seen && hookRef(&r) && !w.reached(r.Target) && w.interesting(r.Target, r.Kind) {
				from[r.Target] = Turn{From: at, To: r.Target, Ref: r}
				todo = append(todo, r.Target)
			}
		}
	}
	return out
}

// hookRef reports whether a hook keeps what a reference leads to. The globals of a function are the program's.
func hookRef(r *pyobject.Ref) bool {
	globals := r.Kind == pyobject.RefField && pyobject.FieldName(r.Aux) == pyobject.FieldGlobals
	return r.Kind != pyobject.RefActivation && !r.Doubtful && !globals
}

// graphOf is the node that made a tensor, or that itself is at the address; ok is false for another object.
func (w *Graph) graphOf(at uint64) (node uint64, ok bool) {
	if w.t.IsNode(at) {
		return at, true
	}
	impl := at
	if !w.t.IsNative(at) {
		impl = w.t.Impl(at)
	}
	return w.t.GradFn(impl), impl != 0
}

// unwound lists the references from a node to an object.
func unwound(from map[uint64]Turn, at, node uint64) (way []Turn) {
	for at != node {
		t := from[at]
		way = append(way, t)
		at = t.From
	}
	slices.Reverse(way)
	return way
}

// leadsTo reports whether a node of a graph is another one, or leads to it.
func (w *Graph) leadsTo(node, wanted uint64) bool {
	if node == 0 {
		return false
	}
	seen, todo := map[uint64]bool{node: true}, []uint64{node}
	var refs []pyobject.Ref
	for len(todo) > 0 && len(seen) < maxHookGraph {
		at := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if at == wanted {
			return true
		}
		refs = w.t.NodeRefs(refs[:0], at)
		for i := range refs {
			if r := &refs[i]; r.Kind == torchlayout.RefNext && !seen[r.Target] {
				seen[r.Target] = true
				todo = append(todo, r.Target)
			}
		}
	}
	return false
}

// HookCycle is the references from a hook that is a root to the tensor, or node, whose graph has the hook.
func (w *Graph) HookCycle(hook uint64) []Turn { return w.hooks[hook].back }

// hasHook reports whether a node still has a hook that is a root.
func (a *Recheck) hasHook(hook uint64) bool {
	way := a.w.hooks[hook].to
	return len(way) > 0 && !slices.ContainsFunc(way, func(t Turn) bool { return !a.Link(t.From, t.To, t.Ref.Aux, t.Ref.Kind) })
}
