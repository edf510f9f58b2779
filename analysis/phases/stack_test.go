// SPDX-License-Identifier: Apache-2.0

package phases

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// Stacks as PyTorch 2.15 and libraries of November 2026 have them.
const (
	packages = "/v/site-packages/"
	torch    = packages + "torch/"
	linear   = "a.so!at::_ops::linear::call " + torch + "nn/modules/linear.py:134:Linear.forward "
	call     = torch + "nn/modules/module.py:1798:Module._call_impl "
	main     = " /home/a/t.py:9:main"
	train    = packages + "transformers/trainer.py:1660:Trainer._inner_training_loop"
	engine   = "a.so!torch::autograd::Engine::evaluate_function a.so!torch::autograd::Engine::thread_main libc.so.6!start_thread"
	adam     = torch + "optim/adam.py:249:Adam.step "
	wrapper  = torch + "optim/optimizer.py:567:Optimizer.profile_hook_step.<locals>.wrapper"
	toDevice = "a.so!at::_ops::to_dtype_layout::call "
)

func TestPhaseOfStack(t *testing.T) {
	for name, row := range map[string]struct {
		in   string
		want Phase
	}{
		"module":          {linear + call + main, Forward},
		"loss":            {"a.so!f " + torch + "nn/functional.py:3561:cross_entropy" + main, Forward},
		"engine's thread": {"a.so!at::_ops::mm::call a.so!torch::autograd::generated::MmBackward0::apply " + engine, Backward},
		"engine's beginning": {"a.so!f " + torch + "autograd/__init__.py:233:_make_grads " + torch +
			"autograd/__init__.py:388:backward" + main, Backward},
		"checkpointing": {linear + call + torch + "utils/checkpoint.py:2020:recompute_fn " + engine, Backward},
		"gradient penalty": {"a.so!f " + torch + "autograd/__init__.py:5:grad /home/a/net.py:3:Net.forward " + call + main,
			Backward},
		"optimizer":                    {"a.so!f " + adam + wrapper + main, Optimizer},
		"the program's optimizer":      {"a.so!f /home/a/opt.py:3:helper /home/a/opt.py:9:Sophia.step " + wrapper + main, Optimizer},
		"closure":                      {"a.so!f /home/a/t.py:12:closure " + adam + wrapper + main, Other},
		"module in a closure":          {linear + call + "/home/a/t.py:12:closure " + adam + wrapper + main, Forward},
		"optimizer in a backward hook": {"a.so!f " + adam + wrapper + " " + engine, Optimizer},
		"scheduler":                    {"a.so!f " + torch + "optim/swa_utils.py:9:update" + main, Other},
		"clipping":                     {"a.so!f " + torch + "nn/utils/clip_grad.py:9:clip_grad_norm_" + main, Optimizer},
		"zero_grad":                    {"a.so!f " + torch + "optim/optimizer.py:9:Optimizer.zero_grad" + main, ZeroGrad},
		"all-reduce in backward":       {"a.so!c10d::Reducer::finalize_backward " + engine, Communication},
		"communicator":                 {"libcuda.so.1!cuMemCreate libnccl.so.2!? a.so!f" + main, Communication},
		"model to device":              {toDevice + torch + "nn/modules/module.py:966:Module._apply" + main, Setup},
		"program's own constructor":    {"a.so!at::_ops::randn::call /home/a/net.py:3:Net.__init__" + main, Setup},
		"batch to device":              {toDevice + "/home/a/t.py:4:batch" + main, Input},
		"constructor that moves":       {toDevice + "/home/a/data.py:3:Data.__init__" + main, Ambiguous},
		"data loader": {"a.so!f /home/a/data.py:3:Data.__getitem__ " + torch + "utils/data/_utils/fetch.py:52:fetch" + main,
			Input},
		"evaluation in training": {linear + call + packages + "transformers/trainer.py:9:Trainer.prediction_step " + packages +
			"transformers/trainer.py:8:Trainer.evaluate " + train, Evaluation},
		"training in evaluate": {linear + call + packages + "transformers/trainer.py:9:Trainer.training_step /home/a/t.py:5:evaluate" +
			main, Forward},
		"evaluation's batches": {"a.so!f " + torch + "utils/data/dataloader.py:9:_next_data " + packages +
			"transformers/trainer.py:8:Trainer.evaluate", Evaluation},
		"no_grad decorator":            {linear + call + torch + "utils/_contextlib.py:158:no_grad" + main, Evaluation},
		"no_grad decorator, no module": {"a.so!f " + torch + "utils/_contextlib.py:158:no_grad" + main, Other},
		"initialization under no_grad": {"a.so!f " + torch + "nn/init.py:9:normal_ " + torch + "utils/_contextlib.py:158:no_grad" + main, Setup},
		"Lightning": {linear + call + packages + "pytorch_lightning/strategies/strategy.py:9:Strategy.validation_step " +
			packages + "pytorch_lightning/loops/evaluation_loop.py:9:run", Evaluation},
		"Lightning's batch":             {toDevice + packages + "lightning_fabric/utilities/apply_func.py:110:move_data_to_device" + main, Input},
		"program's tensor":              {"a.so!at::_ops::zeros::call" + main, Other},
		"native program":                {"a.so!f b.so!main", Other},
		"nothing":                       {"", Other},
		"program's training step":       {"a.so!f /home/a/net.py:3:Net.training_step" + main, Forward},
		"module above the program's op": {"a.so!f /home/a/net.py:3:Net.forward " + call + main, Forward},
	} {
		c := New(nil, nil, nil)
		require.Equal(t, row.want, c.Stack(eventtest.Stack(row.in)).Phase, name)
	}
}

