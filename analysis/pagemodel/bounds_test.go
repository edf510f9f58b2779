// SPDX-License-Identifier: Apache-2.0

package pagemodel

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// TestPlacedSegments: a segment is there from the moment at which it was seen first to that at which it was not
// seen any more; one of before the first event from the beginning.
func TestPlacedSegments(t *testing.T) {
	p := newPlacer(10)
	known := heap.Segment{Addr: 100, Size: 10, Stack: 5}
	early := heap.Segment{Addr: 200, Size: 20}
	mapped := heap.Segment{Addr: 300, Size: 30, Mapped: true}
	p.sample(0, 0, nil)
	p.sample(0, 1, []heap.Segment{known})
	p.sample(0, 2, []heap.Segment{known, early, mapped})
	p.sample(0, 3, []heap.Segment{mapped})
	p.sample(0, 4, []heap.Segment{known})
	m := &Model{Moments: make([]Moment, 5)}
	l := &lifetimes{}
	require.Equal(t, []PlacedSegment{
		{0, 100, 10, false, 1, 3}, {0, 100, 10, false, 4, 5}, {0, 200, 20, false, 0, 3}, {0, 300, 30, true, 2, 4},
	}, p.finish(m, &l.open).Segments)
}

// TestPlacedBlocks: blocks that are in use at no moment have no place; above the limit there are only those of
// pinned moments, and later ones likewise.
func TestPlacedBlocks(t *testing.T) {
	m := &Model{Moments: []Moment{{}, {Kind: MomentPeak}, {}, {}, {Kind: MomentEnd}}}
	block := func(addr uint64, from, to uint16) PlacedBlock { return PlacedBlock{Addr: addr, Alloc: from, Free: to} }
	p := newPlacer(3)
	p.add(m, block(1, 2, 2))
	p.add(m, block(2, 3, 2))
	require.Empty(t, p.places.Blocks)
	p.add(m, block(3, 0, 1))
	p.add(m, block(4, 0, 2))
	p.add(m, block(5, 2, 4))
	require.False(t, p.places.Pinned)
	require.Len(t, p.places.Blocks, 3)
	p.add(m, block(6, 4, 5))
	require.True(t, p.places.Pinned)
	require.Equal(t, []PlacedBlock{block(4, 0, 2), block(6, 4, 5)}, p.places.Blocks)
	p.add(m, block(7, 2, 4))
	p.add(m, block(8, 3, 9)) // beyond the last moment
	require.Equal(t, []PlacedBlock{block(4, 0, 2), block(6, 4, 5), block(8, 3, 9)}, p.places.Blocks)
	p.add(m, block(9, 1, 2))
	p.add(m, block(10, 1, 2))
	require.Len(t, p.places.Blocks, 5, "of pinned moments there may be more than the limit")
}

// TestPlacesCoarsen: where moments are given up, what is in use at none of the others is, too.
func TestPlacesCoarsen(t *testing.T) {
	p := newPlacer(10)
	to := []uint16{0, 1, 1, 2, 2, 3} // the moments 1 and 3 are given up
	p.places.Blocks = []PlacedBlock{{Addr: 1, Alloc: 0, Free: 1}, {Addr: 2, Alloc: 1, Free: 2}, {Addr: 3, Alloc: 1, Free: 3},
		{Addr: 4, Alloc: 3, Free: 4}}
	p.places.Segments = []PlacedSegment{{Addr: 1, Alloc: 1, Free: 2}, {Addr: 2, Alloc: 2, Free: 5}}
	p.segments = map[placedKey]openSegment{{0, 7, 1}: {alloc: 1, seen: 1}, {0, 8, 1}: {alloc: 1, seen: 3}, {0, 9, 1}: {alloc: 0, seen: 4}}
	p.coarsen(to)
	require.Equal(t, []PlacedBlock{{Addr: 1, Alloc: 0, Free: 1}, {Addr: 3, Alloc: 1, Free: 2}}, p.places.Blocks)
	require.Equal(t, []PlacedSegment{{Addr: 2, Alloc: 1, Free: 3}}, p.places.Segments)
	require.Equal(t, map[placedKey]openSegment{{0, 8, 1}: {alloc: 1, seen: 1}, {0, 9, 1}: {alloc: 0, seen: 2}}, p.segments)
}

