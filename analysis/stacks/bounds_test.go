// SPDX-License-Identifier: Apache-2.0

package stacks

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// TestMarks: what ran is before the mark, also where nothing did, and a frame is of the forward pass behind it only.
func TestMarks(t *testing.T) {
	frames := eventtest.Stack("a.so!f b.so!g " + eventtest.Own).Frames
	require.Equal(t, BackwardOf, Mark().Func)
	require.Equal(t, "[backward between] a", Mark("a").Func)
	require.Equal(t, "[backward between] a and b", Mark("a", "b").Func)
	for at := range 3 {
		marked := append(append(append([]event.Frame(nil), frames[:at]...), Mark()), frames[at:]...)
		require.Equal(t, frames[:at], Ran(marked)[:at])
		require.Len(t, Ran(marked), at)
		for own := range marked {
			require.Equal(t, own > at, IsBackward(marked, own), "mark at %d, own %d", at, own)
		}
		require.Equal(t, 3, OwnFrame(marked, nil), "the line of the forward pass")
	}
	require.Equal(t, frames, Ran(frames))
	require.False(t, IsBackward(frames, 2))
	require.Equal(t, "[backward of] gpt.py:38 Block.forward", Name(append([]event.Frame{Mark()}, frames...), 3))
	require.Equal(t, "gpt.py:38 Block.forward", Name(frames, 2))
	between := append([]event.Frame{Mark("a", "b")}, frames...)
	require.Zero(t, OwnFrame(between, nil), "which line it is, is not sure")
	own := append(append([]event.Frame(nil), frames[2]), between...)
	require.Zero(t, OwnFrame(own, nil), "a line of the program's own in the backward pass")
	require.Zero(t, OwnFrame([]event.Frame{Mark()}, nil), "nothing is behind the mark")
	require.Equal(t, -1, OwnFrame(nil, nil))
	native := Mark()
	native.Module = &event.Module{Path: "/x/a.so"}
	require.False(t, IsMark(&native), "a function of that name")
	python := Mark()
	python.Kind = event.FramePython
	require.False(t, IsMark(&python))
}

// TestEndOfNode: a stack of the backward pass ends with the engine that runs the node, which may be its leaf.
func TestEndOfNode(t *testing.T) {
	const run, evaluate = "a.so!torch::autograd::Engine::thread_main", "a.so!torch::autograd::Engine::evaluate_function"
	for in, want := range map[string]int{
		"a.so!f " + evaluate + " a.so!g " + run + " a.so!clone": 4, "a.so!f " + evaluate + " a.so!g": 2, evaluate + " a.so!g": 1, run: 1,
		"a.so!f a.so!g": 2, "": 0,
	} {
		require.Len(t, OfNode(eventtest.Stack(in).Frames), want, in)
	}
}

// TestOperatorOf: a node is named after its operator where it ends in Backward and a number.
func TestOperatorOf(t *testing.T) {
	for node, want := range map[string]string{
		"AddmmBackward0": "addmm", "LogSoftmaxBackward0": "logsoftmax", "MulBackward": "mul", "A_Backward12": "a", "SplitBackwards": "split",
		"Backward0": "", "AddmmBackward0x": "", "PyNode": "", "": "",
	} {
		require.Equal(t, want, operatorOf(node), node)
	}
	for _, c := range []struct {
		name, words string
		want        bool
	}{
		{"add_Tensor", "add", true}, {"add", "add", true}, {"_log_softmax", "logsoftmax", true}, {"log_softmax_int", "logsoftmax", true},
		{"addmm", "add", false}, {"ad", "add", false}, {"a_dd", "add", true}, {"b_add", "add", false}, {"add_mm", "addm", false},
	} {
		require.Equal(t, c.want, beginsWithWords(c.name, c.words), c)
	}
}

// TestAutogradNodes: a node is a function of autograd's that is called apply; others of either kind are none.
func TestAutogradNodes(t *testing.T) {
	for function, want := range map[string]string{
		"torch::autograd::generated::MmBackward0::apply": "MmBackward0", "torch::autograd::PyNode::apply": "PyNode",
		"torch::autograd::Engine::execute": "", "at::Foo::apply": "",
	} {
		frames := eventtest.Stack("a.so!at::empty a.so!" + function + " a.so!g").Frames
		require.Equal(t, want, NodeName(frames), function)
		require.Equal(t, want != "", isAutogradNode(&frames[1]))
		require.Equal(t, want != "", OwnFrame(frames, nil) == 1, "a node says more than what it calls: %s", function)
	}
}

// TestCore: PyTorch's own files and the standard library's are its core; other packages are not.
func TestCore(t *testing.T) {
	for file, want := range map[string]bool{
		"/v/lib/python3.11/site-packages/torch/nn/functional.py": true, "/v/lib/python3.11/site-packages/functorch/a.py": true,
		"/v/lib/python3.11/site-packages/transformers/trainer.py": false, "/v/lib/python3/dist-packages/torch/a.py": true,
		"/usr/lib/python3.11/threading.py": true,
		"site-packages/torch/a.py":         true, "site-packages/other/a.py": false, "/home/a/train.py": false,
	} {
		require.Equal(t, want, IsCore(file, nil), file)
	}
	library := []string{"/src/torch/", "/src/other/"}
	require.True(t, IsCore("/src/torch/nn/a.py", library))
	require.False(t, IsCore("/src/other/a.py", library))
	inner := eventtest.Stack("a.so!f /v/lib/python3.11/site-packages/torch/a.py:1:f /v/lib/python3.11/site-packages/transformers/b.py:2:g " +
		eventtest.Own).Frames
	require.Equal(t, 2, InnerFrame(inner, nil))
	require.Equal(t, -1, InnerFrame(inner[3:], nil))
	require.Equal(t, -1, InnerFrame(inner[:2], nil), "only the core")
}

// TestStackText: a stack in one line has the outermost frame first.
func TestStackText(t *testing.T) {
	require.Empty(t, Text(nil))
	require.Equal(t, "gpt.py:38 Block.forward; at::empty",
		Text(eventtest.Stack("libc10.so!c10::reportMemoryUsageToProfiler a.so!at::empty "+eventtest.Own)))
	require.Equal(t, "c; b,x; a", Join(3, func(i int) string { return strings.Split("a b;x c", " ")[i] }))
	require.Empty(t, Join(0, nil))
}

// TestAsyncBackend: a call of cudaMallocAsync is PyTorch's when PyTorch makes it.
func TestAsyncBackend(t *testing.T) {
	torch := eventtest.Stack("libcudart.so!cudaMallocAsync libc10_cuda.so!c10::cuda::CUDACachingAllocator::CudaMallocAsync::mallocAsync")
	other := eventtest.Stack("libcudart.so!cudaMallocAsync libfoo.so!foo")
	require.True(t, IsAsyncBackend(torch, "cudaMallocAsync"))
	require.False(t, IsAsyncBackend(torch, "cudaMalloc"))
	require.False(t, IsAsyncBackend(other, "cudaMallocAsync"))
	require.False(t, IsAsyncBackend(nil, "cudaMallocAsync"))
}

// TestUnversioned: the name of a library has no version.
func TestUnversioned(t *testing.T) {
	for name, want := range map[string]string{"libfoo.so.1.2": "libfoo.so", "libfoo.so": "libfoo.so", ".so.1": ".so", "foo": "foo"} {
		require.Equal(t, want, unversioned(name))
	}
}
