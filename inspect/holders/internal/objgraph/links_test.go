// SPDX-License-Identifier: Apache-2.0

//go:build linux

package objgraph

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/cpython/pyobject"
	"github.com/gputrace/gputrace/inspect/holders/internal/made"
	"github.com/gputrace/gputrace/inspect/holders/internal/torchlayout"
)

// nameOf is what a hop is called in the process.
func nameOf(w *Graph, h Hop) string {
	return w.t.Heap().RefName(w.t.Image(), pyobject.Ref{Kind: h.Kind, Aux: h.Aux})
}

// TestWay: of nodes in a row the first link is listed, and how many there are; of a long path, its ends.
func TestWay(t *testing.T) {
	const nodes = 7
	m, _ := made.New()
	last, tensors := m.Linked(nodes, 0)
	m.AddGlobal("tip", last)
	w, _ := walkOver(t, m)
	for i, tensor := range tensors {
		n, ok := w.Number(tensor)
		require.True(t, ok)
		require.True(t, w.Reached(n))
		node, _ := w.Parent(n) // its __dict__
		hops := w.Way(node, nil)
		links := nodes - 1 - i
		end := hops[len(hops)-1]
		if links < leastLinks {
			require.Equal(t, w.Chain(node)[len(hops)-1], end.Node)
			require.Len(t, hops, len(w.Chain(node)))
			continue
		}
		fold := hops[len(hops)-2]
		require.Equal(t, "prev", nameOf(w, fold))
		require.Equal(t, links-1, fold.Left)
		require.True(t, fold.Linked)
		require.False(t, fold.Elements)
		require.Equal(t, "prev", nameOf(w, hops[len(hops)-3]))
		require.Equal(t, w.Addr(fold.Node), fold.To)
		require.Equal(t, node, end.Node)
	}
}

// TestLinkedTwice: of a list that is linked both ways, no attribute is listed: the list is the same from both of its ends.
func TestLinkedTwice(t *testing.T) {
	const nodes = 5
	m, _ := made.New()
	last, tensors := m.Linked(nodes, 0)
	m.AddGlobal("queue", m.Twice(last))
	w, _ := walkOver(t, m)
	n, _ := w.Number(tensors[0])
	hops := w.Way(n, nil)
	var names []string
	for _, h := range hops[1:] {
		names = append(names, nameOf(w, h))
	}
	fold := hops[len(hops)-3]
	require.Equal(t, []string{"", "queue", "prev", "", "data"}, names)
	require.Equal(t, nodes, fold.Left)
	require.Equal(t, "next", w.t.Heap().RefName(w.t.Image(), fold.Back))
	m.AddGlobal("tip", last) // no object has it
	w, _ = walkOver(t, m)
	n, _ = w.Number(tensors[0])
	hops = w.Way(n, nil)
	require.Zero(t, hops[len(hops)-3].Back)
}

// TestLinks: which part of a path is left out, by what leads from one object to the next.
func TestLinks(t *testing.T) {
	const next, left, right, kids = 8, 16, 24, 32 // names
	by := func(name uint64) Hop { return Hop{Kind: pyobject.RefAttribute, Aux: name} }
	key := Hop{Kind: pyobject.RefKey, Aux: 1}
	found := func(first, last, count int, link Hop) links {
		return links{first: first, last: last, count: count, link: link}
	}
	for name, c := range map[string]struct {
		hops    []Hop
		objects []int
		want    links
	}{
		"a list":             {[]Hop{by(1), by(next), by(next), by(next)}, []int{0, 1, 2, 3}, found(1, 3, 3, by(next))},
		"one link":           {[]Hop{by(1), by(next)}, []int{0, 1}, links{}},
		"no link recurs":     {[]Hop{by(1), by(left), by(right)}, []int{0, 1, 2}, links{}},
		"a tree of two":      {[]Hop{by(1), by(left), by(right), by(left)}, []int{0, 1, 2, 3}, found(1, 3, 3, by(left))},
		"a frame between":    {[]Hop{by(1), by(next), {Kind: pyobject.RefActivation}, by(next)}, []int{0, 1, 2, 3}, links{}},
		"others at the ends": {[]Hop{{}, by(1), by(next), by(next), by(2)}, []int{1, 2, 3}, found(2, 3, 2, by(next))},
		"elements": {
			[]Hop{by(1), by(kids), key, by(kids), key}, []int{0, 2, 4},
			found(2, 4, 2, Hop{Kind: pyobject.RefAttribute, Aux: kids, Elements: true}),
		},
	} {
		classes := make([]uint64, len(c.hops))
		for _, i := range c.objects {
			classes[i] = 1 << 12
		}
		got := longestLinks(c.hops, classes, 0)
		require.Equal(t, c.want, links{got.first, got.last, got.count, got.link, 0, [2]uint64{}}, name)
	}
}

