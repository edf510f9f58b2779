// SPDX-License-Identifier: Apache-2.0

package pytorch

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

func decoded(t *testing.T, v any) *contents {
	t.Helper()
	p, err := unpickle(bytes.NewReader(pickled(v)))
	require.NoError(t, err)
	c, err := decode(p)
	require.NoError(t, err)
	return c
}

func freeBlock(size int) dict { return dict{"size", size, "state", "inactive"} }

// TestDecode: each field of a snapshot, as the versions of PyTorch spell it, is where it belongs.
func TestDecode(t *testing.T) {
	line := list{dict{"name", "f", "filename", "a.py", "line", 3}}
	none := event.Unknown
	c := decoded(t, dict{
		"segments", list{
			dict{"device", 127, "address", 0x1000, "total_size", 4096, "stream", uint64(1 << 63), "is_expandable", true, "frames", line, "blocks",
				list{
					dict{"address", 0x1000, "size", 512, "requested_size", 500, "state", "active_allocated", "frames", line},
					dict{"size", 1024, "state", "active_pending_free", "frames", list{}},
					dict{"size", 512, "state", "active_awaiting_free", "history", list{dict{"real_size", 300, "frames", line}, dict{"real_size", 1}}},
					dict{"size", 1024, "state", "active_allocated", "requested_size", 1000, "history", list{dict{"real_size", 300}}},
					dict{"size", 512, "state", "active_allocated", "history", list{}},
					freeBlock(512),
				}},
		},
		"device_traces", list{
			list{
				dict{"action", "alloc", "addr", 0x1000, "size", 500, "stream", 7, "frames", line, "time_us", 5, "block_size", 1024},
				dict{"action", "free_requested", "addr", 0x1000, "size", 500, "stream", nil},
				dict{"action", "oom", "device_free", 3, "stream", 0},
				dict{"action", "snapshot"}, dict{"action", "new one"}, dict{"action", "new one"}, dict{"action", 3},
			},
			list{dict{"action", "segment_map", "addr", 0x1000, "size", 1 << 20, "stream", 0}},
		},
		"allocator_settings", dict{
			"expandable_segments", true, "max_split_size", 64, "roundup_power2_divisions", dict{"1", 2, "2", 4, "32768", 8, "65536", 3},
		},
	})
	require.Equal(t, []segment{{
		addr: 0x1000, size: 4096, stream: 1 << 63, stack: 1, device: 127, expandable: true, blocks: []block{
			{addr: 0x1000, size: 512, requested: 500, stack: 1, allocated: true, active: true},
			{addr: 0x1200, size: 1024, requested: none, active: true},
			{addr: 0x1600, size: 512, requested: 300, stack: 1, active: true},
			{addr: 0x1800, size: 1024, requested: 1000, allocated: true, active: true},
			{addr: 0x1c00, size: 512, requested: none, allocated: true, active: true},
			{addr: 0x1e00, size: 512, requested: none},
		},
	}}, c.segments)
	require.Equal(t, [][]entry{
		{
			{time: 5000, addr: 0x1000, size: 500, stream: 7, stack: 1, action: actionAlloc},
			{addr: 0x1000, size: 500, stream: none, action: actionFreeRequested}, {size: none, action: actionOOM},
		},
		{{addr: 0x1000, size: 1 << 20, device: 1, action: actionSegmentMap}},
	}, c.entries)
	require.Equal(t, map[string]int{"new one": 2, "": 1}, c.unknown)
	require.Equal(t, settings{known: true, expandable: true, maxSplit: 64, divisions: [16]uint64{2, 4, 15: 8}}, c.settings)
	require.True(t, c.timed)

	c = decoded(t, list{dict{"device", 0, "address", 0x1000, "total_size", 512, "blocks", list{freeBlock(512)}}})
	require.Equal(t, settings{}, c.settings, "a bare list tells none")
	require.False(t, c.timed)
	require.Equal(t, none, c.segments[0].stream)
}

