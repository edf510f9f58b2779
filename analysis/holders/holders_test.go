// SPDX-License-Identifier: Apache-2.0

//go:build linux

package holders

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/inspect"
	scan "github.com/gputrace/gputrace/inspect/holders"
)

// The steps of paths, short.
func mainModule() scan.Step           { return scan.Step{Kind: scan.StepModule, Name: "__main__"} }
func attribute(name string) scan.Step { return scan.Step{Kind: scan.StepAttribute, Name: name} }
func index(i int64) scan.Step         { return scan.Step{Kind: scan.StepIndex, Index: i} }
func word(key string) scan.Step {
	return scan.Step{Kind: scan.StepKey, KeyKind: scan.KeyString, Name: key}
}
func number(key int64) scan.Step {
	return scan.Step{Kind: scan.StepKey, KeyKind: scan.KeyInt, Index: key}
}
func object(key scan.Path) scan.Step {
	return scan.Step{Kind: scan.StepKey, KeyKind: scan.KeyObject, KeyPath: key, KeyType: "Parameter"}
}
func part(kind, name string) []scan.Step { return []scan.Step{attribute(kind), word(name)} }
func frame(line int) scan.Step {
	return scan.Step{Kind: scan.StepFrame, Frame: &scan.Frame{File: "/job/train.py", Function: "train", Line: line}}
}
func local(name string) scan.Step { return scan.Step{Kind: scan.StepLocal, Name: name} }

// route joins steps and lists of them.
func route(parts ...any) scan.Path {
	var out scan.Path
	for _, p := range parts {
		switch p := p.(type) {
		case scan.Step:
			out = append(out, p)
		case []scan.Step:
			out = append(out, p...)
		}
	}
	return out
}

func weight(block string) scan.Path {
	return route(mainModule(), attribute("model"), part("_modules", "blocks"), part("_modules", block), part("_modules", "mlp"),
		part("_parameters", "weight"))
}

// held makes a block of a path. Its size is n KiB.
func held(n uint64, c scan.Category, p scan.Path, tensors ...scan.Tensor) scan.Block {
	return scan.Block{
		Block: inspect.Block{Addr: 0x1000_0000 * n, Size: n << 10, Requested: n << 10, State: inspect.StateAllocated},
		Path:  p, Category: c, Tensors: tensors, Holders: len(tensors), Complete: scan.Yes, Confirmed: true,
	}
}

func floats(shape ...int64) scan.Tensor { return scan.Tensor{Shape: shape, DType: "float32"} }

func ownersOf(blocks []scan.Block) []string {
	return New(&scan.Report{Blocks: blocks}).owners
}

// requireOne checks that all blocks are one group of that name.
func requireOne(t *testing.T, name string, blocks ...scan.Block) {
	t.Helper()
	for _, got := range ownersOf(blocks) {
		require.Equal(t, name, got)
	}
}

func TestFoldNumbers(t *testing.T) {
	kept := func(numbers ...int64) (out []scan.Block) {
		for _, n := range numbers {
			out = append(out, held(1, scan.CategoryTensor, route(mainModule(), attribute("kept"), index(n))))
		}
		return out
	}
	requireOne(t, "kept[0..2]", kept(0, 1, 2)...)
	requireOne(t, "kept[5..7]", kept(7, 5, 6)...)
	requireOne(t, "kept[4]", kept(4)...)
	requireOne(t, "kept[4]", kept(4, 4)...)
	requireOne(t, "kept[0, 2]", kept(2, 0)...)
	requireOne(t, "kept[5 items in 0..9]", kept(9, 0, 2, 3, 4)...)
	var grid []scan.Block
	for i := range 12 {
		grid = append(grid, held(1, scan.CategoryTensor, route(frame(108), local("cache"), number(int64(i/4)), index(int64(i%4)), index(1))))
	}
	requireOne(t, "train.py:108 train() local cache[0..2][0..3][1]", grid...)
	var large []scan.Block // a large int has its text, too
	for i := range int64(3) {
		key := number(139999508877776)
		key.KeyText = "139999508877776"
		large = append(large, held(1, scan.CategoryTensor, route(mainModule(), attribute("outputs"), key, index(i))))
	}
	requireOne(t, "outputs[139999508877776][0..2]", large...)
}

