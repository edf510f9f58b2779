// SPDX-License-Identifier: Apache-2.0

package eventtest

import "github.com/gputrace/gputrace/event"

const (
	torch  = "/v/lib/python3.11/site-packages/torch/"
	module = torch + "nn/modules/module.py:1773:Module._wrapped_call_impl"
	record = "libtorch_cpu.so!record_function_enter_new " + torch + "autograd/profiler.py:760:record_function.__enter__"
	caller = " /home/a/train.py:99:main"
)

// Stacks of a training loop, leaf first.
const (
	Input         = Report + " /home/a/train.py:10:batch" + caller
	Forward       = Report + " " + Library + " " + module + " /home/a/net.py:7:Net.forward " + module + " /home/a/train.py:20:main"
	SecondForward = Report + " " + Library + " " + module + " /home/a/net.py:8:Net.forward " + module + " /home/a/train.py:40:main"
	Kept          = Report + " /home/a/train.py:30:main"
	Backward      = Report + " " + torch + "autograd/__init__.py:200:_make_grads " + torch + "autograd/__init__.py:300:backward " +
		torch + "_tensor.py:600:Tensor.backward /home/a/train.py:21:main"
	Adam = Report + " " + torch + "optim/adam.py:300:_multi_tensor_adam " + torch +
		"optim/adam.py:200:Adam.step /home/a/train.py:22:main"
	AnotherAdam = Report + " " + torch + "optim/adam.py:300:_multi_tensor_adam " + torch +
		"optim/adam.py:200:Adam.step /home/a/train.py:24:main"
	// A library's loop that gives the optimizer all of the step, as Lightning's does: what the library and the program allocate in it, and the
	// backward pass as a mark.
	Closed         = Report + " /usr/lib/python3/site-packages/light/closure.py:80:result" + closed
	ClosedForward  = Report + " /home/a/net.py:12:training_step /usr/lib/python3/site-packages/light/closure.py:81:closure" + closed
	ClosedBackward = record + " " + torch + "autograd/graph.py:1113:_engine_run_backward" + closed
	closed         = " " + torch + "optim/lbfgs.py:300:LBFGS.step /home/a/train.py:22:main"

	Closure = Report + " /home/a/train.py:50:closure " + torch + "optim/lbfgs.py:300:LBFGS.step /home/a/train.py:22:main"
	// Stepped and Loaded mark a step of an optimizer and one of a data loader.
	Stepped    = record + " " + torch + "optim/optimizer.py:551:Optimizer.profile_hook_step.<locals>.wrapper /home/a/train.py:22:main"
	Loaded     = record + " " + torch + "utils/data/dataloader.py:721:_BaseDataLoaderIter.__next__ /home/a/train.py:19:main"
	DriverCall = "libcudart.so!cudaMalloc libfoo.so!foo /home/a/train.py:60:main"
)

// Job writes the events of a program, a millisecond apart.
type Job struct {
	Stream
	Next  uint64            // address of the latest block
	Live  map[uint64]uint64 // bytes of each block of PyTorch's
	Blind bool              // the events have no requested bytes

	ids   map[string]event.StackID
	total uint64
}

// NewJob is a program that has not begun.
func NewJob() *Job {
	return &Job{Stream: Stream{Stacks: map[event.StackID]*event.Stack{}}, ids: map[string]event.StackID{}, Live: map[uint64]uint64{}}
}

// ID is the number of a stack.
func (j *Job) ID(stack string) event.StackID {
	id, ok := j.ids[stack]
	if !ok {
		id = event.StackID(len(j.ids) + 1)
		j.ids[stack] = id
		j.Stacks[id] = Stack(stack)
	}
	return id
}

// Add adds an event, and fills in what all have in common.
func (j *Job) Add(e event.Event) {
	e.Time, e.PID, e.TID = uint64(len(j.Events)+1)*1e6, PID, PID
	e.Device = event.Device{Type: event.DeviceCUDA}
	e.Handle, e.Context, e.Reserved = event.Unknown, event.Unknown, event.Unknown
	j.Events = append(j.Events, e)
}

// Alloc is a block of PyTorch's.
func (j *Job) Alloc(stack string, requested uint64) (addr uint64) {
	size := (requested + 511) / 512 * 512
	if j.Blind {
		requested = event.Unknown
	}
	j.Next += 1 << 30
	j.total += size
	j.Live[j.Next] = size
	j.Add(event.Event{Kind: event.KindAlloc, Layer: event.LayerAllocator, Addr: j.Next, Size: size, Requested: requested, Allocated: j.total,
		Stack: j.ID(stack)})
	return j.Next
}

// Mark is where a step may begin.
func (j *Job) Mark(stack string) {
	j.Add(event.Event{
		Kind: event.KindMark, Layer: event.LayerAllocator, Size: event.Unknown, Requested: event.Unknown, Allocated: event.Unknown,
		Call: "record_function_enter_new", Stack: j.ID(stack),
	})
	j.Events[len(j.Events)-1].Device = event.Device{Index: -1}
}

// Free frees a block.
func (j *Job) Free(addr uint64) {
	j.total -= j.Live[addr]
	j.Add(event.Event{Kind: event.KindFree, Layer: event.LayerAllocator, Addr: addr, Size: j.Live[addr], Requested: event.Unknown,
		Allocated: j.total})
	delete(j.Live, addr)
}

// Obtain is memory of another layer.
func (j *Job) Obtain(layer event.Layer, stack string, size uint64) {
	j.Next += 1 << 30
	j.Add(event.Event{
		Kind: event.KindAlloc, Layer: layer, Addr: j.Next, Size: size, Requested: event.Unknown, Allocated: event.Unknown,
		Call: "cudaMalloc", Stack: j.ID(stack),
	})
}

// Pass allocates what each stack needs and frees all of it.
func (j *Job) Pass(stacks ...string) {
	var addrs []uint64
	for _, s := range stacks {
		addrs = append(addrs, j.Alloc(s, 1<<20))
	}
	for _, a := range addrs {
		j.Free(a)
	}
}

// Total is the bytes of all blocks of PyTorch's.
func (j *Job) Total() uint64 { return j.total }
