// SPDX-License-Identifier: Apache-2.0

//go:build linux

package holders

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event/figures"
	scan "github.com/gputrace/gputrace/inspect/holders"
)

// localOf is a path to a local variable of a thread.
func localOf(thread uint64) scan.Path {
	frame := scan.Step{Kind: scan.StepFrame, Frame: &scan.Frame{Thread: thread, File: "/job/train.py", Function: "publish", Line: 3}}
	return route(frame, local("clip"))
}

// buffer returns the blocks of a deque at an address with room for 100 elements, of which some hold blocks of these sizes.
func buffer(at uint64, sizes ...uint64) (out []scan.Block) {
	for i, size := range sizes {
		items, element := attribute("items"), index(int64(i))
		items.Addr, items.Length, items.Most, element.Addr = at, uint64(len(sizes)), 100, at+uint64(16*(i+1))
		b := held(1, scan.CategoryTensor, route(mainModule(), attribute("replay"), items, element))
		b.Size = size
		out = append(out, b)
	}
	return out
}

// shown is a block that a view of some of its numbers shows.
func shown(numbers int64) scan.Block {
	b := held(1, scan.CategoryTensor, route(mainModule(), attribute("kept"), index(numbers)))
	b.Size, b.Requested, b.Complete = 4096, 4000, scan.Yes
	b.Tensors = []scan.Tensor{{Shape: []int64{numbers}, DType: "float32"}, {Shape: []int64{1000}, DType: "float32", Base: true}}
	return b
}

