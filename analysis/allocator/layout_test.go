// SPDX-License-Identifier: Apache-2.0

package allocator_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/allocator"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/moment"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// A layout has the blocks that live at its moment, in segments without gaps, and its history leads there.
func TestLayouts(t *testing.T) {
	for seed := range uint64(5) {
		s := eventtest.Random(seed, 2000)
		trace, err := view.NewTrace(s, nil)
		require.NoError(t, err)
		for _, n := range []int{500, 1234, 2000} {
			h := applied(s, n)
			o := allocator.LayoutOptions{Selection: view.Selection{Moment: moment.Moment{Kind: moment.SinceStart, Time: s.Events[n-1].Time}}}
			layouts, err := allocator.Layouts(trace, o)
			require.NoError(t, err)
			require.Len(t, layouts, len(h.Totals().Accounts))
			for i := range layouts {
				l := &layouts[i]
				a, ok := h.Account(l.PID, l.Device)
				require.True(t, ok)
				require.Equal(t, int64(a.Allocated), int64(l.Allocated)+l.Unplaced)
				require.Equal(t, a.Live.Bytes, l.Allocated)
				require.Equal(t, liveBlocks(h, l), layoutBlocks(t, l))
				require.Equal(t, l.Allocated, historyBytes(l))
				require.Zero(t, l.LeftOut)
			}
		}
	}
}

// block is what both have of a live block.
type block struct {
	size, requested uint64
	stack           event.StackID
}

func liveBlocks(h *heap.Heap, l *allocator.Layout) map[uint64]block {
	out := map[uint64]block{}
	for b := range h.Blocks() {
		if b.Layer == event.LayerAllocator && b.PID == l.PID && b.Device == l.Device {
			out[b.Addr] = block{b.Size, b.Requested, b.Stack}
		}
	}
	return out
}

func layoutBlocks(t *testing.T, l *allocator.Layout) map[uint64]block {
	t.Helper()
	out, end, reserved := map[uint64]block{}, uint64(0), uint64(0)
	for _, s := range l.Segments {
		require.GreaterOrEqual(t, s.Addr, end)
		end, reserved = s.Addr, reserved+s.Size
		for i, b := range s.Blocks {
			require.Equal(t, end, b.Addr)
			end += b.Size
			if b.Live {
				out[b.Addr] = block{b.Size, b.Requested, b.Stack}
			} else {
				require.True(t, i == 0 || s.Blocks[i-1].Live, "two gaps beside each other")
			}
		}
		require.Equal(t, s.Addr+s.Size, end)
	}
	require.Equal(t, l.Reserved, reserved)
	return out
}

// historyBytes is what the history adds up to.
func historyBytes(l *allocator.Layout) uint64 {
	bytes := uint64(0)
	for _, x := range l.History {
		switch x.Kind {
		case allocator.HistoryAlloc:
			bytes += x.Size
		case allocator.HistoryFree:
			bytes -= x.Size
		}
	}
	return bytes
}

// At the peak each device has its own moment, and is as large as its peak.
func TestLayoutsAtPeak(t *testing.T) {
	s := eventtest.Random(1, 3000)
	trace, err := view.NewTrace(s, nil)
	require.NoError(t, err)
	layouts, err := allocator.Layouts(trace, allocator.LayoutOptions{Selection: view.Selection{Moment: moment.Moment{Kind: moment.Peak}}})
	require.NoError(t, err)
	accounts := trace.End().Snapshot.Accounts
	require.Len(t, layouts, len(accounts))
	for i := range layouts {
		require.Equal(t, accounts[i].Device, layouts[i].Device)
		require.Equal(t, accounts[i].PeakTime, layouts[i].Time)
		require.Equal(t, int64(accounts[i].Peak), int64(layouts[i].Allocated)+layouts[i].Unplaced)
	}
}

