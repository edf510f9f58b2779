// SPDX-License-Identifier: Apache-2.0

//go:build linux

package objgraph

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/cpython"
	"github.com/gputrace/gputrace/cpython/pyobject"
	"github.com/gputrace/gputrace/inspect/holders/internal/made"
	"github.com/gputrace/gputrace/inspect/holders/internal/memory"
	"github.com/gputrace/gputrace/inspect/holders/internal/torchlayout"
)

// madeBlocks is the allocator of a made-up process.
type madeBlocks struct{}

// Requested implements torchlayout.Blocks.
func (madeBlocks) Requested(addr uint64) (uint64, bool) {
	return 128, addr >= made.Device && addr%made.Block == 0 && addr < made.Heap
}

func newImage(t *testing.T, m *made.Process) *memory.Image {
	t.Helper()
	regions, runs := m.Regions()
	im, err := memory.New(t.Context(), m, regions, 1<<10)
	require.NoError(t, err)
	t.Cleanup(im.Close)
	im.Reset(regions, runs)
	return im
}

// walkMade walks over a made-up process, from its roots only. goals are its tensors, in the order of their blocks.
func walkMade(t *testing.T) (m *made.Process, w *Graph, goals []uint32) {
	t.Helper()
	m, _ = made.New()
	w, goals = walkOver(t, m)
	return m, w, goals
}

// walkOver walks over such a process.
func walkOver(t *testing.T, m *made.Process) (w *Graph, goals []uint32) {
	t.Helper()
	im := newImage(t, m)
	heap, err := pyobject.HeapAt(m, cpython.Version{Major: 3, Minor: 11}, m.Runtime, m.Types["type"])
	require.NoError(t, err)
	leaves := memory.NewLeaves(heap.LeafTypes(im), heap.HeadShift())
	r, _ := torchlayout.NewReader(torchlayout.Find(im, leaves, torchlayout.GNU), heap, nil, madeBlocks{})
	w = New(r, map[uint64]bool{uint64(os.Getpid()): true}, leaves)
	goals = make([]uint32, m.Blocks)
	r.Tensors(func(impl, _, data uint64) { goals[(data-made.Device)/made.Block] = w.Goal(r.Known(impl)) })
	w.Roots(heap.ThreadStates(im))
	w.Run()
	return w, goals
}

// TestWalk: every tensor but the one in the garbage is reached, by the path that reads best.
func TestWalk(t *testing.T) {
	_, w, goals := walkMade(t)
	lost := goals[len(goals)-1]
	for i, g := range goals {
		require.Equal(t, g != lost, w.Reached(g), i)
		if g == lost {
			continue
		}
		chain := w.Chain(g)
		require.Equal(t, g, chain[len(chain)-1])
		_, below := w.Parent(chain[0])
		require.False(t, below)
		kind, aux := w.Link(chain[0])
		if kind == RootFrame {
			_, tid, depth := w.Frame(aux)
			require.Equal(t, uint64(os.Getpid()), tid)
			require.Zero(t, depth)
			continue
		}
		require.Equal(t, RootModule, kind)
		require.Equal(t, "__main__", w.Module(aux).Name)
		require.Equal(t, w.ModuleNamed("__main__"), w.Addr(chain[0]))
	}
	require.Zero(t, w.ModuleNamed("torch._C"))
}

// TestHolders: the best holder of a tensor is the last step of its best path.
func TestHolders(t *testing.T) {
	_, w, goals := walkMade(t)
	holders, held := w.Holders(), w.IsHeld()
	for _, g := range goals {
		require.Equal(t, len(holders[g]) > 0, held[g])
		if parent, ok := w.Parent(g); ok {
			kind, aux := w.Link(g)
			require.Equal(t, Holder{Goal: g, From: parent, Kind: kind, Aux: aux}, holders[g][0])
			require.Equal(t, w.Cost(g), w.HolderCost(&holders[g][0]))
		}
	}
}

