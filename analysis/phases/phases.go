// SPDX-License-Identifier: Apache-2.0

// Package phases says in which part of a training step an allocation was made (forward, backward, optimizer, ...), and what its
// memory is for (parameters, gradients, activations, ...). Which functions make a phase is data: rules.txt, and a file of the user's.
// The rules and their format are in docs/use/phases.md.
package phases

import "slices"

// Phase is a part of a program's work.
type Phase string

// The phases.
const (
	Setup         Phase = "setup"         // the model is made, loaded or moved to the device
	Input         Phase = "input"         // a batch is loaded, put together or moved to the device
	Forward       Phase = "forward"       // modules and losses are called
	Backward      Phase = "backward"      // autograd's engine, also forward passes that checkpointing repeats in it
	Optimizer     Phase = "optimizer"     // an optimizer's step, gradients are scaled or clipped
	ZeroGrad      Phase = "zero_grad"     // gradients are set to zero or freed
	Communication Phase = "communication" // collectives and the buffers of their libraries
	Evaluation    Phase = "evaluation"    // modules are called to evaluate, predict or generate
	Other         Phase = "other"         // the stack is whole, and no rule applies
	Ambiguous     Phase = "ambiguous"     // several phases are possible
	Unknown       Phase = "unknown"       // there is no stack, or it ends before a frame with a rule
)

// Phases are all of them, in the order of a step.
var Phases = []Phase{
	Setup, Input, Forward, Backward, Optimizer, ZeroGrad, Communication, Evaluation, Other, Ambiguous, Unknown,
}

// Category is what memory is for.
type Category string

// The categories. Together they are all memory.
const (
	Parameters     Category = "parameters"      // of modules, and their buffers
	Gradients      Category = "gradients"       // of parameters
	OptimizerState Category = "optimizer_state" // such as Adam's moments
	Activations    Category = "activations"     // made in the forward pass, and in use beyond it
	Inputs         Category = "inputs"          // batches
	Workspace      Category = "workspace"       // of libraries: cuBLAS, cuDNN, NCCL
	KVCache        Category = "kv_cache"        // keys and values of a language model's attention
	Graphs         Category = "graphs"          // allocated while CUDA graphs were captured, and in use beyond it
	Temporary      Category = "temporary"       // freed in the part of the step in which it was allocated
	NoCategory     Category = "unknown"
)

// Categories are all of them.
var Categories = []Category{
	Parameters, Gradients, OptimizerState, Activations, Inputs, Workspace, KVCache, Graphs, Temporary, NoCategory,
}

// isPhase says whether a rule can be of a phase.
func isPhase(name string) bool {
	p := Phase(name)
	return p != Other && p != Ambiguous && p != Unknown && slices.Contains(Phases, p)
}

// isCategory says whether a rule can be of a category.
func isCategory(name string) bool {
	return Category(name) != NoCategory && slices.Contains(Categories, Category(name))
}
