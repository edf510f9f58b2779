// SPDX-License-Identifier: Apache-2.0

package phases

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// TestThreadsApart: each thread of each process has a phase of its own, and the process has the last one of a training loop.
func TestThreadsApart(t *testing.T) {
	s := newStream()
	see := func(kind event.Kind, layer event.Layer, pid, tid uint32, stack event.StackID) {
		s.See(&event.Event{Kind: kind, Layer: layer, PID: pid, TID: tid, Stack: stack})
	}
	at := func(pid, tid uint32) now { return s.process(pid).now(tid) }
	alloc := func(pid, tid uint32, stack event.StackID) {
		see(event.KindAlloc, event.LayerAllocator, pid, tid, stack)
	}
	require.Equal(t, now{}, at(1, 7))
	alloc(1, 7, forwardStack)
	require.Equal(t, now{1, 1}, at(1, 7))
	require.Equal(t, now{1, 0}, at(1, 8), "another thread has not allocated")
	alloc(1, 7, forwardStack)
	alloc(1, 8, forwardStack)
	require.Equal(t, now{1, 1}, at(1, 7), "the phase is the same")
	require.Equal(t, now{1, 1}, at(1, 8))
	alloc(1, 8, backwardStack)
	require.Equal(t, now{2, 1}, at(1, 7), "the loop went on, and the thread has not")
	require.Equal(t, now{2, 2}, at(1, 8))
	alloc(1, 7, inputStack)
	require.Equal(t, now{2, 2}, at(1, 7), "batches are loaded in between")
	alloc(2, 7, adamStack)
	require.Equal(t, now{1, 1}, at(2, 7))
	require.Equal(t, now{2, 2}, at(1, 7), "another process")
	see(event.KindFree, event.LayerAllocator, 1, 7, adamStack)
	see(event.KindAlloc, event.LayerDevice, 1, 7, adamStack)
	see(event.KindFree, event.LayerDevice, 1, 7, adamStack)
	require.Equal(t, now{2, 2}, at(1, 7), "only allocations of PyTorch's count")
	require.Len(t, s.processes[1].threads, 2)
}

// TestTemporaryBounds: what its own thread frees in the phase of the allocation is temporary: not before the loop,
// not by another thread, nor a workspace.
func TestTemporaryBounds(t *testing.T) {
	s := newStream()
	before := s.alloc(otherStack) // no phase of the loop was seen
	require.Equal(t, NoCategory, s.Freed(before, mainThread))
	a := s.alloc(forwardStack)
	require.Equal(t, Activations, s.Freed(a, autogradThread))
	a = s.alloc(forwardStack)
	s.alloc(inputStack) // the thread did something else
	require.Equal(t, Activations, s.Freed(a, mainThread))
	w := s.alloc(workspaceStack)
	require.Equal(t, Workspace, s.Freed(w, autogradThread))
	require.Equal(t, Workspace, s.InUse(w))

	all := s.fates[alike{forwardStack, classOf(512)}].freed
	require.Len(t, all, 1)
	require.EqualValues(t, 2, all[0].n)
	learned := len(s.fates)
	unknown := s.Start(&heap.Block{PID: 1, Size: 512}, mainThread, true)
	s.Freed(&unknown, mainThread)
	require.Len(t, s.fates, learned, "without a stack nothing is learned")
}

// TestKept: what memory is for that is in use beyond its phase.
func TestKept(t *testing.T) {
	for p, want := range map[Phase]Category{
		Setup: Parameters, Input: Inputs, Forward: Activations, Evaluation: Activations, Backward: Gradients, ZeroGrad: Gradients,
		Optimizer: OptimizerState, Communication: Workspace, Other: NoCategory, Unknown: NoCategory, Ambiguous: NoCategory,
	} {
		require.Equal(t, want, kept(p), p)
	}
	for _, p := range []Phase{Setup, Forward, Backward, Optimizer, ZeroGrad, Evaluation} {
		require.True(t, turns(p), p)
	}
	for _, p := range []Phase{Input, Communication, Other, Unknown, Ambiguous} {
		require.False(t, turns(p), p)
	}
}

