// SPDX-License-Identifier: Apache-2.0

//go:build linux

package holders

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/inspect"
	scan "github.com/gputrace/gputrace/inspect/holders"
)

// TestChanging: what changed while it was read counts with its low figures, of all devices together, and has a row of its own.
func TestChanging(t *testing.T) {
	none := New(&scan.Report{Devices: []scan.Device{{}}})
	require.Nil(t, none.Changing, "nothing changed")
	require.Empty(t, none.By(ByOwner, 0).Rows)
	require.Zero(t, firstRow(none, ByCategory, scan.CategoryParameter.String()).Share, "nothing has no shares")

	r := &scan.Report{
		Blocks: []scan.Block{held(12, scan.CategoryTensor, route(mainModule(), attribute("x")), floats(3))},
		Devices: []scan.Device{
			{Changing: &inspect.Changing{BlocksLow: 1, BlocksHigh: 3, BytesLow: 2 << 10, BytesHigh: 9 << 10, Ranges: 4, RangeBytes: 10 << 10}},
			{},
			{Changing: &inspect.Changing{BlocksLow: 2, BlocksHigh: 2, BytesLow: 10 << 10, BytesHigh: 11 << 10, Ranges: 1, RangeBytes: 12 << 10}},
		},
	}
	h := New(r)
	require.Equal(t, &inspect.Changing{BlocksLow: 3, BlocksHigh: 5, BytesLow: 12 << 10, BytesHigh: 20 << 10, Ranges: 5,
		RangeBytes: 22 << 10}, h.Changing)
	require.EqualValues(t, 24<<10, h.Bytes)
	require.EqualValues(t, 4, h.Blocks)
	name := scan.CategoryChanging.String()
	want := Row{Name: name, Holder: name, Bytes: 12 << 10, Blocks: 3, Share: 0.5}
	for _, by := range []Grouping{ByOwner, ByCategory} {
		require.Equal(t, want, firstRow(h, by, name))
	}
	table := h.By(ByOwner, 0)
	require.Equal(t, []string{name, "x"}, []string{table.Rows[0].Name, table.Rows[1].Name}, "of the same bytes those with more blocks first")
	require.EqualValues(t, 24<<10, table.Bytes)
	require.EqualValues(t, 4, table.Blocks)

	r.Blocks = append(r.Blocks, held(3, scan.CategoryChanging, nil))
	row := firstRow(New(r), ByCategory, name)
	require.EqualValues(t, 15<<10, row.Bytes, "blocks of that kind are in the same row")
	require.EqualValues(t, 4, row.Blocks)

	r.Blocks, r.Devices = r.Blocks[:1], []scan.Device{{Changing: &inspect.Changing{BytesHigh: 5}}}
	require.Len(t, New(r).By(ByOwner, 0).Rows, 1, "perhaps nothing is no row")
	r.Devices[0].Changing.BytesLow = 1
	require.Len(t, New(r).By(ByOwner, 0).Rows, 2)
}

// TestLimit: a table has at most as many rows as were asked for, and says how many are missing.
func TestLimit(t *testing.T) {
	h := New(mixedReport())
	for n, want := range map[int][2]int{0: {6, 0}, 1: {1, 5}, 5: {5, 1}, 6: {6, 0}, 7: {6, 0}} {
		table := h.By(ByOwner, n)
		require.Equal(t, want, [2]int{len(table.Rows), table.More}, "%d", n)
	}
	same := New(&scan.Report{Blocks: []scan.Block{
		held(1, scan.CategoryTensor, route(mainModule(), attribute("b"))), held(1, scan.CategoryTensor, route(mainModule(), attribute("a"))),
	}})
	require.Equal(t, "a", same.By(ByOwner, 0).Rows[0].Name)
	require.Equal(t, "b", same.Owner(0))
}

