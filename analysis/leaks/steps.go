// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"cmp"
	"math"
	"path"
	"strings"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/event"
)

// Source is by what steps are recognised.
type Source string

// The sources of steps, best first. Empty: none was found.
const (
	SourceChosen    Source = "chosen"    // calls of Options.StepOn
	SourceOptimizer Source = "optimizer" // calls of an optimizer's step
	SourceBackward  Source = "backward"  // calls of the backward pass
	SourcePeriod    Source = "period"    // a stack that recurs as often as most do, and regularly
)

// mark is what a step begins with: a call of an optimizer, say, from one line of the program.
type mark struct {
	source   Source
	stack    event.StackID // of SourcePeriod
	file     string
	line     int
	function string
	own      bool // the line is the program's own, not a library's
}

// marker tells which stacks begin a step.
type marker struct {
	library []string
	chosen  string // Options.StepOn
}

// of is the mark of a stack; ok is false when it has none. Frames are leaf first: a call of the program's own below an optimizer's
// step is a closure, and not part of the optimizer.
func (m *marker) of(st *event.Stack) (mark, bool) {
	if st == nil {
		return mark{}, false
	}
	for i := range st.Frames {
		f := &st.Frames[i]
		source, ok := m.sourceOf(f)
		switch {
		case ok:
			return m.caller(st.Frames[i:], source), true
		case m.chosen == "" && f.Kind == event.FramePython && !stacks.IsLibrary(f.File, m.library):
			return mark{}, false
		}
	}
	return mark{}, false
}

