// SPDX-License-Identifier: Apache-2.0

package steps

import (
	"slices"

	"github.com/gputrace/gputrace/event"
)

// When a Tracker decides.
const (
	// firstEntries is how often a mark is entered before it is chosen: by then an optimizer was seen too.
	firstEntries = 5
	// otherEntries is how often another mark of the same source is entered alone before it takes the place of the one that is chosen.
	otherEntries = 20
	// keptTimes is of how many entries of a mark the times are kept, and keptRecurring of how many of a stack, until one is chosen.
	keptTimes     = 4096
	keptRecurring = 256
	// lateEntries is how often a line must recur to take the place of a mark whose loop has ended, and lateShare the part of all allocations,
	// one in so many, that must have been made since then.
	lateEntries = 100
	lateShare   = 4
	// lookAfter is after how many allocations it is first looked for a stack that recurs, and lookShare after which part of all again.
	lookAfter = 64
	lookShare = 8
	// keptLate is how many events wait for the names of their stacks, at most.
	keptLate = 65536
)

// Tracker recognises steps while the events come in, by the rules of Find, but without those to come. What it keeps depends on the
// number of different stacks and threads, and not on that of events. Not safe for concurrent use.
type Tracker struct {
	survey  *survey
	rules   marker
	resolve func(event.StackID) *event.Stack
	chosen  *candidate // nil: none yet
	number  int        // of numberings
	first   int        // number of the step with which this numbering was chosen
	next    uint64     // allocations at which it is looked for a stack that recurs
	since   uint64     // allocations when it was last found that nothing begins steps any more
	wait    uint64     // allocations from then on before it is looked again
	late    []late     // events that wait, in their order
	base    int        // steps of loops that have ended, before the first of the one that runs
	ended   uint64     // time of the last of them
	last    uint64     // time at which the latest step began
	offset  int        // steps before the first entry of the mark that is chosen
	strong  bool       // a mark was chosen that no line that recurs takes the place of while it lasts
}

// late is what a survey sees of an event.
type late struct {
	time  uint64
	stack event.StackID
	pid   uint32
	tid   uint32
	kind  event.Kind
	layer event.Layer
}

// NewTracker is a tracker without events. resolve is as event.Source's Stack.
func NewTracker(r *Rules, resolve func(event.StackID) *event.Stack) *Tracker {
	t := &Tracker{rules: r.marker(), resolve: resolve, survey: newSurvey(r.marker(), resolve), next: lookAfter, wait: lookAfter}
	t.survey.keep, t.survey.keepStacks = keptTimes, keptRecurring
	return t
}

// reset looks anew for what recurs, for longer than before: several calls in a line of a loop recur too, until the
// next line begins. Marks that were entered count on.
func (t *Tracker) reset() {
	t.survey.forgetRecurring()
	t.wait *= 2
	t.endLoop()
	t.chosen, t.since, t.next = nil, t.survey.allocations, t.survey.allocations+t.wait
}

// endLoop goes on to another loop, whose steps have the numbers behind those of the one that has ended. One of few steps was none.
func (t *Tracker) endLoop() {
	if t.chosen != nil && t.Step()-t.base >= manyEntries {
		t.base, t.ended = t.Step(), t.last
	}
}

// Begin is a step that has begun.
type Begin struct {
	Step int
	Time uint64 // CLOCK_BOOTTIME nanoseconds
}

// See takes the next event and adds the steps that begin with it: one, none, or, when it becomes clear what a step begins with, all
// that have begun so far. Until then events wait for the names of their stacks, which come late at the beginning: no step is missed.
func (t *Tracker) See(e *event.Event, out []Begin) []Begin {
	switch {
	case e.Kind != event.KindAlloc && e.Kind != event.KindMark:
		return out
	case len(t.late) == 0 && (t.chosen != nil || t.known(e.Stack)):
		return t.see(e, out)
	}
	t.late = append(t.late, late{e.Time, e.Stack, e.PID, e.TID, e.Kind, e.Layer})
	return t.catchUp(out, keptLate)
}

// Complete adds the steps of events that wait: their stacks stay without names.
func (t *Tracker) Complete(out []Begin) []Begin { return t.catchUp(out, 0) }

func (t *Tracker) known(id event.StackID) bool { return id == 0 || t.resolve(id) != nil }

// catchUp takes events that need not wait any longer: their stacks are known, it is clear what a step begins with, or more than most wait.
func (t *Tracker) catchUp(out []Begin, most int) []Begin {
	had := len(out)
	for len(t.late) > 0 && (t.chosen != nil || len(t.late) > most || t.known(t.late[0].stack)) {
		l := &t.late[0]
		before, number := len(out), t.number
		out = t.see(&event.Event{Time: l.time, Stack: l.stack, PID: l.pid, TID: l.tid, Kind: l.kind, Layer: l.layer}, out)
		if t.number != number {
			out = slices.Delete(out, had, before) // of an earlier numbering
		}
		t.late = t.late[1:]
	}
	return out
}