// TestFindBlock: a block is found by its address when all of it is the same, and by any address in it.
func TestFindBlock(t *testing.T) {
	h := New(mixedReport())
	for i := range h.Report.Blocks {
		b := h.Report.Blocks[i].Block
		if b.Addr == h.Report.Blocks[0].Addr { // two of the report have one address
			continue
		}
		got, ok := h.Find(&b)
		require.True(t, ok)
		require.Equal(t, i, got)
		b.State++
		_, ok = h.Find(&b)
		require.False(t, ok, "in another state it is another block")
		got, ok = h.At(b.Addr)
		require.True(t, ok)
		require.Equal(t, i, got)
		_, ok = h.At(b.Addr - 1)
		require.False(t, ok)
	}
	_, ok := h.Find(&inspect.Block{Addr: 1})
	require.False(t, ok)
	got, ok := h.At(h.Report.Blocks[0].Addr)
	require.True(t, ok)
	require.Zero(t, got)
}

// TestTensorsInCommon: blocks have one shape, one dtype, or a number of these in common; those without a tensor do not count.
func TestTensorsInCommon(t *testing.T) {
	half := scan.Tensor{Shape: []int64{3}, DType: "float16"}
	for _, c := range []struct {
		want    string
		tensors [][]scan.Tensor
	}{
		{"", [][]scan.Tensor{nil}},
		{"[3] float32", [][]scan.Tensor{{floats(3)}, {floats(3), floats(4)}, nil}},
		{"float32", [][]scan.Tensor{{floats(3)}, {floats(4)}}},
		{"2 dtypes", [][]scan.Tensor{{floats(3)}, {half}}},
		{UnknownShape, [][]scan.Tensor{{{DType: "bool"}}}},
		{"[3] " + UnknownDType, [][]scan.Tensor{{{Shape: []int64{3}}}}},
	} {
		var of []int
		h := &Index{Report: &scan.Report{}}
		for i, tensors := range c.tensors {
			h.Report.Blocks = append(h.Report.Blocks, held(1, scan.CategoryTensor, nil, tensors...))
			of = append(of, i)
		}
		require.Equal(t, c.want, h.tensors(of))
	}
}

// TestModuleName: the module of a parameter, of its gradient, of the optimizer's state of it, and of the root module itself.
func TestModuleName(t *testing.T) {
	root := route(mainModule(), attribute("model"), part("_parameters", "w"))
	for _, c := range []struct {
		path scan.Path
		want string
	}{
		{root, "model"},
		{append(slices.Clone(root), scan.Step{Kind: scan.StepGrad}), "model"},
		{weight("2"), "model.blocks.2.mlp"},
		{route(mainModule(), attribute("opt"), attribute("state"), object(weight("1")), word("exp_avg")), "model.blocks.1.mlp"},
		{route(object(weight("1")), word("exp_avg")), "model.blocks.1.mlp"},
		{route(mainModule(), attribute("x")), NoModule},
		{scan.Path{{Kind: scan.StepGrad}}, NoModule},
		{nil, NoModule},
	} {
		b := held(1, scan.CategoryTensor, c.path)
		require.Equal(t, c.want, moduleName(&b), c.path)
	}
}

// TestSplitName: the frame of a local variable is taken off its name; other names stay whole.
func TestSplitName(t *testing.T) {
	path := route(frame(9), local("x"), index(3))
	for _, c := range []struct {
		name        string
		path        scan.Path
		where, rest string
	}{
		{path.String(), path, "train.py:9 train()", "x[3]"},
		{"train.py:9 train() local x[0..3]", path, "train.py:9 train()", "x[0..3]"},
		{"train.py:9 train()", path[:1], "", "train.py:9 train()"},
		{"model.*", weight("0"), "", "model.*"},
		{"another name", path, "", "another name"},
		{"<unknown>", nil, "", "<unknown>"},
	} {
		where, rest := splitName(c.name, c.path)
		require.Equal(t, []string{c.where, c.rest}, []string{where, rest})
	}
}

