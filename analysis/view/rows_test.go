// SPDX-License-Identifier: Apache-2.0

package view

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// TestAlike: one text became the other by a change in one place when half of the longer stays, at its ends.
func TestAlike(t *testing.T) {
	for _, c := range []struct {
		x, y string
		want bool
	}{
		{"abcdef", "abcdef", true}, {"abcd", "abxx", true}, {"abcd", "axxx", false}, {"abcd", "xxcd", true}, {"abcdef", "abXYef", true},
		{"abcdef", "aXXXXf", false},
		{"aaaa", "aa", true}, {"aaaaa", "aa", false}, {"", "", true}, {"a", "", false}, {"ab", "b", true},
	} {
		require.Equal(t, c.want, alike(c.x, c.y), "%q and %q", c.x, c.y)
		require.Equal(t, c.want, alike(c.y, c.x), "%q and %q", c.y, c.x)
	}
}

// TestPairedFiles: a file is the same in another folder when its path ends alike and only it does; the last one of a program was renamed.
func TestPairedFiles(t *testing.T) {
	for what, c := range map[string]struct {
		before, after []string
		want          map[string]string
	}{
		"the same": {[]string{"/a/x.py"}, []string{"/a/x.py"}, map[string]string{"/a/x.py": "/a/x.py"}},
		"another folder": {[]string{"/a/x.py", "/a/y.py"}, []string{"/b/x.py", "/b/y.py"},
			map[string]string{"/a/x.py": "/b/x.py", "/a/y.py": "/b/y.py"}},
		"two of that name": {[]string{"/a/x.py", "/a/y.py"}, []string{"/b/x.py", "/c/x.py", "/b/y.py"},
			map[string]string{"/a/y.py": "/b/y.py"}},
		"the longest end": {[]string{"/a/m/x.py", "/a/n/x.py"}, []string{"/b/m/x.py", "/b/n/x.py"},
			map[string]string{"/a/m/x.py": "/b/m/x.py", "/a/n/x.py": "/b/n/x.py"}},
		"renamed": {[]string{"/a/x.py", "/a/y.py"}, []string{"/a/x.py", "/a/z.py"},
			map[string]string{"/a/x.py": "/a/x.py", "/a/y.py": "/a/z.py"}},
		"two that are left":   {[]string{"/a/x.py", "/a/y.py"}, []string{"/a/v.py", "/a/w.py"}, map[string]string{}},
		"a library's":         {[]string{"/usr/lib/python3.11/x.py"}, []string{"/usr/lib/python3.11/y.py"}, map[string]string{}},
		"beside a library's":  {[]string{"/a/x.py", "/usr/lib/python3.11/x1.py"}, []string{"/a/y.py"}, map[string]string{"/a/x.py": "/a/y.py"}},
		"nothing":             {nil, nil, map[string]string{}},
		"removed":             {[]string{"/a/x.py"}, nil, map[string]string{}},
		"one name in another": {[]string{"/a/train.py"}, []string{"/b/mytrain.py", "/b/z.py"}, map[string]string{}},
	} {
		require.Equal(t, c.want, pairFiles(c.before, c.after), what)
	}
}

// TestChangesOrder: the largest change comes first, of equal ones that of the larger row, then by name.
func TestChangesOrder(t *testing.T) {
	row := func(name string, bytes int64) Row { return Row{Name: name, Bytes: bytes, Blocks: 1} }
	d := Diff(
		[]Row{row("a", 100), row("b", 50), row("c", 10), row("gone", 30), row("e", 10)},
		[]Row{row("a", 110), row("b", 40), row("c", 10), row("new", 40), row("e", 10)}, ByLine)
	var names []string
	for i := range d.Rows {
		names = append(names, d.Rows[i].Row().Name)
	}
	require.Equal(t, []string{"new", "gone", "a", "b", "c", "e"}, names)
	require.Equal(t, []int64{40, -30, 10, -10, 0, 0}, []int64{d.Rows[0].Bytes(), d.Rows[1].Bytes(), d.Rows[2].Bytes(), d.Rows[3].Bytes(),
		d.Rows[4].Bytes(), d.Rows[5].Bytes()})
	require.Equal(t, []int64{1, -1, 0}, []int64{d.Rows[0].Blocks(), d.Rows[1].Blocks(), d.Rows[2].Blocks()})
	require.Equal(t, DiffTotal{200, 5}, d.Before)
	require.Equal(t, DiffTotal{210, 5}, d.After)
	require.EqualValues(t, 10, d.Bytes())
	unknown := Change{Before: &Row{Bytes: 5}, After: &Row{Bytes: 5, Blocks: 1}}
	require.False(t, unknown.BlocksKnown())
	nothing := Change{Before: &Row{}, After: &Row{Bytes: 5, Blocks: 1}}
	require.True(t, nothing.BlocksKnown())
}

