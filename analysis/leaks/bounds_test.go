// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/advice"
	"github.com/gputrace/gputrace/analysis/leaks/internal/floors"
	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/eventtest"
)

func resolveNone(event.StackID) *event.Stack { return nil }

func liveBlock(addr, size uint64, change func(*heap.Block)) *heap.Block {
	b := &heap.Block{PID: 7, Layer: event.LayerAllocator, Addr: addr, Size: size, Requested: size, Stack: 1, Origin: heap.OriginEvent}
	if change != nil {
		change(b)
	}
	return b
}

// TestCountedBlocks: PyTorch's blocks are judged, pinned memory, and device memory of known size outside PyTorch, where the stack is known.
func TestCountedBlocks(t *testing.T) {
	for what, c := range map[string]struct {
		change func(*heap.Block)
		want   bool
	}{
		"a block":               {nil, true},
		"of unknown size":       {func(b *heap.Block) { b.Size = event.Unknown }, true},
		"pinned":                {func(b *heap.Block) { b.Layer = event.LayerHost }, true},
		"pinned, unknown size":  {func(b *heap.Block) { b.Layer, b.Size = event.LayerHost, event.Unknown }, false},
		"of the device":         {func(b *heap.Block) { b.Layer = event.LayerDevice }, true},
		"a segment":             {func(b *heap.Block) { b.Layer, b.Segment = event.LayerDevice, true }, false},
		"another layer":         {func(b *heap.Block) { b.Layer = event.LayerDevice + 100 }, false},
		"from before":           {func(b *heap.Block) { b.Origin = heap.OriginBefore }, false},
		"recovered":             {func(b *heap.Block) { b.Origin = heap.OriginRecovered }, false},
		"without a stack":       {func(b *heap.Block) { b.Stack = 0 }, false},
		"device, without stack": {func(b *heap.Block) { b.Layer, b.Stack = event.LayerDevice, 0 }, false},
	} {
		require.Equal(t, c.want, counts(liveBlock(1, 512, c.change)), what)
	}
}

// TestUnsizedBlocks: a block whose requested size is not known counts by its own bytes, also when that becomes known before its free.
func TestUnsizedBlocks(t *testing.T) {
	d := newDetector(nil, resolveNone)
	unsized := liveBlock(1, 512, func(b *heap.Block) { b.Requested = event.Unknown })
	sized := liveBlock(2, 512, func(b *heap.Block) { b.Requested = 400 })
	d.allocated(sized)
	require.False(t, d.blind)
	d.allocated(unsized)
	require.True(t, d.blind)
	at := place{event.LayerAllocator, event.Device{}, 7}
	require.Equal(t, floor{Blocks: 2, Requested: 912, Bytes: 1024}, d.totals[at].live)
	later := *unsized
	later.Requested = 300
	d.freed(&later)
	require.Equal(t, floor{Blocks: 1, Requested: 400, Bytes: 512}, d.totals[at].live)
	require.Empty(t, d.unsized)
	d.freed(sized)
	require.Equal(t, floor{}, d.totals[at].live)
	require.EqualValues(t, []uint64{2, 2}, []uint64{d.allocs, d.frees})
	pinned := liveBlock(3, 512, func(b *heap.Block) { b.Layer, b.Requested = event.LayerHost, 5 })
	d.allocated(pinned)
	require.Equal(t, floor{Blocks: 1, Requested: 512, Bytes: 512}, d.totals[place{event.LayerHost, event.Device{}, 7}].live)
	d.freed(pinned)
	require.EqualValues(t, 2, d.frees, "those of PyTorch's")
}

// TestChurns: a program churns when three quarters of what it allocates are freed.
func TestChurns(t *testing.T) {
	for frees, want := range map[uint64]bool{74: false, 75: true, 100: true, 0: false} {
		require.Equal(t, want, (&detector{allocs: 100, before: frees}).churns(), frees)
		require.Equal(t, want, (&detector{otherAllocs: 100, otherBefore: frees}).churns(), "without PyTorch")
		require.Equal(t, want, (&detector{allocs: 100, before: frees, otherAllocs: 1000}).churns(), "PyTorch's count")
	}
}

