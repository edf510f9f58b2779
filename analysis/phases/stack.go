// SPDX-License-Identifier: Apache-2.0

package phases

import (
	"cmp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/event"
)

// over are the phases that count for more than another one that was found nearer to the leaf: checkpointing calls modules in the
// backward pass, and evaluation loads batches and calls modules.
var over = map[Phase][]Phase{
	Forward: {Backward, Evaluation, Setup},
	Input:   {Evaluation},
}

// functionID is a Python function, wherever it is called.
type functionID struct{ file, name string }

// frameID is what rules look at.
type frameID struct {
	kind                   event.FrameKind
	module, file, function string
}

// Classifier sorts stacks into phases. Not safe for concurrent use.
type Classifier struct {
	rules    []rule
	library  []string
	frames   map[frameID][]*rule // those that match, in the order of the rules
	trains   map[functionID]bool // functions that were seen to call backward passes or optimizers
	ofStack  map[event.StackID]known
	last     event.StackID // that was asked for last: several ask for the same in turn
	lastIs   known
	resolved func(event.StackID) *event.Stack
}

// Result is what a stack says.
type Result struct {
	Phase    Phase
	Category Category // of memory that is not temporary; NoCategory: it does not say
	Loaded   bool     // tensors are read from a file: parameters, optimizer state, or a copy of either
}

// known is what was found of a stack.
type known struct {
	Result
	named Phase // by the program, with gputrace.phase of the Python package; empty: it is not
}

// New makes a classifier. library is as in stacks.IsLibrary; resolve returns the frames of a stack, or nil.
func New(r *Rules, library []string, resolve func(event.StackID) *event.Stack) *Classifier {
	return &Classifier{
		rules: r.all(), library: library, frames: map[frameID][]*rule{}, trains: map[functionID]bool{},
		ofStack: map[event.StackID]known{}, resolved: resolve,
	}
}

// Learn notes the functions below which a stack runs the backward pass or an optimizer: they train, whatever they are called. Stacks
// that are learned before Of is asked make its answers independent of the order.
func (c *Classifier) Learn(id event.StackID) {
	st := c.resolved(id)
	if id == 0 || st == nil {
		return
	}
	at, frames := -1, stacks.Ran(st.Frames)
	for i := range frames {
		if frames[i].Kind != event.FramePython {
			continue
		}
		for _, r := range c.match(&frames[i]) {
			if !r.weak && (r.phase == Backward || r.phase == Optimizer || r.phase == ZeroGrad) {
				at = i
			}
		}
	}
	if at < 0 {
		return
	}
	for i := range frames[at+1:] {
		if f := &frames[at+1+i]; f.Kind == event.FramePython {
			c.trains[functionID{f.File, f.Func}] = true
		}
	}
}

// Of returns the phase of a stack, by the rules.
func (c *Classifier) Of(id event.StackID) Result {
	k := c.of(id)
	return k.Result
}

// Shown returns the phase of a stack for people: by the program's name where it has one.
func (c *Classifier) Shown(id event.StackID) Phase {
	k := c.of(id)
	return cmp.Or(k.named, k.Phase)
}

func (c *Classifier) of(id event.StackID) known {
	if id == c.last && id != 0 {
		return c.lastIs
	}
	out, ok := c.ofStack[id]
	if !ok {
		out.Result = Result{Phase: Unknown, Category: NoCategory}
		if st := c.resolved(id); id != 0 && st != nil {
			out = known{c.Stack(st), named(stacks.Ran(st.Frames))}
		}
		c.ofStack[id] = out
	}
	c.last, c.lastIs = id, out
	return out
}

// Stack is Of a stack with its frames.
func (c *Classifier) Stack(st *event.Stack) Result {
	s := search{c: c, category: NoCategory}
	frames := stacks.Ran(st.Frames)
	for i := range frames {
		if s.frame(&frames[i]) {
			break
		}
	}
	return Result{s.phase(st.Status), s.category, s.loaded}
}

// A function that gputrace.phase of the Python package marks is called by one of that package in markedFile, whose name is markedFunction
// and the name of the phase.
const (
	markedFunction = "phase "
	markedFile     = "gputrace/_record.py"
	longestName    = 64 // characters
)

// named returns the program's name for the phase of a stack, the one nearest to the leaf; empty: it has no name. The program chooses the
// text, so a name that cannot be printed is skipped.
func named(frames []event.Frame) Phase {
	for i := range frames {
		f := &frames[i]
		name, marked := strings.CutPrefix(f.Func, markedFunction)
		if !marked || f.Kind != event.FramePython || !strings.HasSuffix(f.File, markedFile) {
			continue
		}
		cannotPrint := strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) })
		if n := utf8.RuneCountInString(name); 0 < n && n <= longestName && !cannotPrint {
			return Phase(name)
		}
	}
	return ""
}

// match is the rules of a frame.
func (c *Classifier) match(f *event.Frame) []*rule {
	id := frameID{kind: f.Kind, file: f.File, function: f.Func}
	if f.Kind == event.FrameNative {
		id.file = ""
		if f.Module != nil {
			id.module = f.Module.Name()
		}
	}
	out, ok := c.frames[id]
	if !ok {
		for i := range c.rules {
			if c.rules[i].matches(f) {
				out = append(out, &c.rules[i])
			}
		}
		c.frames[id] = out
	}
	return out
}

// search goes through a stack, leaf first.
type search struct {
	c        *Classifier
	found    Phase // by a rule that counts; empty: none yet
	weak     []Phase
	category Category
	loaded   bool
	own      string // the outermost frame of the program's own so far; empty: none
	trains   bool   // what is farther out does not make it an evaluation
}

// frame looks at the next frame. true: the search is over.
func (s *search) frame(f *event.Frame) bool {
	for _, r := range s.c.match(f) {
		switch {
		case r.phase == Optimizer && s.own != "" && lastName(s.own) != "step": // a closure that the optimizer calls is not part of it
		case r.category != "":
			if s.category == NoCategory {
				s.category = r.category
			}
		case r.user && !r.weak && !r.outer && r.phase != "":
			s.found = r.phase
			return true
		case r.loaded:
			s.loaded = true
		case r.phase == "":
			s.trains = true
		case r.weak:
			if !slices.Contains(s.weak, r.phase) {
				s.weak = append(s.weak, r.phase)
			}
		default:
			s.take(r, f)
		}
	}
	if f.Kind != event.FramePython {
		return false
	}
	if s.c.trains[functionID{f.File, f.Func}] {
		s.trains = true
	}
	if !stacks.IsLibrary(f.File, s.c.library) {
		s.own = f.Func
	}
	return false
}

// take notes a phase that is farther out than what was found.
func (s *search) take(r *rule, f *event.Frame) {
	p := r.phase
	switch {
	case p == Evaluation && (s.trains || s.c.trains[functionID{f.File, f.Func}]):
		return
	case s.found == "" && !r.outer || slices.Contains(over[s.found], p):
		s.found = p
	}
}

// lastName is "step" of "Adam.step".
func lastName(function string) string { return function[strings.LastIndexByte(function, '.')+1:] }

// phase is what was found in a stack of some status.
func (s *search) phase(status event.StackStatus) Phase {
	found := s.found
	if found == "" && len(s.weak) > 0 {
		if found = s.weak[0]; len(s.weak) > 1 {
			return Ambiguous
		}
	}
	whole := status.Complete() || status == event.StatusGuessed
	switch {
	case found == "" && whole:
		return Other
	case found == "":
		return Unknown
	case !whole && over[found] != nil: // what is cut off could say another one
		return Ambiguous
	}
	return found
}