// TestLinksOfLongList: only the ends of a long path are looked at, and the links between them are counted by those.
func TestLinksOfLongList(t *testing.T) {
	const more = 1000
	hops, classes := make([]Hop, 2*linksEnd+1), make([]uint64, 2*linksEnd+1)
	for i := range hops {
		hops[i], classes[i] = Hop{Kind: pyobject.RefAttribute, Aux: 8}, 1<<12
	}
	hops[linksEnd], classes[linksEnd] = Hop{Left: more}, 0
	want := links{first: 1, last: 2 * linksEnd, count: 2*linksEnd + more - 1, link: hops[0]}
	require.Equal(t, want, longestLinks(hops, classes, linksEnd))
}

// TestWayOfLongList: of a list that is longer than what is listed, each object is counted; without links the middle is left out.
func TestWayOfLongList(t *testing.T) {
	w := &Graph{t: &torchlayout.Reader{}}
	const steps = 2*linksEnd + 100
	for i := range uint32(steps) {
		w.nodes.add(node{addr: uint64(i), dist: int32(i), parent: i - 1, kind: pyobject.RefAttribute})
	}
	hops, gap := w.hops(steps-1, nil)
	require.Len(t, hops, 2*linksEnd+1)
	require.Equal(t, linksEnd, gap)
	require.Equal(t, 100, hops[gap].Left)
	require.Equal(t, uint32(linksEnd+99), hops[gap].Node)
	for i := range linksEnd {
		require.Equal(t, uint32(i), hops[i].Node)
		require.Equal(t, uint32(steps-1-i), hops[len(hops)-1-i].Node)
	}
}

// TestMoved: a path holds if what a slot held is further down the chain of what it holds now, and only then.
func TestMoved(t *testing.T) {
	const nodes, more = 4, 3
	m, _ := made.New()
	tip, tensors := m.Linked(nodes, 0)
	next, _ := m.Linked(more, tip) // the slot does not hold it yet
	other, _ := m.Linked(more, 0)
	m.AddGlobal("tip", tip)
	w, _ := walkOver(t, m)
	n, _ := w.Number(tensors[0])
	first, _ := w.Number(tip)
	before := w.Way(n, nil)
	slot := m.Slot("tip")

	now := w.NewRecheck(t.Context(), m, newImage(t, m))
	require.True(t, now.Path(n))
	require.Nil(t, now.Moved(first))
	m.Put(slot, next)
	now = w.NewRecheck(t.Context(), m, newImage(t, m))
	require.True(t, now.Path(n))
	after := w.Way(n, now.Moved)
	require.Equal(t, before[len(before)-3].Left+more, after[len(after)-3].Left)
	require.Len(t, after, len(before))
	m.Put(slot, other)
	now = w.NewRecheck(t.Context(), m, newImage(t, m))
	require.False(t, now.Path(n), "it is another chain")
	require.Nil(t, now.Moved(first))
	m.Put(slot, next)
	m.Put(next+8, m.Types["dict"])
	now = w.NewRecheck(t.Context(), m, newImage(t, m))
	require.False(t, now.Path(n), "it is of another class")
}
