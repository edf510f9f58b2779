// SPDX-License-Identifier: Apache-2.0

package backward

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/eventtest"
)

const (
	module = "/v/lib/python3.11/site-packages/torch/nn/modules/module.py:1:_call_impl"
	main   = "/home/a/t.py:9:main"
	engine = " a.so!torch::autograd::Engine::evaluate_function a.so!torch::autograd::Engine::thread_main a.so!clone3"
)

// scene is a program's stacks and what is joined of them.
type scene struct {
	known map[event.StackID]*event.Stack
	*Joiner
}

func newScene(limit int) *scene {
	s := &scene{known: map[event.StackID]*event.Stack{}}
	s.Joiner = New(func(id event.StackID) *event.Stack { return s.known[id] }, func() []string { return nil }, limit)
	return s
}

// id sets the id of a stack.
func (s *scene) id(text string) event.StackID {
	id := event.StackID(len(s.known) + 1)
	s.known[id] = eventtest.Stack(text)
	return id
}

// forward allocates in an operator on a line of forward, on the thread 1, when the next node gets a number.
func (s *scene) forward(next uint64, operator, line string) {
	s.Join([]event.Event{{
		Stack:    s.id("a.so!at::_ops::" + operator + "::call " + line + " " + main),
		Autograd: event.Autograd{Thread: 1, Next: next},
	}})
}

// backward allocates in a node, and gives the name of the allocation.
func (s *scene) backward(a event.Autograd, text string) string {
	a.Running = true
	events := []event.Event{{Stack: s.id(text + engine), Autograd: a}}
	s.Join(events)
	st := s.Stack(events[0].Stack)
	return stacks.Name(st.Frames, stacks.OwnFrame(st.Frames, nil))
}

func (s *scene) node(number uint64, class string) string {
	return s.backward(event.Autograd{Node: number, NodeThread: 1, Class: class}, "a.so!at::empty")
}

// TestJoin follows a pass: node 10 is of line 1, 11 of line 2, 12 and 13 of views behind it, 14 of line 3.
func TestJoin(t *testing.T) {
	line := func(n string) string { return "/home/a/net.py:" + n + ":Net.forward" }
	s := newScene(100)
	s.forward(10, "rand", line("1"))
	s.forward(11, "addmm", line("1"))
	s.forward(12, "rand", line("2"))
	s.forward(12, "mul_Tensor", line("2"))
	s.forward(15, "convolution", line("3"))
	for name, c := range map[string]struct {
		number uint64
		class  string
		want   string
	}{
		"in its operator":                 {10, "AddmmBackward0", "[backward of] net.py:1 Net.forward"},
		"with another name of it":         {11, "MulBackward0", "[backward of] net.py:2 Net.forward"},
		"between two lines":               {12, "ViewBackward0", "[backward between] net.py:2 Net.forward and net.py:3 Net.forward"},
		"another operator allocated then": {11, "ReluBackward0", "[backward between] net.py:1 Net.forward and net.py:2 Net.forward"},
		"last":                            {14, "ConvolutionBackward0", "[backward of] net.py:3 Net.forward"},
		"from before":                     {5, "MulBackward0", "at::empty"},
		"nothing allocated since":         {15, "ViewBackward0", "at::empty"},
		"adds up a gradient":              {event.Unknown, "AccumulateGrad", "at::empty"},
	} {
		require.Equal(t, c.want, s.node(c.number, c.class), name)
	}
	require.Equal(t, "at::empty", s.backward(event.Autograd{Node: 10, NodeThread: 2, Class: "AddmmBackward0"}, "a.so!at::empty"),
		"of another thread")
	require.Equal(t, Counts{Certain: 3, Between: 2, Unknown: 3, NoNode: 1}, s.Counts())
}

// TestNodeOfStack: without a class, the stack says which node runs.
func TestNodeOfStack(t *testing.T) {
	s := newScene(100)
	s.forward(11, "addmm", "/home/a/net.py:1:f")
	require.Equal(t, "[backward of] net.py:1 f", s.backward(event.Autograd{Node: 10, NodeThread: 1},
		"a.so!at::empty a.so!torch::autograd::generated::AddmmBackward0::apply"))
}