// TestChurnsUntilEnd: what is freed when the program ends does not count.
func TestChurnsUntilEnd(t *testing.T) {
	d := newDetector(nil, resolveNone)
	for addr := range uint64(10) {
		d.allocated(liveBlock(addr+1, 512, nil))
	}
	for addr := range uint64(10) {
		d.freed(liveBlock(addr+1, 512, nil))
	}
	require.False(t, d.churns())
	d.allocated(liveBlock(11, 512, nil))
	require.True(t, d.churns(), "it goes on")
	d.forgetChurn()
	require.Zero(t, d.allocs+d.frees+d.before)
}

// TestLinesOfStacks: blocks count for the program's own line, and for the outermost line of its own that calls a module.
func TestLinesOfStacks(t *testing.T) {
	st := map[event.StackID]*event.Stack{
		1: eventtest.Stack(eventtest.Forward), 2: eventtest.Stack(eventtest.Kept), 3: eventtest.Stack("libfoo.so!foo"), 4: {},
		5: eventtest.Stack(eventtest.Report + " /home/a/t.py:-3:f"),
	}
	known := false
	d := newDetector(nil, func(id event.StackID) *event.Stack {
		if !known {
			return nil
		}
		return st[id]
	})
	s := d.source(1)
	require.Equal(t, "[unknown stack]", s.line.name())
	require.Nil(t, s.below)
	known = true
	d.learn(1, s)
	require.Equal(t, "net.py:7 Net.forward", s.line.name())
	require.Equal(t, "train.py:20 main", s.forward.name())
	require.NotNil(t, s.below)
	require.Same(t, s, d.source(1))
	require.Equal(t, line{}, d.source(2).forward)
	require.Equal(t, "foo", d.source(3).line.name())
	require.Equal(t, "[unknown stack]", d.source(4).line.name())
	require.Zero(t, d.source(5).line.line, "a line that is not known")
	backward := line{function: "f", file: "/a.py", line: 3, backward: true}
	require.Equal(t, "[backward of] a.py:3 f", backward.name())
	require.Same(t, st[2], d.stackOf(d.source(2).line))
}

// TestStackOfLine: of several stacks of a line the first is shown.
func TestStackOfLine(t *testing.T) {
	all := map[event.StackID]*event.Stack{}
	for id := range event.StackID(20) {
		all[id] = &event.Stack{ID: id}
	}
	d := newDetector(nil, func(id event.StackID) *event.Stack { return all[id] })
	for id := event.StackID(19); id > 2; id-- {
		d.sources[id] = &source{line: line{function: map[bool]string{true: "even", false: "odd"}[id%2 == 0]}}
	}
	require.EqualValues(t, 4, d.stackOf(line{function: "even"}).ID)
	require.EqualValues(t, 3, d.stackOf(line{function: "odd"}).ID)
	require.Nil(t, d.stackOf(line{function: "none"}))
}

// TestNameForwards: what rises is named after the call of a module where two fifths of the blocks of that stay, or more.
func TestNameForwards(t *testing.T) {
	for below, want := range map[int64]string{25: "call", 26: "own"} {
		count := below
		from := &source{line: line{function: "own"}, forward: line{function: "call"}, below: &count}
		other := &source{line: line{function: "other"}}
		rise := func(blocks int64, from *source) risen {
			r := risen{from: from, line: line{function: "whole"}}
			if from != nil {
				r.line = from.line
			}
			r.rise.Blocks = blocks
			return r
		}
		all := []risen{rise(4, from), rise(6, from), rise(100, other), rise(100, nil)}
		newDetector(nil, resolveNone).nameForwards(all)
		require.Equal(t, []string{want, want, "other", "whole"}, []string{all[0].line.function, all[1].line.function, all[2].line.function,
			all[3].line.function})
	}
}