// TestFindLost: what the collector will free is garbage.
func TestFindLost(t *testing.T) {
	_, w, goals := walkMade(t)
	lost := goals[len(goals)-1]
	w.Adrift()
	w.FindLost(func() map[uint64]uint32 {
		if w.Reached(lost) {
			return nil
		}
		return map[uint64]uint32{w.Addr(lost): lost}
	})
	require.True(t, w.Reached(lost))
	kind, _ := w.Link(w.Chain(lost)[0])
	require.Equal(t, RootGarbage, kind)
	root := w.Addr(w.Chain(lost)[0])
	turns := w.Cycle(root)
	require.NotEmpty(t, turns)
	at := root
	for _, turn := range turns {
		require.Equal(t, at, turn.From)
		at = turn.To
	}
	require.Equal(t, root, at, "the way leads back")
	require.Empty(t, w.Cycle(w.Addr(lost)), "a tensor of the garbage is no cycle")
}

// TestCycle: the shortest way back is found, and a long one is left out.
func TestCycle(t *testing.T) {
	u := &unreached{up: map[uint64][]upward{}}
	link := func(from, to uint64) { u.up[to] = append(u.up[to], upward{from: from}) }
	link(1, 2)
	link(2, 3)
	link(3, 1)
	link(2, 1)
	link(3, 9)
	require.Equal(t, []Turn{{From: 1, To: 2}, {From: 2, To: 1}}, u.cycle(1))
	require.Equal(t, []Turn{{From: 3, To: 1}, {From: 1, To: 2}, {From: 2, To: 3}}, u.cycle(3))
	require.Empty(t, u.cycle(9), "it refers to nothing")
	for i := range uint64(maxTurn + 1) {
		link(100+i, 101+i)
	}
	link(101+maxTurn, 100)
	require.Empty(t, u.cycle(100))
}

// TestRecheck: a path holds as long as each of its links does.
func TestRecheck(t *testing.T) {
	m, w, goals := walkMade(t)
	// The threads are those of the process that was made, which has not changed.
	same := w.NewRecheck(t.Context(), m, newImage(t, m))
	for _, g := range goals[:len(goals)-1] {
		require.True(t, same.Path(g))
	}
	require.NotZero(t, same.Last())
	require.NotZero(t, same.BytesRead())
	list, _ := w.Parent(goals[0]) // kept[0], and kept[1] beside it
	items := m.Word(w.Addr(list) + 0x18)
	m.Put(items, m.Word(items+8))
	now := w.NewRecheck(t.Context(), m, newImage(t, m))
	require.False(t, now.Path(goals[0]))
	for _, g := range goals[1 : len(goals)-1] {
		require.True(t, now.Path(g))
	}
	m.Put(w.Addr(list)+8, m.Types["tuple"]) // another object in its place
	now = w.NewRecheck(t.Context(), m, newImage(t, m))
	require.False(t, now.Path(goals[1]))
}

// TestRecheckOn: of a moment only the element of a list or of a large dictionary is read; an entry that is elsewhere is looked for.
func TestRecheckOn(t *testing.T) {
	m, w, goals := walkMade(t)
	now := w.NewRecheck(t.Context(), m, newImage(t, m))
	list, _ := w.Parent(goals[0])
	dict, _ := w.Parent(goals[2])
	kind, key := w.Link(goals[2])
	require.Equal(t, pyobject.RefKey, kind)
	link := func(on *Recheck, from, to uint32) bool {
		kind, aux := w.Link(to)
		return on.Link(w.Addr(from), w.Addr(to), aux, kind)
	}
	for _, place := range []uint32{0, 1, 1 << 30} {
		now.known = positions{w.Addr(dict): {key: place}}
		on := now.On(newImage(t, m))
		require.True(t, link(on, dict, goals[2]), "place %d", place)
		require.True(t, link(on, list, goals[1]))
		_, all := on.sources[w.Addr(dict)]
		require.Equal(t, place != 0, all, "all of it is read only where it is not in its place")
		require.NotContains(t, on.sources, w.Addr(list))
	}
	items := m.Word(w.Addr(list) + 0x18)
	m.Put(items+8, m.Word(items))
	m.Put(w.Addr(dict)+8, m.Types["list"])
	on := now.On(newImage(t, m))
	require.False(t, link(on, list, goals[1]))
	require.True(t, link(on, list, goals[0]))
	require.False(t, link(on, dict, goals[2]), "another object in its place")
}