// The history is cut at its beginning, and what is left out is counted.
func TestLayoutHistoryIsCut(t *testing.T) {
	s := eventtest.Random(2, 3000)
	trace, err := view.NewTrace(s, nil)
	require.NoError(t, err)
	whole, err := allocator.Layouts(trace, allocator.LayoutOptions{})
	require.NoError(t, err)
	cut, err := allocator.Layouts(trace, allocator.LayoutOptions{Entries: 50})
	require.NoError(t, err)
	from := s.Events[1500].Time
	ranged, err := allocator.Layouts(trace, allocator.LayoutOptions{Selection: view.Selection{From: from, To: trace.Last()}})
	require.NoError(t, err)
	for i := range whole {
		all := whole[i].History
		last := cut[i].History
		require.Equal(t, all[len(all)-len(last):], last)
		require.InDelta(t, 50, entries(last), 1)
		require.LessOrEqual(t, entries(last), 50)
		require.EqualValues(t, entries(all)-entries(last), cut[i].LeftOut)
		require.Equal(t, whole[i].Segments, cut[i].Segments)
		require.Equal(t, entries(all), entries(ranged[i].History)+int(ranged[i].LeftOut))
		require.Equal(t, all[len(all)-len(ranged[i].History):], ranged[i].History)
		require.Greater(t, ranged[i].History[0].Time, from)
	}
}

// entries is how many entries PyTorch has of a history.
func entries(list []allocator.HistoryEvent) int {
	n := 0
	for _, x := range list {
		if n++; x.Kind == allocator.HistoryFree {
			n++
		}
	}
	return n
}

// Blocks of which the segment is not known have one that is made up.
func TestLayoutMakesUpSegments(t *testing.T) {
	s := eventtest.Random(4, 1000)
	kept := s.Events[:0]
	for _, e := range s.Events {
		if e.Layer == event.LayerAllocator {
			kept = append(kept, e)
		}
	}
	s.Events = kept
	trace, err := view.NewTrace(s, nil)
	require.NoError(t, err)
	layouts, err := allocator.Layouts(trace, allocator.LayoutOptions{})
	require.NoError(t, err)
	h := applied(s, len(s.Events))
	for i := range layouts {
		l := &layouts[i]
		require.Equal(t, liveBlocks(h, l), layoutBlocks(t, l))
		require.Equal(t, l.Allocated, l.MadeUp.Bytes)
		require.Equal(t, l.Allocated, l.Reserved)
		for _, g := range l.Segments {
			require.True(t, g.MadeUp)
		}
	}
}

// applied is the live set after the first n events, without a trace.
func applied(s *eventtest.Stream, n int) *heap.Heap {
	h := heap.New()
	for i := range s.Events[:n] {
		e := s.Events[i]
		h.Apply(&e)
	}
	return h
}

