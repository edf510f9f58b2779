// SPDX-License-Identifier: Apache-2.0

package objgraph

import (
	"slices"
	"strings"

	"github.com/gputrace/gputrace/cpython/pyobject"
	"github.com/gputrace/gputrace/inspect/holders/internal/torchlayout"
)

// Hop is a step of a path.
type Hop struct {
	Node     uint32 // number of the object that it leads to; the objects of a Move have the number of its end
	From, To uint64
	Kind     pyobject.RefKind // see Link
	Aux      uint64
	// Left is how many steps it stands for that are not listed; 0: it is one step. Where the path goes through objects of one class that lead
	// to each other by the same attribute, such as a linked list or a tree, it is how many of these objects there are, and Linked is set:
	// Kind and Aux are of the attribute by which most are linked, Elements is set where an element of it is the next object.
	Left             int
	Linked, Elements bool
	// Back is the attribute by which the objects lead back, as in a list that is linked both ways; Kind 0: it is not known.
	Back pyobject.Ref
}

// links is such a part of a path.
type links struct {
	first, last int       // hops to the second of the objects, and to the last one; equal: there is no such part
	count       int       // links between the objects
	link        Hop       // the hop of the attribute by which most of them are linked
	begin       int       // hop to the first of the objects
	pair        [2]uint64 // two objects, of which the attribute leads from one to the other
}

const (
	// linksEnd is how many hops of a long path are listed at each of its ends. A recurrent model's graph is thousands of nodes deep, and a
	// list of a million nodes has as many paths.
	linksEnd = 128
	// leastLinks is how many links are folded.
	leastLinks = 2
)

// linkClass is the class of an object that may be one of many in a row: one of a class that Python code made. Modules are known by their
// names, and tensors are what is held.
func (w *Graph) linkClass(at uint64) uint64 {
	if at&1 != 0 || w.t.Heap() == nil || w.t.IsNative(at) || w.t.Impl(at) != 0 {
		return 0
	}
	t := w.t.Heap().TypeOf(w.t.Image(), at)
	if t == nil || !t.Heap() || strings.Contains(t.Name, ".") || t.Is("Module") || t.Meta() {
		return 0
	}
	return t.Addr
}

// Way is the path to an object, with the steps that it has now where moved knows of any; moved may be nil.
func (w *Graph) Way(n uint32, moved func(n uint32) *Move) []Hop {
	hops, gap := w.hops(n, moved)
	l := w.links(hops, gap)
	if l.last == l.first {
		return hops
	}
	h, listed := l.link, l.first+1
	h.Node, h.To, h.Left, h.Linked = hops[l.last].Node, hops[l.last].To, l.count-1, true
	if owner := w.ownerOf(hops, &l); owner > 0 { // which end of the list it is does not matter
		if h.Back = w.back(&l); h.Back.Kind != 0 {
			h.Left, listed = l.count+1, owner+1
		}
	}
	return slices.Concat(hops[:listed], []Hop{h}, hops[l.last+1:])
}

// ownerOf is the hop to the object of which an attribute leads to the first of some links; 0: it is no such object.
func (w *Graph) ownerOf(hops []Hop, l *links) int {
	owner := l.begin - 1
	if owner > 0 && hops[owner].Kind == pyobject.RefDict {
		owner--
	}
	if _, at, ok := linkName(hops, max(owner, 0), l.begin); owner > 0 && ok && at == l.begin && w.linkClass(hops[owner].To) != 0 {
		return owner
	}
	return 0
}

// back is the attribute by which an object leads back to the one before it; Kind 0: none does.
func (w *Graph) back(l *links) pyobject.Ref {
	for _, link := range attributes(w.t, l.pair[1]) {
		if last := link[len(link)-1]; last.Target == l.pair[0] && last.Aux != l.link.Aux {
			return last
		}
	}
	return pyobject.Ref{}
}

// hops are the steps of a path one by one, but for the middle of a long one: it is one hop, whose place gap is; 0: nothing is left out.
func (w *Graph) hops(n uint32, moved func(n uint32) *Move) (out []Hop, gap int) {
	chain := w.Chain(n)
	for i := 0; i < len(chain); i++ {
		if skip := len(chain) - 2*linksEnd; i == linksEnd && skip > 1 {
			i += skip - 1
			gap = len(out)
			out = append(out, Hop{Node: chain[i], To: w.nodes.at(chain[i]).addr, Left: skip})
			continue
		}
		o := w.nodes.at(chain[i])
		h := Hop{Node: chain[i], To: o.addr, Kind: o.kind, Aux: o.aux}
		if i > 0 {
			h.From = w.nodes.at(chain[i-1]).addr
		}
		out = append(out, h)
		if moved == nil {
			continue
		}
		if m := moved(chain[i]); m != nil {
			out = append(out, m.hops(chain[i], o.addr)...)
		}
	}
	return out, gap
}

// links finds the longest part of a path through objects of one class that lead to each other.
func (w *Graph) links(hops []Hop, gap int) links {
	classes := make([]uint64, len(hops))
	for i := range hops {
		if gap == 0 || i != gap {
			classes[i] = w.linkClass(hops[i].To)
		}
	}
	return longestLinks(hops, classes, gap)
}

// longestLinks does that by the class of the object to which each hop leads, 0 where it is not to be looked at.
func longestLinks(hops []Hop, classes []uint64, gap int) (best links) {
	seen := map[uint64]bool{0: true}
	for _, c := range classes {
		if seen[c] {
			continue
		}
		seen[c] = true
		run := linkRun{hops: hops, gap: gap, first: -1}
		for i, is := range classes {
			if is == c {
				run.object(i)
				run.best(&best)
			}
		}
	}
	return best
}

