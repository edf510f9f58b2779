// SPDX-License-Identifier: Apache-2.0

package stacks

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/internal/eventtest"
)

// Frames of a program that calls a library's model.
const (
	site    = "/v/site-packages/"
	calling = " " + site + "torch/nn/modules/module.py:1798:Module._call_impl "
	linear  = "a.so!at::_ops::addmm::call a.so!at::native::linear a.so!at::_ops::linear::call " + site +
		"torch/nn/modules/linear.py:134:Linear.forward"
	mlp    = site + "transformers/modeling_gpt2.py:312:GPT2MLP.forward"
	script = "/home/a/main.py:15:main"
	node   = "a.so!at::_ops::mm::call a.so!torch::autograd::generated::AddmmBackward0::apply a.so!torch::autograd::Engine::evaluate_function"
)

func TestCalls(t *testing.T) {
	for name, row := range map[string]struct{ in, module, operator, inner string }{
		"library's model": {linear + calling + mlp + calling + script, "GPT2MLP (modeling_gpt2.py)", "aten::linear",
			"modeling_gpt2.py:312 GPT2MLP.forward"},
		"program's model": {linear + calling + "/home/a/net.py:3:Net.forward" + calling + script, "Net (net.py)", "aten::linear", ""},
		"PyTorch's model": {linear + calling + script, "Linear (linear.py)", "aten::linear", ""},
		"decorated": {linear + calling + mlp + " " + site + "transformers/generic.py:9:wrap.<locals>.wrapper" + calling + script,
			"GPT2MLP (modeling_gpt2.py)", "aten::linear", "modeling_gpt2.py:312 GPT2MLP.forward"},
		"no class in name": {"a.so!f /home/a/net.py:3:forward" + calling + script, "forward (net.py)", NoOperator, ""},
		"wrapped call":     {linear + calling + calling + script, "Linear (linear.py)", "aten::linear", ""},
		"backward":         {node, NoModule, "AddmmBackward0", ""},
		"no module":        {"a.so!at::_ops::zeros::call " + script, NoModule, "aten::zeros", ""},
		"data loader":      {site + "accelerate/data_loader.py:9:f " + script, NoModule, NoOperator, "data_loader.py:9 f"},
		"standard library": {"/usr/lib/python3.11/queue.py:9:get " + script, NoModule, NoOperator, ""},
		"nothing":          {"", NoModule, NoOperator, ""},
	} {
		frames := eventtest.Stack(row.in).Frames
		require.Equal(t, row.module, Module(frames, nil), name)
		require.Equal(t, row.operator, Operator(frames), name)
		inner := ""
		if i := InnerFrame(frames, nil); i >= 0 {
			inner = FrameName(&frames[i])
		}
		require.Equal(t, row.inner, inner, name)
	}
}

func TestIsCore(t *testing.T) {
	library := []string{"/src/torch/", "/src/models/"}
	for file, want := range map[string]bool{
		site + "torch/nn/functional.py": true, site + "torchvision/ops.py": false, site + "transformers/x.py": false,
		"/usr/lib/python3.11/queue.py": true, "<frozen runpy>": true, "/src/torch/nn/x.py": true, "/src/models/x.py": false,
		"/home/a/torch/x.py": false, site + "six.py": false,
	} {
		require.Equal(t, want, IsCore(file, library), file)
	}
}