// TestForwardLine: the outermost call of a module, unless a hook of the program allocates, which no forward calls.
func TestForwardLine(t *testing.T) {
	const module = "/usr/lib/python3.11/site-packages/torch/nn/modules/module.py"
	python := func(file, function string) event.Frame {
		return event.Frame{Kind: event.FramePython, File: file, Func: function, Line: 1}
	}
	call := python(module, "Module._call_impl")
	program, net, hook := python("train.py", "main"), python("net.py", "Net.forward"), python("probe.py", "Probe.hook")
	linear := python("/usr/lib/python3.11/site-packages/torch/nn/modules/linear.py", "Linear.forward")
	for name, c := range map[string]struct {
		frames []event.Frame
		want   string
	}{
		"a module":                        {[]event.Frame{linear, call, net, call, program}, "main"},
		"a function that a forward calls": {[]event.Frame{python("net.py", "mix"), net, call, program}, "main"},
		"a function that PyTorch's calls": {[]event.Frame{python("net.py", "act"), linear, call, program}, "main"},
		"a hook":                          {[]event.Frame{hook, call, net, call, program}, ""},
		"a module in a hook":              {[]event.Frame{linear, call, hook, call, program}, ""},
		"no module":                       {[]event.Frame{program}, ""},
	} {
		got, _ := newDetector(nil, resolveNone).forwardLine(c.frames)
		require.Equal(t, c.want, got.function, name)
	}
}

// TestForwardOuter: one line that calls a module is another one for other callers.
func TestForwardOuter(t *testing.T) {
	frames := func(caller int) []event.Frame {
		return []event.Frame{
			{Kind: event.FramePython, File: "/usr/lib/python3.11/site-packages/torch/nn/modules/module.py", Func: "Module._call_impl", Line: 1},
			{Kind: event.FramePython, File: "train.py", Func: "loss", Line: 65},
			{Kind: event.FramePython, File: "train.py", Func: "main", Line: caller},
		}
	}
	d := newDetector(nil, resolveNone)
	train, outer := d.forwardLine(frames(80))
	kept, other := d.forwardLine(frames(83))
	require.Equal(t, train, kept)
	require.NotEqual(t, outer, other)
	_, again := d.forwardLine(frames(80))
	require.Equal(t, outer, again)
}

// TestAdvice: what to do follows from what grows and what keeps it.
func TestAdvice(t *testing.T) {
	for _, c := range []struct {
		f    Finding
		want string
	}{
		{Finding{Graph: true, Kind: Leak, Blocks: 1, Requested: 4},
			"the graph of this forward pass is kept: use torch.no_grad(), or keep .detach() of its result"},
		{Finding{Kind: Leak, Blocks: 2, Requested: 16}, "each block is one number: keep .item() of it in place of the tensor"},
		{Finding{Kind: Leak, Blocks: 2, Requested: 18}, ""},
		{Finding{Kind: Growth, Blocks: 2, Requested: 4}, ""},
		{Finding{Kind: Leak, Requested: 0}, ""},
		{Finding{Layer: event.LayerAllocator, Phase: phases.Forward, UsualEnd: phases.Backward},
			"a tensor of the forward pass is kept: keep a copy of what is needed of it, .detach().cpu() or .item()"},
		{Finding{Layer: event.LayerDevice, Phase: phases.Forward, UsualEnd: phases.Backward}, ""},
		{Finding{Layer: event.LayerAllocator, Holder: "main() local losses[0..9].grad_fn …"},
			"each tensor in losses keeps the graph of its step: keep .item() or .detach() of it"},
		{Finding{Layer: event.LayerAllocator, Holder: "total.grad_fn …"},
			"total carries the graph of all steps before: call total = total.detach() after each step, or add up .item()"},
		{Finding{Layer: event.LayerHost, Holder: "total.grad_fn …"}, ""},
		{Finding{Layer: event.LayerAllocator, Holder: "total"}, ""},
	} {
		require.Equal(t, c.want, c.f.Advice(), "%+v", c.f)
	}
}