// TestExtremes: of each stretch the highest and the lowest moment are kept, the later of equal ones; pinned ones stay.
func TestExtremes(t *testing.T) {
	type at struct {
		event, total uint64
		kind         MomentKind
	}
	of := func(list []Moment) (out []at) {
		for _, m := range list {
			out = append(out, at{m.Event, m.total, m.Kind})
		}
		return out
	}
	var list []Moment
	add := func(event, total uint64, stretch int) {
		list = addExtremes(list, Moment{Event: event, total: total, stretch: stretch})
	}
	add(1, 50, 0)
	require.Equal(t, []at{{1, 50, MomentHigh | MomentLow}}, of(list))
	add(2, 60, 0)
	require.Equal(t, []at{{1, 50, MomentLow}, {2, 60, MomentHigh}}, of(list))
	add(3, 55, 0)
	require.Len(t, list, 2, "neither")
	add(4, 60, 0)
	require.Equal(t, []at{{1, 50, MomentLow}, {4, 60, MomentHigh}}, of(list))
	add(5, 50, 0)
	require.Equal(t, []at{{4, 60, MomentHigh}, {5, 50, MomentLow}}, of(list))
	add(6, 70, 1)
	require.Equal(t, []at{{4, 60, MomentHigh}, {5, 50, MomentLow}, {6, 70, MomentHigh | MomentLow}}, of(list), "another stretch")
	add(7, 70, 1)
	require.Equal(t, []at{{4, 60, MomentHigh}, {5, 50, MomentLow}, {7, 70, MomentHigh | MomentLow}}, of(list))
}

// TestMergedMoments: moments at one event are one, of all their kinds, and each is found by its event.
func TestMergedMoments(t *testing.T) {
	got := mergeMoments([]Moment{{Event: 5, Time: 130, Kind: MomentEnd}, {Event: 2, Time: 90, Kind: MomentHigh},
		{Event: 5, Time: 131, Kind: MomentPeak}, {Event: 0, Time: 100, Kind: MomentStart}}, 100, 10)
	require.Len(t, got, 3)
	require.Equal(t, []uint64{0, 2, 5}, []uint64{got[0].Event, got[1].Event, got[2].Event})
	require.Equal(t, MomentEnd|MomentPeak, got[2].Kind)
	require.Equal(t, []int{0, 0, 3}, []int{got[0].stretch, got[1].stretch, got[2].stretch})
	for event, want := range map[uint64]int{0: 0, 2: 1, 5: 2, 3: -1, 9: -1} {
		require.Equal(t, want, momentOf(got, event))
	}
}

// TestCurvePoints: a point has the last, the least and the most of what it stands for; what is not known is neither.
func TestCurvePoints(t *testing.T) {
	const unknown = event.Unknown
	var c Curve
	now := func(n uint64) *[Quantities]uint64 { return &[Quantities]uint64{n} }
	c = c.add(1, now(unknown), true)
	c = c.add(2, now(7), false)
	c = c.add(3, now(3), false)
	c = c.add(4, now(unknown), false)
	c = c.add(5, now(5), false)
	c = c.add(6, now(9), true)
	require.Len(t, c, 2)
	require.Equal(t, []uint64{5, 5, 3, 7}, []uint64{c[0].Time, c[0].Last[0], c[0].Low[0], c[0].High[0]})
	require.Equal(t, []uint64{6, 9, 9, 9}, []uint64{c[1].Time, c[1].Last[0], c[1].Low[0], c[1].High[0]})
	require.EqualValues(t, 8, plusKnown(5, 3))
	require.EqualValues(t, 5, plusKnown(5, unknown))
}

// TestTreeSources: lines of Python have their text, the program's and libraries' alike, and nothing else has.
func TestTreeSources(t *testing.T) {
	j := eventtest.NewJob()
	j.Alloc("libfoo.so!foo /home/a/train.py:2:main", 512)
	j.Alloc("libfoo.so!foo /usr/lib/python3/site-packages/lib.py:1:f /home/a/train.py:1:main", 512)
	j.Alloc("libfoo.so!foo", 512)
	trace, err := view.NewTrace(&j.Stream, &view.Options{Source: func(path string) io.Reader {
		return strings.NewReader(map[string]string{"/home/a/train.py": "first\nsecond\n",
			"/usr/lib/python3/site-packages/lib.py": "library\n"}[path])
	}})
	require.NoError(t, err)
	tree := newStackTree(trace, 100)
	none, own := tree.site(&heap.Block{Layer: event.LayerAllocator, Origin: heap.OriginBefore})
	again, _ := tree.site(&heap.Block{Layer: event.LayerAllocator, Origin: heap.OriginBefore})
	require.Equal(t, none, again)
	var m Model
	tree.fill(&m)
	require.Zero(t, m.Nodes[none].Parent, "what has no stack is below the root")
	require.Equal(t, TreeFrame{Kind: TreeNone, Name: stacks.BeforeAttach}, m.Frames[own])
	sources := map[string]TreeFrameKind{}
	for _, f := range m.Frames {
		sources[f.Source] = f.Kind
		require.Equal(t, f.Kind == TreeNative || f.Kind == TreeNone, f.Source == "", f)
	}
	require.Equal(t, TreeOwn, sources["first"])
	require.Equal(t, TreeOwn, sources["second"])
	require.Equal(t, TreeLibrary, sources["library"])
	require.Zero(t, m.CutStacks)
	for i, n := range m.Nodes {
		require.LessOrEqual(t, int(n.Parent), i)
	}
}

