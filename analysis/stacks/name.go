// SPDX-License-Identifier: Apache-2.0

// Package stacks says what a stack is called and what of it is worth showing: the line of the program that an allocation
// belongs to, the frames that a reader wants to see, the library that asked the driver for memory, the text of source lines.
package stacks

import (
	"fmt"
	"path"
	"strings"

	"github.com/gputrace/gputrace/event"
)

// Names of what has no frame to be named after.
const (
	NoStack      = "[no stack]"      // none was captured
	UnknownStack = "[unknown stack]" // one was captured, but its frames were lost
	BeforeAttach = "[before attach]" // it was made before the first event
	LostEvents   = "[lost events]"   // the event of it was lost
)

// generatedCode begins the name of code that torch.fx makes of a function (torch/fx/graph_module.py), and inductorCache that of the
// folder of what torch.compile writes (torch/_inductor/runtime/cache_dir_utils.py).
const (
	generatedCode = "<eval_with_key>"
	inductorCache = "torchinductor_"
)

// IsLibrary says whether a Python file is not the program's own: the standard library, an installed package, made by torch.compile,
// or under one of the extra prefixes.
func IsLibrary(file string, extra []string) bool {
	if strings.HasPrefix(file, "<frozen ") || strings.HasPrefix(file, generatedCode) || hasPrefix(file, extra) {
		return true
	}
	dirs := strings.Split(path.Dir(file), "/")
	for i, d := range dirs {
		if d == "site-packages" || d == "dist-packages" || isStdlibZip(d) || strings.HasPrefix(d, inductorCache) {
			return true
		}
		if i > 0 && isVersioned(d) && (dirs[i-1] == "lib" || dirs[i-1] == "lib64") {
			return true
		}
	}
	return false
}

// isVersioned accepts "python3.11" and, of free-threaded builds, "python3.14t".
func isVersioned(dir string) bool {
	minor, ok := strings.CutPrefix(dir, "python3.")
	minor = strings.TrimSuffix(minor, "t")
	return ok && minor != "" && strings.Trim(minor, "0123456789") == ""
}

// isStdlibZip accepts "python311.zip", as embedded interpreters have it.
func isStdlibZip(dir string) bool {
	return strings.HasPrefix(dir, "python3") && strings.HasSuffix(dir, ".zip")
}

// PackagePrefix is the prefix of the files of the torch package to which a library belongs ("/opt/torch/lib/libc10.so"
// gives "/opt/torch/"), for view.Options.Library; empty when the path does not look like one. It tells PyTorch's own Python
// files when they are not under site-packages: a source checkout, an image that sets PYTHONPATH.
func PackagePrefix(library string) string {
	dir, _, ok := strings.Cut(library, "/torch/lib/lib")
	if !ok {
		return ""
	}
	return dir + "/torch/"
}

// OwnFrame is the index of the frame that a stack is named after: the innermost Python frame that is no library's, else the
// innermost Python frame, else the autograd node that runs, else the innermost native frame that is neither the allocator's
// nor the driver's, else the innermost frame that VisibleFrames would show. Of a stack of the backward pass it is a frame of the
// program's own in it, else that of the forward pass behind it, or the mark where that is not sure. -1 without frames.
func OwnFrame(frames []event.Frame, library []string) int {
	mark := markAt(frames)
	if mark < 0 {
		return ownFrame(frames, library)
	}
	if i := ownFrame(frames[:mark], library); i >= 0 && isPython(&frames[i]) && !IsLibrary(frames[i].File, library) {
		return i
	}
	if i := OwnFrame(frames[mark+1:], library); i >= 0 && (frames[mark].Func == BackwardOf || frames[mark].Func == backwardCall) {
		return mark + 1 + i
	}
	return mark
}

// ownFrame is OwnFrame of frames without a mark.
func ownFrame(frames []event.Frame, library []string) int {
	python, node, native, shown := -1, -1, -1, -1
	for i := range frames {
		f := &frames[i]
		if isPseudo(f) {
			continue
		}
		if f.Kind == event.FramePython {
			if !IsLibrary(f.File, library) {
				return i
			}
			python = firstOf(python, i)
		} else if !inAllocator(frames[i:]) && !inDriver(f) {
			native = firstOf(native, i)
			if isAutogradNode(f) {
				node = firstOf(node, i)
			}
		}
		shown = firstOf(shown, i)
	}
	return firstOf(python, firstOf(node, firstOf(native, firstOf(shown, min(0, len(frames)-1)))))
}

// isAutogradNode says whether a native frame is a node of the backward pass ("torch::autograd::generated::MmBackward0::apply").
// It runs on a thread of its own, without Python frames, and says more than the tensor factory that it calls.
func isAutogradNode(f *event.Frame) bool {
	return strings.HasPrefix(f.Func, "torch::autograd::") && strings.HasSuffix(f.Func, "::apply")
}

// firstOf is the index, or the other one when there is none yet.
func firstOf(index, other int) int {
	if index >= 0 {
		return index
	}
	return other
}

// Name is how a stack is called in one line that is named after one of its frames: "gpt.py:38 Block.forward", the native symbol, or
// "[backward of] gpt.py:38 Block.forward".
func Name(frames []event.Frame, own int) string {
	return backwardPrefix(frames, own) + FrameName(&frames[own])
}

// FrameName is how a stack that is named after a frame is called in one line: "gpt.py:38 Block.forward", or the native symbol.
func FrameName(f *event.Frame) string {
	if f.Kind != event.FramePython {
		return f.Label()
	}
	if f.Unread() {
		return f.Func
	}
	return fmt.Sprintf("%s %s", Position(f), f.Func)
}

// Position is "gpt.py:38"; a line that is not known is left out.
func Position(f *event.Frame) string {
	if f.Line <= 0 {
		return path.Base(f.File)
	}
	return fmt.Sprintf("%s:%d", path.Base(f.File), f.Line)
}