// The history has what the allocator did besides blocks: its segments, whole ones and pages, and the requests that were refused.
func TestLayoutHistory(t *testing.T) {
	const whole, pages, unit = 1 << 40, 2 << 40, 2 << 20
	s := &eventtest.Stream{}
	add := func(kind event.Kind, layer event.Layer, object event.Object, addr, size, allocated, handle uint64) {
		s.Events = append(s.Events, event.Event{
			Time: uint64(len(s.Events)+1) * 1000, PID: 7, TID: 7, Kind: kind, Layer: layer, Object: object,
			Device: event.Device{Type: event.DeviceCUDA},
			Addr:   addr, Size: size, Allocated: allocated, Reserved: event.Unknown, Requested: event.Unknown, Stream: event.Unknown,
			Handle: handle, Context: event.Unknown,
		})
	}
	driver := func(kind event.Kind, object event.Object, addr, size, handle uint64) {
		add(kind, event.LayerDevice, object, addr, size, event.Unknown, handle)
	}
	torch := func(kind event.Kind, addr, size, allocated uint64) {
		add(kind, event.LayerAllocator, event.ObjectMemory, addr, size, allocated, event.Unknown)
	}
	driver(event.KindAlloc, event.ObjectMemory, whole, unit, event.Unknown)
	torch(event.KindAlloc, whole, 512, 512)
	torch(event.KindOutOfMemory, 0, 1<<45, 512)
	torch(event.KindFree, whole, 512, 0)
	driver(event.KindFree, event.ObjectMemory, whole, event.Unknown, event.Unknown)
	driver(event.KindAlloc, event.ObjectPhysical, 9, unit, event.Unknown)
	driver(event.KindMap, event.ObjectPhysical, pages, unit, 9)
	torch(event.KindAlloc, pages, 1024, 1024)
	torch(event.KindFree, pages, 1024, 0)
	driver(event.KindUnmap, event.ObjectPhysical, pages, unit, event.Unknown)
	trace, err := view.NewTrace(s, nil)
	require.NoError(t, err)
	layouts, err := allocator.Layouts(trace, allocator.LayoutOptions{})
	require.NoError(t, err)
	require.Len(t, layouts, 1)
	type entry struct {
		kind             allocator.HistoryKind
		time, addr, size uint64
	}
	var got []entry
	for _, x := range layouts[0].History {
		got = append(got, entry{x.Kind, x.Time / 1000, x.Addr, x.Size})
	}
	require.Equal(t, []entry{
		{allocator.HistorySegmentAlloc, 1, whole, unit},
		{allocator.HistoryAlloc, 2, whole, 512},
		{allocator.HistoryOutOfMemory, 3, 0, 1 << 45},
		{allocator.HistoryFree, 4, whole, 512},
		{allocator.HistorySegmentFree, 5, whole, unit},
		{allocator.HistorySegmentMap, 7, pages, unit},
		{allocator.HistoryAlloc, 8, pages, 1024},
		{allocator.HistoryFree, 9, pages, 1024},
		{allocator.HistorySegmentUnmap, 10, pages, unit},
	}, got)
}

// TestMadeUpSegments: a run of blocks without a gap is a segment, of one stream, up to the next segment that is
// known. The stream of a segment is that of its first block of which it is known.
func TestMadeUpSegments(t *testing.T) {
	const known = 1 << 40
	s := &eventtest.Stream{}
	add := func(layer event.Layer, addr, size, stream uint64) {
		e := event.Event{
			Time: uint64(len(s.Events)+1) * 1000, PID: 7, TID: 7, Kind: event.KindAlloc, Layer: layer,
			Device: event.Device{Type: event.DeviceCUDA}, Addr: addr,
			Size: size, Allocated: event.Unknown, Reserved: event.Unknown, Requested: event.Unknown, Stream: stream, Handle: event.Unknown,
			Context: event.Unknown,
		}
		s.Events = append(s.Events, e)
	}
	block := func(addr, size, stream uint64) { add(event.LayerAllocator, addr, size, stream) }
	add(event.LayerDevice, known, 4096, event.Unknown)
	block(known-1024, 512, 5)
	block(known-512, 512, 5)
	block(known, 512, event.Unknown)
	block(known+1024, 512, 9)
	block(known+1536, 512, 8)
	block(known+4096, 512, 9)
	block(known+4096+512, 512, 9)
	block(known+4096+1024, 512, 3)
	block(known+8192, 512, 3)
	trace, err := view.NewTrace(s, nil)
	require.NoError(t, err)
	layouts, err := allocator.Layouts(trace, allocator.LayoutOptions{})
	require.NoError(t, err)
	require.Len(t, layouts, 1)
	type segment struct {
		addr, size, stream uint64
		madeUp             bool
	}
	var got []segment
	for i := range layouts[0].Segments {
		g := &layouts[0].Segments[i]
		got = append(got, segment{g.Addr, g.Size, g.Stream, g.MadeUp})
	}
	require.Equal(t, []segment{
		{known - 1024, 1024, 5, true}, {known, 4096, 9, false}, {known + 4096, 1024, 9, true}, {known + 5120, 512, 3, true},
		{known + 8192, 512, 3, true},
	}, got)
	require.EqualValues(t, 6*512, layouts[0].MadeUp.Bytes)
	require.EqualValues(t, 9*512, layouts[0].Allocated)
	require.EqualValues(t, 4096+6*512, layouts[0].Reserved)
}
