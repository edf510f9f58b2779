// SPDX-License-Identifier: Apache-2.0

package phases

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// Stacks of a training step, and the threads that make their allocations.
const (
	setupStack event.StackID = iota + 1
	inputStack
	forwardStack
	backwardStack
	adamStack
	stateStack
	workspaceStack
	otherStack
	loadedStack

	mainThread, autogradThread = 7, 8
)

var step = map[event.StackID]*event.Stack{
	setupStack:     eventtest.Stack(toDevice + torch + "nn/modules/module.py:966:Module._apply" + main),
	inputStack:     eventtest.Stack(toDevice + main),
	forwardStack:   eventtest.Stack(linear + call + main),
	backwardStack:  eventtest.Stack("a.so!at::_ops::mm::call " + engine),
	adamStack:      eventtest.Stack("a.so!f " + adam + wrapper + main),
	stateStack:     eventtest.Stack("a.so!f " + torch + "optim/adam.py:179:Adam._init_group " + adam + wrapper + main),
	workspaceStack: eventtest.Stack("a.so!at::cuda::allocateCUDABlasWorkspace " + engine),
	loadedStack:    eventtest.Stack(toDevice + torch + "serialization.py:1500:load" + main),
	otherStack:     eventtest.Stack("a.so!at::_ops::zeros::call" + main),
}

// stream makes allocations and frees for Lifetimes.
type stream struct {
	*Lifetimes
	time uint64
}

func newStream() *stream {
	c := New(nil, nil, func(id event.StackID) *event.Stack { return step[id] })
	return &stream{Lifetimes: c.Follow()}
}

func (s *stream) alloc(stack event.StackID) *Start { return s.allocSize(stack, 512) }

func (s *stream) allocSize(stack event.StackID, size uint64) *Start {
	s.time++
	tid := uint32(mainThread)
	if stack == backwardStack || stack == workspaceStack {
		tid = autogradThread
	}
	s.See(&event.Event{Kind: event.KindAlloc, Layer: event.LayerAllocator, PID: 1, TID: tid, Stack: stack, Time: s.time})
	out := s.Start(&heap.Block{PID: 1, Stack: stack, Size: size}, tid, true)
	return &out
}

// TestLifetimes follows one step of a training loop, with the frees where PyTorch makes them.
func TestLifetimes(t *testing.T) {
	s := newStream()
	parameter := s.alloc(setupStack)
	converted := s.alloc(setupStack)
	require.Equal(t, Temporary, s.Freed(converted, mainThread))
	batch := s.alloc(inputStack)
	activation, scratch := s.alloc(forwardStack), s.alloc(forwardStack)
	require.Equal(t, Temporary, s.Freed(scratch, mainThread))
	loss := s.alloc(otherStack)
	gradient, inner, workspace := s.alloc(backwardStack), s.alloc(backwardStack), s.alloc(workspaceStack)
	require.Equal(t, Activations, s.Freed(activation, autogradThread))
	require.Equal(t, Temporary, s.Freed(inner, autogradThread))
	require.Equal(t, Workspace, s.Freed(workspace, autogradThread))
	state, square := s.alloc(stateStack), s.alloc(adamStack)
	require.Equal(t, Temporary, s.Freed(square, mainThread))
	require.Equal(t, NoCategory, s.Freed(loss, mainThread))
	require.Equal(t, Gradients, s.Freed(gradient, mainThread), "by zero_grad, in the phase of the optimizer")
	next := s.alloc(inputStack)
	require.Equal(t, Inputs, s.Freed(batch, mainThread))
	s.alloc(forwardStack)
	require.Equal(t, Parameters, s.InUse(parameter))
	require.Equal(t, OptimizerState, s.InUse(state))
	require.Equal(t, Inputs, s.InUse(next))
}

