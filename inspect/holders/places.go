// SPDX-License-Identifier: Apache-2.0

package holders

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/gputrace/gputrace/cpython/pyobject"
	"github.com/gputrace/gputrace/inspect"
	"github.com/gputrace/gputrace/inspect/holders/internal/objgraph"
	"github.com/gputrace/gputrace/inspect/holders/internal/torchlayout"
)

// A tensor that is replaced by a longer one at each step is never the same one in two readings, and neither are the elements of a list or
// queue that moves. The place stays: `store['memory'].keys[0]` can be followed again at any moment, whatever it holds then. So the slots of
// the copy that hold something else by now are followed anew, in the two bursts of a proof, from the module or frame on, and what they hold
// is given with its time. The graph of what they hold leads on to nodes that the walk had found without a variable.

// Place is a place of the program that held a tensor at a moment after the walk.
type Place struct {
	Addr, Size uint64 // of the tensor's storage
	Time       uint64 // CLOCK_BOOTTIME, nanoseconds
	Path       Path
}

const (
	// maxSlots bounds the slots that are followed again, maxGrads the gradients among them, of which a large model makes
	// thousands in each step, and placeTime the time for it.
	maxSlots  = 1 << 13
	maxGrads  = 64
	placeTime = 2 * time.Second
	// firstTries is how often a graph is followed at most until it leads to a block without a variable: in most programs
	// none does, and the graph may have thousands of nodes.
	firstTries = 2
	// maxUpward bounds the nodes of a graph that are followed from what a slot holds.
	maxUpward = 1 << 15
)

// held is what a slot holds at a moment.
type held struct {
	slot *objgraph.Holder
	seen seenTensor
	time uint64
	kind string // its Python class
	node string // class of the node that made it
}

type seenTensor struct{ object, impl, storage, data, size, node uint64 }

// places follows the slots that hold another object by now, and names the blocks to which they lead.
func (a *assembly) places() error {
	slots := a.moved()
	if len(slots) == 0 || a.ctx.Err() != nil {
		return nil
	}
	p, err := a.newProof()
	if err != nil {
		return err
	}
	defer p.close()
	end := a.proofEnd()
	if soon := time.Now().Add(placeTime); soon.Before(end) {
		end = soon
	}
	var found []held
	for n := 0; n < len(slots) && time.Now().Before(end); n += proofBlocks {
		found = p.hold(found, slots[n:min(n+proofBlocks, len(slots))])
	}
	for i := range found {
		a.placed(&found[i])
	}
	a.upward(p, found)
	return nil
}

// moved lists the slots of the program that do not hold what they did, those that read best first.
func (a *assembly) moved() (out []*objgraph.Holder) {
	for g := range a.holders {
		if k, ok := a.targetOf[uint32(g)]; ok && a.targets[k].array {
			continue // its place is followed for tensors only
		}
		same := a.same(uint32(g))
		for i := range a.holders[g] {
			h := &a.holders[g][i]
			if a.graph.Followable(h) && !(same && a.heldBy(h) && a.now.Path(h.From)) {
				out = append(out, h)
			}
		}
	}
	loose := a.graph.Loose()
	for i := range loose {
		if a.graph.Followable(&loose[i]) {
			out = append(out, &loose[i])
		}
	}
	slices.SortStableFunc(out, func(x, y *objgraph.Holder) int { return cmp.Compare(a.graph.HolderCost(x), a.graph.HolderCost(y)) })
	grads := 0
	out = slices.DeleteFunc(out, func(h *objgraph.Holder) bool {
		if h.Kind == torchlayout.RefGrad {
			grads++
		}
		return h.Kind == torchlayout.RefGrad && grads > maxGrads
	})
	return out[:min(len(out), maxSlots)]
}

// same reports whether a goal is the tensor that it was in the copy, with the same graph. Another one can have taken its place in memory.
func (a *assembly) same(goal uint32) bool {
	k, ok := a.targetOf[goal]
	if !ok {
		return false
	}
	g, t := &a.targets[k], a.now.Reader()
	if g.impl == 0 || !t.InBlock(g.impl, g.storage, g.object, g.data, 1) {
		return g.impl == 0
	}
	node := t.GradFn(g.impl)
	if node == 0 {
		return true
	}
	n, ok := a.graph.Number(node)
	return ok && a.graph.Reached(n) && node == a.torch.GradFn(g.impl)
}