// TestFill: a device is full when all that grows on it has used what is free; host memory fills none.
func TestFill(t *testing.T) {
	device := func(n int8) event.Device { return event.Device{Type: event.DeviceCUDA, Index: n} }
	find := func() []Finding {
		all := []Finding{{Device: device(0), Bytes: 10}, {Device: device(0), Bytes: 30}, {Device: device(1), Bytes: 5},
			{Device: device(0), Layer: event.LayerHost, Bytes: 1e9}, {Device: device(2)}}
		for i := range all {
			all[i].Seconds = math.NaN()
		}
		return all
	}
	o := &Options{Free: map[event.Device]uint64{device(0): 400, device(2): 7}}
	all := find()
	fill(all, &Steps{Period: 2e9}, o)
	require.InDelta(t, 20, all[0].Seconds, 1e-9)
	require.InDelta(t, 20, all[1].Seconds, 1e-9)
	for _, i := range []int{2, 3, 4} {
		require.True(t, math.IsNaN(all[i].Seconds), "%d", i)
	}
	all = find()
	fill(all, &Steps{}, o)
	require.True(t, math.IsNaN(all[0].Seconds), "the length of a step is not known")
}

// TestKindsAndConfidence: what a finding is called.
func TestKindsAndConfidence(t *testing.T) {
	require.Equal(t, HostGrowth, kindOf(event.LayerHost, nil))
	require.Equal(t, DeviceGrowth, kindOf(event.LayerDevice, nil))
	require.Equal(t, Leak, kindOf(event.LayerAllocator, []trend{{linear: true}, {linear: true}}))
	require.Equal(t, Growth, kindOf(event.LayerAllocator, []trend{{linear: true}, {}}))
	for periods, want := range map[int]Confidence{9: Low, 10: Medium, 19: Medium, 20: High} {
		require.Equal(t, want, confidenceOf(periods))
	}
}

// TestShareOfRise: a rise is a part of that of all since its window, at most all of it, and not known where nothing rose.
func TestShareOfRise(t *testing.T) {
	total := &series{windows: []floor{{Bytes: 5}, {Bytes: 10}, {Bytes: 40}, {Bytes: 30}}}
	require.InDelta(t, 0.5, shareOf(total, 1, 10), 1e-12)
	require.InDelta(t, 0.4, shareOf(total, 0, 10), 1e-12)
	require.InDelta(t, 1, shareOf(total, 1, 50), 1e-12)
	require.True(t, math.IsNaN(shareOf(total, 3, 10)))
	require.True(t, math.IsNaN(shareOf(total, 4, 10)))
}

// TestOneHolder: what holds half of the blocks is named; where a running job allocated more than was read, what is
// known decides if it is enough.
func TestOneHolder(t *testing.T) {
	f := &Finding{Sites: []string{"a", "b"}}
	row := func(site, name string, bytes, blocks uint64) Holder { return Holder{site, name, bytes, blocks} }
	for _, c := range []struct {
		what string
		rows []Holder
		best string
		open uint64
	}{
		{"nothing", nil, "", 0},
		{"another site", []Holder{row("c", "x", 9, 9)}, "", 0},
		{"half", []Holder{row("a", "x", 50, 1), row("a", "[none]", 50, 3)}, "x", 0},
		{"less than half, and few", []Holder{row("a", "x", 49, 4), row("a", "[none]", 51, 3)}, "", 0},
		{"less than half, and enough", []Holder{row("a", "x", 49, 5), row("a", "", 51, 3)}, "x", 3},
		{"of two sites", []Holder{row("a", "x", 20, 3), row("b", "x", 20, 2), row("b", "[none]", 60, 9)}, "x", 9},
		{"three quarters of the known", []Holder{row("a", "x", 30, 5), row("a", "y", 10, 5), row("a", "[none]", 60, 9)}, "x", 9},
		{"less than that", []Holder{row("a", "x", 29, 5), row("a", "y", 11, 5), row("a", "[none]", 60, 9)}, "", 0},
		{"as much of C++ as may be", []Holder{row("a", "x", 10, 5), row("a", "<C++>", 30, 7), row("a", "[none]", 60, 9)}, "x", 16},
		{"more of it", []Holder{row("a", "x", 10, 5), row("a", "<C++>", 31, 7), row("a", "[none]", 60, 9)}, "", 0},
		{"the first of two", []Holder{row("a", "x", 50, 5), row("a", "y", 50, 5)}, "x", 0},
	} {
		best, open := f.holder(c.rows, nil)
		require.Equal(t, []any{c.best, c.open}, []any{best, open}, c.what)
	}
	full := map[string]advice.Facts{"items[0..9]": {Full: true}}
	best, open := f.holder([]Holder{row("a", "items[0..9]", 60, 6), row("a", "heap[0..9].item", 50, 5)}, full)
	require.Equal(t, []any{"heap[0..9].item", uint64(6)}, []any{best, open}, "a full container does not grow")
	best, _ = f.holder([]Holder{row("a", "items[0..9]", 60, 6), row("a", "x", 50, 4)}, full)
	require.Equal(t, "items[0..9]", best, "nothing else has many")
	best, _ = f.holder([]Holder{
		row("a", "kept[*]['loss']", 40, 1), row("a", "kept[*]['score']", 40, 1), row("a", "other", 20, 1), row("a", "more", 60, 1),
	}, nil)
	require.Equal(t, "kept[*]['loss', 'score']", best, "what holds the holders")
}