// TestRowOrder: rows of one size are in the order of their blocks, names, files, lines, functions and stacks.
func TestRowOrder(t *testing.T) {
	want := []Row{
		{Name: "z", Bytes: 9}, {Name: "z", Bytes: 5, Blocks: 2}, {Name: "a", Bytes: 5}, {Name: "b", File: "1", Bytes: 5},
		{Name: "b", File: "2", Line: 1, Bytes: 5},
		{Name: "b", File: "2", Line: 2, Func: "f", Bytes: 5}, {Name: "b", File: "2", Line: 2, Func: "g", Bytes: 5},
		{Name: "b", File: "2", Line: 2, Func: "g", Bytes: 5, Stack: []Call{{Name: "a"}}},
		{Name: "b", File: "2", Line: 2, Func: "g", Bytes: 5, Stack: []Call{{Name: "a", Func: "f"}}},
		{Name: "b", File: "2", Line: 2, Func: "g", Bytes: 5, Stack: []Call{{Name: "a", Func: "f", File: "x"}}},
		{Name: "b", File: "2", Line: 2, Func: "g", Bytes: 5, Stack: []Call{{Name: "a", Func: "f", File: "x", Line: 3}}},
	}
	for i := range want {
		for k := range want {
			got := compareSize(want[i], want[k])
			require.Equal(t, i < k, got < 0, "%d and %d", i, k)
			require.Equal(t, i == k, got == 0, "%d and %d", i, k)
		}
	}
}

// TestRowsOfKind: a row of a table has what all its members have in common.
func TestRowsOfKind(t *testing.T) {
	e := Row{
		Name: "[backward of] a.py:3", Func: "f", File: "/a.py", Line: 3, Source: "x()", Layer: "torch", Device: "cuda:0",
		Stack: []Call{{Name: "a.py:3"}}, Bytes: 5, Blocks: 2,
		Phase: "forward", Module: "Net", Operator: "aten::mm", Category: "parameters", Step: "step 3", Holder: "model",
	}
	of := func(change func(*Row)) Row {
		r := Row{Name: e.Name, Func: e.Func, File: e.File, Bytes: 5, Blocks: 2}
		change(&r)
		return r
	}
	alone := func(name string) Row { return Row{Name: name, Bytes: 5, Blocks: 2} }
	for by, want := range map[RowKind]Row{
		ByLine:     of(func(r *Row) { r.Line, r.Source = 3, "x()" }),
		ByFunction: of(func(r *Row) { r.Name = "[backward of] f" }),
		ByStack:    of(func(r *Row) { r.Line, r.Source, r.Stack = 3, "x()", e.Stack }),
		ByLayer:    {Name: "torch", Layer: "torch", Bytes: 5, Blocks: 2}, ByDevice: {Name: "cuda:0", Device: "cuda:0", Bytes: 5, Blocks: 2},
		ByPhase: alone("forward"), ByModule: alone("Net"), ByOperator: alone("aten::mm"), ByCategory: alone("parameters"),
		ByHolder: alone("model"), ByStep: alone("step 3"),
	} {
		require.Equal(t, want, e.as(by), by.String())
		require.Equal(t, by >= ByCategory, by.Detailed(), by.String())
	}
	native := Row{Name: "foo"}
	require.Equal(t, "foo", native.as(ByFunction).Name)

	for by, want := range map[RowKind]string{ByLine: "[backward of] a.py:3 f", ByStack: "a.py:3"} {
		require.Equal(t, want, e.text(by))
	}
	require.Equal(t, "foo", native.text(ByStack))
	same := Row{Name: "f", Func: "f"}
	require.Equal(t, "f", same.text(ByFunction))
}

// TestRowKeys: rows are the same with the same file, function and line; native ones by their name. Without lines those do not count.
func TestRowKeys(t *testing.T) {
	file := func(name string) string { return "folder" + name }
	x := Row{Name: "a.py:3", Func: "f", File: "/a.py", Line: 3, Stack: []Call{{Name: "b.py:4", Func: "g", File: "/b.py", Line: 4},
		{Name: "foo"}}}
	y := x
	y.Line, y.Name, y.Stack = 9, "a.py:9", []Call{{Name: "b.py:8", Func: "g", File: "/b.py", Line: 8}, {Name: "foo"}}
	require.NotEqual(t, x.key(file, true), y.key(file, true))
	require.Equal(t, x.key(file, false), y.key(file, false))
	y.Stack[1].Name = "bar"
	require.NotEqual(t, x.key(file, false), y.key(file, false))
	require.Contains(t, x.key(file, true), "folder/a.py")
	back := x
	back.Name = "[backward of] a.py:3"
	require.NotEqual(t, x.key(file, true), back.key(file, true))
}

