// SPDX-License-Identifier: Apache-2.0

package fragments_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/allocator"
	"github.com/gputrace/gputrace/analysis/fragments"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// Free memory by pool, for a request of 8 MiB; the figures are those of job by hand. A segment in which nothing is free is not stranded.
func TestPools(t *testing.T) {
	m := job()
	m.Segments = append(m.Segments, segment(0x7000_0000, small, false, 2*mib))
	r := fragments.New(m, fragments.Request{Bytes: 8 * mib})
	require.Equal(t, []fragments.PoolFree{
		{
			Pool: large, OfRequest: true, Reserved: 20*mib + 32*mib + 80*mib, Inactive: 16*mib + 22*mib + 56*mib, InactiveCount: 3, Free: 32 * mib,
			Largest:    56 * mib,
			Returnable: 32*mib + 20*mib + 40*mib, Segments: 3,
		},
		{Pool: side, Reserved: 32 * mib, Inactive: 30 * mib, InactiveCount: 1, Largest: 30 * mib, Segments: 1},
		{Pool: private, Reserved: 20 * mib, Inactive: 18 * mib, InactiveCount: 2, Largest: 12 * mib, Segments: 1},
		{Pool: small, Reserved: 4 * mib, Inactive: 2*mib - 1024, InactiveCount: 2, Largest: 2*mib - 2048, Segments: 2},
	}, r.Pools)
	require.Len(t, r.Stranded, 5)
	usable := map[uint64]bool{0x1000_0000: true, 0x6000_0000: true}
	for _, s := range r.Stranded {
		require.Equal(t, usable[s.Addr], !s.Unusable, "%x", s.Addr)
		require.Equal(t, s.Size, s.Held+s.Inactive)
	}
	require.EqualValues(t, 56*mib, r.Stranded[0].Largest)
	one := fragments.New(m, fragments.Request{Bytes: 1})
	require.True(t, one.Pools[0].Small, "one byte is a request of the small pool")
	require.True(t, one.Pools[0].OfRequest)
	limit := fragments.New(m, fragments.Request{Bytes: mib})
	require.True(t, limit.Pools[0].Small, "so is 1 MiB, which is its largest block")
	require.False(t, fragments.New(m, fragments.Request{Bytes: mib + 1}).Pools[0].Small)
}

// Pages of an expandable segment that lie in a free block as a whole, by where it begins and ends: 2 MiB in a small
// pool, 20 in a large one.
func TestPagesReturned(t *testing.T) {
	for _, tt := range []struct {
		pool   fragments.Pool
		blocks []int64
		want   uint64
	}{
		{large, []int64{-20 * mib, 512}, 20 * mib},
		{large, []int64{512, -(20*mib - 512), -20 * mib, 512}, 20 * mib},
		{large, []int64{512, -(40*mib - 1024), 512}, 0},
		{large, []int64{512, -(60*mib - 1024), 512}, 20 * mib},
		{large, []int64{512, -512, 512}, 0},
		{small, []int64{512, -(6*mib - 512), 512}, 4 * mib},
		{small, []int64{512, -(2*mib - 512), 512}, 0},
	} {
		m := &fragments.Map{Segments: []fragments.Segment{segment(1<<40+512, tt.pool, true, tt.blocks...)}}
		require.EqualValues(t, tt.want, fragments.New(m, fragments.Request{}).Returnable, "%v", tt.blocks)
	}
}

// A segment of a layout is of the small pool when a block in use is at most 1 MiB, or, where none is in use, when it has at most 2 MiB.
func TestSmallLayout(t *testing.T) {
	for _, tt := range []struct {
		size, block uint64
		live, small bool
	}{
		{20 * mib, mib, true, true}, {20 * mib, mib + 512, true, false}, {2 * mib, 2 * mib, true, false}, {2 * mib, 2 * mib, false, true},
		{2*mib + 512, 2 * mib, false, false}, {20 * mib, 512, false, false},
	} {
		l := &allocator.Layout{PID: 7, Time: 5, Segments: []allocator.LayoutSegment{{
			Segment: heap.Segment{Addr: 1 << 40, Size: tt.size, Mapped: true}, Stream: 3,
			Blocks: []allocator.LayoutBlock{{Addr: 1 << 40, Size: tt.block, Live: tt.live}},
		}}}
		m := fragments.OfLayout(l)
		require.Equal(t, fragments.Pool{Small: tt.small, Stream: 3}, m.Segments[0].Pool, "%+v", tt)
		require.True(t, m.Segments[0].Expandable)
		require.Equal(t, tt.live, m.Segments[0].Blocks[0].Held)
		require.EqualValues(t, 7, m.PID)
	}
}