// TestModuleSteps: which steps lead from a module to a part of it, in both ways in which CPython keeps its attributes.
func TestModuleSteps(t *testing.T) {
	dict := scan.Step{Kind: scan.StepDict}
	for _, c := range []struct {
		what string
		path scan.Path
		want int
	}{
		{"an attribute", route(part("_modules", "a")), 2},
		{"a dict", route(dict, word("_buffers"), word("a")), 3},
		{"more behind it", route(part("_parameters", "a"), attribute("b")), 2},
		{"another attribute", route(part("modules", "a")), 0},
		{"no key behind it", route(attribute("_modules"), attribute("a")), 0},
		{"nothing behind it", route(attribute("_modules")), 0},
		{"nothing behind it, in a dict", route(dict, word("_modules")), 0},
		{"a dict alone", route(dict), 0},
		{"an index of that name", route(scan.Step{Kind: scan.StepIndex, Name: "_modules"}, word("a")), 0},
		{"nothing", nil, 0},
	} {
		require.Equal(t, c.want, moduleSteps(c.path), c.what)
	}
}

// TestTemplates: parts that may differ are folded, of a path that has them anywhere; names of attributes and fields stay.
func TestTemplates(t *testing.T) {
	field := func(name string) scan.Step { return scan.Step{Kind: scan.StepIndex, Name: name, Index: 1} }
	named := func(i int64, name string) scan.Block {
		return held(1, scan.CategoryTensor, route(mainModule(), attribute("kept"), index(i), field(name)))
	}
	requireOne(t, route(mainModule(), attribute("kept")).String()+"[0..1]"+scan.Path{field("loss")}.String(), named(0, "loss"),
		named(1, "loss"))
	got := ownersOf([]scan.Block{named(0, "loss"), named(1, "loss"), named(0, "acc"), named(1, "acc")})
	require.NotEqual(t, got[0], got[2], "fields of a named tuple are not one thing")

	dict := scan.Step{Kind: scan.StepDict}
	pool := func(i int64) scan.Block {
		return held(1, scan.CategoryTensor, route(mainModule(), attribute("server"), dict, word("pool"), index(i)))
	}
	requireOne(t, "server.pool[0..1]", pool(0), pool(1))
	got = ownersOf([]scan.Block{pool(0), held(1, scan.CategoryTensor, route(mainModule(), attribute("server"), dict, word("other"),
		index(1)))})
	require.Equal(t, []string{"server.pool[0]", "server.other[1]"}, got, "attributes keep their names")

	numbers := func(keys ...scan.Step) (out []scan.Block) {
		for _, k := range keys {
			out = append(out, held(1, scan.CategoryTensor, route(mainModule(), attribute("d"), k)))
		}
		return out
	}
	requireOne(t, "d[2 keys]", numbers(object(weight("0")), object(weight("1")))...)
	requireOne(t, "d[2 keys]", numbers(number(1), object(weight("1")))...)
	requireOne(t, "d[-1..1]", numbers(number(0), number(-1), number(1))...)
	requireOne(t, fmt.Sprintf("d[%d, %d]", math.MinInt64, math.MaxInt64), numbers(number(math.MinInt64), number(math.MaxInt64))...)
}

// TestPlaceholdersHaveAnEnd: the parts of a path beyond the limit are not folded.
func TestPlaceholdersHaveAnEnd(t *testing.T) {
	deep := func(n int, last int64) scan.Block {
		p := route(mainModule(), attribute("deep"))
		for range n - 1 {
			p = append(p, index(0))
		}
		return held(1, scan.CategoryTensor, append(p, index(last)))
	}
	got := ownersOf([]scan.Block{deep(maxPlaceholders, 0), deep(maxPlaceholders, 1)})
	require.Equal(t, got[0], got[1])
	require.Contains(t, got[0], "[0..1]")
	got = ownersOf([]scan.Block{deep(maxPlaceholders+1, 0), deep(maxPlaceholders+1, 1)})
	require.NotEqual(t, got[0], got[1])
}