// TestPartRows: a part of a site is a row with its step, where it has one.
func TestPartRows(t *testing.T) {
	p := &SitePart{Category: phases.Gradients, Holder: "model", Step: 1}
	got := p.row(Row{Name: "x", Bytes: 9}, blocks(2))
	require.Equal(t, Row{Name: "x", Bytes: 1024, Blocks: 2, Category: "gradients", Step: "step 1", Holder: "model"}, got)
	got = (&SitePart{}).row(Row{}, blocks(1))
	require.Equal(t, []string{NoStep, HolderFreed}, []string{got.Step, got.Holder})
}

// TestPickedThreads: a block has the thread of the event that made it; driver memory has it also when it comes again.
func TestPickedThreads(t *testing.T) {
	trace, err := NewTrace(&eventtest.Stream{}, nil)
	require.NoError(t, err)
	p := trace.Picker(Selection{})
	made := func(time uint64) *event.Event { return &event.Event{Kind: event.KindAlloc, Time: time, TID: 8} }
	torch := torchBlock(1, 512, 3)
	p.allocated(torch, made(3))
	require.EqualValues(t, 8, p.live.At(torch).tid)
	require.True(t, p.live.At(torch).counted)
	require.Equal(t, []heap.Count{heap.CountOf(512, event.Unknown)}, p.alloc)
	other := torchBlock(2, 512, 3)
	p.allocated(other, made(4))
	require.Zero(t, p.live.At(other).tid, "by an event of another moment")
	require.False(t, p.live.At(other).counted)
	mapped := torchBlock(3, 512, 5)
	p.allocated(mapped, &event.Event{Kind: event.KindMap, Time: 5, TID: 8})
	require.Zero(t, p.live.At(mapped).tid)

	device := torchBlock(4, 512, 6)
	device.Layer = event.LayerDevice
	p.allocated(device, made(6))
	p.freed(device, nil, 0)
	require.Nil(t, p.live.At(device))
	p.allocated(device, nil)
	require.EqualValues(t, 8, p.live.At(device).tid, "its free failed")
	segment := *device
	segment.Segment = true
	before := p.alloc[p.live.At(device).part]
	p.moved(device, &segment)
	require.Equal(t, before.Objects, p.alloc[p.live.At(&segment).part].Objects+1, "what comes again is counted once")
	p.moved(torchBlock(99, 1, 1), &segment)
	p.moved(torch, torch)
	require.Equal(t, heap.CountOf(512, event.Unknown), p.alloc[p.live.At(torch).part])
}

// TestUnseenBlocksOfView: memory in use is by device, segments and other memory apart, and stacks by how complete they are.
func TestUnseenBlocksOfView(t *testing.T) {
	site := func(pid uint32, index int8, segment bool, n uint64) heap.Site {
		return heap.Site{PID: pid, Layer: event.LayerDevice, Device: event.Device{Type: event.DeviceCUDA, Index: index}, Segment: segment,
			Inuse: blocks(n)}
	}
	v := New(&heap.Snapshot{Sites: []heap.Site{
		site(7, 0, true, 1), site(7, 0, false, 2), site(7, 0, true, 3), site(7, 1, false, 4), site(8, 1, false, 5),
		{PID: 8, Layer: event.LayerAllocator, Inuse: blocks(6)},
	}}, nil, nil)
	device := func(pid uint32, index int8, segments, other uint64) Device {
		return Device{PID: pid, Device: event.Device{Type: event.DeviceCUDA, Index: index}, Segments: blocks(segments), Other: blocks(other)}
	}
	require.Equal(t, []Device{device(7, 0, 4, 2), device(7, 1, 0, 4), device(8, 1, 0, 5)}, v.Devices())
	require.EqualValues(t, 512*11, v.Total())
	require.Equal(t, []StackUse{{"no stack", 512 * 17, 17}}, v.Stacks())
	require.Equal(t, 0, len(v.ByPython(3).Rows))
	native := v.ByNative(1)
	require.Equal(t, []uint64{1, 17}, []uint64{uint64(len(native.Rows)), native.Blocks})
	require.Zero(t, native.More)
}