// linkRun are objects of one class that lead to each other.
type linkRun struct {
	hops        []Hop
	gap         int
	first, last int // hops to the first and the last object; first -1: none was seen
	second      int
	pair        [2]uint64
	counts      map[uint64]int // links, by what they are called
	count       int
	link        Hop
}

// object adds the object to which a hop leads.
func (r *linkRun) object(i int) {
	gap := r.gap > 0 && r.last < r.gap && r.gap < i
	name, at, ok := linkName(r.hops, r.last, i)
	if r.first < 0 || !ok && !gap {
		r.first, r.last, r.count, r.counts, r.pair = i, i, 0, map[uint64]int{}, [2]uint64{}
		return
	}
	switch {
	case gap:
		r.count += (i - r.last - 1 + r.hops[r.gap].Left) * r.count / max(r.last-r.first, 1)
	default:
		if r.count++; r.count == 1 {
			r.second = i
		}
		r.count += r.hops[i].Left
		if r.counts[name]++; r.counts[name] > r.counts[r.link.Aux] || r.count == 1 {
			r.link = r.hops[at]
			r.link.Elements = at < i || r.link.Kind == pyobject.RefKey && r.hops[at-1].Kind != pyobject.RefDict
		}
		if from, to := r.hops[r.last].To, r.hops[i].To; from != to && at == i && name == r.link.Aux {
			r.pair = [2]uint64{from, to}
		}
	}
	r.last = i
}

// best keeps the part that goes through most hops, of those in which a link recurs.
func (r *linkRun) best(best *links) {
	if r.count >= leastLinks && r.counts[r.link.Aux] > 1 && r.last-r.second > best.last-best.first {
		*best = links{r.second, r.last, r.count, r.link, r.first, r.pair}
	}
}

// linkName is what leads from one object to another on a path: the address of an attribute's name, and its hop. ok is false if anything
// but attributes and elements lies between them.
func linkName(hops []Hop, from, to int) (name uint64, at int, ok bool) {
	for i := from + 1; i <= to; i++ {
		switch h := &hops[i]; h.Kind {
		case pyobject.RefAttribute, pyobject.RefMember:
			if name == 0 {
				name, at = h.Aux, i
			}
		case pyobject.RefKey:
			if name == 0 { // of an object's __dict__, or of an object that is a dictionary
				name, at = h.Aux, i
			}
		case pyobject.RefIndex, pyobject.RefDict:
		default:
			return 0, 0, false
		}
	}
	return name, at, name != 0
}

// Move is how a slot leads to an object that it does not hold any more: by the same attribute of what it holds now, and of what that
// leads to, as a list leads on to the nodes that were its first ones.
type Move struct {
	link  []pyobject.Ref // the attribute, by way of a __dict__ or not
	count int            // how often it is followed
}

// hops are those that a move adds before an object: two links, and how many more there are.
func (m *Move) hops(n uint32, to uint64) (out []Hop) {
	for range min(m.count, leastLinks) {
		at := to
		for i, ref := range m.link {
			h := Hop{Node: n, From: at, To: ref.Target, Kind: ref.Kind, Aux: ref.Aux}
			if i+1 == len(m.link) {
				h.To = to
			}
			out, at = append(out, h), h.To
		}
	}
	out[len(out)-1].Left = m.count - min(m.count, leastLinks)
	return out
}

// maxMove bounds how often an attribute is followed from what a slot holds now.
const maxMove = 1 << 9

// Moved is how the slot before an object leads to it now; nil: it holds it, or that was not asked for.
func (a *Recheck) Moved(n uint32) *Move { return a.moves[n] }

// follows reports whether the slot before an object leads to it now by one attribute of what it holds, again and again.
func (a *Recheck) follows(n uint32) bool {
	w := a.w
	o := w.nodes.at(n)
	from := w.nodes.at(o.parent).addr
	class := w.linkClass(o.addr)
	if class == 0 || !isSlot(o.kind) || !a.same(from) || !a.same(o.addr) {
		return false
	}
	first := a.now(from, o.kind, o.aux)
	if first == 0 || !a.isOf(first, class) {
		return false
	}
	for _, link := range attributes(a.t, first) {
		at := first
		for count := 1; count <= maxMove && a.isOf(at, class); count++ {
			if at = a.linked(at, link); at == o.addr {
				if a.moves == nil {
					a.moves = map[uint32]*Move{}
				}
				a.moves[n] = &Move{link, count}
				return true
			}
		}
	}
	return false
}

// isOf reports whether an object has a class now.
func (a *Recheck) isOf(at, class uint64) bool {
	t := a.t.Heap().TypeOf(a.t.Image(), at)
	return t != nil && t.Addr == class
}

// attributes lists the attributes of an object, each with its reference from the object or from its __dict__.
func attributes(t *torchlayout.Reader, at uint64) (out [][]pyobject.Ref) {
	for _, r := range t.Refs(nil, at) {
		switch r.Kind {
		case pyobject.RefAttribute, pyobject.RefMember:
			out = append(out, []pyobject.Ref{r})
		case pyobject.RefDict:
			for _, k := range t.Refs(nil, r.Target) {
				if k.Kind == pyobject.RefKey {
					out = append(out, []pyobject.Ref{r, k})
				}
			}
		}
	}
	return out
}

// linked is the object to which an attribute leads from another one; 0: it has no such attribute.
func (a *Recheck) linked(at uint64, link []pyobject.Ref) uint64 {
	name := link[len(link)-1].Aux
	for _, l := range attributes(a.t, at) {
		if last := l[len(l)-1]; last.Aux == name {
			return last.Target
		}
	}
	return 0
}
