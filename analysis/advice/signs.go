// SPDX-License-Identifier: Apache-2.0

package advice

import (
	"slices"
	"strings"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/event"
)

// Signs are what stacks say of the calls that allocated memory.
type Signs uint16

// The signs.
const (
	Python     Signs = 1 << iota // it was called from Python
	CachedCast                   // autocast casts a weight and keeps the copy (ATen/autocast_mode.cpp)
	Gradient                     // the backward pass adds up the gradient of a leaf
	Worker                       // it ran on a thread that Python code started
	Optimizer                    // a step of an optimizer of PyTorch's
	Load                         // torch.load, or a library that loads tensors from a file
	Gather                       // nn.DataParallel brings outputs or parameters together
)

// Has reports whether a sign is there.
func (s Signs) Has(sign Signs) bool { return s&sign != 0 }

// nativeSigns are signs by how the name of a native function begins, pythonSigns by the end of a Python file and how the name of the function
// begins.
var (
	nativeSigns = []struct {
		prefix string
		sign   Signs
	}{
		{"at::autocast::cached_cast", CachedCast},
		{"torch::autograd::AccumulateGrad::", Gradient},
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

// optimizerFolder has PyTorch's optimizers.
const optimizerFolder = "/torch/optim/"

// SignsOf are the signs of a stack. The frames of the forward pass that follow those of the backward pass count as what allocated it, except
// for the thread: the engine's threads are nobody's.
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