// TestMostOfHeld: a finding is most of what is held of its sites when it is half of that.
func TestMostOfHeld(t *testing.T) {
	rows := []Holder{{"a", "x", 60, 1}, {"a", "y", 40, 1}, {"a", "[none]", 900, 1}, {"a", "<C++>", 900, 1}, {"a", "", 900, 1},
		{"b", "x", 900, 1}}
	for live, want := range map[uint64]bool{49: false, 50: true} {
		require.Equal(t, want, (&Finding{Sites: []string{"a"}, LiveBytes: live}).isMostOf(rows))
	}
}

// TestVerdictOf: what grows comes first, then a request that failed; steady takes twenty steps and no doubt.
func TestVerdictOf(t *testing.T) {
	of := func(refused bool, change func(*Report)) Verdict {
		r := &Report{Steps: Steps{Count: MinSteps}}
		change(r)
		return verdictOf(r, refused)
	}
	none := func(*Report) {}
	require.Equal(t, Steady, of(false, none))
	require.Equal(t, OutOfMemory, of(true, none))
	require.Equal(t, Growing, of(true, func(r *Report) { r.Findings = make([]Finding, 1) }))
	for _, doubt := range []func(*Report){
		func(r *Report) { r.Steps.Count-- }, func(r *Report) { r.Steps.Loads = true }, func(r *Report) { r.Steps.Rise = 1 },
		func(r *Report) { r.Suspects = []Finding{{}} },
	} {
		require.Equal(t, Unclear, of(false, doubt))
	}
}

// TestLoading: what recurs for long enough, and often enough, is no model that is loaded.
func TestLoading(t *testing.T) {
	for _, c := range []struct {
		s       Steps
		outlast bool
		settled bool
	}{
		{Steps{Count: loadSteps, Period: loadTime / loadSteps, Source: steps.SourcePeriod}, true, true},
		{Steps{Count: loadSteps - 1, Period: loadTime, Source: steps.SourcePeriod}, false, true},
		{Steps{Count: loadSteps, Period: loadTime/loadSteps - 1, Source: steps.SourcePeriod}, false, false},
		{Steps{Count: 1, Period: 1, Source: steps.SourceBackward}, false, true},
	} {
		require.Equal(t, c.outlast, c.s.outlastLoading(), c.s)
		require.Equal(t, c.settled, c.s.Settled(), c.s)
	}
	require.Zero(t, (&Report{}).Needed())
	r := &Report{Steps: Steps{Period: 10}, Suspects: []Finding{{First: 5, Period: 100}}}
	require.InDelta(t, 10*(5+100*(floors.MinRises+1)), r.Needed(), 1e-9)
}

