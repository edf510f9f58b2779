// SPDX-License-Identifier: Apache-2.0

package eventtest

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/gputrace/gputrace/event"
)

// Frames as Stack reads them.
const (
	// Report is PyTorch's report of an allocation, the leaf of the stacks of torch blocks.
	Report = "libc10.so!c10::reportMemoryUsageToProfiler"
	// Own is a line of the program.
	Own = "/home/a/gpt.py:38:Block.forward"
	// Library is a line of an installed package.
	Library = "/v/lib/python3.11/site-packages/torch/nn/modules/linear.py:125:Linear.forward"
)

// Stack reads frames from text, leaf first, separated by spaces: "lib!symbol" is native (a symbol of "?" is none), the
// interpreter's loop when it is "lib!eval"; "file:line:function" is Python. "~" stands for a space in a name.
func Stack(text string) *event.Stack {
	st := &event.Stack{ID: 1}
	for i, word := range strings.Fields(text) {
		word = strings.ReplaceAll(word, "~", " ")
		if lib, symbol, ok := strings.Cut(word, "!"); ok {
			f := event.Frame{Kind: event.FrameNative, Func: symbol, Addr: uint64(4096 + i), Offset: uint64(16 + i), Eval: symbol == "eval"}
			if symbol == "?" {
				f.Func = ""
			}
			if lib != "" {
				f.Module = &event.Module{Path: "/x/" + lib}
			}
			st.Frames = append(st.Frames, f)
			continue
		}
		f := strings.Split(word, ":")
		line, err := strconv.Atoi(f[1])
		if err != nil {
			panic(err)
		}
		st.Frames = append(st.Frames, event.Frame{Kind: event.FramePython, File: f[0], Line: line, Func: f[2]})
	}
	return st
}

// Text is the inverse of Stack.
func Text(frames []event.Frame) string {
	var out []string
	for i := range frames {
		f := &frames[i]
		switch {
		case f.Kind == event.FramePython:
			out = append(out, fmt.Sprintf("%s:%d:%s", f.File, f.Line, f.Func))
		case f.Func == "":
			out = append(out, f.Module.Name()+"!?")
		case f.Module == nil:
			out = append(out, "!"+f.Func)
		default:
			out = append(out, f.Module.Name()+"!"+f.Func)
		}
	}
	return strings.ReplaceAll(strings.Join(out, "  "), " ", "~")
}