// TestDecodeBounds: what no allocator has is refused, and what is just possible is not.
func TestDecodeBounds(t *testing.T) {
	const top = 1 << 57 // the last address of a process
	segment := func(device, addr, size int, blocks ...any) dict {
		return dict{"segments", list{dict{"device", device, "address", addr, "total_size", size, "blocks", list(blocks)}}}
	}
	entries := func(e dict) dict { return dict{"segments", list{}, "device_traces", list{list{e}}} }
	for name, tt := range map[string]struct {
		in   dict
		want string // in the error; empty: it is read
	}{
		"last device":      {segment(127, 4096, 512, freeBlock(512)), ""},
		"device":           {segment(128, 4096, 512, freeBlock(512)), "want 0 to 127"},
		"address 0":        {segment(0, 0, 512, freeBlock(512)), "a segment at address 0"},
		"address 1":        {segment(0, 1, 512, freeBlock(512)), ""},
		"high address":     {segment(0, 1<<62-1, 512, freeBlock(512)), ""},
		"too high":         {segment(0, 1<<62, 512, freeBlock(512)), `"address"`},
		"large":            {segment(0, 4096, top-1, freeBlock(top-1)), ""},
		"too large":        {segment(0, 4096, top, freeBlock(top)), `"total_size"`},
		"no block":         {segment(0, 4096, 512), "its blocks end at 0x1000"},
		"block of nothing": {segment(0, 4096, 512, freeBlock(512), freeBlock(0)), "a block of 0 bytes"},
		"block of a byte":  {segment(0, 4096, 1, freeBlock(1)), ""},
		"frames":           {segment(0, 4096, 512, append(freeBlock(512), "frames", 1)), ""},
		"frames of a block": {segment(0, 4096, 512, dict{"size", 512, "state", "active_allocated", "frames", 1}),
			`"frames": a number, want a list`},
		"frame without a name": {
			segment(0, 4096, 512, dict{"size", 512, "state", "active_allocated", "frames", list{dict{"filename", "a"}}}),
			`frame 0: unexpected content: no "name"`,
		},
		"frame without a file": {
			segment(0, 4096, 512, dict{"size", 512, "state", "active_allocated", "frames", list{dict{"name", "a"}}}), `no "filename"`,
		},
		"entry":           {entries(dict{"action", "alloc", "addr", 1<<62 - 1, "size", top - 1}), ""},
		"entry too high":  {entries(dict{"action", "alloc", "addr", 1 << 62, "size", 1}), `"addr"`},
		"entry too large": {entries(dict{"action", "alloc", "addr", 1, "size", top}), `"size"`},
		"any request":     {entries(dict{"action", "oom", "size", top, "stream", 0}), ""},
	} {
		_, err := New(bytes.NewReader(pickled(tt.in)))
		if tt.want == "" {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorIs(t, err, ErrFormat, name)
		require.ErrorContains(t, err, tt.want, name)
	}
}

// TestNotes says what is missing.
func TestNotes(t *testing.T) {
	alloc := dict{"action", "alloc", "addr", 0x1000, "size", 512, "stream", 0}
	for name, tt := range map[string]struct {
		entries list
		want    []string
	}{
		"no history": {nil, []string{"the snapshot has no history: it shows its own moment only"}},
		"no times":   {list{alloc}, []string{"the snapshot has no times (PyTorch before 2.2): they are made up, one microsecond for each entry"}},
		"a contradiction": {
			list{append(alloc, "time_us", 1), append(alloc, "time_us", 1), dict{"action", "x"}},
			[]string{"1 entries contradict others: the history has gaps", `1 entries of an unknown action "x" are left out`},
		},
	} {
		s, err := New(bytes.NewReader(pickled(dict{"segments", list{}, "device_traces", list{tt.entries}})))
		require.NoError(t, err)
		require.Equal(t, tt.want, s.Notes(), name)
	}
}

// TestTimes: an entry has the microsecond that it says, each its own nanosecond; those without a time a microsecond each. The recording
// begins with the first.
func TestTimes(t *testing.T) {
	entry := func(us int) dict { return dict{"action", "oom", "size", 1, "stream", 0, "time_us", us} }
	source := func(traces ...any) (*Source, []uint64) {
		s, err := New(bytes.NewReader(pickled(dict{"segments", list{}, "device_traces", list(traces)})))
		require.NoError(t, err)
		_, events := readAll(t, s)
		var times []uint64
		for i := range events {
			times = append(times, events[i].Time)
		}
		return s, times
	}
	s, times := source(list{entry(20), entry(20), entry(30)}, list{entry(25), entry(10), entry(40)})
	require.Equal(t, []uint64{20000, 20001, 25000, 25001, 30000, 40000}, times)
	require.EqualValues(t, 20000, s.Info().StartedBoot)
	require.Equal(t, time.Unix(0, 20000).UTC(), s.Info().Started)
	untimed := dict{"action", "oom", "size", 1, "stream", 0}
	s, times = source(list{untimed, untimed, untimed})
	require.Equal(t, []uint64{1e9, 1e9 + 1000, 1e9 + 2000}, times)
	require.Zero(t, s.Info().StartedBoot)
}

// TestRanges compares spans with the bytes that they have.
func TestRanges(t *testing.T) {
	const size = 40
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var r ranges
		var want [size]bool
		for range 12 {
			lo := rng.IntN(size)
			hi, in := lo+1+rng.IntN(size-lo), rng.IntN(3) > 0
			if in {
				r.add(uint64(lo), uint64(hi))
			} else {
				r.remove(uint64(lo), uint64(hi))
			}
			for i := lo; i < hi; i++ {
				want[i] = in
			}
			var spans ranges // as long as can be
			for i := range want {
				switch n := len(spans); {
				case !want[i]:
				case n > 0 && spans[n-1].end == uint64(i):
					spans[n-1].end++
				default:
					spans = append(spans, span{uint64(i), uint64(i) + 1})
				}
			}
			require.Equal(t, append(ranges{}, spans...), append(ranges{}, r...))
		}
	}
}

