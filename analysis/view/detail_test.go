// SPDX-License-Identifier: Apache-2.0

package view_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/moment"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// TestDetailAddsUp: however the rows are made, at any moment and in any range, they add up to the same.
func TestDetailAddsUp(t *testing.T) {
	for seed := range uint64(8) {
		s := eventtest.Random(seed, 3000)
		trace, err := view.NewTrace(s, nil)
		require.NoError(t, err)
		trace.SetSteps(func(time uint64) int { return int(time>>20) % 7 })
		at := moment.Moment{Kind: moment.SinceStart, Time: s.Events[1500].Time}
		for name, c := range map[string]view.Selection{
			"end": {}, "peak": {Moment: moment.Moment{Kind: moment.Peak}}, "moment": {Moment: at},
			"range": {From: s.Events[500].Time, To: s.Events[2500].Time}, "large": {MinSize: 1 << 20},
		} {
			plain, err := trace.Select(c)
			require.NoError(t, err, name)
			c.Detail, c.Steps, c.AllSteps = true, true, seed%2 == 0
			detailed, err := trace.Select(c)
			require.NoError(t, err, name)
			requireSame(t, plain, detailed)
		}
	}
}

// requireSame asserts that two views have the same figures, whatever the rows.
func requireSame(t *testing.T, plain, detailed *view.View) {
	t.Helper()
	require.Equal(t, plain.Total(), detailed.Total())
	for _, m := range []view.Measure{view.InUse, view.Allocated} {
		bytes, blocks := sumOf(plain.RowsOf(m))
		for by := range view.RecordedRowKindNames {
			gotBytes, gotBlocks := sumOf(view.GroupRows(detailed.RowsOf(m), view.RowKind(by)))
			require.Equal(t, bytes, gotBytes, view.RowKind(by).String())
			require.Equal(t, blocks, gotBlocks, view.RowKind(by).String())
		}
		require.Equal(t, view.GroupRows(plain.RowsOf(m), view.ByLine), view.GroupRows(detailed.RowsOf(m), view.ByLine))
	}
	for i := range detailed.Sites {
		for _, p := range detailed.Sites[i].Parts {
			require.Contains(t, phases.Categories, p.Category)
		}
	}
}

func sumOf(entries []view.Row) (bytes int64, blocks uint64) {
	for i := range entries {
		bytes, blocks = bytes+entries[i].Bytes, blocks+entries[i].Blocks
	}
	return bytes, blocks
}

// Frames of a library's model that a program trains by one line.
const (
	packages = "/v/site-packages/"
	calling  = " " + packages + "torch/nn/modules/module.py:1798:Module._call_impl "
	mlp      = "a.so!at::_ops::linear::call " + packages + "transformers/modeling_gpt2.py:312:GPT2MLP.forward" + calling
	head     = "a.so!at::_ops::linear::call " + packages + "transformers/modeling_gpt2.py:680:GPT2LMHeadModel.forward" + calling
	loader   = "a.so!at::_ops::to_dtype_layout::call /home/a/main.py:9:batch"
	trained  = "/home/a/main.py:15:main"
)

// stream is events of one process and thread, in order.
type stream struct{ *eventtest.Stream }

func newStream(stacks ...string) stream {
	s := stream{&eventtest.Stream{Stacks: map[event.StackID]*event.Stack{}}}
	for i, text := range stacks {
		s.Stacks[event.StackID(i+1)] = eventtest.Stack(text)
	}
	return s
}

func (s stream) add(kind event.Kind, stack event.StackID, addr, size uint64) {
	total := uint64(0)
	if n := len(s.Events); n > 0 {
		total = s.Events[n-1].Allocated
	}
	if total += size; kind == event.KindFree {
		total -= 2 * size
	}
	s.Events = append(s.Events, event.Event{
		Time: uint64(len(s.Events)+1) * 10, PID: 1, TID: 1, Kind: kind, Layer: event.LayerAllocator, Device: event.Device{Type: event.DeviceCUDA},
		Addr: addr, Size: size, Requested: size, Stack: stack, Allocated: total, Reserved: 1 << 30, Handle: event.Unknown, Context: event.Unknown,
	})
}