// TestFoldCaches: the entries of functools.lru_cache are one thing.
func TestFoldCaches(t *testing.T) {
	var entries []scan.Block
	for i := range 3 {
		slot := scan.Step{Kind: scan.StepSlot, Name: "cache", KeyText: fmt.Sprint(i)}
		entries = append(entries, held(1, scan.CategoryTensor, route(mainModule(), attribute("mask"), slot)))
	}
	requireOne(t, "mask.cache[3 keys]", entries...)
	requireOne(t, "mask.cache[0]", entries[0])
}

func TestFoldModules(t *testing.T) {
	requireOne(t, "model.blocks[0..1].mlp.weight", held(1, scan.CategoryParameter, weight("0")), held(1, scan.CategoryParameter, weight("1")))
	requireOne(t, "model.blocks[0, 3].mlp.weight.grad", held(1, scan.CategoryGradient, append(weight("0"), scan.Step{Kind: scan.StepGrad})),
		held(1, scan.CategoryGradient, append(weight("3"), scan.Step{Kind: scan.StepGrad})))
	plain := route(mainModule(), attribute("model"), part("_modules", "blocks"), part("_modules", "3"), attribute("cache"), index(0))
	requireOne(t, "model.blocks[3].cache[0]", held(1, scan.CategoryTensor, plain))
	requireOne(t, "model.blocks[3].cache[0]", held(1, scan.CategoryTensor, plain), held(2, scan.CategoryTensor, plain))
	slow := route(mainModule(), attribute("model"), scan.Step{Kind: scan.StepDict}, word("_modules"), word("blocks"),
		scan.Step{Kind: scan.StepDict}, word("_parameters"), word("w"))
	quick := route(mainModule(), attribute("model"), part("_modules", "blocks"), part("_parameters", "b"))
	requireOne(t, "model.blocks.*", held(1, scan.CategoryParameter, slow), held(1, scan.CategoryParameter, quick))
	head := route(mainModule(), attribute("model"), part("_modules", "head"), part("_parameters", "weight"))
	requireOne(t, "model.*", held(1, scan.CategoryParameter, slow), held(1, scan.CategoryParameter, head))
	var states []scan.Block
	for _, block := range []string{"0", "1", "2"} {
		for _, name := range []string{"exp_avg", "exp_avg_sq"} {
			states = append(states, held(1, scan.CategoryOptimizer, route(mainModule(), attribute("opt"), attribute("state"),
				object(weight(block)), word(name))))
		}
	}
	requireOne(t, "opt.state[3 keys]['exp_avg', 'exp_avg_sq']", states...)
}

// TestFoldGrowingModules: what a program adds to a model is a row of its own, and keeps the name of what it is added to.
func TestFoldGrowingModules(t *testing.T) {
	dict := func(names ...any) scan.Path { // of the first name on: in a dictionary of modules
		p := route(mainModule(), attribute("net"))
		for i, n := range names {
			kind := "_modules"
			if i == len(names)-1 {
				kind = "_parameters"
			}
			p = append(p, part(kind, n.(string))...)
			p[len(p)-1].Type = "Linear"
			if n == "heads" || n == "lora_A" {
				p[len(p)-1].Type = "ModuleDict"
			}
		}
		return p
	}
	var blocks []scan.Block
	for _, name := range []string{"a", "b", "c"} {
		blocks = append(blocks, held(1, scan.CategoryParameter, dict("heads", name, "weight")))
		blocks = append(blocks, held(1, scan.CategoryParameter, dict("layers", "0", "q", "lora_A", name, "weight")))
		blocks = append(blocks, held(1, scan.CategoryParameter, dict("layers", "1", "v", "lora_A", name, "weight")))
		blocks = append(blocks, held(1, scan.CategoryParameter, dict("extra_"+fmt.Sprint(len(blocks)), "weight")))
	}
	blocks = append(blocks, held(1, scan.CategoryParameter, dict("body", "weight")), held(1, scan.CategoryParameter, dict("body", "bias")),
		held(1, scan.CategoryParameter, dict("layers", "0", "q", "weight")), held(1, scan.CategoryParameter, dict("layers", "1", "norm", "bias")))
	got := map[string]int{}
	for _, name := range ownersOf(blocks) {
		got[name]++
	}
	require.Equal(t, map[string]int{
		"net.heads['a', 'b', 'c'].weight": 3, "net.layers[0..1]…lora_A['a', 'b', 'c'].weight": 6, "net.extra_*.weight": 3,
		"net.body.*": 2, "net.layers[0..1].*": 2,
	}, got)
}

