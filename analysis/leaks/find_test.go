// SPDX-License-Identifier: Apache-2.0

package leaks_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/eventtest"
)

const (
	torch  = "/v/lib/python3.11/site-packages/torch/"
	module = torch + "nn/modules/module.py:1773:Module._wrapped_call_impl"
	caller = " /home/a/train.py:99:main"
)

// Stacks of a training loop, leaf first.
const (
	input    = eventtest.Report + " /home/a/train.py:10:batch" + caller
	forward  = eventtest.Report + " " + eventtest.Library + " " + module + " /home/a/net.py:7:Net.forward " + module + " /home/a/train.py:20:main"
	second   = eventtest.Report + " " + eventtest.Library + " " + module + " /home/a/net.py:8:Net.forward " + module + " /home/a/train.py:40:main"
	kept     = eventtest.Report + " /home/a/train.py:30:main"
	backward = eventtest.Report + " " + torch + "autograd/__init__.py:200:_make_grads " + torch + "autograd/__init__.py:300:backward " +
		torch + "_tensor.py:600:Tensor.backward /home/a/train.py:21:main"
	adam    = eventtest.Report + " " + torch + "optim/adam.py:300:_multi_tensor_adam " + torch + "optim/adam.py:200:Adam.step /home/a/train.py:22:main"
	another = eventtest.Report + " " + torch + "optim/adam.py:300:_multi_tensor_adam " + torch + "optim/adam.py:200:Adam.step /home/a/train.py:24:main"
	closure = eventtest.Report + " /home/a/train.py:50:closure " + torch + "optim/lbfgs.py:300:LBFGS.step /home/a/train.py:22:main"
	driver  = "libcudart.so!cudaMalloc libfoo.so!foo /home/a/train.py:60:main"
)

// job writes the events of a program.
type job struct {
	eventtest.Stream
	ids   map[string]event.StackID
	next  uint64 // address
	total uint64
	live  map[uint64]uint64
	blind bool // no requested bytes
}

func newJob() *job {
	return &job{Stream: eventtest.Stream{Stacks: map[event.StackID]*event.Stack{}}, ids: map[string]event.StackID{}, live: map[uint64]uint64{}}
}

func (j *job) id(stack string) event.StackID {
	id, ok := j.ids[stack]
	if !ok {
		id = event.StackID(len(j.ids) + 1)
		j.ids[stack] = id
		j.Stacks[id] = eventtest.Stack(stack)
	}
	return id
}

func (j *job) add(e event.Event) {
	e.Time, e.PID, e.TID = uint64(len(j.Events)+1)*1e6, eventtest.PID, eventtest.PID
	e.Device = event.Device{Type: event.DeviceCUDA}
	e.Handle, e.Context, e.Reserved = event.Unknown, event.Unknown, event.Unknown
	j.Events = append(j.Events, e)
}

// alloc is a block of PyTorch's.
func (j *job) alloc(stack string, requested uint64) (addr uint64) {
	size := (requested + 511) / 512 * 512
	if j.blind {
		requested = event.Unknown
	}
	j.next += 1 << 30
	j.total += size
	j.live[j.next] = size
	j.add(event.Event{Kind: event.KindAlloc, Layer: event.LayerTorch, Addr: j.next, Size: size, Requested: requested, Allocated: j.total, Stack: j.id(stack)})
	return j.next
}

func (j *job) free(addr uint64) {
	j.total -= j.live[addr]
	j.add(event.Event{Kind: event.KindFree, Layer: event.LayerTorch, Addr: addr, Size: j.live[addr], Requested: event.Unknown, Allocated: j.total})
	delete(j.live, addr)
}

// obtain is memory of another layer.
func (j *job) obtain(layer event.Layer, stack string, size uint64) {
	j.next += 1 << 30
	j.add(event.Event{
		Kind: event.KindAlloc, Layer: layer, Addr: j.next, Size: size, Requested: event.Unknown, Allocated: event.Unknown,
		Call: "cudaMalloc", Stack: j.id(stack),
	})
}

// pass allocates what each stack needs and frees all of it.
func (j *job) pass(stacks ...string) {
	var addrs []uint64
	for _, s := range stacks {
		addrs = append(addrs, j.alloc(s, 1<<20))
	}
	for _, a := range addrs {
		j.free(a)
	}
}

func (j *job) find(t *testing.T, o *leaks.Options) *leaks.Report {
	t.Helper()
	return j.findOn(t, nil, o)
}