func (m *marker) sourceOf(f *event.Frame) (Source, bool) {
	switch {
	case m.chosen != "":
		return SourceChosen, f.Func == m.chosen || lastName(f.Func) == m.chosen
	case isOptimizerStep(f):
		return SourceOptimizer, true
	case isBackward(f):
		return SourceBackward, true
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
	name := lastName(f.Func)
	return name == "step" || strings.HasPrefix(name, "_step")
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

// candidate is a mark and how regularly it was entered.
type candidate struct {
	mark     mark
	entries  int
	last     uint64  // position of the last entry
	mean, m2 float64 // of the intervals: mean, and sum of squares of the differences to it
	before   int     // backward passes when it was first entered
	until    int     // and when it was last
}

// enter counts an entry at a position: a number of allocations, because time also passes while a server waits.
func (c *candidate) enter(at uint64) {
	if c.entries > 0 {
		x := float64(at - c.last)
		d := x - c.mean
		c.mean += d / float64(c.entries)
		c.m2 += d * (x - c.mean)
	}
	c.entries++
	c.last = at
}

// irregularity is the variation of the intervals: standard deviation over mean.
func (c *candidate) irregularity() float64 {
	if c.entries < 3 || c.mean <= 0 {
		return math.Inf(1)
	}
	return math.Sqrt(c.m2/float64(c.entries-1)) / c.mean
}

// survey looks through events for what steps begin with.
type survey struct {
	marker
	resolve     func(event.StackID) *event.Stack
	candidates  []*candidate
	index       map[mark]int
	ofStack     map[event.StackID]int // candidate; -1: none
	recurring   map[event.StackID]*candidate
	within      map[uint32]int // of a thread: the candidate in whose call it is, and 1; 0: none
	backwards   int            // entries of backward passes
	allocations uint64         // so far
	unsized     bool           // a block's requested bytes are not known
}

func newSurvey(m marker, resolve func(event.StackID) *event.Stack) *survey {
	return &survey{
		marker: m, resolve: resolve, index: map[mark]int{}, ofStack: map[event.StackID]int{},
		recurring: map[event.StackID]*candidate{}, within: map[uint32]int{},
	}
}

// see takes the next event.
func (s *survey) see(e *event.Event) {
	if e.Kind != event.KindAlloc {
		return
	}
	s.allocations++
	if e.Layer == event.LayerTorch && e.Requested == event.Unknown {
		s.unsized = true
	}
	if e.Stack == 0 {
		return
	}
	i, ok := s.ofStack[e.Stack]
	if !ok {
		i = s.candidateOf(e.Stack)
		s.ofStack[e.Stack] = i
	}
	if i >= 0 && s.within[e.TID] != i+1 {
		s.enter(s.candidates[i])
	}
	s.within[e.TID] = i + 1
	if e.Layer == event.LayerTorch {
		s.recur(e)
	}
}

func (s *survey) enter(c *candidate) {
	if c.mark.source == SourceBackward {
		s.backwards++
	}
	if c.entries == 0 {
		c.before = s.backwards
	}
	c.until = s.backwards
	c.enter(s.allocations)
}

func (s *survey) recur(e *event.Event) {
	c := s.recurring[e.Stack]
	if c == nil {
		c = &candidate{mark: mark{source: SourcePeriod, stack: e.Stack}}
		s.recurring[e.Stack] = c
	}
	c.enter(s.allocations)
}

func (s *survey) candidateOf(id event.StackID) int {
	m, ok := s.of(s.resolve(id))
	if !ok {
		return -1
	}
	i, ok := s.index[m]
	if !ok {
		i = len(s.candidates)
		s.index[m] = i
		s.candidates = append(s.candidates, &candidate{mark: m})
	}
	return i
}

// minEntries is how often a mark must be entered.
const minEntries = 3

// choose is the best mark; nil: there is none. One mark is chosen also where several alternate, as two optimizers do: a cycle is
// one step.
func (s *survey) choose() *candidate {
	if s.chosen != "" {
		return s.best(SourceChosen)
	}
	optimizer, backward := s.best(SourceOptimizer), s.best(SourceBackward)
	switch {
	case optimizer != nil && (backward == nil || s.throughout(optimizer)):
		return optimizer
	case backward != nil:
		return backward
	}
	return s.anchor()
}

// throughout says whether an optimizer was stepped all the time that there were backward passes. One that allocates nothing in its
// steps cannot be seen, and another one that comes later does not stand for it.
func (s *survey) throughout(optimizer *candidate) bool {
	passes := s.backwards/optimizer.entries + 2 // of a step, about
	return optimizer.before <= passes && s.backwards-optimizer.until <= passes
}

// best is the candidate of a source that was entered most often, of the program's own lines if there are any; of two that alternate,
// the first.
func (s *survey) best(source Source) *candidate {
	var out *candidate
	for _, c := range s.candidates {
		if c.mark.source != source || c.entries < minEntries {
			continue
		}
		if out == nil || c.mark.own && !out.mark.own || c.mark.own == out.mark.own && c.entries > out.entries+1 {
			out = c
		}
	}
	return out
}

// maxIrregularity is that of a stack by which steps are recognised. What happens at random has 1.
const maxIrregularity = 0.5

// anchor is the stack of the torch layer that recurs most regularly, of those that recur as often as most do.
func (s *survey) anchor() *candidate {
	tally := map[int]int{}
	for _, c := range s.recurring {
		if c.entries >= warmUp {
			tally[c.entries]++
		}
	}
	near := func(n int) int { return tally[n-1] + tally[n] + tally[n+1] }
	mode := 0
	for n := range tally {
		if a, b := near(n), near(mode); mode == 0 || a > b || a == b && n > mode {
			mode = n
		}
	}
	var out *candidate
	for _, c := range s.recurring {
		if mode == 0 || c.entries < mode-1 || c.entries > mode+1 || c.irregularity() > maxIrregularity {
			continue
		}
		if out == nil || cmp.Or(cmp.Compare(c.irregularity(), out.irregularity()), cmp.Compare(c.mark.stack, out.mark.stack)) < 0 {
			out = c
		}
	}
	return out
}

// clock counts steps by a mark.
type clock struct {
	marker
	resolve     func(event.StackID) *event.Stack
	mark        mark
	begins      map[event.StackID]bool
	within      map[uint32]bool
	step        int // that runs; 0: before the first
	first, last uint64
}

func newClock(m marker, resolve func(event.StackID) *event.Stack, on mark) *clock {
	return &clock{marker: m, resolve: resolve, mark: on, begins: map[event.StackID]bool{}, within: map[uint32]bool{}}
}

// see takes the next event before it is applied.
func (c *clock) see(e *event.Event) {
	if e.Kind != event.KindAlloc || e.Stack == 0 {
		return
	}
	in, ok := c.begins[e.Stack]
	if !ok {
		in = c.isBegin(e.Stack)
		c.begins[e.Stack] = in
	}
	if in && (c.mark.source == SourcePeriod || !c.within[e.TID]) {
		c.step++
		c.last = e.Time
		if c.step == 1 {
			c.first = e.Time
		}
	}
	if in || c.within[e.TID] {
		c.within[e.TID] = in
	}
}

func (c *clock) isBegin(id event.StackID) bool {
	if c.mark.source == SourcePeriod {
		return id == c.mark.stack
	}
	m, ok := c.of(c.resolve(id))
	return ok && m == c.mark
}

// complete is the steps that were seen from their beginning to their end.
func (c *clock) complete() int { return max(0, c.step-1) }

// period is the mean length of a step, nanoseconds; 0: not known.
func (c *clock) period() float64 {
	if c.complete() == 0 {
		return 0
	}
	return float64(c.last-c.first) / float64(c.complete())
}