// TestFoldKeys: keys fold as positions do, however many there are and wherever they are.
func TestFoldKeys(t *testing.T) {
	cache := func(n int, name string) (out []scan.Block) {
		for i := range n {
			out = append(out, held(1, scan.CategoryTensor, route(mainModule(), attribute("cache"), index(0), word(fmt.Sprint(name, i)),
				index(int64(i%2)))))
		}
		return out
	}
	requireOne(t, "cache[0]['user0'][0]", cache(1, "user")...)
	for _, n := range []int{2, 3, 6, 8, 9, 40} {
		requireOne(t, fmt.Sprintf("cache[0]['user0'..'user%d'][0..1]", n-1), cache(n, "user")...)
		requireOne(t, fmt.Sprintf("cache[0][%d keys][0..1]", n+2),
			append(cache(n, "user"), append(cache(1, "x"), cache(1, "longer name than others ")...)...)...)
	}
	requireOne(t, "cache[0][3 keys 'user*'][0..1]", append(cache(2, "user"), cache(1, "user with a longer name ")...)...)
	attributes := route(mainModule(), attribute("server"), scan.Step{Kind: scan.StepDict}, word("pool"))
	requireOne(t, "server.pool", held(1, scan.CategoryTensor, attributes))
}

func TestFoldGraphs(t *testing.T) {
	chain := func(i int64, more ...scan.Step) scan.Block {
		p := route(mainModule(), attribute("losses"), index(i), scan.Step{Kind: scan.StepGradFn, Name: "MeanBackward0"})
		return held(1, scan.CategoryGraph, append(p, more...))
	}
	next := scan.Step{Kind: scan.StepNext, Name: "PowBackward0"}
	saved := scan.Step{Kind: scan.StepSaved, Name: "self", Index: -1}
	requireOne(t, "losses[0..1].grad_fn …", chain(0, saved), chain(1, next, saved), chain(1, next, next, saved))
	running := route(scan.Step{Kind: scan.StepNative, Name: "torch::autograd::Engine"}, next, saved)
	requireOne(t, "C++ torch::autograd::Engine …", held(1, scan.CategoryGraph, running),
		held(1, scan.CategoryGraph, append(running[:2:2], next, saved)))
}

// TestFoldLinks: objects in a row are one group, whatever number of them leads to a block.
func TestFoldLinks(t *testing.T) {
	down := func(links int64, more ...scan.Step) scan.Block {
		rest := scan.Step{Kind: scan.StepElided, Index: links, Name: "parent"}
		p := route(mainModule(), attribute("planner"), attribute("root"), attribute("parent"), rest)
		return held(1, scan.CategoryTensor, append(p, more...))
	}
	requireOne(t, "planner.root.parent…state", down(1, attribute("state")), down(70, attribute("state")))
	requireOne(t, "planner.root.parent…states[0..1]", down(1, attribute("states"), index(0)), down(9, attribute("states"), index(1)))
	requireOne(t, "planner.root.parent…state", down(9, scan.Step{Kind: scan.StepDict}, word("state")))
	requireOne(t, "planner.root.parent…[0..1]", down(1, index(0)), down(2, index(1)))
	y := []scan.Step{attribute("__closure__"), {Kind: scan.StepIndex, Name: "y"}, {Kind: scan.StepCell}}
	hook := func(frame *scan.Frame, name string, more ...scan.Step) scan.Block {
		return held(1, scan.CategoryNative, append(scan.Path{{Kind: scan.StepOwnHook, Name: name, Frame: frame}}, more...))
	}
	code := &scan.Frame{File: "/work/train.py", Line: 18}
	requireOne(t, "hook train.py:18 <lambda> closure y", hook(code, "fake_quant.<locals>.<lambda>", y...))
	requireOne(t, "hook train.py:18 Gate.grad.__self__.out", hook(code, "Gate.grad", attribute("__self__"), attribute("out")))
	requireOne(t, "hook Clip.kept", hook(nil, "Clip", attribute("kept")))
}