// TestTurnover: the blocks from before the attach that are freed are counted with their size, also those that were not known.
func TestTurnover(t *testing.T) {
	freed := func(size uint64) *event.Event {
		return &event.Event{Kind: event.KindFree, Layer: event.LayerAllocator, PID: 7, Size: size, Time: 5}
	}
	tr := &turnover{}
	left := func() []int64 {
		var out []int64
		for _, x := range tr.recent {
			require.True(t, x.older)
			require.Equal(t, sizeKey{place{event.LayerAllocator, event.Device{}, 7}, sizeClass(uint64(x.bytes))}, x.size)
			out = append(out, x.bytes)
		}
		return out
	}
	tr.see(freed(512), nil)
	require.Empty(t, left(), "a block may leave with it")
	tr.freed(liveBlock(1, 512, nil), 5, nil)
	tr.see(&event.Event{Kind: event.KindAlloc}, nil)
	require.Empty(t, left(), "it was known, and not from before")
	tr.see(freed(512), nil)
	tr.see(freed(event.Unknown), nil)
	require.Equal(t, []int64{512}, left(), "no block left with it")
	tr.settle(nil)
	require.Equal(t, []int64{512}, left())
	before := func(b *heap.Block) { b.Origin = heap.OriginBefore }
	tr.freed(liveBlock(1, 513, before), 6, nil)
	require.Equal(t, []int64{512, 513}, left())
	tr.freed(liveBlock(1, 513, func(b *heap.Block) { before(b); b.Layer = event.LayerDevice }), 6, nil)
	tr.freed(liveBlock(1, event.Unknown, before), 6, nil)
	other := freed(512)
	other.Layer = event.LayerDevice
	tr.see(other, nil)
	tr.settle(nil)
	require.Equal(t, []int64{512, 513}, left())
	for range 3 * keptDepartures {
		tr.freed(liveBlock(1, 512, before), 9, nil)
		require.LessOrEqual(t, len(tr.recent), 2*keptDepartures)
	}
	require.GreaterOrEqual(t, len(tr.recent), keptDepartures)
}

// TestReplaced: a block that leaves a pool is taken from the line whose block came right before it or right after,
// and never from one that has no more than at first.
func TestReplaced(t *testing.T) {
	d := newDetector(nil, resolveNone)
	old := departure{size: sizeKey{place{event.LayerAllocator, event.Device{}, 7}, 9}, bytes: 512, older: true}
	addr := uint64(0)
	alloc := func(stack event.StackID) *site {
		addr++
		b := liveBlock(addr, 512, func(b *heap.Block) { b.Stack = stack })
		d.allocated(b)
		_, s := d.find(b)
		return s
	}
	pause := func(n uint64) { d.order += n }
	d.departed(old)
	one, two := alloc(1), alloc(2)
	d.goTo(1, 1)
	require.Zero(t, one.lent, "in the first step nothing is known of a line")
	d.goTo(2, 2)
	lent := func(after func()) [2]int64 {
		x, y := one.lent.Blocks, two.lent.Blocks
		after()
		return [2]int64{one.lent.Blocks - x, two.lent.Blocks - y}
	}
	require.Equal(t, [2]int64{1, 0}, lent(func() { alloc(1); d.departed(old); pause(5); alloc(2) }), "right before")
	require.Equal(t, [2]int64{0, 1}, lent(func() { alloc(1); pause(5); d.departed(old); alloc(2) }), "right after")
	require.Equal(t, [2]int64{0, 1}, lent(func() {
		alloc(1)
		pause(5)
		d.departed(old)
		d.goTo(3, 3)
		alloc(2)
	}), "in the next step")
	require.Equal(t, [2]int64{0, 0}, lent(func() {
		d.departed(departure{size: sizeKey{old.size.place, 10}, bytes: 1024})
		alloc(1)
	}), "another size")
	require.Equal(t, [2]int64{1, 0}, lent(func() { alloc(1); d.departed(old); d.goTo(6, 6); d.departed(old) }),
		"the first, once its step is over")
	live := one.live.Blocks
	for range 100 {
		d.departed(old)
		d.goTo(d.step+2, 9)
	}
	d.decideAll()
	require.Equal(t, []int64{0, 0}, []int64{one.live.Blocks, two.live.Blocks}, "no more than was there, %d", live)
	require.Empty(t, d.leaving)
	require.Equal(t, one.line.live.Blocks, one.live.Blocks)
}