// TestPlaces: an address is in what starts at it or before it and ends behind it.
func TestPlaces(t *testing.T) {
	var p places
	p.put(place{span{30, 40}, 3})
	p.put(place{span{10, 20}, 1})
	p.put(place{span{20, 25}, 9})
	p.put(place{span{20, 28}, 2}) // in place of the one before
	p.drop(11)
	owners := map[int]int{}
	for addr := range uint64(50) {
		if x, ok := p.holding(addr); ok {
			owners[int(addr)/10*100+x.owner] = int(addr%10) + 1 // the last one
		}
	}
	require.Equal(t, map[int]int{101: 10, 202: 8, 303: 10}, owners)
	p.drop(20)
	_, ok := p.holding(20)
	require.False(t, ok)
}

// TestExpandable: what is mapped at once and unmapped in pieces is memory in pieces, each of which is there as long
// as it is mapped. What was mapped before the history is what is there at the end, less what was mapped in it, and
// what was unmapped.
func TestExpandable(t *testing.T) {
	const base = 0x7f00_0000_0000
	entry := func(action string, addr, size int) dict {
		return dict{"action", action, "addr", addr, "size", size, "stream", 0, "time_us", 1}
	}
	segment := func(addr, size int) dict {
		return dict{"device", 0, "address", addr, "total_size", size, "stream", 0, "is_expandable", true, "blocks", list{freeBlock(size)}}
	}
	s, err := New(bytes.NewReader(pickled(dict{
		"segments", list{segment(base, 20*mib), segment(base+30*mib, 10*mib)},
		"device_traces", list{list{
			entry("segment_map", base+20*mib, 20*mib), entry("segment_unmap", base+20*mib, 10*mib), entry("segment_unmap", base+60*mib, 2*mib),
			entry("alloc", base, 3*mib+1), entry("free_requested", base, 3*mib+1), entry("free_completed", base, 3*mib+1),
		}},
	})))
	require.NoError(t, err)
	_, got := readAll(t, s)
	type short struct {
		kind               event.Kind
		addr, size, handle uint64
	}
	none := event.Unknown
	var events []short
	for i := range got {
		events = append(events, short{got[i].Kind, got[i].Addr, got[i].Size, got[i].Handle})
	}
	require.Equal(t, []short{
		{event.KindAlloc, 1, 10 * mib, none}, {event.KindMap, base + 20*mib, 10 * mib, 1}, {event.KindFree, 1, none, none},
		{event.KindAlloc, 2, 10 * mib, none}, {event.KindMap, base + 30*mib, 10 * mib, 2}, {event.KindFree, 2, none, none},
		{event.KindUnmap, base + 20*mib, 10 * mib, none}, {event.KindUnmap, base + 60*mib, 2 * mib, none},
		{event.KindAlloc, base, 3*mib + 512, none}, {event.KindFree, base, 3*mib + 512, none},
	}, events, "a block ends where its size does")
	require.EqualValues(t, 30*mib, got[8].Reserved)
	require.NoError(t, s.Rewind())
	h, _ := replay(t, s)
	a := h.Totals().Accounts[0]
	require.EqualValues(t, []uint64{30 * mib, 30 * mib, 0}, []uint64{a.Reserved, a.SegmentBytes, a.Allocated})
	require.Empty(t, s.Notes())
}

// TestNoHistory: a snapshot without a history is its own moment: what is in use, with its lines.
func TestNoHistory(t *testing.T) {
	s, err := New(bytes.NewReader(pickled(list{dict{
		"device", 0, "address", 0x200000, "total_size", 4096, "stream", 0, "frames", frames(4), "blocks", list{
			dict{"size", 1024, "requested_size", 900, "state", "active_allocated", "frames", frames(5)}, freeBlock(512),
			dict{"size", 512, "requested_size", 500, "state", "active_allocated", "frames", frames(6)}, freeBlock(2048),
		},
	}})))
	require.NoError(t, err)
	before, history := readAll(t, s)
	require.Empty(t, history)
	require.Len(t, before, 3)
	for i, want := range []struct{ time, addr, size, allocated, line uint64 }{
		{1e9 - 2, 0x200000, 4096, event.Unknown, 4}, {1e9 - 2, 0x200000, 1024, 1024, 5}, {1e9 - 2, 0x200600, 512, 1536, 6},
	} {
		e := &before[i]
		require.Equal(t, []uint64{want.time, want.addr, want.size, want.allocated}, []uint64{e.Time, e.Addr, e.Size, e.Allocated})
		require.EqualValues(t, want.line, s.Stack(e.Stack).Frames[0].Line)
	}
}