// TestFacts: what paths say beside the name of the holder, and nothing where they say nothing.
func TestFacts(t *testing.T) {
	resets := attribute("quality")
	resets.Resets = true
	hook := func(layer string, handle int64) scan.Path {
		return route(mainModule(), attribute("net"), part("_modules", layer), attribute("_forward_hooks"), number(handle), attribute("x"))
	}
	var many, each []scan.Block
	for i := range int64(9) {
		many = append(many, held(1, scan.CategoryTensor, hook("0", i)))
		each = append(each, held(1, scan.CategoryTensor, hook(fmt.Sprint(i), i)))
	}
	cycle := scan.Step{Kind: scan.StepGarbage, Name: "Node", Cycle: route(scan.Step{Kind: scan.StepGarbage, Name: "Node"},
		attribute("parent"), attribute("child"))}
	two, loose := append(buffer(0x1000, 512, 512), buffer(0x2000, 512, 512)...), buffer(0x2000, 512)
	loose[0].Path[2].Most = 0
	full := buffer(0x1000, 512, 512)
	for i := range full {
		full[i].Path[2].Most = 2
	}
	weak := attribute("encodings")
	weak.Type = "WeakKeyDictionary"
	byKey := held(1, scan.CategoryTensor, route(mainModule(), weak, attribute("data"), index(0)))
	for name, c := range map[string]struct {
		blocks []scan.Block
		want   figures.HolderFacts
	}{
		"a full deque": {full, figures.HolderFacts{Length: 2, Most: 2, Each: 512, Full: true}},
		"by weak keys": {[]scan.Block{byKey, byKey}, figures.HolderFacts{Weak: true}},
		"a list":       {[]scan.Block{held(1, scan.CategoryTensor, route(mainModule(), attribute("kept"), index(0)))}, figures.HolderFacts{}},
		"a local of two threads": {
			[]scan.Block{held(1, scan.CategoryTensor, localOf(7)), held(1, scan.CategoryTensor, localOf(8))}, figures.HolderFacts{Threads: 2},
		},
		"a local of one thread": {
			[]scan.Block{held(1, scan.CategoryTensor, localOf(7)), held(1, scan.CategoryTensor, localOf(7))}, figures.HolderFacts{},
		},
		"parameters": {[]scan.Block{held(1, scan.CategoryParameter, weight("0"))}, figures.HolderFacts{Category: "parameters"}},
		"a metric": {
			[]scan.Block{held(1, scan.CategoryTensor, route(mainModule(), attribute("task"), resets, attribute("preds"), index(3)))},
			figures.HolderFacts{Reset: "task.quality"},
		},
		"a metric itself": {[]scan.Block{held(1, scan.CategoryTensor, route(mainModule(), resets))}, figures.HolderFacts{}},
		"a cache": {[]scan.Block{held(1, scan.CategoryTensor,
			route(mainModule(), attribute("mask"), scan.Step{Kind: scan.StepSlot, Name: "cache"}, number(3)))}, figures.HolderFacts{Cache: true}},
		"an attribute": {[]scan.Block{held(1, scan.CategoryTensor, route(mainModule(), attribute("cache"), number(3)))}, figures.HolderFacts{}},
		"a graph": {
			[]scan.Block{held(1, scan.CategoryTensor, route(mainModule(), attribute("h"), scan.Step{Kind: scan.StepGradFn},
				scan.Step{Kind: scan.StepNext}, scan.Step{Kind: scan.StepElided, Index: 40}))},
			figures.HolderFacts{Chain: 42},
		},
		"garbage": {[]scan.Block{held(1, scan.CategoryTensor, route(cycle, attribute("data")))},
			figures.HolderFacts{Cycle: "Node.parent.child"}},
		"hooks of one":       {many, figures.HolderFacts{Hooks: 9}},
		"a hook of each":     {each, figures.HolderFacts{Hooks: 1}},
		"slices":             {[]scan.Block{shown(100), shown(100), shown(900)}, figures.HolderFacts{Slice: true}},
		"whole tensors":      {[]scan.Block{shown(100), shown(900), shown(900)}, figures.HolderFacts{}},
		"a bound":            {buffer(0x1000, 512, 512, 1024), figures.HolderFacts{Length: 3, Most: 100, Each: 682}},
		"two with a bound":   {two, figures.HolderFacts{Length: 4, Most: 200, Each: 512, Containers: 2}},
		"beside one without": {append(buffer(0x1000, 512, 512), loose...), figures.HolderFacts{}},
		"an element grows":   {buffer(0x1000, 512, 512, 512, 512, 512, 1<<20), figures.HolderFacts{}},
		"one of two grows":   {append(buffer(0x1000, 512, 512), buffer(0x2000, 512, 512, 512, 512, 512, 1<<20)...), figures.HolderFacts{}},
		"one element":        {buffer(0x1000, 512), figures.HolderFacts{}},
		"without a path":     {[]scan.Block{held(1, scan.CategoryUnknown, nil)}, figures.HolderFacts{}},
	} {
		facts := New(&scan.Report{Blocks: c.blocks}).Facts()
		for _, owner := range ownersOf(c.blocks) {
			require.Equal(t, c.want, facts[owner], name)
		}
	}
}

// TestFactsOfOneElement: a name with one element of a bounded container has its bound if other names have the others, so that the names
// agree on it.
func TestFactsOfOneElement(t *testing.T) {
	var blocks []scan.Block
	for i := range 6 {
		field := "next_obs"
		if i == 0 {
			field = "obs"
		}
		items, element := attribute("items"), index(int64(i))
		items.Addr, items.Length, items.Most, element.Addr = 0x1000, 6, 100, uint64(0x2000+16*i)
		b := held(1, scan.CategoryTensor, route(mainModule(), items, element, attribute(field)))
		b.Size = 512
		blocks = append(blocks, b)
	}
	for name, f := range New(&scan.Report{Blocks: blocks}).Facts() {
		require.Equal(t, figures.HolderFacts{Length: 6, Most: 100, Each: 512}, f, name)
	}
}