// TestUnknownReasons: the reason with the most bytes comes first, and equal ones in the order of their words.
func TestUnknownReasons(t *testing.T) {
	why := func(n uint64, c scan.Category, text string) scan.Block {
		b := held(n, c, nil)
		b.Why = text
		return b
	}
	h := New(&scan.Report{Blocks: []scan.Block{
		why(2, scan.CategoryUnknown, "b"), why(1, scan.CategoryUnknown, "a"), why(1, scan.CategoryChanging, "a"),
		why(5, scan.CategoryUnknown, ""), why(9, scan.CategoryTensor, "c"),
	}})
	require.Equal(t, []UnknownReason{{"nothing that is known refers to it", 5 << 10, 1}, {"a", 2 << 10, 2}, {"b", 2 << 10, 1}}, h.Unknown())
}

// TestSmallestView: a block of 1 MiB is worth a line when its tensors show less than half of what was requested of it.
func TestSmallestView(t *testing.T) {
	block := func(size, requested uint64, elements ...int64) scan.Block {
		b := held(size>>10, scan.CategoryTensor, nil, floats(elements...))
		b.Requested = requested
		return b
	}
	for _, c := range []struct {
		what  string
		block scan.Block
		seen  []uint64
	}{
		{"1 MiB", block(1<<20, 1<<20, 1), []uint64{4}},
		{"less", block(1<<20-1024, 1<<20-1024, 1), nil},
		{"half", block(1<<20, 1<<20, 1<<17), nil},
		{"an element less than half", block(1<<20, 1<<20, 1<<17-1), []uint64{1<<19 - 4}},
		{"most of what was requested", block(1<<20, 1<<10, 1<<7), nil},
		{"requested bytes are unknown", block(1<<20, event.Unknown, 1), []uint64{4}},
	} {
		var seen []uint64
		for _, v := range New(&scan.Report{Blocks: []scan.Block{c.block}}).Views() {
			seen = append(seen, v.Seen)
		}
		require.Equal(t, c.seen, seen, c.what)
	}
}

// TestJoinedBlocks: each live block that the report knows has its holder, the first of the report too; a block of
// the moment of the report is in it.
func TestJoinedBlocks(t *testing.T) {
	r := mixedReport()
	r.Blocks = r.Blocks[1:]
	r.Time = 10
	blocks := []heap.Block{live(r, 0, heap.OriginEvent, 1), live(r, 4, heap.OriginEvent, 1)}
	v := view.New(&heap.Snapshot{}, nil, nil)
	j := New(r).Join(v, slices.Values(blocks))
	require.Equal(t, map[heap.BlockKey]view.HeldBlock{
		blocks[0].Key(): {Holder: "model.blocks[1].mlp.weight", Name: "model.blocks[1].mlp.weight", Category: phases.Parameters, Bytes: 8 << 10},
	}, j.Blocks, "and the other has no known holder")
	require.EqualValues(t, 13<<10, j.Bytes)
	require.Empty(t, j.Before(&heap.Account{PID: 7, Device: event.Device{Type: event.DeviceCUDA}}), "both were allocated later")

	local := New(r).Join(v, slices.Values([]heap.Block{live(r, 3, heap.OriginEvent, 1)}))
	require.Len(t, local.Rows, 1)
	require.Equal(t, []string{"train.py:9 train() local x", "train.py:9 train()", "x"}, []string{local.Rows[0].Name, local.Rows[0].Where,
		local.Rows[0].Holder})
	require.Equal(t, scan.CategoryTensor.String(), local.Rows[0].What)

	none := New(r).Join(v, slices.Values([]heap.Block{}))
	require.Zero(t, none.Bytes)
	require.Empty(t, none.Rows)
}

// TestAttributesKeepTheirNames: attributes are no keys, however many there are, also of an object that nothing is known to lead to.
func TestAttributesKeepTheirNames(t *testing.T) {
	dict := scan.Step{Kind: scan.StepDict}
	for what, before := range map[string][]scan.Step{"of a variable": {mainModule(), attribute("server"), dict},
		"of an unknown object": {dict}} {
		var all []scan.Block
		for i := range 10 {
			for k := range int64(2) {
				all = append(all, held(1, scan.CategoryTensor, route(before, word(string(rune('a'+i))), index(k))))
			}
		}
		names := map[string]bool{}
		for _, name := range ownersOf(all) {
			names[name] = true
		}
		require.Len(t, names, 10, "%s: %v", what, names)
	}
}
