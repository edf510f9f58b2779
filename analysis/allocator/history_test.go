// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// ownSegment is the stack of a segment that the allocator obtains.
const ownSegment = "libcudart.so!cudaMalloc libc10_cuda.so!? libfoo.so!foo"

// TestHistoryLimit: of the history the last entries are kept, as PyTorch counts them: a free is two. All others are counted.
func TestHistoryLimit(t *testing.T) {
	entry := func(kind HistoryKind, time uint64) HistoryEvent {
		return HistoryEvent{Kind: kind, Time: time, Addr: time << 10, Size: 512}
	}
	all := []HistoryEvent{entry(HistoryAlloc, 1), entry(HistoryFree, 2), entry(HistoryAlloc, 3), entry(HistoryFree, 4),
		entry(HistoryOutOfMemory, 5)}
	for n, want := range map[int]struct {
		first   int // of all
		dropped uint64
	}{0: {0, 0}, 1: {4, 6}, 2: {4, 6}, 3: {3, 4}, 4: {2, 3}, 5: {2, 3}, 6: {1, 1}, 7: {0, 0}, 9: {0, 0}} {
		c := &history{entries: append([]HistoryEvent(nil), all...)}
		got, dropped := c.finish(n, &Layout{})
		require.Equal(t, all[want.first:], got, "%d", n)
		require.Equal(t, want.dropped, dropped, "%d", n)
		require.Empty(t, c.entries, "the next moment begins with none")
		require.Zero(t, c.dropped)
	}
	c := &history{entries: []HistoryEvent{all[2], all[0], all[1]}}
	got, _ := c.finish(0, &Layout{})
	require.Equal(t, all[:3], got, "in the order of their times")
}

// TestHistoryIsBounded: while a recording is read, no more than twice the entries that are asked for are kept.
func TestHistoryIsBounded(t *testing.T) {
	l := &layouter{o: LayoutOptions{Entries: 3}, live: map[allocatorID]*history{}}
	for i := range 50 {
		kind := HistoryAlloc
		if i%2 == 1 {
			kind = HistoryFree
		}
		l.note(7, event.Device{}, HistoryEvent{Kind: kind, Time: uint64(i + 1)})
		c := l.live[allocatorID{7, event.Device{}}]
		require.LessOrEqual(t, len(c.entries), 6)
		require.GreaterOrEqual(t, len(c.entries), min(i+1, 4))
		require.EqualValues(t, i+1, c.entries[len(c.entries)-1].Time)
		sum := c.dropped
		for j := range c.entries {
			sum += uint64(c.entries[j].weight())
		}
		require.EqualValues(t, (i+1)+(i+1)/2, sum, "each is kept or counted")
	}
}

// TestHistoryOfRange: what comes at the beginning of a range or before is counted, and not kept.
func TestHistoryOfRange(t *testing.T) {
	l := &layouter{o: LayoutOptions{Selection: view.Selection{From: 10, To: 20}}, live: map[allocatorID]*history{}}
	for _, time := range []uint64{9, 10, 11} {
		l.note(7, event.Device{}, HistoryEvent{Kind: HistoryFree, Time: time})
	}
	c := l.live[allocatorID{7, event.Device{}}]
	require.Equal(t, []HistoryEvent{{Kind: HistoryFree, Time: 11}}, c.entries)
	require.EqualValues(t, 4, c.dropped)
}

// TestHistoryOfOthers: what was mapped is the allocator's only where a block or a segment of it lies.
func TestHistoryOfOthers(t *testing.T) {
	at := &Layout{Segments: []LayoutSegment{{Segment: heap.Segment{Addr: 1000, Size: 100}}, {Segment: heap.Segment{Addr: 1100, Size: 100}}}}
	for _, c := range []struct {
		what       string
		addr, size uint64
		kept       bool
	}{
		{"before the segments, up to them", 900, 100, false},
		{"into the first", 900, 101, true},
		{"all of both", 1000, 200, true},
		{"the last byte", 1199, 500, true},
		{"behind the last", 1200, 100, false},
		{"where a block was", 1900, 101, true},
		{"before that", 1899, 101, false},
		{"the last byte of the block", 2049, 1, true},
		{"behind the block", 2050, 10, false},
		{"far behind", 5000, 10, false},
	} {
		for _, kind := range []HistoryKind{HistorySegmentMap, HistorySegmentUnmap} {
			block := HistoryEvent{Kind: HistoryFree, Time: 2, Addr: 2000, Size: 50}
			mapped := HistoryEvent{Kind: kind, Time: 1, Addr: c.addr, Size: c.size}
			h := &history{entries: []HistoryEvent{mapped, block}}
			got, _ := h.finish(0, at)
			require.Equal(t, c.kept, len(got) == 2, c.what)
		}
	}
	other := &history{entries: []HistoryEvent{{Kind: HistorySegmentAlloc, Addr: 5000, Size: 10}}}
	got, _ := other.finish(0, at)
	require.Len(t, got, 1, "whole segments are known to be the allocator's")
}

