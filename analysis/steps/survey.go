// SPDX-License-Identifier: Apache-2.0

package steps

import (
	"cmp"
	"math"

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

	times []uint64 // of the first entries, as far as they are kept
	whole bool     // times has all of them
	alone int      // entries since that of the mark which is chosen
}

// enter counts an entry at a position: a number of allocations, because time also passes while a server waits. Of the first entries
// up to keep, the times are kept.
func (c *candidate) enter(at, time uint64, keep int) {
	c.whole = len(c.times) == c.entries && len(c.times) < keep
	if c.whole {
		c.times = append(c.times, time)
	}
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
	loops       *loops
	within      map[uint32]int // of a thread: the candidate in whose call it is, and 1; 0: none
	backwards   int            // entries of backward passes
	allocations uint64         // so far
	keep        int            // times of entries of a mark
	keepStacks  int            // of a stack that recurs
	marksOnly   bool           // what recurs is not counted
}

func newSurvey(m marker, resolve func(event.StackID) *event.Stack) *survey {
	return &survey{
		marker: m, resolve: resolve, index: map[mark]int{}, ofStack: map[event.StackID]int{},
		recurring: map[event.StackID]*candidate{}, loops: newLoops(resolve), within: map[uint32]int{},
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
	if e.Stack == 0 {
		return nil, nil
	}
	i := s.candidateOf(e.Stack)
	if i >= 0 && e.Kind != event.KindMark && s.candidates[i].mark.source == SourceLoader {
		i = -1 // a loader runs code of the program's own, which may allocate between its own allocations
	}
	if i >= 0 && s.within[e.TID] != i+1 {
		entered = s.candidates[i]
		s.enter(entered, e.Time)
	}
	s.within[e.TID] = i + 1
	if e.Kind == event.KindAlloc && e.Layer == event.LayerTorch && !s.marksOnly {
		recurs = append(s.loops.see(e, s.allocations, s.keepStacks), s.recur(e))
	}
	return entered, recurs
}

func (s *survey) enter(c *candidate, time uint64) {
	if c.mark.source == SourceBackward {
		s.backwards++
	}
	if c.entries == 0 {
		c.before = s.backwards
	}
	c.until = s.backwards
	c.enter(s.allocations, time, s.keep)
}

func (s *survey) recur(e *event.Event) *candidate {
	c := s.recurring[e.Stack]
	if c == nil {
		c = &candidate{mark: mark{source: SourcePeriod, stack: e.Stack}}
		s.recurring[e.Stack] = c
	}
	c.enter(s.allocations, e.Time, s.keepStacks)
	return c
}

// forgetStacks keeps no times of stacks any longer; those of lines are kept, as there may be a loop around the one that was found.
func (s *survey) forgetStacks() {
	for _, c := range s.recurring {
		c.times = nil
	}
}

// candidateOf is the candidate of a stack; -1: it has none. A stack can become known after its first event.
func (s *survey) candidateOf(id event.StackID) int {
	if i, ok := s.ofStack[id]; ok {
		return i
	}
	st := s.resolve(id)
	if st == nil {
		return -1
	}
	i := -1
	if m, ok := s.of(st); ok {
		if i, ok = s.index[m]; !ok {
			i = len(s.candidates)
			s.index[m] = i
			s.candidates = append(s.candidates, &candidate{mark: m})
		}
	}
	s.ofStack[id] = i
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
	if loader := s.best(SourceLoader); loader != nil && !s.silent(loader) {
		return loader
	}
	return s.recurrence()
}

// silence is how many mean intervals without an entry end the choice of what may have been of the beginning only.
const silence = 16

// silent says that a candidate was not entered for long.
func (s *survey) silent(c *candidate) bool {
	return float64(s.allocations-c.last) > silence*c.mean+lookAfter
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

// minRecurrences is how often a stack must recur by which steps are recognised.
const minRecurrences = 5

// maxIrregularity is that of a stack by which steps are recognised. What happens at random has 1.
const maxIrregularity = 0.5

// anchor is the stack of the torch layer that recurs most regularly, of those that recur as often as most do.
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