// TestTreeIsCut: beyond the limit a stack is its own line alone, and is counted.
func TestTreeIsCut(t *testing.T) {
	j := eventtest.NewJob()
	j.Alloc("libfoo.so!foo /home/a/train.py:2:f /home/a/train.py:9:main", 9<<20)
	j.Alloc("libfoo.so!foo /home/a/train.py:3:g /home/a/train.py:9:main", 1<<20)
	j.Alloc("libfoo.so!foo /home/a/train.py:4:h /home/a/train.py:9:main", 5<<20)
	trace, err := view.NewTrace(&j.Stream, nil)
	require.NoError(t, err)
	for limit, want := range map[int]int{1: 2, 3: 2, 4: 1, 5: 1, 6: 0, 100: 0} {
		tree := newStackTree(trace, limit)
		require.Equal(t, want, tree.cut, "limit %d", limit)
		var m Model
		tree.fill(&m)
		b := heap.Block{PID: eventtest.PID, Layer: event.LayerAllocator, Stack: 2, Origin: heap.OriginEvent}
		node, own := tree.site(&b)
		require.Equal(t, "g", m.Frames[own].Name)
		require.Equal(t, want > 0, m.Frames[m.Nodes[node].Frame].Name == "g", "the least of them is cut first: %d", limit)
	}
}

// TestSegmentRule: device memory is a segment where the heap says so, or its stack does in a process with a caching allocator.
func TestSegmentRule(t *testing.T) {
	j := eventtest.NewJob()
	j.Alloc(eventtest.Kept, 512)
	own, other := j.ID("libcudart.so!cudaMalloc libc10_cuda.so!? libfoo.so!foo"), j.ID("libcudart.so!cudaMalloc libfoo.so!foo")
	trace, err := view.NewTrace(&j.Stream, nil)
	require.NoError(t, err)
	r := newSegmentRule(trace)
	for what, c := range map[string]struct {
		block heap.Block
		want  bool
	}{
		"the heap says so":  {heap.Block{Segment: true}, true},
		"by its stack":      {heap.Block{Layer: event.LayerDevice, PID: eventtest.PID, Stack: own}, true},
		"of another":        {heap.Block{Layer: event.LayerDevice, PID: eventtest.PID, Stack: other}, false},
		"without a stack":   {heap.Block{Layer: event.LayerDevice, PID: eventtest.PID}, false},
		"another process":   {heap.Block{Layer: event.LayerDevice, PID: eventtest.PID + 1, Stack: own}, false},
		"a block":           {heap.Block{Layer: event.LayerAllocator, PID: eventtest.PID, Stack: own}, false},
		"unknown stack":     {heap.Block{Layer: event.LayerDevice, PID: eventtest.PID, Stack: 999}, false},
		"by its stack, too": {heap.Block{Layer: event.LayerDevice, PID: eventtest.PID, Stack: own}, true},
	} {
		require.Equal(t, c.want, r.holds(&c.block), what)
	}
}

// TestHighestPeak: the moment of the highest peak may be the first; without peaks it is the end.
func TestHighestPeak(t *testing.T) {
	part := func(at int, peak uint64) Part { return Part{PeakMoment: at, Peak: peak} }
	for _, c := range []struct {
		parts []Part
		want  int
	}{
		{nil, 4}, {[]Part{part(-1, 99)}, 4}, {[]Part{part(0, 5)}, 0}, {[]Part{part(2, 5), part(3, 5)}, 2}, {[]Part{part(2, 5), part(3, 6)}, 3},
		{[]Part{part(1, 0)}, 4},
	} {
		m := &Model{Parts: c.parts, Moments: make([]Moment, 5)}
		require.Equal(t, c.want, m.highest(), c)
	}
}

// TestPointNumbers: of a few events each is a point of the curve; many share as many points as are asked for, and
// of several parts each has fewer.
func TestPointNumbers(t *testing.T) {
	trace, err := view.NewTrace(&eventtest.Stream{Events: []event.Event{{Time: 100}, {Time: 109}}}, nil)
	require.NoError(t, err)
	s := &survey{trace: trace, options: Options{Points: 5}, events: 5, number: 77, first: 100}
	require.EqualValues(t, 77, s.pointNumber())
	s.events = 6
	for time, want := range map[uint64]int64{100: 0, 101: 0, 102: 1, 105: 2, 108: 4, 109: 4} {
		s.time = time
		require.Equal(t, want, s.pointNumber(), "at %d", time)
	}
}
