// SPDX-License-Identifier: Apache-2.0

package oom

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/balance"
	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// TestContext: what the driver counts for the process beyond segments and what others in it obtained, by hand. Where the allocator's own
// total was read at the same moment, that counts and not the segments.
func TestContext(t *testing.T) {
	use := func(device int, used figures.Bytes) figures.DriverUse {
		return figures.DriverUse{Device: device, Used: used, Total: 100 * mib}
	}
	torch := func(device int, reserved figures.Bytes) figures.TorchMemory {
		return figures.TorchMemory{Device: device, Reserved: reserved}
	}
	for name, tt := range map[string]struct {
		driver []figures.DriverUse
		torch  []figures.TorchMemory
		want   uint64
	}{
		"42 of segments and 5 of libfoo":  {[]figures.DriverUse{use(0, 57*mib)}, nil, 10 * mib},
		"the allocator says 44":           {[]figures.DriverUse{use(0, 57*mib)}, []figures.TorchMemory{torch(0, 44*mib)}, 8 * mib},
		"the allocator of another device": {[]figures.DriverUse{use(0, 57*mib)}, []figures.TorchMemory{torch(1, 44*mib)}, 10 * mib},
		"two devices": {[]figures.DriverUse{use(1, 99*mib), use(0, 48*mib)},
			[]figures.TorchMemory{torch(1, 9*mib), torch(0, 41*mib)}, 2 * mib},
		"less than is known":           {[]figures.DriverUse{use(0, 46*mib)}, []figures.TorchMemory{torch(0, 42*mib)}, u},
		"the allocator's is not known": {[]figures.DriverUse{use(0, 57*mib)}, []figures.TorchMemory{torch(0, figures.Unknown)}, u},
	} {
		t.Run(name, func(t *testing.T) {
			p := divided()
			r := p.find(t, Input{Readings: []figures.Reading{{Time: p.now() - 1, Driver: tt.driver, Torch: tt.torch}}})
			require.Equal(t, tt.want, r.Cases[0].Context)
		})
	}
}

// TestContextBeforeAttach: where segments are from before the attach, only the allocator's own total says how much they are.
func TestContextBeforeAttach(t *testing.T) {
	for name, tt := range map[string]struct {
		torch []figures.TorchMemory
		want  uint64
	}{
		"not read": {nil, u}, "read": {[]figures.TorchMemory{{Device: 0, Reserved: 25 * mib}}, 5 * mib},
	} {
		p := newProgram()
		p.allocated, p.reserved = mib, 20*mib
		p.block(keeps, 0, mib, 0)
		p.fail(16*mib, 1)
		r := p.find(t, Input{Readings: []figures.Reading{{Time: p.now() - 1,
			Driver: []figures.DriverUse{{Device: 0, Used: 30 * mib, Total: 40 * mib}}, Torch: tt.torch}}})
		require.Equal(t, tt.want, r.Cases[0].Context, name)
	}
}

// TestDriverError: a call of the driver that fails without a report is on the device of the only allocator of its
// process when it names none, and on its own when it does.
func TestDriverError(t *testing.T) {
	for name, tt := range map[string]struct{ index, want int8 }{"names none": {-1, 0}, "names it": {0, 0}, "another": {1, 1}} {
		p := divided()
		p.Events = p.Events[:len(p.Events)-3]
		p.driver(event.KindOutOfMemory, foreign, 0, 7*mib)
		p.Events[len(p.Events)-1].Device.Index = tt.index
		if tt.index < 0 {
			p.Events[len(p.Events)-1].Device = event.Device{Index: -1}
		}
		r := p.find(t, Input{Ended: true})
		require.Len(t, r.Cases, 1, name)
		c := &r.Cases[0]
		require.False(t, c.Reported)
		require.Equal(t, DriverError, c.Decision, name)
		require.Equal(t, tt.want, c.Device.Index, name)
		require.Equal(t, "cudaMalloc", c.Call)
		require.EqualValues(t, 7*mib, c.Requested)
		if tt.want == 0 {
			require.EqualValues(t, 42*mib, c.Torch.Reserved, name)
		}
	}
}