// readHolders is a stream with readings of holders.
type readHolders struct {
	*eventtest.Stream
	marks []event.Annotation
	given bool
}

func (r *readHolders) Annotations() []event.Annotation {
	if r.given {
		return nil
	}
	r.given = true
	return r.marks
}

func (r *readHolders) Rewind() error {
	r.given = false
	return r.Stream.Rewind()
}

// A block whose holder was not read at the end has that of its line: of the last reading up to the moment, if one holder has the line.
func TestHolderOfLine(t *testing.T) {
	s := loop()
	row := func(site, holder string) event.HeldRow {
		return event.HeldRow{Site: site, Holder: holder, Bytes: 1, Blocks: 1}
	}
	const own = "net.py:7 Net.forward"
	held := func(time uint64, rows ...event.HeldRow) event.Annotation {
		return event.Annotation{Kind: event.AnnotationHeld, PID: 1, Held: &event.Held{Time: time, Rows: rows}}
	}
	marks := []event.Annotation{
		held(100, row(own, "first"), row("other.py:1 f", "x")), held(200, row("other.py:1 f", "x"), row(own, "")),
		held(300, row(own, "third"), row(own, "third")),
		held(400, row(own, "a"), row(own, "b")),
	}
	trace, err := view.NewTrace(&readHolders{Stream: s, marks: marks}, &view.Options{Library: []string{"/lib/"}})
	require.NoError(t, err)
	names := fragments.NamesOf(trace)
	for until, want := range map[uint64]string{99: "", 100: "first", 250: "first", 300: "third", 399: "third", 400: ""} {
		site, holder := names(&fragments.Map{PID: 1, Time: until}, &fragments.Block{Addr: 1, Size: 2, Held: true, Stack: 1})
		require.Equal(t, own, site)
		require.Equal(t, want, holder, "until %d", until)
	}
	require.EqualValues(t, 0, (&fragments.Pin{Oldest: 100}).Age(100), "it was allocated now")
	require.Equal(t, event.Unknown, (&fragments.Pin{}).Age(100))
}

// Whose workspace a stack allocates is said by a function of PyTorch or by the file of the library; Python frames say nothing of it.
func TestWorkspaceLibraries(t *testing.T) {
	native := func(name, file string) event.Frame {
		f := event.Frame{Kind: event.FrameNative, Func: name}
		if file != "" {
			f.Module = &event.Module{Path: "/lib/" + file}
		}
		return f
	}
	for _, tt := range []struct {
		frames []event.Frame
		want   []fragments.Workspace
	}{
		{[]event.Frame{native("cublasCreate_v2", "libcublas.so.12"), native("at::cuda::getCurrentCUDABlasHandle", "")},
			[]fragments.Workspace{{Library: "cuBLAS", Blocks: 1, Bytes: 8 * mib}}},
		{[]event.Frame{native("x", "libcublas.so.12"), native("at::cuda::getCurrentCUDABlasHandle", "")},
			[]fragments.Workspace{{Library: "cuBLAS", Blocks: 1, Bytes: 8 * mib}}},
		{[]event.Frame{native("x", "libcudnn.so.9"), native("at::native::Workspace::Workspace", "")},
			[]fragments.Workspace{{Library: "cuDNN", Blocks: 1, Bytes: 8 * mib}}},
	} {
		s := loop()
		s.Events = s.Events[:1]
		tt.frames = append(tt.frames, python(9, "main", "/job/train.py"))
		s.Stacks[s.Events[0].Stack] = &event.Stack{ID: s.Events[0].Stack, Frames: tt.frames}
		trace, err := view.NewTrace(s, &view.Options{Library: []string{"/lib/"}})
		require.NoError(t, err)
		maps, err := fragments.At(trace, view.Selection{})
		require.NoError(t, err)
		require.Equal(t, tt.want, fragments.Workspaces(trace, maps[0]))
	}
}