// TestSameLine: a node between two allocations of a line is of that line only when the second is further in the same call: a loop
// could have left the line meanwhile.
func TestSameLine(t *testing.T) {
	own := " /home/a/net.py:7:Net.forward"
	conv, block := "/v/lib/python3.11/site-packages/x/conv.py:3:Conv.forward ", "/v/lib/python3.11/site-packages/x/block.py:"
	for name, c := range map[string]struct{ before, after, want string }{
		"further":  {conv + block + "4:Block.forward" + own, block + "9:Block.forward" + own, "[backward of] net.py:7 Net.forward"},
		"the same": {conv + block + "4:Block.forward" + own, conv + block + "4:Block.forward" + own, "[backward between] net.py:7 Net.forward"},
		"back":     {block + "9:Block.forward" + own, block + "4:Block.forward" + own, "[backward between] net.py:7 Net.forward"},
		"other":    {block + "4:Block.forward" + own, block + "9:Other.forward" + own, "[backward between] net.py:7 Net.forward"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(100)
			s.forward(10, "addmm", c.before)
			s.forward(12, "addmm", c.after)
			require.Equal(t, c.want, s.node(10, "ReluBackward0"))
		})
	}
}

// TestFrames: the stack of forward is behind the node's, without the caller of the backward pass, and from Python's frames on.
func TestFrames(t *testing.T) {
	s := newScene(100)
	s.forward(11, "addmm", module+" /home/a/net.py:1:f")
	events := []event.Event{{
		Stack:    s.id("a.so!at::empty" + engine + " /home/a/t.py:20:step " + main),
		Autograd: event.Autograd{Node: 10, NodeThread: 1, Running: true, Class: "AddmmBackward0"},
	}}
	s.Join(events)
	st := s.Stack(events[0].Stack)
	require.Equal(t, events[0].Stack, st.ID)
	require.Equal(t, "t.py:9 main; net.py:1 f; module.py:1 _call_impl; [backward of]; torch::autograd::Engine::thread_main; "+
		"torch::autograd::Engine::evaluate_function; at::empty", stacks.Text(st))
	again := []event.Event{events[0]}
	again[0].Stack = 2
	s.Join(again)
	require.Equal(t, events[0].Stack, again[0].Stack, "the same stacks give the same one")
}

// TestOwnBackward: a function of the program's own that runs in backward names it.
func TestOwnBackward(t *testing.T) {
	s := newScene(100)
	s.known[1] = eventtest.Stack("a.so!at::_ops::mul::call a.so!THPFunction_apply /home/a/net.py:5:f " + main)
	s.Join([]event.Event{{Stack: 1, Autograd: event.Autograd{Thread: 1, Next: 11}}})
	in := event.Autograd{Node: 10, NodeThread: 1, Class: "PyNode"}
	require.Equal(t, "net.py:30 Mine.backward", s.backward(in,
		"a.so!at::empty /home/a/net.py:30:Mine.backward a.so!torch::autograd::PyNode::apply"))
	require.Equal(t, "[backward of] net.py:5 f", s.backward(in,
		"a.so!at::empty /v/lib/python3.11/site-packages/x.py:3:g a.so!torch::autograd::PyNode::apply"))
}

// TestSecondDerivative: a node that was made in the backward pass is of the line of forward that this follows.
func TestSecondDerivative(t *testing.T) {
	s := newScene(1000)
	s.forward(11, "addmm", "/home/a/net.py:1:f")
	for i := range uint64(maxJoins + 3) {
		a := event.Autograd{Node: 10, NodeThread: 1, Thread: 2, Next: 101 + i, Class: "AddmmBackward0"}
		if i > 0 {
			a.Node, a.NodeThread, a.Class = 100+i-1, 2, "MmBackward0"
		}
		name := s.backward(a, "a.so!at::_ops::mm::call")
		require.Equal(t, "[backward of] net.py:1 f", name, i)
	}
}