// look reads what a slot holds. ok is true for a tensor in the allocator's segments and, for the sake of the blocks that its
// graph keeps, for one with a graph, which may lie in a segment that is younger than the allocator's map. Of any other
// tensor ok is false and its data is set; if no tensor could be read, nothing is set.
func (a *assembly) look(now *objgraph.Recheck, h *objgraph.Holder) (s seenTensor, ok bool) {
	if s.object = now.Held(h); s.object == 0 {
		return s, false
	}
	t := now.Reader()
	if s.impl, s.storage, s.data, s.size, ok = t.Memory(s.object); !ok || !t.GraphSeen(s.impl) {
		return seenTensor{}, false
	}
	s.node = t.GradFn(s.impl)
	return s, s.node != 0 || a.live.segment(s.data)
}

// hold appends what some slots hold, as far as two bursts agree on it.
func (p *proof) hold(out []held, slots []*objgraph.Holder) []held {
	open := slices.Clone(slots)
	p.pages = map[uint64]bool{}
	for n, broken := 0, 0; n < proofTries && len(open) > 0; n++ {
		p.look(func(on *objgraph.Recheck) {
			open = slices.DeleteFunc(open, func(h *objgraph.Holder) bool {
				s, ok := p.a.look(on, h)
				other := !ok && s.data != 0
				p.renews = p.renews || !ok && !other
				return other
			})
		})
		if !p.burst() {
			continue
		}
		first, second := p.shown()
		open = slices.DeleteFunc(open, func(h *objgraph.Holder) bool {
			x, ok := p.a.look(first, h)
			if y, again := p.a.look(second, h); !ok || !again || x != y {
				return false
			}
			t := second.Reader()
			kind := ""
			if c := t.Heap().TypeOf(t.Image(), x.object); c != nil { // the burst need not have the pages of the class
				kind = cutText(c.Short())
			}
			out = append(out, held{h, x, p.between, kind, cutText(t.ClassName(x.node))})
			return true
		})
		p.a.now.Proved(time.Now())
		if broken++; first.Broken() && second.Broken() && broken < brokenTries {
			n--
		}
	}
	return out
}

// pathTo is the path to what a slot holds.
func (a *assembly) pathTo(h *held) Path {
	p := a.path(h.slot.From, 0)
	s := a.step(h.slot.Kind, h.slot.Aux, a.graph.Addr(h.slot.From), h.seen.object, 0)
	s.Type = h.kind
	return append(p, s)
}

// placed notes a place, and names its block if nothing else does.
func (a *assembly) placed(h *held) {
	path := a.pathTo(h)
	if h.time != 0 {
		a.report.Places = append(a.report.Places, Place{Addr: h.seen.data, Size: h.seen.size, Time: h.time, Path: path})
	}
	i, ok := a.unheld(h.seen.data, h.seen.size)
	if !ok {
		return
	}
	b := &a.live.blocks[i]
	b.Path, b.Confirmed, b.Class, b.Why = path, true, "", ""
	a.confirms[i], b.Category = time.Now(), a.category(b)
}

// upward follows the graphs of what the slots hold now, and names the blocks that their nodes have saved: of a sum that goes on with each
// step, no variable led to its last node of the walk.
func (a *assembly) upward(p *proof, found []held) {
	done := map[uint64]bool{}
	for i := range found {
		h := &found[i]
		if h.seen.node == 0 || done[h.seen.node] || a.ctx.Err() != nil {
			continue
		}
		done[h.seen.node] = true
		for block, s := range p.saved(h) {
			a.hang(block, h, s)
		}
	}
}

// saved are the blocks without a name to which the graph of what a slot holds leads, as far as two bursts agree on it. A reading that
// follows a graph while it looks for pages is too slow to be believed: a program that is interrupted in its steps may have begun
// another one before the reading is at the end, and its nodes lie where those of the step before did.
func (p *proof) saved(h *held) map[int]savedBy {
	p.pages = map[uint64]bool{}
	seems := false            // that it leads to any; what a slot holds may be replaced while it is read, so it is looked at a few times
	seen := map[uint64]bool{} // nodes whose pages are known: to follow a large graph takes longer than a step of the program
	for n := 0; n < proofTries && (seems || n < firstTries) && p.a.ctx.Err() == nil; n++ {
		p.renews = p.renews || n > 0
		if !seems || n == proofTries/2 {
			clear(seen)
		}
		p.look(func(on *objgraph.Recheck) { seems = len(p.savedAbove(on, h, seen)) > 0 || seems })
		if !seems {
			continue
		}
		p.look(func(on *objgraph.Recheck) { p.savedAbove(on, h, seen) }) // what is new since
		if !p.burst() {
			continue
		}
		now := time.Now()
		first, second := p.shown()
		out, again := p.savedAbove(first, h, nil), p.savedAbove(second, h, nil)
		maps.DeleteFunc(out, func(block int, s savedBy) bool { return again[block].node != s.node || again[block].aux != s.aux })
		if len(out) > 0 {
			p.a.now.Proved(now)
			return out
		}
	}
	return nil
}