// TestLargestGrowth: a line stands out when it has eight blocks or more, half of what the step has, and with what
// is older a tenth more than the peak of the steps before.
func TestLargestGrowth(t *testing.T) {
	row := func(site string, objects, bytes uint64) Growth {
		return Growth{Site: site, Holder: view.NoHolder, Count: heap.Count{Objects: objects, Bytes: bytes}}
	}
	for name, tt := range map[string]struct {
		rows    []Growth
		healthy uint64
		want    string
	}{
		"at all bounds":      {[]Growth{row("b", 9, 50), row("a", 8, 50)}, 45, "a"},
		"few blocks":         {[]Growth{row("a", 7, 50)}, 50, ""},
		"less than half":     {[]Growth{row("a", 8, 30), row("b", 9, 16), row("c", 9, 16)}, 50, ""},
		"half of its step":   {[]Growth{row("a", 8, 20), row("b", 9, 20)}, 70, "a"},
		"with what is older": {[]Growth{row("a", 8, 20)}, 90, "a"},
		"not a tenth more":   {[]Growth{row("a", 8, 20)}, 91, ""},
		"without the others": {[]Growth{row("a", 8, 20), row("b", 9, 19)}, 80, ""},
		"nothing":            {nil, 50, ""},
		"the first by name":  {[]Growth{row("b", 8, 50), row("a", 8, 50)}, 40, "a"},
		"not the largest":    {[]Growth{row("a", 1, 60), row("b", 8, 40)}, 20, ""},
		"more than all":      {[]Growth{row("a", 800, 110)}, 1, "a"},
	} {
		t.Run(name, func(t *testing.T) {
			c := &Case{Healthy: tt.healthy, Torch: balance.Torch{Allocated: 100}, Top: []Holding{
				{Site: "a", Holder: "x", Count: heap.Count{Bytes: 3}}, {Site: "a", Holder: "y", Count: heap.Count{Bytes: 60}},
				{Site: "a", Holder: view.NoHolder, Count: heap.Count{Bytes: 40}}, {Site: "b", Holder: "z", Count: heap.Count{Bytes: 9}},
				{Site: "a", Holder: "w", Count: heap.Count{Bytes: 4}},
			}}
			rows := slices.Clone(tt.rows)
			c.setLargestGrowth(rows, c.Healthy)
			require.Equal(t, tt.want, c.Grown.Site)
			if tt.want == "" {
				return
			}
			require.Equal(t, []any{"y", uint64(60)}, []any{c.Grown.Holder, c.Grown.Held}, "the holder of most of it")
			of := slices.IndexFunc(tt.rows, func(g Growth) bool { return g.Site == tt.want })
			require.Equal(t, tt.rows[of].Count, c.Grown.Count)
		})
	}
}

// TestAdvice: a holder decides; where it is not known, blocks of several operations do.
func TestAdvice(t *testing.T) {
	for _, tt := range []struct {
		phase  phases.Phase
		holder string
		places int
		want   string
	}{
		{phases.Evaluation, view.NoHolder, 1, ""},
		{phases.Evaluation, view.NoHolder, 2, "If a graph keeps them: evaluate under torch.no_grad()"},
		{phases.Forward, view.NoHolder, 3, ""},
		{phases.Evaluation, "eval() local outputs[", 9, ""},
		{phases.Evaluation, "eval() local total.grad_fn", 1, "A graph keeps them: evaluate under torch.no_grad()"},
		{phases.Evaluation, "<torch::autograd::generated::AddmmBackward0>", 1, "A graph keeps them: evaluate under torch.no_grad()"},
		{phases.Evaluation, "C++ MulBackward0._saved_self", 1, "A graph keeps them: evaluate under torch.no_grad()"},
	} {
		c := Case{Phase: tt.phase, Grown: Growth{Site: "eval.py:3 eval", Holder: tt.holder, Places: tt.places}}
		require.Equal(t, tt.want, c.Advice(), "%+v", tt)
		c.Grown.Site = ""
		require.Empty(t, c.Advice())
	}
	c := Case{Phase: phases.Evaluation, Grown: Growth{Site: "lm.py:9 f", Holder: view.NoHolder, Places: 2, Made: 900,
		Count: heap.Count{Objects: 13}}}
	require.Empty(t, c.Advice(), "a line that frees nearly all that it allocates keeps no graph")
	c = Case{Phase: phases.Evaluation, Spread: Growth{Places: 9}}
	require.Equal(t, "If a graph keeps them: evaluate under torch.no_grad()", c.Advice())
}

