// SPDX-License-Identifier: Apache-2.0

package steps

import (
	"cmp"
	"math"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/event"
)

// candidate is a mark and how regularly it was entered.
type candidate struct {
	mark     mark
	entries  int
	last     uint64  // position of the last entry
	mean, m2 float64 // of the intervals: mean, and sum of squares of the differences to it
	before   int     // backward passes when it was first entered
	until    int     // and when it was last
	first    uint64  // position of the first entry
	longest  uint64  // allocations between two entries, the most

	cycles int // of a backward pass: between how many entries of optimizers it was entered
	cycle  int // entries of optimizers when it was last
	other  int // of an optimizer: backward passes since its last entry that are not of its loop

	times []uint64 // of the first entries, as far as they are kept
	whole bool     // times has all of them
	alone int      // entries since that of the mark which is chosen

	marked bool // it has events of its own, event.KindMark
}

// passage is which candidates a stack passes, innermost first, and whether it is in the call of the first.
type passage struct {
	of    []int
	in    bool
	inner bool // the stack is an optimizer's or of autograd's engine, whose loops over parameters and nodes are not of steps
}

// position is where a thread is: in which calls, innermost first.
type position struct {
	calls [maxCalls]call
	n     int
	in    bool // in that of the first
}

// maxCalls is how many calls within each other are followed.
const maxCalls = 4

// call is one of a candidate.
type call struct {
	of   int
	left bool // it has called other code, a closure
}

// find is the call of a candidate; ok is false when the thread is in none.
func (p *position) find(of int) (c call, ok bool) {
	for _, c := range p.calls[:p.n] {
		if c.of == of {
			return c, true
		}
	}
	return call{}, false
}

// to is the position after the next event.
func (p *position) to(now *passage) position {
	out := position{n: min(len(now.of), maxCalls), in: now.in}
	for k, i := range now.of[:out.n] {
		was, _ := p.find(i)
		out.calls[k] = call{i, was.left || k > 0 || !now.in}
	}
	return out
}