// TestLoaded: what is read from a file can be a copy of parameters that are there already.
func TestLoaded(t *testing.T) {
	s := newStream()
	parameter, read := s.alloc(setupStack), s.alloc(loadedStack)
	s.alloc(forwardStack)
	require.Equal(t, Parameters, s.InUse(parameter))
	require.Equal(t, NoCategory, s.InUse(read))
}

// TestRunningPhase: what is in use in the phase of its allocation is for what all others of its stack were for.
func TestRunningPhase(t *testing.T) {
	s := newStream()
	s.alloc(setupStack)
	require.Equal(t, NoCategory, s.InUse(s.alloc(forwardStack)), "there was none before")
	old := s.alloc(forwardStack)
	s.alloc(backwardStack)
	require.Equal(t, Activations, s.Freed(old, autogradThread))
	running := s.alloc(forwardStack)
	require.Equal(t, Activations, s.InUse(running))
	require.Equal(t, Temporary, s.Freed(s.alloc(forwardStack), mainThread))
	require.Equal(t, NoCategory, s.InUse(running), "they differ")
}

// TestFailedPhase: what the exception frees after a request was refused is not temporary, and what it frees teaches nothing.
func TestFailedPhase(t *testing.T) {
	s := newStream()
	s.alloc(setupStack)
	kept, other := s.alloc(forwardStack), s.alloc(forwardStack)
	s.See(&event.Event{Kind: event.KindOutOfMemory, Layer: event.LayerAllocator, PID: 1, TID: mainThread})
	require.Equal(t, NoCategory, s.Freed(kept, mainThread))
	require.Equal(t, NoCategory, s.InUse(other))
	next := s.alloc(forwardStack)
	require.Equal(t, Temporary, s.Freed(next, mainThread), "the program goes on")
}

// TestFewFreed: a line most of whose blocks stay has no temporaries.
func TestFewFreed(t *testing.T) {
	s := newStream()
	s.alloc(setupStack)
	for range 4 {
		s.alloc(forwardStack)
	}
	last := s.alloc(forwardStack)
	require.Equal(t, Temporary, s.Freed(s.alloc(forwardStack), mainThread))
	require.Equal(t, NoCategory, s.InUse(last))
	for range 5 {
		s.Freed(s.alloc(forwardStack), mainThread)
	}
	require.Equal(t, Temporary, s.InUse(last))
}

// TestSizes: all layers of a network may have one stack; the output of the last one, which is kept, is not
// temporary because those of the others are.
func TestSizes(t *testing.T) {
	s := newStream()
	s.alloc(setupStack)
	var kept []*Start
	for range 8 {
		hidden := s.allocSize(forwardStack, 1<<18)
		kept = append(kept, s.allocSize(forwardStack, 1<<21))
		require.Equal(t, Temporary, s.Freed(hidden, mainThread))
	}
	require.Equal(t, NoCategory, s.InUse(kept[0]))
	require.Equal(t, Temporary, s.InUse(s.allocSize(forwardStack, 1<<18)))
	require.Equal(t, Temporary, s.InUse(s.allocSize(forwardStack, 1<<18+512)), "nearly the same size")
}

// TestUnseenStart: an allocation that was not seen is in use beyond its phase, and a free by an unknown thread is in no phase.
func TestUnseenStart(t *testing.T) {
	s := newStream()
	before := s.Start(&heap.Block{PID: 1}, 0, false)
	s.alloc(forwardStack)
	require.Equal(t, NoCategory, s.Freed(&before, mainThread))
	recovered := s.Start(&heap.Block{PID: 1, Stack: forwardStack, Size: 512}, 0, false)
	require.Equal(t, Activations, s.InUse(&recovered))
	require.Equal(t, Activations, s.Freed(s.alloc(forwardStack), 0))
}

func TestOfHolder(t *testing.T) {
	require.Equal(t, Parameters, OfHolder("buffers"))
	require.Equal(t, Activations, OfHolder("kept by autograd graphs"))
	require.Equal(t, NoCategory, OfHolder("other tensors"))
}
