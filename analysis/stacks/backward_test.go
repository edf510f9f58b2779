// SPDX-License-Identifier: Apache-2.0

package stacks

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// joined puts a stack of forward behind one of backward.
func joined(back string, mark event.Frame, forward string) []event.Frame {
	frames := append(eventtest.Stack(back).Frames, mark)
	return append(frames, eventtest.Stack(forward).Frames...)
}

func TestBackwardNames(t *testing.T) {
	node := "a.so!at::empty a.so!torch::autograd::generated::MmBackward0::apply"
	for _, c := range []struct {
		frames []event.Frame
		want   string
	}{
		{joined(node, Mark(), lib+" "+own+" /home/a/t.py:9:main"), "[backward of] gpt.py:38 Block.forward"},
		{joined(node, Mark(), "a.so!at::mm"), "[backward of] at::mm"},
		{joined(node, Mark("a.py:1 f", "b.py:2 g"), own), "[backward between] a.py:1 f and b.py:2 g"},
		{joined(node+" "+own, Mark(), "/home/a/t.py:9:main"), "gpt.py:38 Block.forward"},
		{joined(node+" "+lib, Mark(), "/home/a/t.py:9:main"), "[backward of] t.py:9 main"},
		{joined(node, Mark(), ""), "[backward of]"},
	} {
		i := OwnFrame(c.frames, nil)
		require.Equal(t, c.want, Name(c.frames, i))
		require.Len(t, eventtest.Stack(node).Frames, 2)
		require.Less(t, len(Ran(c.frames)), len(c.frames))
	}
	plain := eventtest.Stack(node).Frames
	require.Equal(t, plain, Ran(plain))
	require.False(t, IsBackward(plain, 1))
	require.Equal(t, "[backward of] ", BackwardPrefix("[backward of] gpt.py:38"))
	require.Empty(t, BackwardPrefix("gpt.py:38"))
}

func TestMakes(t *testing.T) {
	for _, c := range []struct {
		function, node string
		want           bool
	}{
		{"at::_ops::addmm::call", "AddmmBackward0", true},
		{"at::_ops::add_Tensor::redispatch", "AddBackward0", true},
		{"at::_ops::addmm::call", "AddBackward0", false},
		{"at::_ops::_log_softmax::call", "LogSoftmaxBackward0", true},
		{"at::_ops::nll_loss_forward::call", "NllLossBackward0", true},
		{"at::_ops::max_pool2d_with_indices::call", "MaxPool2DWithIndicesBackward0", true},
		{"at::_ops::sum_dim_IntList::call", "SumBackward1", true},
		{"torch::autograd::VariableType::(anonymous namespace)::_to_copy", "ToCopyBackward0", true},
		{"at::_ops::mul_::call", "MulBackward0", true},
		{"at::native::mul", "MulBackward0", false},
		{"THPFunction_apply", "PyNode", true},
		{"THPFunction_apply", "MulBackward0", false},
		{"at::_ops::copy_::call", "CopySlices", false},
		{"at::_ops::copy_::call", "", false},
	} {
		frames := []event.Frame{{Kind: event.FrameNative, Func: c.function}}
		require.Equal(t, c.want, Makes(frames, c.node), "%+v", c)
	}
}

func TestOfNode(t *testing.T) {
	for text, want := range map[string]int{
		"a.so!f a.so!torch::autograd::Engine::evaluate_function a.so!torch::autograd::Engine::thread_main a.so!g /x/t.py:1:f": 3,
		"a.so!f a.so!torch::autograd::Engine::evaluate_function a.so!g":                                                       2,
		"a.so!f a.so!g": 2,
	} {
		require.Len(t, OfNode(eventtest.Stack(text).Frames), want, text)
	}
	require.Equal(t, "MmBackward0", NodeName(eventtest.Stack("a.so!f a.so!torch::autograd::generated::MmBackward0::apply").Frames))
	require.Equal(t, "PyNode", NodeName(eventtest.Stack("a.so!f a.so!torch::autograd::PyNode::apply").Frames))
	require.Empty(t, NodeName(eventtest.Stack("a.so!f").Frames))
}