// TestFoldHostileNames: a name of the target cannot be taken for a placeholder.
func TestFoldHostileNames(t *testing.T) {
	p := route(mainModule(), attribute("a"), word(placeholderText(1)), word(placeholderText(0)), word("["), word("]"), word(""), index(3))
	got := ownersOf([]scan.Block{held(1, scan.CategoryTensor, p)})
	require.Equal(t, []string{p.String()}, got)
	deep := route(mainModule(), attribute("deep"))
	for range maxPlaceholders + 5 {
		deep = append(deep, index(1))
	}
	require.Equal(t, []string{deep.String()}, ownersOf([]scan.Block{held(1, scan.CategoryTensor, deep)}))
}

// mixedReport has blocks of many kinds.
func mixedReport() *scan.Report {
	state := route(mainModule(), attribute("opt"), attribute("state"), object(weight("0")), word("exp_avg"))
	pending := scan.Block{Block: inspect.Block{Addr: 0x9000_0000, Size: 4 << 10, State: inspect.StatePending}, Category: scan.CategoryPending}
	lost := held(5, scan.CategoryUnknown, nil, floats(10))
	lost.Why, lost.Complete, lost.Confirmed = "its path did not hold", scan.Unknown, false
	short := held(3, scan.CategoryTensor, route(frame(9), local("x")), scan.Tensor{Shape: []int64{}, DType: "bool"})
	short.Complete, short.Missing, short.ByShape = scan.No, 2, true
	r := &scan.Report{PID: 7, Blocks: []scan.Block{
		held(8, scan.CategoryParameter, weight("0"), floats(32, 64)),
		held(8, scan.CategoryParameter, weight("1"), floats(32, 64)),
		held(2, scan.CategoryGradient, append(weight("0"), scan.Step{Kind: scan.StepGrad}), floats(32, 16)),
		held(6, scan.CategoryOptimizer, state, floats(32, 64)),
		short, lost, pending,
	}}
	for _, c := range scan.Categories() {
		total := scan.Total{Category: c}
		for i := range r.Blocks {
			if r.Blocks[i].Category == c {
				total.Blocks, total.Bytes = total.Blocks+1, total.Bytes+r.Blocks[i].Size
			}
		}
		r.Totals = append(r.Totals, total)
	}
	return r
}

// requireSums checks that every block is in exactly one row.
func requireSums(t *testing.T, h *Index, rows []Row) {
	t.Helper()
	var bytes, blocks uint64
	seen := map[int]bool{}
	for _, r := range rows {
		bytes, blocks = bytes+r.Bytes, blocks+r.Blocks
		for _, i := range r.Of {
			require.False(t, seen[i], "block %d is in two rows", i)
			seen[i] = true
		}
	}
	require.Equal(t, h.Bytes, bytes)
	require.Equal(t, h.Blocks, blocks)
	require.Len(t, seen, len(h.Report.Blocks))
}

