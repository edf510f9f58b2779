// SPDX-License-Identifier: Apache-2.0

package stacks

import (
	"slices"
	"strings"

	"github.com/gputrace/gputrace/event"
)

// Autograd runs the backward pass on threads of its own, without a frame of the program. Where it is known which line of the forward
// pass made the node that runs, its stack is put behind that of the backward pass, with a mark between them:
//
//	at::empty  AddmmBackward0::apply  Engine::evaluate_function  [backward of]  Linear.forward  gpt.py:38 Block.forward
//
// Where it is one of two lines, the mark names both and the frames behind it are those that both have.
//
// Where no line of the forward pass is known, as of a gradient that is added up, it is the line that called the backward pass.
const (
	BackwardOf      = "[backward of]"
	backwardBetween = "[backward between] "
	backwardCall    = "[backward called by]"
)

// markAt is the index of the first mark; -1: there is none.
func markAt(frames []event.Frame) int { return slices.IndexFunc(frames, isMark) }

func isMark(f event.Frame) bool { return IsMark(&f) }

// IsMark says whether a frame is not one of the program, but parts a stack of the backward pass from that of the forward pass.
func IsMark(f *event.Frame) bool {
	return f.Kind == event.FrameNative && f.Module == nil &&
		(f.Func == BackwardOf || f.Func == backwardCall || strings.HasPrefix(f.Func, backwardBetween))
}

// Mark is the frame between a stack of the backward pass and that of the forward pass. lines are the names of the lines between
// which it is; none: it is that of the frames that follow.
func Mark(lines ...string) event.Frame {
	name := BackwardOf
	if len(lines) > 0 {
		name = backwardBetween + strings.Join(lines, " and ")
	}
	return event.Frame{Kind: event.FrameNative, Func: name}
}

// CallMark is the frame between a stack of the backward pass and that of its caller.
func CallMark() event.Frame { return event.Frame{Kind: event.FrameNative, Func: backwardCall} }

// Ran is the frames of a stack that ran: without those of the forward pass that are put behind one of the backward pass.
func Ran(frames []event.Frame) []event.Frame {
	if i := markAt(frames); i >= 0 {
		return frames[:i]
	}
	return frames
}

// IsBackward says whether a frame after which a stack is named is one of the forward pass, which the allocation follows.
func IsBackward(frames []event.Frame, own int) bool {
	mark := markAt(frames)
	return mark >= 0 && own > mark && frames[mark].Func != backwardCall
}

// BackwardPrefix is what the name of a stack or of its line begins with when it is of the backward pass of that line; empty when it is
// not.
func BackwardPrefix(name string) string {
	if strings.HasPrefix(name, BackwardOf+" ") {
		return BackwardOf + " "
	}
	return ""
}

func backwardPrefix(frames []event.Frame, own int) string {
	if IsBackward(frames, own) {
		return BackwardOf + " "
	}
	return ""
}

// engineFrames begin the frames of autograd's engine, the outermost of one run first.
var engineFrames = []string{"torch::autograd::Engine::thread_main", "torch::autograd::Engine::evaluate_function"}

// OfNode is the frames of a stack of the backward pass that are the node's: up to the engine that runs it. All, where the engine
// cannot be seen.
func OfNode(frames []event.Frame) []event.Frame {
	for _, name := range engineFrames {
		if i := slices.IndexFunc(frames, func(f event.Frame) bool { return strings.HasPrefix(f.Func, name) }); i >= 0 {
			return frames[:i+1]
		}
	}
	return frames
}

// node is the function of a node: what its name begins and ends with, and what the name of a generated one ends with, before a
// number.
const (
	nodePrefix    = "torch::autograd::"
	nodeSuffix    = "::apply"
	generatedEnd  = "Backward"
	customNode    = "torch::autograd::PyNode::apply"
	customForward = "THPFunction_apply"
)

// NodeName is the name of the node that a stack of the backward pass runs: "AddmmBackward0"; empty when it is not known.
func NodeName(frames []event.Frame) string {
	for i := range frames {
		if f := &frames[i]; f.Kind == event.FrameNative && isAutogradNode(f) {
			name := strings.TrimSuffix(strings.TrimPrefix(f.Func, nodePrefix), nodeSuffix)
			return strings.TrimPrefix(name, "generated::")
		}
	}
	return ""
}

// operatorOf is the operator whose node has a name, without what writes it differently: "addmm" of AddmmBackward0, "logsoftmax" of
// LogSoftmaxBackward0 (torchgen and tools/autograd name a node after its operator). Empty: it is not named so.
func operatorOf(node string) string {
	i := strings.LastIndex(node, generatedEnd)
	if i <= 0 || strings.Trim(node[i+len(generatedEnd):], "0123456789s") != "" {
		return ""
	}
	return strings.ToLower(strings.ReplaceAll(node[:i], "_", ""))
}

// Makes says whether a stack of the forward pass is inside the operator that makes nodes of a name.
func Makes(frames []event.Frame, node string) bool {
	operator := operatorOf(node)
	for i := range frames {
		f := &frames[i]
		if f.Kind != event.FrameNative {
			continue
		}
		if operator == "" && node == "PyNode" && strings.HasPrefix(f.Func, customForward) {
			return true
		}
		if operator != "" && isOperator(f.Func, operator) {
			return true
		}
	}
	return false
}

// operatorParts are what the names of an operator's own functions begin with.
var operatorParts = []string{"at::_ops::", "torch::autograd::VariableType::"}

// isOperator says whether a function is an operator's: "at::_ops::add_Tensor::redispatch" is one of add, and so is what begins
// with whole words of its name.
func isOperator(function, operator string) bool {
	for _, part := range operatorParts {
		name, ok := strings.CutPrefix(function, part)
		if !ok {
			continue
		}
		name = strings.TrimPrefix(name, "(anonymous namespace)::")
		name, _, _ = strings.Cut(name, "::")
		return beginsWithWords(name, operator)
	}
	return false
}

// beginsWithWords says whether the first words of a name with underscores are these, written together.
func beginsWithWords(name, words string) bool {
	so := ""
	for _, word := range strings.Split(strings.ToLower(name), "_") {
		if so += word; so == words {
			return true
		}
		if len(so) > len(words) {
			return false
		}
	}
	return false
}