// TestLearnedFunctions: all functions of Python that called a backward pass, an optimizer or zero_grad train, and
// those that they call do not.
func TestLearnedFunctions(t *testing.T) {
	for name, c := range map[string]struct {
		stack string
		want  bool
	}{
		"backward": {"a.so!f /home/a/hook.py:3:hook " + torch + "_tensor.py:9:Tensor.backward b.so!g /home/a/t.py:7:inner /home/a/t.py:9:fit",
			true},
		"optimizer": {"a.so!f /home/a/hook.py:3:hook " + adam + "/home/a/t.py:7:inner /home/a/t.py:9:fit", true},
		"zero_grad": {"a.so!f /home/a/hook.py:3:hook " + torch + "optim/optimizer.py:9:Optimizer.zero_grad /home/a/t.py:7:inner " +
			"/home/a/t.py:9:fit", true},
		"forward": {linear + "/home/a/hook.py:3:hook " + call + "/home/a/t.py:7:inner /home/a/t.py:9:fit", false},
		"engine":  {"a.so!f /home/a/hook.py:3:hook " + engine, false},
	} {
		st := eventtest.Stack(c.stack)
		l := New(nil, nil, func(event.StackID) *event.Stack { return st })
		l.Learn(0)
		require.Empty(t, l.trains, "no stack")
		l.Learn(1)
		for _, f := range []string{"inner", "fit"} {
			require.Equal(t, c.want, l.trains[functionID{"/home/a/t.py", f}], "%s: %s", name, f)
		}
		require.False(t, l.trains[functionID{"/home/a/hook.py", "hook"}], name)
		require.False(t, l.trains[functionID{"", "g"}], name)
	}
}

// TestAskedAgain: what a stack says is found once.
func TestAskedAgain(t *testing.T) {
	asked := 0
	c := New(nil, nil, func(id event.StackID) *event.Stack { asked++; return step[id] })
	for range 3 {
		require.Equal(t, Forward, c.Of(forwardStack).Phase)
		require.Equal(t, Backward, c.Of(backwardStack).Phase)
		require.Equal(t, Backward, c.Of(backwardStack).Phase)
	}
	require.Equal(t, 2, asked)
}

// TestNativeRules: the same symbol in two libraries is two frames.
func TestNativeRules(t *testing.T) {
	c := New(nil, nil, nil)
	nccl, other := eventtest.Stack("libnccl.so.2!?"), eventtest.Stack("libother.so!?")
	none := eventtest.Stack("!f")
	for range 2 {
		require.NotEmpty(t, c.match(&nccl.Frames[0]))
		require.Empty(t, c.match(&other.Frames[0]))
		require.Empty(t, c.match(&none.Frames[0]))
	}
	require.Len(t, c.frames, 3)
}

// TestUserRuleEnds: a rule of the user's is the last word: what is farther out says nothing more.
func TestUserRuleEnds(t *testing.T) {
	rules, err := Read(strings.NewReader("setup a/net.py:f\n"))
	require.NoError(t, err)
	c := New(rules, nil, nil)
	require.Equal(t, Setup, c.Stack(eventtest.Stack(linear+call+"/home/a/net.py:3:f "+packages+
		"transformers/trainer.py:8:Trainer.evaluate")).Phase)
}

// TestOtherThreadBetween: a free between two allocations of a phase is of that phase only when the loop did not go on in between.
func TestOtherThreadBetween(t *testing.T) {
	for between, want := range map[bool]Phase{false: Forward, true: Unknown} {
		e := NewEnds[string](New(nil, nil, func(id event.StackID) *event.Stack { return step[id] }))
		alloc := func(tid uint32, stack event.StackID) {
			e.See(&event.Event{Kind: event.KindAlloc, Layer: event.LayerAllocator, PID: 1, TID: tid, Stack: stack})
		}
		alloc(mainThread, inputStack)
		for range 10 {
			alloc(mainThread, forwardStack)
			e.Freed("a", free(mainThread, 0))
			if between {
				alloc(autogradThread, backwardStack)
			}
			alloc(mainThread, forwardStack)
		}
		require.Equal(t, want, e.Usual([]string{"a"}), between)
	}
}