// TestFactsOfTwoNames: a container to which two paths lead has a bound by each of them, though each has less than half of the elements.
func TestFactsOfTwoNames(t *testing.T) {
	var blocks []scan.Block
	for i, owner := range []string{"service", "handler", "service", "handler", "service", "handler"} {
		items, element := attribute("items"), index(int64(i))
		items.Addr, items.Length, items.Most, element.Addr = 0x1000, 7, 100, uint64(0x2000+16*i)
		b := held(1, scan.CategoryTensor, route(mainModule(), attribute(owner), items, element))
		b.Size = 512
		blocks = append(blocks, b)
	}
	facts := New(&scan.Report{Blocks: blocks}).Facts()
	require.Len(t, facts, 2)
	for name, f := range facts {
		require.Equal(t, figures.HolderFacts{Length: 7, Most: 100, Each: 512}, f, name)
	}
}

// TestLinks: the longest row of objects is given, with what links them, if that is an attribute.
func TestLinks(t *testing.T) {
	row := func(n int64, name string) scan.Block {
		return held(1, scan.CategoryTensor, route(mainModule(), attribute("root"), scan.Step{Kind: scan.StepElided, Index: n, Name: name}))
	}
	facts := func(blocks ...scan.Block) figures.HolderFacts {
		return New(&scan.Report{Blocks: blocks}).Facts()["root…"]
	}
	require.Equal(t, figures.HolderFacts{Links: 70, Link: "parent"}, facts(row(9, "parent"), row(70, "parent"), row(8, "child[]")))
	require.Equal(t, figures.HolderFacts{Links: 70}, facts(row(70, "children[]")))
	require.Equal(t, figures.HolderFacts{Links: 3, Link: "next/prev"}, facts(row(3, "next/prev")))
	require.Equal(t, `a\x1b[2J`, facts(row(3, "a\x1b[2J")).Link)
}

// TestStateOfAnOptimizer: the state of an optimizer has a bound though the blocks of its elements differ in size, but it is never full. If
// an element has many blocks, the state is something else.
func TestStateOfAnOptimizer(t *testing.T) {
	state := func(length, most uint64) []scan.Block {
		var out []scan.Block
		for i := range int64(length) {
			s, element := attribute("state"), index(i)
			s.Type, s.Addr, s.Length, s.Most, element.Addr = "defaultdict", 0x1000, length, most, uint64(0x2000+16*i)
			b := held(1, scan.CategoryOptimizer, route(mainModule(), attribute("opt"), s, element))
			b.Addr, b.Size = uint64(0x100000*(i+1)), 512
			if i == 0 {
				b.Size = 90 << 20
			}
			out = append(out, b)
		}
		return out
	}
	for _, room := range []uint64{0, 1, 8} {
		facts := New(&scan.Report{Blocks: state(8, 8+room)}).Facts()
		require.Len(t, facts, 1)
		for _, f := range facts {
			require.Equal(t, figures.HolderFacts{
				Length: 8, Most: 8 + room, Each: (90<<20 + 7*512) / 8, State: true, Category: f.Category,
			}, f)
		}
	}
	list := state(2, 8)
	for i := range 5 {
		b := list[0]
		b.Addr = uint64(0x900000 + 0x1000*i)
		list = append(list, b)
	}
	for _, f := range New(&scan.Report{Blocks: list}).Facts() {
		require.Zero(t, f.Most)
	}
}

// TestWritten: the graph of a buffer goes through what was written into it, not only on to what the buffer was before.
func TestWritten(t *testing.T) {
	node := func(kind scan.StepKind, class string, from int64) scan.Step {
		return scan.Step{Kind: kind, Name: class, Index: from}
	}
	for index, want := range map[int64]bool{-1: true, 0: false, 1: true} {
		b := held(1, scan.CategoryTensor, route(mainModule(), attribute("memory"), node(scan.StepGradFn, "CopySlices", 0),
			node(scan.StepNext, "CopySlices", 0), node(scan.StepNext, "MulBackward0", index)))
		for _, f := range New(&scan.Report{Blocks: []scan.Block{b}}).Facts() {
			require.Equal(t, want, f.Written)
		}
	}
}