func TestRowsOfProgram(t *testing.T) {
	s := newStream(mlp+trained, head+trained, loader)
	s.add(event.KindAlloc, 3, 1<<20, 100)
	s.add(event.KindAlloc, 1, 2<<20, 1000)
	s.add(event.KindAlloc, 1, 3<<20, 200)
	s.add(event.KindFree, 0, 3<<20, 200)
	s.add(event.KindAlloc, 2, 4<<20, 500)
	s.add(event.KindAlloc, 3, 5<<20, 50)
	s.add(event.KindFree, 0, 1<<20, 100)
	trace, err := view.NewTrace(s, nil)
	require.NoError(t, err)
	trace.SetSteps(func(time uint64) int { return int(time / 50) })
	key := heap.BlockKey{PID: 1, Layer: event.LayerAllocator, Addr: 4 << 20, Time: 50}
	trace.SetHeld(map[heap.BlockKey]view.HeldBlock{key: {Holder: "losses[0]", Category: phases.Parameters}})
	v, err := trace.Select(view.Selection{Detail: true, Steps: true, Moment: moment.Moment{Kind: moment.SinceStart, Time: 60}})
	require.NoError(t, err)
	for by, want := range map[view.RowKind]map[string]int64{
		view.ByPhase:    {"forward": 1500, "input": 150},
		view.ByModule:   {"GPT2MLP (modeling_gpt2.py)": 1000, "GPT2LMHeadModel (modeling_gpt2.py)": 500, stacks.NoModule: 150},
		view.ByOperator: {"aten::linear": 1500, "aten::to_dtype_layout": 150},
		view.ByCategory: {"activations": 1000, "parameters": 500, "inputs": 150},
		view.ByHolder:   {"losses[0]": 500, view.NoHolder: 1050, view.HolderFreed: 100},
		view.ByStep:     {view.NoStep: 1100, "step 1": 550},
	} {
		got := map[string]int64{}
		for _, e := range view.GroupRows(v.Rows(), by) {
			got[e.Name] = e.Bytes
		}
		require.Equal(t, want, got, by.String())
	}
}

// TestInnerCalls: a line with much of the memory shows what it calls.
func TestInnerCalls(t *testing.T) {
	s := newStream(mlp+trained, head+trained, loader)
	s.add(event.KindAlloc, 1, 1<<20, 1000)
	s.add(event.KindAlloc, 2, 2<<20, 500)
	s.add(event.KindAlloc, 3, 3<<20, 600)
	trace, err := view.NewTrace(s, nil)
	require.NoError(t, err)
	want := []view.Row{
		{Name: "modeling_gpt2.py:312", Func: "GPT2MLP.forward", File: packages + "transformers/modeling_gpt2.py", Line: 312, Bytes: 1000,
			Blocks: 1},
		{Name: "modeling_gpt2.py:680", Func: "GPT2LMHeadModel.forward", File: packages + "transformers/modeling_gpt2.py", Line: 680, Bytes: 500,
			Blocks: 1},
	}
	rows := view.GroupRows(trace.End().Rows(), view.ByLine)
	require.Equal(t, "main.py:15", rows[0].Name)
	require.Equal(t, want, rows[0].Inner)
	require.Nil(t, rows[1].Inner, "it has less than the share")
	table := trace.End().ByPython(0)
	require.Len(t, table.Rows[0].Inner, 2)
	require.EqualValues(t, 1000, table.Rows[0].Inner[0].Bytes)
	require.InDelta(t, 1000.0/2100, table.Rows[0].Inner[0].Share, 1e-9)
	require.Nil(t, table.Rows[1].Inner)
}