// findOn is find with rules for steps.
func (j *job) findOn(t *testing.T, rules *steps.Rules, o *leaks.Options) *leaks.Report {
	t.Helper()
	trace, err := view.NewTrace(&j.Stream, nil)
	require.NoError(t, err)
	table, err := steps.Find(trace, rules)
	require.NoError(t, err)
	r, err := leaks.Find(trace, table, o)
	require.NoError(t, err)
	return r
}

// TestSteps: by what steps are recognised, and how many there are.
func TestSteps(t *testing.T) {
	tests := map[string]struct {
		step   func(j *job, i int)
		chosen string
		source steps.Source
		on     string
		count  int // of 60, without the one that runs
	}{
		"optimizer":       {func(j *job, _ int) { j.pass(input, forward, backward, adam, adam) }, "", steps.SourceOptimizer, "train.py:22 main", 59},
		"two optimizers":  {func(j *job, _ int) { j.pass(input, backward, adam, forward, backward, another) }, "", steps.SourceOptimizer, "train.py:22 main", 59},
		"silent":          {func(j *job, _ int) { j.pass(input, forward, backward) }, "", steps.SourceBackward, "train.py:21 main", 59},
		"closure":         {func(j *job, _ int) { j.pass(input, closure, backward, closure) }, "", steps.SourceBackward, "train.py:21 main", 59},
		"inference":       {func(j *job, _ int) { j.pass(input, forward) }, "", steps.SourcePeriod, "", 59},
		"chosen":          {func(j *job, _ int) { j.pass(input, forward, backward, adam) }, "batch", steps.SourceChosen, "train.py batch", 59},
		"chosen, native":  {func(j *job, _ int) { j.obtain(event.LayerDevice, driver, 1); j.pass(input) }, "foo", steps.SourceChosen, "foo", 59},
		"none":            {func(j *job, i int) { j.alloc("a.so!f"+string(rune('a'+i)), 1) }, "", "", "", 0},
		"a late one":      {func(j *job, i int) { j.pass(input, forward, backward); j.pass([]string{input, another}[i/31]) }, "", steps.SourceBackward, "train.py:21 main", 59},
		"accumulated":     {func(j *job, i int) { j.pass(input, forward, backward, []string{input, adam}[i%4/3]) }, "", steps.SourceOptimizer, "train.py:22 main", 14},
		"the whole class": {func(j *job, _ int) { j.pass(input, forward) }, "Net.forward", steps.SourceChosen, "net.py Net.forward", 59},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			j := newJob()
			for i := range 60 {
				tt.step(j, i)
			}
			got := j.findOn(t, &steps.Rules{On: tt.chosen}, nil)
			require.Equal(t, tt.source, got.Steps.Source)
			require.Equal(t, tt.count, got.Steps.Count)
			if tt.on != "" {
				require.Equal(t, tt.on, got.Steps.On)
			}
		})
	}
}

func TestNoSuchStep(t *testing.T) {
	j := newJob()
	j.pass(input)
	trace, err := view.NewTrace(&j.Stream, nil)
	require.NoError(t, err)
	_, err = steps.Find(trace, &steps.Rules{On: "train_step"})
	require.ErrorIs(t, err, steps.ErrNoSuchStep)
}

// train makes 60 steps, each with a leak from step 11 on, then frees everything, as a process does that ends.
func train(leak func(j *job, i int)) *job {
	j := newJob()
	for i := 1; i <= 60; i++ {
		j.pass(input, forward, forward, forward, forward, backward, adam)
		if i > 10 {
			leak(j, i)
		}
	}
	for addr := range j.live {
		j.free(addr)
	}
	return j
}