// enter counts an entry at a position: a number of allocations, because time also passes while a server waits. Of the first entries
// up to keep, the times are kept.
func (c *candidate) enter(at, time uint64, keep int) {
	c.whole = len(c.times) == c.entries && len(c.times) < keep
	switch {
	case c.whole:
		c.times = append(c.times, time)
	case len(c.times) == keep: // some are of no use
		c.times = nil
	}
	if c.entries == 0 {
		c.first = at
	} else {
		c.longest = max(c.longest, at-c.last)
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
	ofStack     map[event.StackID]passage
	recurring   map[event.StackID]*candidate
	loops       *loops
	within      map[uint32]position // of a thread
	backwards   int                 // entries of backward passes
	optimized   int                 // entries of optimizers
	allocations uint64              // so far
	keep        int                 // times of entries of a mark
	keepStacks  int                 // of a stack that recurs
	marksOnly   bool                // what recurs is not counted
	torch       bool                // PyTorch's allocator has allocated
}

func newSurvey(m marker, resolve func(event.StackID) *event.Stack) *survey {
	return &survey{
		marker: m, resolve: resolve, index: map[mark]int{}, ofStack: map[event.StackID]passage{},
		recurring: map[event.StackID]*candidate{}, loops: newLoops(resolve), within: map[uint32]position{},
	}
}

// see takes the next event. It returns what is entered with it: a mark, and stacks of PyTorch's and lines that recur.
func (s *survey) see(e *event.Event) (entered *candidate, recurs []*candidate) {
	switch e.Kind {
	case event.KindAlloc:
		s.allocations++
	case event.KindMark:
	default:
		return nil, nil
	}
	if e.Stack == 0 || e.Stack.Placeholder() != nil {
		return nil, nil
	}
	if c := s.pass(e); c != nil {
		entered = c
		s.enter(c, e.Time)
	}
	if e.Kind == event.KindAlloc && s.counts(e.Layer) && !s.marksOnly && !s.passageOf(e.Stack).inner {
		recurs = append(s.loops.see(e, s.allocations, s.keepStacks), s.recur(e))
	}
	return entered, recurs
}

// counts reports whether what recurs is looked for among the allocations of a layer: of PyTorch's where it
// allocates, else of all. A program without PyTorch has its steps too; of one with it what was there before, such
// as a context, has none.
func (s *survey) counts(layer event.Layer) bool {
	if layer != event.LayerAllocator {
		return !s.torch
	}
	if !s.torch {
		s.torch = true
		s.forgetRecurring()
	}
	return true
}

// pass takes the thread to where an event is; it returns the candidate whose call begins there, nil: none.
func (s *survey) pass(e *event.Event) *candidate {
	now := s.passageOf(e.Stack)
	marked := e.Kind == event.KindMark
	if !marked && len(now.of) > 0 && s.candidates[now.of[0]].mark.source == SourceLoader {
		now = passage{} // a loader runs code of the program's own, which may allocate between its own allocations
	}
	before := s.within[e.TID]
	after := before.to(&now)
	defer func() { s.within[e.TID] = after }()
	if !now.in {
		return nil
	}
	i := now.of[0]
	c := s.candidates[i]
	c.marked = c.marked || marked
	was, ok := before.find(i)
	switch {
	case !c.marked && ok && before.in && before.calls[0].of == i:
		return nil
	case c.marked && ok && !(marked && was.left): // where it goes on after a closure, or of another range in the same call
		return nil
	}
	after.calls[0].left = false
	return c
}

func (s *survey) enter(c *candidate, time uint64) {
	switch c.mark.source {
	case SourceBackward:
		s.backwards++
		s.cycle(c)
	case SourceOptimizer:
		s.optimized++
		c.other = 0
	}
	if c.entries == 0 {
		c.before = s.backwards
	}
	c.until = s.backwards
	c.enter(s.allocations, time, s.keep)
}

// cycle counts a backward pass in the cycle of optimizers that runs. One that was in few is of another loop than theirs.
func (s *survey) cycle(c *candidate) {
	if c.cycles == 0 || c.cycle != s.optimized {
		c.cycles, c.cycle = c.cycles+1, s.optimized
	}
	if c.ofLoop() {
		return
	}
	for _, o := range s.candidates {
		if o.mark.source == SourceOptimizer {
			o.other++
		}
	}
}

// ofLoop reports whether a backward pass is in the loop of an optimizer: however many of them a step has, they begin none.
func (c *candidate) ofLoop() bool { return c.mark.source == SourceBackward && c.cycles >= minEntries }

func (s *survey) recur(e *event.Event) *candidate {
	c := s.recurring[e.Stack]
	if c == nil {
		c = &candidate{mark: mark{source: SourcePeriod, stack: e.Stack}}
		s.recurring[e.Stack] = c
	}
	c.enter(s.allocations, e.Time, s.keepStacks)
	return c
}

// forgetRecurring looks anew for what recurs.
func (s *survey) forgetRecurring() {
	s.recurring, s.loops = map[event.StackID]*candidate{}, newLoops(s.resolve)
}

// forgetStacks keeps no times of stacks any longer; those of lines are kept, as there may be a loop around the one that was found.
func (s *survey) forgetStacks() {
	for _, c := range s.recurring {
		c.times = nil
	}
}

// passageOf is the candidates that a stack passes. A stack can become known after its first event.
func (s *survey) passageOf(id event.StackID) passage {
	if p, ok := s.ofStack[id]; ok {
		return p
	}
	st := s.resolve(id)
	if st == nil {
		return passage{}
	}
	marks, in := s.of(st)
	p := passage{in: in}
	for _, m := range marks {
		i, ok := s.index[m]
		if !ok {
			i = len(s.candidates)
			s.index[m] = i
			s.candidates = append(s.candidates, &candidate{mark: m})
		}
		p.of = append(p.of, i)
		p.inner = p.inner || m.source == SourceOptimizer
	}
	p.inner = p.inner || len(stacks.Ran(st.Frames)) < len(st.Frames)
	s.ofStack[id] = p
	return p
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
	if loader := s.best(SourceLoader); loader != nil && !s.silent(loader) {
		return loader
	}
	if c := s.recurrence(); c != nil && !s.isWithinStep(c) {
		return c
	}
	return nil
}

// isWithinStep reports whether a recurrence ended before the first optimizer or backward pass of a program that has not come to the third
// one: then it is of the layers of the first steps.
func (s *survey) isWithinStep(c *candidate) bool {
	for _, m := range s.candidates {
		if (m.mark.source == SourceOptimizer || m.mark.source == SourceBackward) && m.entries > 0 && m.entries < minEntries && c.last < m.last {
			return true
		}
	}
	return false
}

// silence is how many mean intervals without an entry end the choice of what may have been of the beginning only.
const silence = 16

// silent says that a candidate was not entered for long. A step of it that goes on for long, where it was before, is not silence.
func (s *survey) silent(c *candidate) bool {
	if float64(s.allocations-c.last) <= silence*c.mean+lookAfter {
		return false
	}
	return !s.loops.inside(c)
}

// over reports whether a loop with an optimizer, or with backward passes, has ended: it was silent for longer than
// ever before, and so were the backward passes of its steps.
func (s *survey) over(c *candidate) bool {
	if !s.silent(c) || s.allocations-c.last <= 2*c.longest {
		return false
	}
	for _, b := range s.candidates {
		if b.ofLoop() && float64(s.allocations-b.last) <= silence*b.mean+lookAfter {
			return false
		}
	}
	return true
}

// recurrence is what a step begins with where nothing marks one.
func (s *survey) recurrence() *candidate {
	if c := s.loops.outermost(); c != nil {
		return c
	}
	return s.anchor()
}

// throughout says whether an optimizer was stepped all the time that there were backward passes. One that allocates nothing in its
// steps cannot be seen, and another one that comes later does not stand for it.
func (s *survey) throughout(optimizer *candidate) bool {
	passes := s.backwards/optimizer.entries + 2 // of a step, about
	since := s.backwards - optimizer.until
	if optimizer.marked { // each of its steps is seen: a step can have any number of passes
		since = min(since, optimizer.other)
	}
	return optimizer.before <= passes && since <= passes
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

// minRecurrences is how often a stack must recur by which steps are recognised.
const minRecurrences = 5

// maxIrregularity is that of a stack by which steps are recognised. What happens at random has 1.
const maxIrregularity = 0.5

// anchor is the stack that recurs most regularly, of those that recur as often as most do.
func (s *survey) anchor() *candidate {
	tally := map[int]int{}
	for _, c := range s.recurring {
		if c.entries >= minRecurrences {
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