func (t *Tracker) see(e *event.Event, out []Begin) []Begin {
	torch := t.survey.torch
	entered, recurs := t.survey.see(e)
	if t.survey.torch && !torch && t.chosen != nil && t.chosen.mark.source == SourcePeriod {
		t.reset() // it is of memory that PyTorch does not hand out
		t.base, t.ended = 0, 0
	}
	before := t.chosen
	switch {
	case entered != nil:
		t.consider(entered)
	case len(recurs) > 0:
		t.lookFor()
	}
	t.lookOn()
	c := t.chosen
	switch {
	case c == nil:
		return out
	case c != before:
		out = t.begin(e, out)
		t.survey.forgetStacks()
	case c == entered || slices.Contains(recurs, c):
		out = append(out, Begin{t.Step(), e.Time})
	default:
		return out
	}
	t.last = out[len(out)-1].Time
	return out
}

// lookOn looks for what recurs once a loop with an optimizer or backward passes has ended.
func (t *Tracker) lookOn() {
	s := t.survey
	if t.chosen == nil || !s.marksOnly || s.chosen != "" || s.allocations < t.next {
		return
	}
	t.next = s.allocations + lookAfter
	s.marksOnly = !s.over(t.chosen)
}

// begin is the steps of a choice that was just made.
func (t *Tracker) begin(e *event.Event, out []Begin) []Begin {
	c := t.chosen
	t.number++
	times := []uint64{e.Time}
	if c.whole {
		times = c.times
		for len(times) > 1 && times[0] <= t.ended {
			times = times[1:]
		}
		t.offset = t.base + len(times) - c.entries
	} else {
		t.offset = 0
		if t.base > 0 {
			t.offset = t.base + 1 - c.entries
		}
	}
	for i, time := range times {
		out = append(out, Begin{t.Step() - len(times) + 1 + i, time})
	}
	t.first = t.Step()
	return out
}

// consider looks whether a mark that was entered changes the choice.
func (t *Tracker) consider(c *candidate) {
	switch old := t.chosen; {
	case old == c:
		for _, other := range t.survey.candidates {
			other.alone = 0
		}
		if !c.mark.source.weak() && !t.survey.marksOnly { // its loop goes on after all
			t.survey.marksOnly = true
			t.survey.forgetRecurring()
		}
	case old == nil || old.mark.source.weak():
		if c.entries >= firstEntries || c.mark.source == SourceChosen && c.entries >= minEntries {
			t.choose(t.survey.choose())
		}
	case c.mark.source == SourceOptimizer && old.mark.source == SourceBackward:
		if c.entries >= minEntries && t.survey.throughout(c) {
			t.choose(c) // of several passes each
		}
	case c.mark.source.weak():
	case c.ofLoop() && old.marked && old.mark.source == SourceOptimizer:
	default:
		if c.alone++; c.alone >= t.others(old, c) {
			t.endLoop()
			t.choose(c)
		}
	}
}

// others is how often a mark is entered alone before it takes the place of another: backward passes are several to a step.
func (t *Tracker) others(old, c *candidate) int {
	if c.mark.source == old.mark.source {
		return otherEntries
	}
	return otherEntries * (1 + t.survey.backwards/max(1, old.entries))
}

// lookFor looks for a stack that recurs, now and then.
func (t *Tracker) lookFor() {
	s := t.survey
	if s.chosen != "" || s.allocations < t.next {
		return
	}
	t.next = s.allocations + max(lookAfter, (s.allocations-t.since)/lookShare)
	switch c := t.chosen; {
	case c == nil && t.base > 0:
		t.choose(s.loops.loop(manyEntries))
	case c == nil:
		t.choose(s.recurrence())
	case !c.mark.source.weak():
		if o := s.loops.loop(lateEntries); o != nil && s.over(c) && lateShare*(s.allocations-c.last) >= s.allocations {
			t.endLoop()
			t.choose(o)
		}
	case s.silent(c):
		t.reset() // it was of the beginning, say
	case c.mark.source == SourcePeriod:
		if o := s.loops.outside(c); o != nil {
			t.choose(o)
		}
	}
}

// choose begins a numbering. What recurs is not counted once there is a mark.
func (t *Tracker) choose(c *candidate) {
	if c == nil {
		return
	}
	s := t.survey
	switch {
	case c.mark.source.weak():
	case !t.strong: // what recurred before was no loop of the program's, or another one
		t.strong, t.base, t.ended = true, 0, 0
	case t.chosen != nil && t.chosen.mark.source.weak():
		t.endLoop()
	}
	t.chosen = c
	s.loops.follow(c)
	if s.marksOnly = !c.mark.source.weak(); s.marksOnly {
		s.forgetRecurring()
	}
}

// SetLibrary is Rules.Library from now on.
func (t *Tracker) SetLibrary(prefixes []string) {
	t.rules.library = prefixes
	t.survey.library = prefixes
}

// Numbering counts how often it was decided anew what a step begins with; steps of each are numbered on their own. 0: not yet.
func (t *Tracker) Numbering() int { return t.number }

// Step is the number of the step that runs; 0: none was recognised yet.
func (t *Tracker) Step() int {
	if t.chosen == nil {
		return 0
	}
	return t.offset + t.chosen.entries
}

// Since is the number of the step in which this numbering was chosen.
func (t *Tracker) Since() int { return t.first }

// Source is by what steps are recognised; empty: by nothing yet.
func (t *Tracker) Source() Source {
	if t.chosen == nil {
		return ""
	}
	return t.chosen.mark.source
}

// On is what a step begins with, for people; empty: not known yet.
func (t *Tracker) On() string {
	if t.chosen == nil {
		return ""
	}
	return t.chosen.mark.name(t.rules.library, t.resolve)
}