// TestSetPrivate: a segment is of a private pool when it lies in a range of the last reading up to the moment, or
// of the one that was made for a failure then.
func TestSetPrivate(t *testing.T) {
	at := func(time, failed uint64, ranges ...figures.Range) figures.Reading {
		return figures.Reading{Time: time, Failed: failed, Private: ranges}
	}
	private := func(readings ...figures.Reading) (out []bool) {
		m := &fragments.Map{Time: 50, Device: event.Device{Type: event.DeviceCUDA, Index: 1}, Segments: []fragments.Segment{
			segment(1000, large, false, -100), segment(1100, large, false, -100), segment(1200, large, false, -100),
		}}
		m.SetPrivate(readings)
		for i := range m.Segments {
			out = append(out, m.Segments[i].IsPrivate())
		}
		return out
	}
	first := figures.Range{Device: 1, Addr: 1000, Size: 100}
	require.Equal(t, []bool{true, false, false}, private(at(50, 0, first)), "at the moment")
	require.Equal(t, []bool{false, false, false}, private(at(51, 0, first)), "later")
	require.Equal(t, []bool{true, false, false}, private(at(60, 50, first)), "for the failure of then")
	require.Equal(t, []bool{false, false, false}, private(at(60, 49, first)))
	require.Equal(t, []bool{true, true, false}, private(at(50, 0, figures.Range{Device: 1, Addr: 1000, Size: 101})), "to the last byte")
	require.Equal(t, []bool{false, true, true}, private(at(50, 0, figures.Range{Device: 1, Addr: 1001, Size: 1000})), "from the first byte")
	require.Equal(t, []bool{false, false, false}, private(at(50, 0, figures.Range{Addr: 1000, Size: 100})), "of another device")
	require.Equal(t, []bool{false, true, false}, private(at(40, 0, first), at(45, 0, figures.Range{Device: 1, Addr: 1100, Size: 100})),
		"the last one counts")
	require.Equal(t, []bool{true, false, false}, private(at(40, 0, first), figures.Reading{Time: 45}), "one that read no pools says nothing")
	require.Equal(t, []bool{false, false, false}, private(at(40, 0, first), at(45, 0, []figures.Range{}...),
		at(46, 0, figures.Range{Device: 1})))
}

// TestStreamOfMap: the stream of a map is the only one of its segments.
func TestStreamOfMap(t *testing.T) {
	of := func(streams ...uint64) uint64 {
		m := &fragments.Map{}
		for _, s := range streams {
			m.Segments = append(m.Segments, fragments.Segment{Pool: fragments.Pool{Stream: s}})
		}
		return m.Stream()
	}
	const unknown = event.Unknown
	require.EqualValues(t, unknown, of())
	require.EqualValues(t, 7, of(7, 7))
	require.EqualValues(t, 7, of(unknown, 7, unknown))
	require.EqualValues(t, 0, of(0, unknown))
	require.EqualValues(t, unknown, of(7, 8, 7))
	require.EqualValues(t, unknown, of(unknown))
}

// TestMapOfLayout: a segment is of a small pool when its first block in use is small, or when it is small itself and has none.
func TestMapOfLayout(t *testing.T) {
	block := func(live bool, size uint64) allocator.LayoutBlock {
		return allocator.LayoutBlock{Live: live, Size: size}
	}
	of := func(size uint64, blocks ...allocator.LayoutBlock) bool {
		l := &allocator.Layout{Segments: []allocator.LayoutSegment{{Segment: heap.Segment{Size: size}, Blocks: blocks}}}
		return fragments.OfLayout(l).Segments[0].Small
	}
	require.True(t, of(20*mib, block(false, 5*mib), block(true, mib), block(true, 2*mib)))
	require.False(t, of(2*mib, block(true, mib+512)))
	require.True(t, of(2*mib, block(false, 2*mib)))
	require.False(t, of(2*mib+512, block(false, 2*mib+512)))
	for _, unplaced := range []int64{5, -5} {
		m := fragments.OfLayout(&allocator.Layout{PID: 3, Time: 4, MadeUp: heap.Count{Bytes: 100}, Unplaced: unplaced})
		require.EqualValues(t, 105, m.Unknown)
	}
}