func TestLimits(t *testing.T) {
	s := newScene(1)
	s.forward(11, "addmm", "/home/a/net.py:1:f")
	require.Equal(t, "[backward of] net.py:1 f", s.node(10, "AddmmBackward0"))
	require.Equal(t, "at::empty", s.node(10, "AddmmBackward0"), "another stack is one too many")

	var h history
	for i := range uint64(maxMarks + 1) {
		h.add(mark{i, event.StackID(i)})
	}
	require.Len(t, h.marks, maxMarks/2+1)
	require.EqualValues(t, maxMarks/2, h.marks[0].next)
	for i := range event.StackID(100) {
		h.add(mark{maxMarks + 1, i})
	}
	require.Len(t, h.marks, maxMarks/2+1+maxSame)
	require.EqualValues(t, 99, h.marks[len(h.marks)-1].stack)

	for i := range uint32(maxThreads + 10) {
		s.of(i + 1).add(mark{1, 1})
		s.of(1)
	}
	require.Len(t, s.history, maxThreads)
	require.Contains(t, s.history, uint32(1), "it was used last")
	require.NotContains(t, s.history, uint32(2))
}

// TestFailedRequest: a request that fails in a node is named as an allocation of it would be, and is none: it is
// not counted, and what fails in forward says nothing of the nodes behind it.
func TestFailedRequest(t *testing.T) {
	s := newScene(100)
	s.forward(10, "rand", "/home/a/net.py:1:Net.forward")
	s.forward(12, "mul_Tensor", "/home/a/net.py:2:Net.forward")
	s.Join([]event.Event{{
		Kind: event.KindOutOfMemory, Stack: s.id("a.so!at::_ops::mul_Tensor::call /home/a/net.py:3:Net.forward " + main),
		Autograd: event.Autograd{Thread: 1, Next: 12},
	}})
	failed := event.Event{Kind: event.KindOutOfMemory, Stack: s.id("a.so!at::empty" + engine),
		Autograd: event.Autograd{Node: 11, NodeThread: 1, Class: "MulBackward0", Running: true}}
	events := []event.Event{failed}
	s.Join(events)
	st := s.Stack(events[0].Stack)
	require.Equal(t, "[backward of] net.py:2 Net.forward", stacks.Name(st.Frames, stacks.OwnFrame(st.Frames, nil)))
	require.Zero(t, s.Counts())
}

// TestCaller: a gradient that is added up is named by the line that called the backward pass, as long as that call goes on.
func TestCaller(t *testing.T) {
	const autograd = "a.so!ones_like /v/lib/python3.11/site-packages/torch/autograd/__init__.py:233:_make_grads " +
		"/v/lib/python3.11/site-packages/torch/autograd/__init__.py:388:backward " +
		"/v/lib/python3.11/site-packages/torch/_tensor.py:623:Tensor.backward "
	s := newScene(100)
	main := func(tid uint32, text string) {
		s.Join([]event.Event{{TID: tid, Layer: event.LayerAllocator, Stack: s.id(text), Autograd: event.Autograd{Thread: tid, Next: 1}}})
	}
	gradient := func() string {
		return s.backward(event.Autograd{Node: event.Unknown, Class: "AccumulateGrad"},
			"a.so!at::empty a.so!torch::autograd::AccumulateGrad::apply")
	}
	const nobody = "torch::autograd::AccumulateGrad::apply"
	require.Equal(t, nobody, gradient(), "no call was seen")
	main(1, autograd+"/home/a/t.py:20:step /home/a/t.py:9:main")
	require.Equal(t, "t.py:20 step", gradient())
	main(2, "a.so!at::empty /home/a/load.py:3:load")
	require.Equal(t, "t.py:20 step", gradient(), "what another thread does ends nothing")
	main(3, autograd+"/home/a/t.py:30:other /home/a/t.py:9:main")
	require.Equal(t, nobody, gradient(), "two calls at once")
	main(3, "a.so!at::empty /home/a/t.py:31:other")
	require.Equal(t, "t.py:20 step", gradient())
	main(1, "a.so!at::empty /home/a/t.py:21:step")
	require.Equal(t, nobody, gradient(), "the call has ended")
	main(1, autograd+"/v/lib/python3.11/site-packages/x/trainer.py:3:fit")
	require.Equal(t, nobody, gradient(), "no line of the program leads to it")
}