// TestUsedExtents: what lies side by side or overlaps is one extent.
func TestUsedExtents(t *testing.T) {
	block := func(kind HistoryKind, addr, size uint64) HistoryEvent {
		return HistoryEvent{Kind: kind, Addr: addr, Size: size}
	}
	c := &history{entries: []HistoryEvent{
		block(HistoryAlloc, 300, 10), block(HistoryFree, 100, 50), block(HistoryAlloc, 120, 10), block(HistoryAlloc, 150, 20),
		block(HistoryAlloc, 171, 9),
		block(HistorySegmentAlloc, 900, 10),
	}}
	at := &Layout{Segments: []LayoutSegment{{Segment: heap.Segment{Addr: 305, Size: 20}}}}
	require.Equal(t, []extent{{100, 170}, {171, 180}, {300, 325}}, c.used(at))
	require.Empty(t, (&history{}).used(&Layout{}))
}

// TestHistoryEvents: refused requests and the pages of expandable segments are in the history; pages of unknown size and what others do are
// not.
func TestHistoryEvents(t *testing.T) {
	for _, c := range []struct {
		what string
		in   event.Event
		want *HistoryEvent
	}{
		{"refused", event.Event{Kind: event.KindOutOfMemory, Layer: event.LayerAllocator, Addr: 5, Size: 6},
			&HistoryEvent{Kind: HistoryOutOfMemory, Size: 6}},
		{"refused by the driver", event.Event{Kind: event.KindOutOfMemory, Layer: event.LayerDevice, Addr: 5, Size: 6}, nil},
		{"mapped", event.Event{Kind: event.KindMap, Layer: event.LayerDevice, Addr: 5, Size: 6},
			&HistoryEvent{Kind: HistorySegmentMap, Addr: 5, Size: 6}},
		{"unmapped", event.Event{Kind: event.KindUnmap, Layer: event.LayerDevice, Addr: 5, Size: 6},
			&HistoryEvent{Kind: HistorySegmentUnmap, Addr: 5, Size: 6}},
		{"of unknown size", event.Event{Kind: event.KindMap, Layer: event.LayerDevice, Addr: 5, Size: event.Unknown}, nil},
		{"of another layer", event.Event{Kind: event.KindMap, Layer: event.LayerHost, Addr: 5, Size: 6}, nil},
		{"an allocation, which has a block", event.Event{Kind: event.KindAlloc, Layer: event.LayerDevice, Addr: 5, Size: 6}, nil},
	} {
		l := &layouter{live: map[allocatorID]*history{}}
		c.in.PID, c.in.Time, c.in.Stream, c.in.Stack = 7, 3, 4, 8
		l.event(&c.in)
		if c.want == nil {
			require.Empty(t, l.live, c.what)
			continue
		}
		c.want.Time, c.want.Stream, c.want.Stack, c.want.Requested = 3, 4, 8, event.Unknown
		require.Equal(t, []HistoryEvent{*c.want}, l.live[allocatorID{7, event.Device{}}].entries, c.what)
	}
}

// TestHistoryOfBlocks: blocks of the allocator and its segments are in the history, with the stack of what freed them; other memory of the
// device is not, until it turns out to be a segment.
func TestHistoryOfBlocks(t *testing.T) {
	trace, err := view.NewTrace(&eventtest.Stream{Stacks: map[event.StackID]*event.Stack{
		5: eventtest.Stack("libcudart.so!cudaMalloc libfoo.so!foo"), 6: eventtest.Stack(ownSegment),
	}}, nil)
	require.NoError(t, err)
	device := heap.Block{PID: 7, Layer: event.LayerDevice, Object: event.ObjectMemory, Addr: 100, Size: 10, Stack: 5, Time: 2,
		Requested: event.Unknown}
	with := func(change func(*heap.Block)) *heap.Block {
		b := device
		change(&b)
		return &b
	}
	for _, c := range []struct {
		what        string
		block       *heap.Block
		alloc, free HistoryKind
		none        bool
	}{
		{"a block", with(func(b *heap.Block) { b.Layer = event.LayerAllocator }), HistoryAlloc, HistoryFree, false},
		{"a segment with blocks", with(func(b *heap.Block) { b.Segment = true }), HistorySegmentAlloc, HistorySegmentFree, false},
		{"a segment by its stack", with(func(b *heap.Block) { b.Stack = 6 }), HistorySegmentAlloc, HistorySegmentFree, false},
		{"memory of another library", &device, 0, 0, true},
		{"a segment of unknown size", with(func(b *heap.Block) { b.Segment, b.Size = true, event.Unknown }), 0, 0, true},
		{"pages", with(func(b *heap.Block) { b.Segment, b.Object = true, event.ObjectPhysical }), 0, 0, true},
		{"host memory", with(func(b *heap.Block) { b.Segment, b.Layer = true, event.LayerHost }), 0, 0, true},
	} {
		l := &layouter{trace: trace, live: map[allocatorID]*history{}}
		l.allocated(c.block, nil)
		require.Empty(t, l.live, "of what was there before nothing is known")
		l.allocated(c.block, &event.Event{Time: 4})
		l.freed(c.block, &event.Event{Time: 9, Stack: 11}, 5)
		l.freed(c.block, nil, 6)
		if c.none {
			require.Empty(t, l.live, c.what)
			continue
		}
		entry := HistoryEvent{Kind: c.alloc, Time: 4, Addr: 100, Size: 10, Requested: event.Unknown, Stack: c.block.Stack}
		freed := entry
		freed.Kind, freed.Time, freed.Stack = c.free, 5, 11
		unknown := freed
		unknown.Time, unknown.Stack = 6, 0
		require.Equal(t, []HistoryEvent{entry, freed, unknown}, l.live[allocatorID{7, event.Device{}}].entries, c.what)
	}

	segment := with(func(b *heap.Block) { b.Segment = true })
	for what, c := range map[string]struct {
		from, to *heap.Block
		want     int
	}{
		"it turns out to be a segment":   {&device, segment, 1},
		"it was known to be one":         {segment, segment, 0},
		"its size is not known":          {&device, with(func(b *heap.Block) { b.Segment, b.Size = true, event.Unknown }), 0},
		"pages are not in it as a whole": {&device, with(func(b *heap.Block) { b.Segment, b.Object = true, event.ObjectPhysical }), 0},
		"a block of the allocator is moved": {with(func(b *heap.Block) { b.Layer = event.LayerAllocator }),
			with(func(b *heap.Block) { b.Layer = event.LayerAllocator }), 0},
	} {
		l := &layouter{trace: trace, live: map[allocatorID]*history{}}
		l.moved(c.from, c.to)
		if c.want == 0 {
			require.Empty(t, l.live, what)
			continue
		}
		require.Equal(t, []HistoryEvent{{Kind: HistorySegmentAlloc, Time: 2, Addr: 100, Size: 10, Requested: event.Unknown, Stack: 5}},
			l.live[allocatorID{7, event.Device{}}].entries)
	}
}