// trained writes complete steps, the optimizer of which keeps state where that is asked for.
func trained(n int, state bool) *program {
	p := newProgram()
	p.segment(0, 256*mib)
	p.block(keeps, 0, mib, 0)
	for range n {
		for k, stack := range []string{eventtest.Input, eventtest.Forward, eventtest.Backward, eventtest.Adam} {
			p.block(stack, 10*mib, mib+uint64(k), 0)
			p.free(10*mib, mib+uint64(k))
		}
	}
	if state {
		p.block(eventtest.Adam, 20*mib, mib, 0)
	}
	return p
}

// failIn is a request of a line that is refused.
func (p *program) failIn(stack string, size uint64) {
	p.fail(size, 1)
	p.Events[len(p.Events)-1].Stack = p.ID(stack)
}

// TestState: in the optimizer's first step, what it has allocated is its state; where it had some before, the step is not its first.
func TestState(t *testing.T) {
	makes := strings.Replace(eventtest.Adam, "_multi_tensor_adam ",
		"_multi_tensor_adam /v/lib/python3.11/site-packages/torch/optim/adam.py:150:Adam._init_group ", 1)
	for name, tt := range map[string]struct {
		before bool
		fails  string
		want   uint64
	}{
		"first step": {false, eventtest.Adam, 5 * mib}, "a later step": {true, eventtest.Adam, 0}, "another phase": {false, eventtest.Forward, 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := trained(6, tt.before)
			for _, stack := range []string{eventtest.Input, eventtest.Forward, eventtest.Backward} {
				p.block(stack, 10*mib, mib, 0)
				p.free(10*mib, mib)
			}
			p.block(makes, 30*mib, 2*mib, 0)
			p.block(makes, 40*mib, 3*mib, 0)
			p.block(eventtest.Adam, 50*mib, mib, 0)
			p.failIn(tt.fails, 16*mib)
			c := &p.find(t, Input{}).Cases[0]
			require.Equal(t, tt.want, c.State)
		})
	}
}

// TestGrown: what a line has allocated since the step of the failure began, and not what it had before.
func TestGrown(t *testing.T) {
	p := trained(6, false)
	p.block(eventtest.Input, 10*mib, mib, 0)
	for i := range uint64(10) {
		p.block(keepsToo, (30+i)*mib, mib, 0)
	}
	p.failIn(eventtest.Forward, 200*mib)
	c := &p.find(t, Input{}).Cases[0]
	require.Equal(t, "train.py:11 load", c.Grown.Site)
	require.Equal(t, heap.Count{Objects: 10, Bytes: 10 * mib, Requested: 10*mib - 10, RequestedObjects: 10}, c.Grown.Count)
	require.Equal(t, 1, c.Grown.Places)
	require.EqualValues(t, 2*mib+3, c.Healthy, "1 MiB that stays, and the largest temporary")
	early := trained(6, false)
	for i := range uint64(10) {
		early.block(keepsToo, (30+i)*mib, mib, 0)
	}
	early.block(eventtest.Backward, 10*mib, mib, 0)
	early.block(eventtest.Adam, 11*mib, mib, 0)
	early.block(eventtest.Input, 12*mib, mib, 0)
	early.failIn(eventtest.Forward, 200*mib)
	require.Empty(t, early.find(t, Input{}).Cases[0].Grown.Site, "that was in an earlier step")
}

// TestJoined: a request of torch.cat is for a copy of the blocks of a line that add up to it.
func TestJoined(t *testing.T) {
	const behind = " /home/a/train.py:30:join /home/a/train.py:9:main"
	for name, tt := range map[string]struct {
		stack string
		asked uint64
		want  string
	}{
		"all of them":       {"a.so!at::_ops::cat::call" + behind, 10 * mib, "train.py:11 load"},
		"and a little more": {"a.so!at::_ops::stack::call" + behind, 10*mib + mib/2, "train.py:11 load"},
		"far more":          {"a.so!at::_ops::cat::call" + behind, 11 * mib, ""},
		"another function":  {"a.so!at::_ops::add::call" + behind, 10 * mib, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := trained(6, false)
			for i := range uint64(10) {
				p.block(keepsToo, (30+i)*mib, mib, 0)
			}
			p.failIn(tt.stack, tt.asked)
			require.Equal(t, tt.want, p.find(t, Input{}).Cases[0].Joined.Site)
		})
	}
}