func TestGroupings(t *testing.T) {
	h := New(mixedReport())
	require.EqualValues(t, 36<<10, h.Bytes)
	for by, want := range map[Grouping][]string{
		ByOwner: {"model.blocks[0..1].mlp.weight", "opt.state[model.blocks[0].mlp.weight]['exp_avg']", "<unknown: its path did not hold>",
			"<waiting for a stream>", "train.py:9 train() local x", "model.blocks[0].mlp.weight.grad"},
		ByModule:   {"model.blocks.0.mlp", NoModule, "model.blocks.1.mlp"},
		ByDType:    {"float32", NoTensor, "bool"},
		ByShape:    {"[32, 64] float32", "[10] float32", NoTensor, "[] bool", "[32, 16] float32"},
		ByCategory: {"parameters", "buffers", "gradients", "optimizer state"},
	} {
		table := h.By(by, 0)
		requireSums(t, h, table.Rows)
		require.Equal(t, h.Bytes, table.Bytes)
		var names []string
		for _, r := range table.Rows {
			names = append(names, r.Name)
			require.True(t, slices.IsSortedFunc(r.Of, func(x, y int) int {
				return cmp.Compare(h.Report.Blocks[y].Size, h.Report.Blocks[x].Size)
			}), "the largest block first")
		}
		if by == ByCategory {
			require.Len(t, names, len(scan.Categories()), "those without a block too")
			names = names[:len(want)]
		}
		require.Equal(t, want, names, GroupingNames[by])
	}
	top := h.By(ByOwner, 2)
	require.Len(t, top.Rows, 2)
	require.Equal(t, 4, top.More)
	require.Equal(t, h.Bytes, top.Bytes)
	require.Equal(t, Row{
		Name: "model.blocks[0..1].mlp.weight", Holder: "model.blocks[0..1].mlp.weight", What: "parameters", Tensors: "[32, 64] float32",
		Bytes: 16 << 10, Blocks: 2, Share: 16.0 / 36, Of: []int{0, 1},
	}, top.Rows[0])
	row := firstRow(h, ByOwner, "train.py:9 train() local x")
	require.Equal(t, []string{"train.py:9 train()", "x"}, []string{row.Where, row.Holder})
	require.Equal(t, "parameters, optimizer state, gradients", firstRow(h, ByModule, "model.blocks.0.mlp").What)
	require.Equal(t, "float32", firstRow(h, ByModule, "model.blocks.0.mlp").Tensors)
}

func firstRow(h *Index, by Grouping, name string) Row {
	for _, r := range h.By(by, 0).Rows {
		if r.Name == name {
			return r
		}
	}
	return Row{}
}

func TestHoldersAt(t *testing.T) {
	h := New(mixedReport())
	i, ok := h.At(0x1000_0000*6 + 6<<10 - 1)
	require.True(t, ok)
	require.Equal(t, 3, i)
	_, ok = h.At(0x1000_0000*6 + 6<<10)
	require.False(t, ok)
	_, ok = h.At(0)
	require.False(t, ok)
}

func TestWhatIsUnknown(t *testing.T) {
	h := New(mixedReport())
	require.Equal(t, []UnknownReason{{"its path did not hold", 5 << 10, 1}}, h.Unknown())
	require.Equal(t, Completeness{All: 4, Some: 1, Missing: 2, Unknown: 1, Named: 5, Proved: 4}, h.Completeness())
}

func TestHeldViews(t *testing.T) {
	block := func(size uint64, tensors ...scan.Tensor) scan.Block {
		return held(size>>10, scan.CategoryTensor, nil, tensors...)
	}
	unsure := block(8<<20, floats(1))
	unsure.Complete = scan.Unknown
	h := New(&scan.Report{Blocks: []scan.Block{
		block(4<<20, floats(1024, 1024)),                       // all of it
		block(4<<20, floats(100)),                              // a corner
		block(16<<20, floats(1), floats(2)),                    // two corners
		block(4<<20, scan.Tensor{Shape: []int64{1}}),           // of an unknown dtype
		block(4<<20, scan.Tensor{DType: "float32"}, floats(1)), // of an unknown shape
		block(512<<10, floats(1)),                              // small
		block(4 << 20),                                         // no tensor
		block(4<<20, floats(300, 1024), floats(300, 1024)),     // together more than half
		unsure,
	}})
	require.Equal(t, []PartView{{2, 12, 16 << 20}, {1, 400, 4 << 20}}, h.Views())
}

func TestEveryStepHasAName(t *testing.T) {
	seen := map[string]bool{}
	for kind, name := range stepNames {
		require.False(t, seen[name], name)
		seen[name] = true
		require.Equal(t, name, StepName(&scan.Step{Kind: kind}))
	}
	require.Equal(t, "step 255", StepName(&scan.Step{Kind: 255}))
}

// TestElementSizes: a type has as many bits as its name says; of a complex one these are both parts.
func TestElementSizes(t *testing.T) {
	bits := regexp.MustCompile(`^[a-z]+([0-9]+)`)
	for name, size := range elementSizes {
		want := uint64(1) // bool
		if m := bits.FindStringSubmatch(name); m != nil {
			n, err := strconv.ParseUint(m[1], 10, 64)
			require.NoError(t, err)
			want = n / 8
		}
		require.Equal(t, want, size, name)
	}
}