// TestSizeClass: sizes are kept apart by the power of two that they fit in.
func TestSizeClass(t *testing.T) {
	for size, want := range map[uint64]uint8{0: 0, 1: 0, 2: 1, 3: 2, 4: 2, 512: 9, 513: 10} {
		require.Equal(t, want, sizeClass(size))
	}
}

// TestAmounts: an amount for each step, and sums.
func TestAmounts(t *testing.T) {
	require.Equal(t, amount{2, 3, 4}, over(floor{Blocks: 4, Requested: 6, Bytes: 8}, 2))
	require.Equal(t, amount{5, 7, 9}, amount{1, 2, 3}.plus(amount{4, 5, 6}))
}

// TestLatestSteps: of a long series the latest 64 steps are there one by one.
func TestLatestSteps(t *testing.T) {
	require.Empty(t, (&series{}).latest())
	for _, n := range []int{5, 63, 64, 65, 200} {
		s := follow(n, func(step int) int64 { return int64(step) })
		latest := s.latest()
		require.Len(t, latest, min(n+1, keptSteps), "with the step 0")
		for i := range latest {
			step := n + 1 - len(latest) + i
			require.EqualValues(t, max(0, step-1), latest[i].Blocks, "step %d of %d has what was there when it began", step, n)
		}
		require.LessOrEqual(t, len(s.windows), maxWindows)
	}
}

// TestStepsOfFinding: where the beginning of a recording was dropped, the steps of a finding have their numbers all the same.
func TestStepsOfFinding(t *testing.T) {
	d := newDetector(nil, resolveNone)
	k := lineKey{place{event.LayerAllocator, event.Device{}, 7}, line{function: "f"}}
	d.totals[k.place] = &series{}
	rise := trend{first: 3, period: 2, periods: 10, step: amount{1, 100, 512}, live: floor{Blocks: 4, Requested: 400, Bytes: 2048}}
	later := rise
	later.first, later.live.Blocks = 5, -1
	f := d.finding(k, []risen{{trend: rise, place: k.place, line: k.line}}, []trend{later, rise}, &Steps{Last: 50, base: 20}, &Options{})
	require.Equal(t, []int{23, 50, 2}, []int{f.First, f.Last, f.Period})
	require.Equal(t, []float64{2, 200, 1024}, []float64{f.Blocks, f.Requested, f.Bytes})
	require.EqualValues(t, []uint64{4, 4096}, []uint64{f.LiveBlocks, f.LiveBytes})
	require.Equal(t, Medium, f.Confidence)
	require.False(t, f.Graph)
	d.blind = true
	f = d.finding(k, []risen{{trend: rise, place: k.place, line: k.line}}, []trend{rise}, &Steps{}, &Options{})
	require.True(t, math.IsNaN(f.Requested), "a requested size was not known")
}

// TestWatchedSteps: a verdict of now is made from the complete steps of this numbering, and a time is in the step
// that began last before it.
func TestWatchedSteps(t *testing.T) {
	w := NewWatch(nil, resolveNone)
	require.Zero(t, w.Judged())
	w.last, w.base = steps.Begin{Step: 30, Time: 9}, 9
	require.Equal(t, 20, w.Judged(), "the last one runs, and nine were of before")
	w.base = 30
	require.Zero(t, w.Judged())

	w.base, w.begins = 9, []steps.Begin{{Step: 10, Time: 100}, {Step: 11, Time: 200}, {Step: 12, Time: 200}, {Step: 13, Time: 300}}
	at := w.ascending()
	for _, c := range [][2]uint64{{99, 0}, {100, 1}, {199, 1}, {200, 3}, {299, 3}, {1000, 4}} {
		require.EqualValues(t, c[1], at(c[0]), "at %d", c[0])
	}
	_, begins := w.Begins()
	require.Len(t, begins, 4)
	_, begins = w.Begins()
	require.Nil(t, begins, "each is taken once")
}

// TestWatchedLibrary: what is of a library is known from the beginning of a watch.
func TestWatchedLibrary(t *testing.T) {
	require.Equal(t, []string{"/opt/lib/"}, NewWatch(&steps.Rules{Library: []string{"/opt/lib/"}}, resolveNone).library)
	require.Empty(t, NewWatch(nil, resolveNone).library)
}