// TestLearned: a function below which a stack runs the backward pass trains, whatever it is called.
func TestLearned(t *testing.T) {
	all := map[event.StackID]*event.Stack{
		1: eventtest.Stack(linear + call + "/home/a/t.py:5:evaluate" + main),
		2: eventtest.Stack("a.so!f " + torch + "_tensor.py:9:Tensor.backward /home/a/t.py:7:evaluate" + main),
		3: eventtest.Stack(linear + call + "/home/a/t.py:5:validate" + main),
	}
	c := New(nil, nil, func(id event.StackID) *event.Stack { return all[id] })
	require.Equal(t, Evaluation, c.Stack(all[1]).Phase)
	for id := range event.StackID(5) {
		c.Learn(id)
	}
	require.Equal(t, Forward, c.Of(1).Phase)
	require.Equal(t, Evaluation, c.Of(3).Phase, "another function")
	require.Equal(t, Result{Phase: Unknown, Category: NoCategory}, c.Of(4))
	require.Equal(t, Result{Phase: Unknown, Category: NoCategory}, c.Of(0))
}

// TestCutStacks: what is cut off could say another phase.
func TestCutStacks(t *testing.T) {
	for in, want := range map[string]Phase{
		linear + call:      Ambiguous, // of an evaluation, or of checkpointing
		"a.so!f " + adam:   Optimizer,
		"a.so!f" + main:    Unknown,
		"a.so!g " + engine: Backward,
	} {
		st := eventtest.Stack(in)
		st.Status = event.StatusTooDeep
		require.Equal(t, want, New(nil, nil, nil).Stack(st).Phase, in)
	}
}

func TestCategoryOfStack(t *testing.T) {
	for in, want := range map[string]Category{
		"a.so!at::cuda::allocateCUDABlasWorkspace a.so!at::_ops::mm::call " + engine:                     Workspace,
		"libcuda.so.1!cuMemAlloc libcublas.so.13!? " + linear + main:                                     Workspace,
		"a.so!at::_ops::zeros_like::call " + torch + "optim/adam.py:179:Adam._init_group " + adam + main: OptimizerState,
		"a.so!at::clone a.so!torch::autograd::AccumulateGrad::apply " + engine:                           Gradients,
		linear + main: NoCategory,
	} {
		require.Equal(t, want, New(nil, nil, nil).Stack(eventtest.Stack(in)).Category, in)
	}
}
