// SPDX-License-Identifier: Apache-2.0

package steps

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/event"
)

// TestTable: which step a time is in, and from when to when a step is.
func TestTable(t *testing.T) {
	all := &Table{first: 4, begins: []uint64{100, 200, 350}, end: 400}
	for time, step := range map[uint64]int{0: 0, 99: 0, 100: 4, 199: 4, 200: 5, 349: 5, 350: 6, 1000: 6} {
		require.Equal(t, step, all.At(time), "at %d", time)
	}
	require.Equal(t, []int{4, 6, 2}, []int{all.First(), all.Last(), all.Count()})
	require.InDelta(t, 125, all.Period(), 0)
	for step, want := range map[int][2]uint64{4: {100, 199}, 5: {200, 349}, 6: {350, 400}} {
		from, to, ok := all.Span(step)
		require.True(t, ok)
		require.Equal(t, want, [2]uint64{from, to})
	}
	for _, none := range []int{-1, 0, 3, 7} {
		_, _, ok := all.Span(none)
		require.False(t, ok, "step %d", none)
	}
}

// TestNoSteps: the zero value has none.
func TestNoSteps(t *testing.T) {
	none := &Table{}
	require.Zero(t, none.At(5))
	require.Equal(t, []int{0, 0, 0}, []int{none.First(), none.Last(), none.Count()})
	require.Zero(t, none.Period())
	_, _, ok := none.Span(0)
	require.False(t, ok)
}

// TestMarkName: a step is named by the program's own line that begins it, by the function where it has no line, and never by nothing.
func TestMarkName(t *testing.T) {
	known := map[event.StackID]*event.Stack{
		1: {Frames: []event.Frame{{Kind: event.FramePython, Func: "train", File: "/app/train.py", Line: 7}}},
		2: {Frames: []event.Frame{
			{Kind: event.FramePython, Func: "read", File: "/lib/reader.py", Line: 3},
			{Kind: event.FramePython, Func: "main", File: "/app/train.py", Line: 9},
		}},
		3: {},
	}
	resolve := func(id event.StackID) *event.Stack { return known[id] }
	for want, m := range map[string]mark{
		"train.py:7 train":  {source: SourcePeriod, stack: 1},
		"train.py:9 main":   {source: SourcePeriod, stack: 2},
		"train.py:5 epoch":  {source: SourcePeriod, place: 4, file: "/app/train.py", line: 5, function: "epoch"},
		"train.py:6 update": {source: SourceOptimizer, stack: 1, file: "/app/train.py", line: 6, function: "update"},
		"train_step":        {source: SourceChosen, function: "train_step"},
	} {
		require.Equal(t, want, m.name([]string{"/lib/"}, resolve))
	}
	for _, id := range []event.StackID{3, 4} {
		require.Equal(t, stacks.UnknownStack, (&mark{source: SourcePeriod, stack: id}).name([]string{"/lib/"}, resolve))
	}
}

// TestLastName: what is chosen may be named with or without its class.
func TestLastName(t *testing.T) {
	for name, want := range map[string]string{"Adam.step": "step", "a.b.c": "c", "step": "step", "": ""} {
		require.Equal(t, want, lastName(name))
	}
}

// TestMarks: which functions begin a step, of PyTorch and of libraries whose optimizers are named so.
func TestMarks(t *testing.T) {
	python := func(file, function string) *event.Frame {
		return &event.Frame{Kind: event.FramePython, File: file, Func: function}
	}
	const torch = "/venv/site-packages/torch/"
	for _, c := range []struct {
		file, function string
		want           Source
	}{
		{torch + "optim/adam.py", "Adam.step", SourceOptimizer}, {torch + "optim/sgd.py", "_step_and_more", SourceOptimizer},
		{torch + "optim/optimizer.py", "Optimizer.profile_hook_step.<locals>.wrapper", SourceOptimizer},
		{"/venv/apex/optimizers/fused.py", "FusedAdam.step", SourceOptimizer},
		{torch + "optim/adam.py", "wrapper", ""}, {torch + "optim/adam.py", "Adam.zero_grad", ""}, {"/app/train.py", "step", ""},
		{torch + "optim/lr_scheduler.py", "StepLR.step", ""}, {torch + "optim/swa_utils.py", "step", ""},
		{torch + "_tensor.py", "Tensor.backward", SourceBackward}, {torch + "_tensor.py", "Tensor.detach", ""},
		{torch + "autograd/__init__.py", "backward", SourceBackward}, {torch + "autograd/__init__.py", "grad", SourceBackward},
		{torch + "autograd/__init__.py", "other", ""},
		{torch + "autograd/graph.py", "_engine_run_backward", SourceBackward}, {torch + "autograd/graph.py", "backward", ""},
		{torch + "utils/data/dataloader.py", "_BaseDataLoaderIter.__next__", SourceLoader},
		{torch + "utils/data/dataloader.py", "_BaseDataLoaderIter._next_data", ""},
		{"/app/dataloader.py", "Loader.__next__", ""},
	} {
		m := (*Rules)(nil).marker()
		got, ok := m.sourceOf(python(c.file, c.function))
		require.Equal(t, c.want, got, "%s %s", c.file, c.function)
		require.Equal(t, c.want != "", ok)
		_, ok = m.sourceOf(&event.Frame{Kind: event.FrameNative, File: c.file, Func: c.function})
		require.False(t, ok, "native code is none of these")
	}
	m := (&Rules{On: "train_batch"}).marker()
	for function, want := range map[string]bool{"train_batch": true, "Trainer.train_batch": true, "train": false} {
		got, ok := m.sourceOf(python("/app/train.py", function))
		require.Equal(t, want, ok, function)
		require.Equal(t, SourceChosen, got)
	}
	_, ok := m.sourceOf(python(torch+"optim/adam.py", "Adam.step"))
	require.False(t, ok, "what is chosen is the only one")
}

// TestReturned: the function of the outermost loop has returned if a frame that led to it is at another line, or calls another function.
func TestReturned(t *testing.T) {
	python := func(function string, line int) event.Frame {
		return event.Frame{Kind: event.FramePython, File: "/a/" + function + ".py", Func: function, Line: line}
	}
	table := &Table{around: []event.Frame{python("module", 9), python("main", 5), python("extract", 3)}}
	leaf := event.Frame{Kind: event.FrameNative, Func: "malloc"}
	for name, tt := range map[string]struct {
		frames []event.Frame // leaf first
		want   bool
	}{
		"in its loop":          {[]event.Frame{leaf, python("add", 1), python("extract", 4), python("main", 5), python("module", 9)}, false},
		"behind it":            {[]event.Frame{leaf, python("train", 7), python("main", 6), python("module", 9)}, true},
		"farther out":          {[]event.Frame{leaf, python("module", 10)}, true},
		"the same call's next": {[]event.Frame{leaf, python("other", 3), python("main", 5), python("module", 9)}, true},
		"the caller itself":    {[]event.Frame{leaf, python("main", 5), python("module", 9)}, true},
		"another thread":       {[]event.Frame{leaf, python("run", 6)}, false},
		"no Python":            {[]event.Frame{leaf}, false},
	} {
		require.Equal(t, tt.want, table.Returned(&event.Stack{Frames: tt.frames, Status: event.StatusOK}), name)
	}
	require.False(t, table.Returned(nil))
	program := &Table{around: table.around[:1]}
	require.False(t, program.Returned(&event.Stack{Frames: []event.Frame{python("module", 10)}}), "it runs as long as the program")
}