// savedBy is how a block is reached through a graph.
type savedBy struct {
	node uint64
	aux  uint64 // of the reference, as torchlayout.RefSaved
	way  Path   // from the first node to that one
}

// upNode is a node of a graph, and how it was reached.
type upNode struct {
	from  uint64 // 0: it is the first
	index uint64 // among the next functions of from
}

// wayTo is the path from the first node of a graph to another one, the middle left out of a long one.
func wayTo(t *torchlayout.Reader, nodes map[uint64]upNode, node uint64) (way Path) {
	for n := node; nodes[n].from != 0; n = nodes[n].from {
		class := cutText(t.ClassName(n))
		way = append(way, Step{Kind: StepNext, Name: class, Index: int64(nodes[n].index), Addr: n, Type: class})
	}
	slices.Reverse(way)
	if skip := len(way) - maxSteps; skip > 0 {
		last := way[maxSteps/2+skip]
		elided := Step{Kind: StepElided, Index: int64(skip + 1), Addr: last.Addr, Type: last.Type}
		way = slices.Concat(way[:maxSteps/2], Path{elided}, way[maxSteps/2+skip+1:])
	}
	return way
}

// savedAbove follows the graph of what a slot holds in a reading, and lists the blocks without a variable that its nodes have saved.
// It does not follow the nodes that were seen, and adds the others to them.
func (p *proof) savedAbove(on *objgraph.Recheck, h *held, seen map[uint64]bool) map[int]savedBy {
	out := map[int]savedBy{}
	now, ok := p.a.look(on, h.slot)
	if !ok || now.node == 0 {
		return out
	}
	t := on.Reader()
	nodes, open := map[uint64]upNode{now.node: {}}, []uint64{now.node}
	var refs []pyobject.Ref
	for len(open) > 0 && len(nodes) < maxUpward {
		node := open[0]
		open = open[1:]
		if seen[node] {
			continue
		}
		if seen != nil {
			seen[node] = true
		}
		refs = t.NodeRefs(refs[:0], node)
		for _, r := range refs {
			switch _, known := nodes[r.Target]; {
			case r.Kind == torchlayout.RefNext && !known:
				nodes[r.Target] = upNode{node, r.Aux}
				open = append(open, r.Target)
			case r.Kind == torchlayout.RefSaved:
				if i, ok := p.a.nameless(t, r.Target); ok && out[i].node == 0 {
					out[i] = savedBy{node, r.Aux, wayTo(t, nodes, node)}
				}
			}
		}
	}
	return out
}

// nameless is the block of a tensor, if no variable leads to it.
func (a *assembly) nameless(t *torchlayout.Reader, tensor uint64) (i int, ok bool) {
	impl := tensor
	if o := t.Impl(tensor); o != 0 {
		impl = o
	}
	data, size, ok := t.MemoryOf(impl)
	if !ok {
		return 0, false
	}
	return a.unheld(data, size)
}

// unheld is the block of a storage, if no variable leads to it. It begins where the storage does: another block was there before, else.
func (a *assembly) unheld(data, size uint64) (i int, ok bool) {
	if i, ok = a.live.at(data); !ok {
		return 0, false
	}
	b := &a.live.blocks[i]
	same := b.Requested == size || b.Requested == inspect.Unknown && size <= b.Size
	return i, same && (len(b.Path) == 0 || b.Path[0].Kind == StepNative) && b.State == inspect.StateAllocated
}

// hang names a block by the variable whose graph keeps it.
func (a *assembly) hang(block int, h *held, s savedBy) {
	b := &a.live.blocks[block]
	p := append(a.pathTo(h), Step{Kind: StepGradFn, Name: h.node, Addr: h.seen.node, Type: h.node})
	p = append(p, s.way...)
	offset, position := torchlayout.SavedAt(s.aux)
	p = append(p, Step{Kind: StepSaved, Index: position, Name: a.attributes.Saved(s.node, offset)})
	b.Path, b.Confirmed, b.Class, b.Why = p, true, "", ""
	a.confirms[block], b.Category = time.Now(), a.category(b)
}
