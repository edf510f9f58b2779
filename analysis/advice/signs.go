// SPDX-License-Identifier: Apache-2.0

package advice

import (
	"slices"
	"strings"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/event"
)

// Signs are properties of the calls that allocated memory, read from their stacks.
type Signs uint16

// The signs.
const (
	Python     Signs = 1 << iota // called from Python
	CachedCast                   // autocast casts a weight and keeps the copy (ATen/autocast_mode.cpp)
	Gradient                     // the backward pass accumulates the gradient of a leaf
	Worker                       // runs on a thread that Python code started
	Optimizer                    // in a step of a PyTorch optimizer
	Load                         // torch.load, or a library that loads tensors from a file
	Gather                       // nn.DataParallel gathers outputs or parameters
	Backward                     // in a backward pass
	Join                         // torch.cat, torch.stack, or what calls them
)

// Has reports whether s contains a sign.
func (s Signs) Has(sign Signs) bool { return s&sign != 0 }

// nativeSigns are signs by the prefix of a native function's name; pythonSigns by the suffix of a Python file's path
// and the prefix of the function's name.
var (
	nativeSigns = []struct {
		prefix string
		sign   Signs
	}{
		{"at::autocast::cached_cast", CachedCast},
		{"torch::autograd::AccumulateGrad::", Gradient},
		{"torch::autograd::Engine::", Backward},
		{"at::_ops::cat::", Join},
		{"at::_ops::stack::", Join},
	}
	pythonSigns = []struct {
		file, function string
		sign           Signs
	}{
		{"/threading.py", "Thread._bootstrap", Worker},
		{"/threading.py", "_bootstrap", Worker}, // up to Python 3.10
		{"/torch/serialization.py", "", Load},
		{"/safetensors/torch.py", "load", Load},
		{"/torch/nn/parallel/scatter_gather.py", "gather", Gather},
		{"/torch/nn/parallel/comm.py", "reduce_add", Gather},
		{"/torch/nn/parallel/comm.py", "gather", Gather},
	}
)

// optimizerFolder is the folder of PyTorch's optimizers.
const optimizerFolder = "/torch/optim/"

// SignsOf returns the signs of a stack. Frames of the forward pass that are appended to those of the backward pass
// count as the allocating ones, except for the thread, because no Python code starts the engine's threads.
func SignsOf(frames []event.Frame) Signs {
	var out Signs
	for i := range frames {
		f := &frames[i]
		if f.Kind != event.FramePython {
			for _, n := range nativeSigns {
				if strings.HasPrefix(f.Func, n.prefix) {
					out |= n.sign
				}
			}
			continue
		}
		out |= Python
		if strings.Contains(f.File, optimizerFolder) {
			out |= Optimizer
		}
		for _, p := range pythonSigns {
			if strings.HasSuffix(f.File, p.file) && strings.HasPrefix(f.Func, p.function) {
				out |= p.sign
			}
		}
	}
	if out.Has(Worker) && slices.ContainsFunc(frames, func(f event.Frame) bool { return stacks.IsMark(&f) }) {
		out &^= Worker
	}
	return out
}