// TestNeedExact: of a device with exactly as much free as was asked for, all of it had to be free.
func TestNeedExact(t *testing.T) {
	for free, want := range map[uint64]uint64{gib - 1: 1, gib: gib, gib + 1: gib} {
		c := made(func(c *Case) { c.Free = free })
		c.decide()
		require.Equal(t, want, c.Need, "free %d", free)
	}
	c := made(func(c *Case) { c.Asked = event.Unknown })
	c.decide()
	require.EqualValues(t, 512*mib, c.Need, "the driver would be asked for a segment of 1 GiB")
	c = made(func(c *Case) { c.Asked, c.Reported, c.Requested = event.Unknown, false, gib+mib })
	c.decide()
	require.EqualValues(t, 513*mib, c.Need, "of a call of the driver, what it was given")
}

// TestSpread: an evaluation that keeps the blocks of many operations, of which no line stands out.
func TestSpread(t *testing.T) {
	row := func(phase phases.Phase, places int, bytes uint64) Growth {
		return Growth{Site: "a.py:3 f", Phase: phase, Places: places, Count: heap.Count{Objects: 3, Bytes: bytes}}
	}
	const evaluation = phases.Evaluation
	for name, tt := range map[string]struct {
		rows    []Growth
		healthy uint64
		want    uint64 // bytes; 0: it is not said
	}{
		"of two lines":        {[]Growth{row(evaluation, 4, 30), row(evaluation, 4, 28)}, 50, 58},
		"and a forward":       {[]Growth{row(evaluation, 8, 40), row(phases.Forward, 9, 30)}, 50, 40},
		"mostly of a forward": {[]Growth{row(evaluation, 8, 30), row(phases.Forward, 9, 40)}, 50, 0},
		"of few operations":   {[]Growth{row(evaluation, 4, 30), row(evaluation, 3, 28)}, 50, 0},
		"no more than before": {[]Growth{row(evaluation, 4, 30), row(evaluation, 4, 28)}, 95, 0},
	} {
		c := &Case{Healthy: tt.healthy, Torch: balance.Torch{Allocated: 100}}
		c.setLargestGrowth(tt.rows, c.Healthy)
		require.Equal(t, tt.want, c.Spread.Bytes, name)
		require.Equal(t, tt.want > 0, c.Spread.Places > 0, name)
	}
}

// TestHold: what a reading found of a line names the line's newer blocks only if it was made after the first of them.
func TestHold(t *testing.T) {
	c := &Case{HeldAt: 10, Top: []Holding{{Site: "a.py:1", Holder: "model.weight", Count: heap.Count{Objects: 8, Bytes: 80}}}}
	for from, want := range map[uint64]string{0: "model.weight", 10: "model.weight", 11: view.NoHolder} {
		g := Growth{Site: "a.py:1", Holder: view.NoHolder, From: from, Count: heap.Count{Objects: 8, Bytes: 80}}
		c.hold(&g)
		require.Equal(t, want, g.Holder, from)
	}
}

// TestCopies: a second model has blocks of the sizes of the first, once each; results of one size are none.
func TestCopies(t *testing.T) {
	model := []uint64{512, 1 << 20, 4 << 20, 1 << 20, 4 << 20, 512}
	for name, c := range map[string]struct {
		older, newer []uint64
		want         bool
	}{
		"a copy":         {model, model, true},
		"a part of one":  {model, model[:4], true},
		"a second part":  {model[:4], model, false},
		"another model":  {model, []uint64{2 << 20, 8 << 20}, false},
		"equal results":  {[]uint64{512, 512, 512}, []uint64{512, 512}, false},
		"the first":      {nil, model, false},
		"nothing is new": {model, nil, false},
	} {
		require.Equal(t, c.want, copies(c.older, c.newer), name)
	}
}
