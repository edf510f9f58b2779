// SPDX-License-Identifier: Apache-2.0

package fragments_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/fragments"
	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/eventtest"
)

func python(line int, function, file string) event.Frame {
	return event.Frame{Kind: event.FramePython, Func: function, File: file, Line: line}
}

// loop is a program of 12 steps. Each has a temporary of 1 MiB in its forward and of 2 MiB in its backward pass, an activation that
// backward frees, and in step 5 a temporary more; cuBLAS and cuDNN have workspaces.
func loop() *eventtest.Stream {
	const forward, backward, optimizer, cublas, cudnn = 1, 2, 3, 4, 5
	train := python(9, "main", "/job/train.py")
	native := func(name string) event.Frame { return event.Frame{Kind: event.FrameNative, Func: name} }
	s := &eventtest.Stream{Stacks: map[event.StackID]*event.Stack{
		forward: {ID: forward, Frames: []event.Frame{python(7, "Net.forward", "/job/net.py"),
			python(1, "Module._call_impl", "/lib/torch/nn/modules/module.py"), train}},
		backward: {ID: backward, Frames: []event.Frame{python(1, "_engine_run_backward", "/lib/torch/autograd/graph.py"),
			python(1, "Tensor.backward", "/lib/torch/_tensor.py"), train}},
		optimizer: {ID: optimizer, Frames: []event.Frame{python(1, "Adam.step", "/lib/torch/optim/adam.py"), train}},
		cublas:    {ID: cublas, Frames: []event.Frame{native("at::cuda::getCurrentCUDABlasHandle"), train}},
		cudnn:     {ID: cudnn, Frames: []event.Frame{native("at::native::Workspace::Workspace"), train}},
	}}
	live := map[uint64]uint64{}
	total, now := uint64(0), uint64(1000)
	add := func(kind event.Kind, stack event.StackID, addr, size uint64) {
		if kind == event.KindAlloc {
			live[addr] = size
			total += size
		} else {
			size = live[addr]
			total -= size
		}
		now += 1000
		s.Events = append(s.Events, event.Event{
			Time: now, PID: 1, TID: 1, Kind: kind, Layer: event.LayerAllocator, Device: event.Device{Type: event.DeviceCUDA}, Addr: addr, Size: size,
			Allocated: total, Reserved: 256 * mib, Requested: size, Stream: 0, Handle: event.Unknown, Context: event.Unknown, Stack: stack,
		})
	}
	add(event.KindAlloc, cublas, 0x100_0000, 8*mib)
	add(event.KindAlloc, cudnn, 0x200_0000, 3*mib)
	add(event.KindAlloc, cudnn, 0x300_0000, mib)
	for step := 1; step <= 12; step++ {
		add(event.KindAlloc, forward, 0x1000_0000, mib)
		add(event.KindAlloc, forward, 0x2000_0000, 5*mib)
		add(event.KindFree, 0, 0x1000_0000, 0)
		add(event.KindAlloc, backward, 0x3000_0000, 2*mib)
		add(event.KindFree, 0, 0x2000_0000, 0)
		add(event.KindFree, 0, 0x3000_0000, 0)
		if step == 5 {
			add(event.KindAlloc, backward, 0x5000_0000, 7*mib)
			add(event.KindFree, 0, 0x5000_0000, 0)
		}
		add(event.KindAlloc, optimizer, 0x4000_0000, mib)
		add(event.KindFree, 0, 0x4000_0000, 0)
	}
	return s
}

// Temporaries are added up by step and line; what another phase frees is none.
func TestChurn(t *testing.T) {
	trace, err := view.NewTrace(loop(), &view.Options{Library: []string{"/lib/"}})
	require.NoError(t, err)
	table, err := steps.Find(trace, &steps.Rules{Library: []string{"/lib/"}})
	require.NoError(t, err)
	require.Equal(t, 11, table.Count())
	c, err := fragments.ChurnOf(trace, table)
	require.NoError(t, err)
	require.EqualValues(t, 12*4*mib+7*mib, c.Bytes)
	require.EqualValues(t, 12*3+1, c.Blocks)
	require.EqualValues(t, 12*mib+12*9*mib+7*mib, c.Allocated)
	require.EqualValues(t, 11*mib, c.Most)
	require.Equal(t, 11, c.Steps)
	at := 0 // the step of the one temporary more, of 7 MiB
	for i, e := range loop().Events {
		if e.Addr == 0x5000_0000 && e.Kind == event.KindFree {
			at = table.At(loop().Events[i].Time)
		}
	}
	require.Equal(t, at, c.MostAt)
	require.InDelta(t, (10*4.0*mib+11*mib)/11, c.PerStep, 1e-6, "of complete steps")
	blocks := uint64(0)
	for _, s := range c.Sites {
		blocks += s.Blocks
	}
	require.Equal(t, c.Blocks, blocks)
	require.Greater(t, len(c.Sites), 1)
	require.Equal(t, 7*mib+12*3*mib, int(c.Sites[0].Bytes), "the line with the most comes first")
	require.EqualValues(t, 25, c.Sites[0].Blocks)
	require.InDelta(t, 4*mib+7.0*mib/11, c.PerStep, 0.1*mib)
	sum := uint64(0)
	for _, s := range c.Sites {
		sum += s.Bytes
	}
	require.Equal(t, c.Bytes, sum)

	none, err := fragments.ChurnOf(trace, &steps.Table{})
	require.NoError(t, err)
	require.True(t, math.IsNaN(none.PerStep))
	require.Zero(t, none.MostAt)
	require.Zero(t, none.Most)
	require.Equal(t, c.Bytes, none.Bytes)
}

// TestChurnOfEqualSteps: of steps with as many temporaries the first is named, and what was in use before the first event is none.
func TestChurnOfEqualSteps(t *testing.T) {
	j := eventtest.NewJob()
	for range 8 {
		j.Pass(eventtest.Input, eventtest.Forward, eventtest.Backward, eventtest.Adam)
		j.Free(j.Alloc(eventtest.Forward, 1<<20))
	}
	before := event.Event{Kind: event.KindFree, Layer: event.LayerAllocator, Addr: 77, Size: 1 << 20, Requested: event.Unknown,
		Allocated: j.Total()}
	j.Add(before)
	j.Obtain(event.LayerDevice, eventtest.Forward, 9<<20)
	trace, err := view.NewTrace(&j.Stream, nil)
	require.NoError(t, err)
	table, err := steps.Find(trace, nil)
	require.NoError(t, err)
	c, err := fragments.ChurnOf(trace, table)
	require.NoError(t, err)
	require.Equal(t, table.First(), c.MostAt)
	require.InDelta(t, float64(c.Most), c.PerStep, 1e-6)
	require.EqualValues(t, 8*5<<20, c.Allocated)
	require.Equal(t, table.Count(), c.Steps)
}

// Workspaces have lines of their own.
func TestWorkspaces(t *testing.T) {
	trace, err := view.NewTrace(loop(), &view.Options{Library: []string{"/lib/"}})
	require.NoError(t, err)
	maps, err := fragments.At(trace, view.Selection{})
	require.NoError(t, err)
	require.Equal(t, []fragments.Workspace{{Library: "cuBLAS", Blocks: 1, Bytes: 8 * mib}, {Library: "cuDNN", Blocks: 2, Bytes: 4 * mib}},
		fragments.Workspaces(trace, maps[0]))
}
