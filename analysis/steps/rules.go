// SPDX-License-Identifier: Apache-2.0

package steps

import (
	"path"
	"slices"
	"strings"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/event"
)

// Source is by what steps are recognised.
type Source string

// The sources of steps, best first. Empty: none was found.
const (
	SourceChosen    Source = "chosen"    // calls of Rules.On
	SourceOptimizer Source = "optimizer" // calls of an optimizer's step
	SourceBackward  Source = "backward"  // calls of the backward pass
	SourceLoader    Source = "loader"    // a DataLoader's next
	SourcePeriod    Source = "period"    // a line of the outermost loop, or a stack that recurs as often as most do, and regularly
)

// weak says that a source gives way to any that is not: a loader is also that of an evaluation.
func (s Source) weak() bool { return s == SourcePeriod || s == SourceLoader }

// mark is what a step begins with: a call of an optimizer, say, from one line of the program.
type mark struct {
	source   Source
	stack    event.StackID // of SourcePeriod, where place is 0
	place    uint64        // of SourcePeriod: its line with the calls that lead to it
	file     string
	line     int
	function string
	own      bool // the line is the program's own, not a library's
}

// Rules say what begins a step. nil is the zero value.
type Rules struct {
	// Library has prefixes of Python files that are not the program's own, as recordings have them.
	Library []string
	// On is a Python or native function, with or without its class: a step begins where it is called. Empty: found out.
	On string
}

// marker tells which stacks begin a step.
type marker struct {
	library []string
	chosen  string // Rules.On
}

func (r *Rules) marker() marker {
	if r == nil {
		return marker{}
	}
	return marker{r.Library, r.On}
}

// of is the marks of a stack, innermost first. in says whether the stack is in the call of the first: code of the program's own that an
// optimizer calls, a closure, is passed by it, but not in it; nor is what such code calls, as the backward pass of a checkpoint within
// a backward pass.
func (m *marker) of(st *event.Stack) (passed []mark, in bool) {
	if st == nil {
		return nil, false
	}
	frames := stacks.Ran(st.Frames)
	own, before := false, false // the last frame was one of a mark
	for i := range frames {
		f := &frames[i]
		source, ok := m.sourceOf(f)
		switch {
		case !ok:
			own = own || m.chosen == "" && f.Kind == event.FramePython && !stacks.IsLibrary(f.File, m.library)
		case !before:
			found := m.caller(frames[i:], source)
			switch {
			case len(passed) == 0:
				in = !own
			case found == passed[0]: // an optimizer around another one is the same call
				in = in && source != SourceBackward
			}
			if !slices.Contains(passed, found) {
				passed = append(passed, found)
			}
		}
		before = ok
	}
	return passed, in
}

func (m *marker) sourceOf(f *event.Frame) (Source, bool) {
	switch {
	case m.chosen != "":
		return SourceChosen, f.Func == m.chosen || lastName(f.Func) == m.chosen
	case isOptimizerStep(f):
		return SourceOptimizer, true
	case isBackward(f):
		return SourceBackward, true
	case isLoaderNext(f):
		return SourceLoader, true
	}
	return "", false
}

// caller is the mark of the first frame's call: the program's own line that makes it.
func (m *marker) caller(frames []event.Frame, source Source) mark {
	out := mark{source: source, file: frames[0].File, function: frames[0].Func}
	if source == SourceChosen {
		out.own = true
		return out
	}
	for i := range frames[1:] {
		f := &frames[1+i]
		if f.Kind == event.FramePython && !stacks.IsLibrary(f.File, m.library) {
			return mark{source: source, file: f.File, line: f.Line, function: f.Func, own: true}
		}
	}
	return out
}

// lastName is "step" of "Adam.step".
func lastName(function string) string {
	return function[strings.LastIndexByte(function, '.')+1:]
}

// notOptimizers are the files of torch/optim whose functions named step step no optimizer.
var notOptimizers = []string{"lr_scheduler.py", "swa_utils.py"}

// isOptimizerStep accepts the optimizers of PyTorch (torch/optim/*.py), and those of libraries with a folder or file called
// optim... (apex/optimizers, bitsandbytes/optim, transformers/optimization.py).
func isOptimizerStep(f *event.Frame) bool {
	if f.Kind != event.FramePython || !strings.Contains(f.File, "/optim") {
		return false
	}
	for _, n := range notOptimizers {
		if path.Base(f.File) == n {
			return false
		}
	}
	switch name := lastName(f.Func); {
	case name == "step" || strings.HasPrefix(name, "_step"):
		return true
	case name == "wrapper": // around every optimizer's step, where the range is that event.KindMark is of
		return strings.HasSuffix(f.File, "torch/optim/optimizer.py")
	}
	return false
}

// isLoaderNext accepts the next of PyTorch's DataLoader, _BaseDataLoaderIter.__next__ of torch/utils/data/dataloader.py.
func isLoaderNext(f *event.Frame) bool {
	return f.Kind == event.FramePython && strings.HasSuffix(f.File, "torch/utils/data/dataloader.py") && lastName(f.Func) == "__next__"
}

// isBackward accepts PyTorch's ways into the backward pass: torch/_tensor.py, torch/autograd/__init__.py and graph.py.
func isBackward(f *event.Frame) bool {
	if f.Kind != event.FramePython {
		return false
	}
	switch name := lastName(f.Func); {
	case strings.HasSuffix(f.File, "torch/_tensor.py"):
		return name == "backward"
	case strings.HasSuffix(f.File, "torch/autograd/__init__.py"):
		return name == "backward" || name == "grad"
	case strings.HasSuffix(f.File, "torch/autograd/graph.py"):
		return name == "_engine_run_backward"
	}
	return false
}

// name is what a step begins with, for people.
func (m *mark) name(library []string, resolve func(event.StackID) *event.Stack) string {
	if m.source == SourcePeriod && m.place == 0 {
		st := resolve(m.stack)
		if st == nil {
			return stacks.UnknownStack
		}
		if i := stacks.OwnFrame(st.Frames, library); i >= 0 {
			return stacks.Name(st.Frames, i)
		}
		return stacks.UnknownStack
	}
	if m.file == "" {
		return m.function
	}
	return stacks.FrameName(&event.Frame{Kind: event.FramePython, Func: m.function, File: m.file, Line: m.line})
}
