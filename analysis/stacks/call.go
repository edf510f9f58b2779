// SPDX-License-Identifier: Apache-2.0

package stacks

import (
	"path"
	"slices"
	"strings"

	"github.com/gputrace/gputrace/event"
)

// Names of what a stack does not have.
const (
	NoModule   = "[no module]"   // no module of PyTorch's is called
	NoOperator = "[no operator]" // no operator of PyTorch's is called
)

// moduleFile is the file in which modules are called.
const moduleFile = "torch/nn/modules/module.py"

// moduleCalls are its functions that do.
var moduleCalls = []string{"_call_impl", "_wrapped_call_impl", "_slow_forward"}

// IsCore says whether a Python file is PyTorch's own or the standard library's, which say little of what a program does.
func IsCore(file string, library []string) bool {
	if !IsLibrary(file, library) {
		return false
	}
	for _, p := range library {
		if strings.HasPrefix(file, p) {
			return strings.HasSuffix(p, "/torch/")
		}
	}
	dirs := strings.Split(file, "/")
	i := slices.IndexFunc(dirs, func(d string) bool { return d == "site-packages" || d == "dist-packages" })
	return i < 0 || i+1 < len(dirs) && (dirs[i+1] == "torch" || dirs[i+1] == "functorch")
}

// InnerFrame is the index of the innermost Python frame outside PyTorch's core: of a library that the program calls, such as
// transformers' modeling_gpt2.py. -1: there is none nearer to the leaf than OwnFrame.
func InnerFrame(frames []event.Frame, library []string) int {
	for i := range frames {
		f := &frames[i]
		if !isPython(f) || IsCore(f.File, library) {
			continue
		}
		if !IsLibrary(f.File, library) {
			return -1
		}
		return i
	}
	return -1
}

// Module is the class of the innermost module of PyTorch's that is called, with its file: "GPT2MLP (modeling_gpt2.py)". One outside
// PyTorch's core comes before those in it, such as Linear. Where the function has no class in its name it is the function.
func Module(frames []event.Frame, library []string) string {
	var callee, core *event.Frame // callee: of the calls so far, what a module's call leads to
	for i := range frames {
		f := &frames[i]
		switch {
		case !isPython(f):
		case !isModuleCall(f):
			if callee == nil || !IsForward(callee) || IsForward(f) { // decorators lie between the call and forward
				callee = f
			}
		case callee == nil:
		case !IsCore(callee.File, library):
			return moduleName(callee)
		default:
			if core == nil {
				core = callee
			}
			callee = nil
		}
	}
	if core == nil {
		return NoModule
	}
	return moduleName(core)
}

// IsForward reports whether a frame is a forward of a module, by its name.
func IsForward(f *event.Frame) bool {
	return f.Func == "forward" || strings.HasSuffix(f.Func, ".forward")
}

func isModuleCall(f *event.Frame) bool {
	if !strings.HasSuffix(f.File, moduleFile) {
		return false
	}
	return slices.ContainsFunc(moduleCalls, func(name string) bool { return f.Func == name || strings.HasSuffix(f.Func, "."+name) })
}

func moduleName(f *event.Frame) string {
	name, _, _ := strings.Cut(f.Func, ".")
	return name + " (" + path.Base(f.File) + ")"
}

// operatorSpace is the C++ namespace of PyTorch's operators.
const operatorSpace = "at::_ops::"

// Operator is what of PyTorch the innermost Python line calls: "aten::linear". In the backward pass, where there is none, it is the
// autograd node that runs: "AddmmBackward0".
func Operator(frames []event.Frame) string {
	out := NoOperator
	for i := range frames {
		f := &frames[i]
		switch {
		case isPython(f):
			return out
		case isAutogradNode(f):
			return nodeName(f.Func)
		case strings.HasPrefix(f.Func, operatorSpace):
			name, _, _ := strings.Cut(f.Func[len(operatorSpace):], "::")
			out = "aten::" + name
		}
	}
	return out
}

// nodeName is "AddmmBackward0" of "torch::autograd::generated::AddmmBackward0::apply".
func nodeName(function string) string {
	parts := strings.Split(function, "::")
	return parts[len(parts)-2]
}