// TestRecheckMoved: the elements of a list that has grown are read where they are now, also in memory that was not mapped before.
func TestRecheckMoved(t *testing.T) {
	m, w, goals := walkMade(t)
	now := w.NewRecheck(t.Context(), m, newImage(t, m))
	list, _ := w.Parent(goals[0])
	kind, index := w.Link(goals[0])
	require.Equal(t, pyobject.RefIndex, kind)
	regions, runs := m.Regions()
	heap := &regions[len(regions)-1]
	end := heap.End - memory.PageSize // a page that nothing is in
	from := m.Word(w.Addr(list) + 0x18)
	for i := range m.Word(w.Addr(list) + 0x10) {
		m.Put(end+8*i, m.Word(from+8*i))
	}
	m.Put(w.Addr(list)+0x18, end)
	before := slices.Clone(regions)
	before[len(before)-1].End = end
	im := newImage(t, m)
	im.Reset(before, nil)
	require.False(t, now.On(im).Link(w.Addr(list), w.Addr(goals[0]), index, kind), "it is not mapped")
	im.Reset(before, nil)
	im.OnRenew(func() ([]memory.Region, []memory.Run, bool) { return regions, runs, true })
	on := now.On(im)
	require.True(t, on.Link(w.Addr(list), w.Addr(goals[0]), index, kind))
	require.Empty(t, on.sources, "one element is enough")
}

// TestRecheckPair: where the frames of a moment could not be followed, another moment's say that a function runs;
// where they could, they do not.
func TestRecheckPair(t *testing.T) {
	m, w, goals := walkMade(t)
	now := w.NewRecheck(t.Context(), m, newImage(t, m))
	local := slices.IndexFunc(goals, func(g uint32) bool {
		if !w.Reached(g) {
			return false
		}
		kind, _ := w.Link(w.Chain(g)[0])
		return kind == RootFrame
	})
	require.GreaterOrEqual(t, local, 0)
	thread := uint64(0)
	regions, _ := m.Regions()
	for at := regions[len(regions)-1].Start; thread == 0; at += 8 {
		if m.Word(at+0xa0) == uint64(os.Getpid()) {
			thread = at
		}
	}
	innermost := m.Word(thread+0x38) + 8 // its cframe's
	frame := m.Word(innermost)
	whole := now.On(newImage(t, m))
	require.True(t, whole.Path(goals[local]))
	require.False(t, whole.Broken())
	m.Put(innermost, 0)
	cut := now.On(newImage(t, m))
	require.True(t, cut.Broken())
	require.False(t, cut.Path(goals[local]))
	cut, again := now.On(newImage(t, m)), now.On(newImage(t, m))
	cut.Pair(again)
	require.False(t, cut.Path(goals[local]), "neither of the two shows it")
	cut = now.On(newImage(t, m))
	cut.Pair(whole)
	require.True(t, cut.Path(goals[local]))
	elsewhere := frame + 8
	m.Put(innermost, elsewhere)
	now.outermost = map[uint64]uint64{thread: elsewhere}
	other := now.On(newImage(t, m))
	other.Pair(whole)
	require.False(t, other.Broken())
	require.False(t, other.Path(goals[local]), "the frames are all there, and it is none of them")
}

// TestLinkOfLongList: a link of a list of 64,000 is found about as fast as one of 500. Looked for one after the other it would take
// a hundred times as long, and who holds the blocks of a job that has leaked for days would not be known in time.
func TestLinkOfLongList(t *testing.T) {
	const list = 0x7f0000001000
	each := func(n int) float64 {
		a := newRecheck(nil, nil)
		refs := make([]pyobject.Ref, n)
		for i := range refs {
			refs[i] = pyobject.Ref{Target: uint64(0x7f0010000000 + 64*(i*7919%n)), Aux: uint64(i), Kind: pyobject.RefIndex}
		}
		wanted := slices.Clone(refs)
		slices.SortFunc(refs, compareRefs)
		a.sources[list] = refs
		start := time.Now()
		for _, r := range wanted {
			require.True(t, a.Link(list, r.Target, r.Aux, r.Kind))
		}
		took := time.Since(start)
		require.False(t, a.Link(list, wanted[0].Target, wanted[0].Aux+1, wanted[0].Kind))
		return float64(took) / float64(n)
	}
	each(500) // code and memory are there
	require.Less(t, min(each(64000), each(64000)), 20*max(each(500), each(500)))
}