// TestPlacedBlocks: a block at the very end of a segment is in it; one that lies across its end is in no segment,
// and nor is it lost from the totals.
func TestPlacedBlocks(t *testing.T) {
	segment := heap.Segment{Addr: 1000, Size: 100}
	for _, c := range []struct {
		what                        string
		block                       heap.Block
		segments                    int
		allocated, reserved, madeUp uint64
	}{
		{"all of it", heap.Block{Addr: 1000, Size: 100}, 1, 100, 100, 0},
		{"at its end", heap.Block{Addr: 1050, Size: 50}, 1, 50, 100, 0},
		{"across its end", heap.Block{Addr: 1050, Size: 51}, 1, 0, 100, 0},
		{"behind it", heap.Block{Addr: 1100, Size: 10}, 2, 10, 110, 10},
		{"before it", heap.Block{Addr: 990, Size: 10}, 2, 10, 110, 10},
	} {
		var l Layout
		l.place([]heap.Segment{segment}, []heap.Block{c.block})
		require.Len(t, l.Segments, c.segments, c.what)
		require.Equal(t, []uint64{c.allocated, c.reserved, c.madeUp}, []uint64{l.Allocated, l.Reserved, l.MadeUp.Bytes}, c.what)
		for _, s := range l.Segments {
			for _, b := range s.Blocks {
				require.NotZero(t, b.Size, "no gap where there is none")
			}
		}
	}
	var empty Layout
	empty.place([]heap.Segment{segment}, nil)
	require.Equal(t, []LayoutSegment{{Segment: segment, Stream: event.Unknown, Blocks: []LayoutBlock{{Addr: 1000, Size: 100}}}},
		empty.Segments)
}

// TestUnplaced: what the allocator counts and no block shows is a figure of its own, and 0 when its total is not known.
func TestUnplaced(t *testing.T) {
	h := heap.New()
	account := heap.Account{PID: 7, Allocated: 512}
	l := LayoutOf(h, &account, 5, nil)
	require.EqualValues(t, 512, l.Unplaced)
	require.EqualValues(t, 5, l.Time)
	device := func(addr, size uint64, stack event.StackID) event.Event {
		return event.Event{
			Kind: event.KindAlloc, Layer: event.LayerDevice, PID: 7, Time: 1, Addr: addr, Size: size, Stack: stack, Allocated: event.Unknown,
			Reserved:  event.Unknown,
			Requested: event.Unknown, Handle: event.Unknown, Context: event.Unknown,
		}
	}
	for _, e := range []event.Event{device(1<<20, 4096, 6), device(2<<20, 8192, 5), device(3<<20, event.Unknown, 6)} {
		h.Apply(&e)
	}
	l = LayoutOf(h, &account, 5, func(id event.StackID) *event.Stack {
		return eventtest.Stack(map[event.StackID]string{5: "libcudart.so!cudaMalloc", 6: ownSegment}[id])
	})
	require.Len(t, l.Segments, 1, "device memory is a segment when the allocator obtained it")
	require.EqualValues(t, 4096, l.Reserved)
	require.EqualValues(t, 6, l.Segments[0].Stack)

	account.Allocated = event.Unknown
	l = LayoutOf(heap.New(), &account, 5, nil)
	require.Zero(t, l.Unplaced)
}