func TestFindings(t *testing.T) {
	sizes := []uint64{1 << 10, 1 << 16, 1 << 12}
	tests := map[string]struct {
		leak              func(j *job, i int)
		kind              leaks.Kind
		name              string
		requested, blocks float64
		period            int
		graph             bool
	}{
		"one":         {func(j *job, _ int) { j.alloc(kept, 1000) }, leaks.Leak, "train.py:30 main", 1000, 1, 1, false},
		"an output":   {func(j *job, _ int) { j.alloc(forward, 1000) }, leaks.Leak, "net.py:7 Net.forward", 1000, 1, 1, false},
		"a graph":     {func(j *job, _ int) { j.alloc(second, 1000); j.alloc(second, 9000) }, leaks.Leak, "train.py:40 main", 10000, 2, 1, true},
		"periodic":    {func(j *job, i int) { j.alloc([]string{kept, input}[min(1, i%5)], 600); j.drop(i%5 != 0) }, leaks.Leak, "train.py:30 main", 120, .2, 5, false},
		"many sizes":  {func(j *job, i int) { j.alloc(kept, sizes[i%3]) }, leaks.Leak, "train.py:30 main", 23552, 1, 3, false},
		"host":        {func(j *job, _ int) { j.obtain(event.LayerHost, driver, 700) }, leaks.HostGrowth, "train.py:60 main", 700, 1, 1, false},
		"raw, device": {func(j *job, _ int) { j.obtain(event.LayerDevice, driver, 700) }, leaks.DeviceGrowth, "train.py:60 main", 700, 1, 1, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := train(tt.leak).find(t, nil)
			require.Equal(t, leaks.Growing, got.Verdict)
			require.Len(t, got.Findings, 1)
			f := got.Findings[0]
			require.Equal(t, tt.kind, f.Kind)
			require.Equal(t, tt.name, f.Name())
			require.InDelta(t, tt.requested, f.Requested, 1e-9)
			require.InDelta(t, tt.blocks, f.Blocks, 1e-9)
			require.Equal(t, tt.period, f.Period)
			require.InDelta(t, 10, f.First, float64(tt.period))
			require.Equal(t, 59, f.Last)
			require.Equal(t, tt.graph, f.Graph)
			require.InDelta(t, 1, f.Share, 0.02)
			require.True(t, math.IsNaN(f.Seconds), "the size of the device is not known")
		})
	}
}

// drop frees the block that was allocated last.
func (j *job) drop(really bool) {
	if really {
		j.free(j.next)
	}
}

func TestSteady(t *testing.T) {
	got := train(func(*job, int) {}).find(t, nil)
	require.Equal(t, leaks.Steady, got.Verdict)
	require.Empty(t, got.Findings)
}

func TestVerdicts(t *testing.T) {
	j := newJob()
	for range 12 {
		j.pass(input, forward, backward, adam)
	}
	require.Equal(t, leaks.Unclear, j.find(t, nil).Verdict, "12 steps are too few")
	j.add(event.Event{Kind: event.KindOutOfMemory, Layer: event.LayerTorch, Size: 1 << 40, Allocated: j.total, Stack: j.id(forward)})
	require.Equal(t, leaks.OutOfMemory, j.find(t, nil).Verdict)
}

// TestUnknownRequested: without requested bytes, as of old PyTorch, blocks count by their own, and the figure is not known.
func TestUnknownRequested(t *testing.T) {
	j := newJob()
	j.blind = true
	for range 60 {
		j.pass(input, forward, backward, adam)
		j.alloc(kept, 1000)
	}
	got := j.find(t, nil)
	require.Len(t, got.Findings, 1)
	require.True(t, math.IsNaN(got.Findings[0].Requested))
	require.EqualValues(t, 1024, got.Findings[0].Bytes)
}

func TestHolder(t *testing.T) {
	j := train(func(j *job, _ int) { j.alloc(kept, 1000) })
	site := "train.py:30 main"
	for want, rows := range map[string][]leaks.Holder{
		"main() local seen[0..49]": {{Site: site, Name: "main() local seen[0..49]", Bytes: 900}, {Site: site, Name: "other", Bytes: 9}, {Site: "x", Name: "y", Bytes: 9000}},
		"":                         {{Site: site, Name: "[holder not known]", Bytes: 900}, {Site: site, Name: "other", Bytes: 9}},
	} {
		require.Equal(t, want, j.find(t, &leaks.Options{Holders: rows}).Findings[0].Holder)
	}
}

// TestRandom: of what happens at random, nothing grows. A climb can look like more, once in very many lines.
func TestRandom(t *testing.T) {
	for chosen, most := range map[string]int{"": 0, "at::native::op1": 2} {
		found := 0
		for seed := range uint64(60) {
			trace, err := view.NewTrace(eventtest.Random(seed, 6000), nil)
			require.NoError(t, err)
			table, err := steps.Find(trace, &steps.Rules{On: chosen})
			require.NoError(t, err)
			r, err := leaks.Find(trace, table, nil)
			require.NoError(t, err)
			found += len(r.Findings)
		}
		require.LessOrEqual(t, found, most, chosen)
	}
}
