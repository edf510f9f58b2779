// SPDX-License-Identifier: Apache-2.0

// Package steps divides a program's events into steps: iterations of a training loop, requests of a server. They are recognised by
// the stacks of allocations, so that nothing is added to what is traced. The rules are in docs/decisions/steps.md.
package steps

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
)

// ErrNoSuchStep: Rules.On is not in the stacks of the recording.
var ErrNoSuchStep = errors.New("no allocation was made below it three times or more")

// Search looks for the steps of a trace. It is a view.Watcher: where it has seen a replay that was made for something else, it reads the
// trace itself only when no optimizer and no backward pass marks the steps.
type Search struct {
	trace   *view.Trace
	rules   marker
	asked   string  // Rules.On
	noted   *Table  // as they were recorded; nil: they are to be found
	survey  *survey // nil: no event was seen yet
	seen    bool
	found   *Table
	problem error
}

// NewSearch is a search that has seen nothing. Where the beginning of the trace was dropped, the steps are those that were recorded with
// it, which have their numbers; Rules.On is what was chosen then, unless it is something else.
func NewSearch(t *view.Trace, r *Rules) *Search {
	s := &Search{trace: t, rules: r.marker()}
	s.asked = s.rules.chosen
	noted, whole := t.Steps()
	if noted != nil && s.rules.chosen == "" {
		s.rules.chosen = noted.Chosen
	}
	if noted != nil && whole && noted.Chosen == s.rules.chosen && numbered(noted) && t.IsCut() {
		s.noted = &Table{Source: Source(noted.Source), On: noted.On, first: noted.First, begins: noted.Begins, end: t.Last()}
	}
	return s
}

// See implements view.Watcher.
func (s *Search) See(e *event.Event) {
	if s.noted != nil || s.seen {
		return
	}
	if s.survey == nil {
		s.survey = newSurvey(s.rules, s.trace.Stack)
		s.survey.keep = math.MaxInt // of marks, which are few; what recurs can be each allocation
		s.survey.marksOnly = s.rules.chosen != ""
	}
	if mark, _ := s.survey.see(e); mark != nil && mark.entries >= minEntries && !mark.mark.source.weak() {
		s.survey.marksOnly = true // choose takes no other
	}
}

// Seen implements view.Watcher.
func (s *Search) Seen() { s.seen = true }

// Known reports whether no replay is needed to look for steps; to count them by what recurs, one may be.
func (s *Search) Known() bool { return s.noted != nil || s.seen }

// Table is the steps; the trace is read as far as it is needed for them. A trace without steps is no error, but for ErrNoSuchStep.
func (s *Search) Table() (*Table, error) {
	if s.found == nil && s.problem == nil {
		s.found, s.problem = s.table()
		s.survey = nil
	}
	return s.found, s.problem
}

func (s *Search) table() (*Table, error) {
	if s.noted != nil {
		return s.noted, nil
	}
	if !s.seen {
		s.survey = nil // of a replay that ended early
		s.trace.Watch(s)
		if err := s.trace.Events(func(*event.Event) {}); err != nil {
			return nil, fmt.Errorf("look for steps: %w", err)
		}
	}
	if s.survey == nil { // there is no event
		s.survey = newSurvey(s.rules, s.trace.Stack)
	}
	on := s.survey.choose()
	switch {
	case on == nil && s.rules.chosen != "" && s.rules.chosen == s.asked:
		return nil, fmt.Errorf("step on %s: %w", s.rules.chosen, ErrNoSuchStep)
	case on == nil:
		return &Table{}, nil
	}
	if s.survey.inPart(on) {
		if t, err := s.tracked(); t != nil || err != nil {
			return t, err
		}
	}
	out := &Table{Source: on.mark.source, On: on.mark.name(s.rules.library, s.trace.Stack), first: 1, end: s.trace.Last()}
	if on.mark.source != SourcePeriod {
		out.begins = on.times
		return out, nil
	}
	out.around = s.survey.loops.around(on)
	c := newClock(s.trace.Stack, on.mark)
	err := s.trace.Events(func(e *event.Event) {
		if c.see(e) {
			out.begins = append(out.begins, e.Time)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("count steps: %w", err)
	}
	return out, nil
}

// inPart reports whether a candidate was entered in a part of all events only: there may be other loops before it, or behind.
func (s *survey) inPart(on *candidate) bool {
	if s.chosen != "" {
		return false
	}
	return s.silent(on) || float64(on.first) > silence*on.mean+lookAfter
}

// tracked is the steps of several loops one after the other, as a Tracker recognises them; nil: there is one loop.
func (s *Search) tracked() (*Table, error) {
	t := NewTracker(&Rules{Library: s.rules.library}, s.trace.Stack)
	out := &Table{first: 1, end: s.trace.Last()}
	number, whole := 0, true
	take := func(begins []Begin) {
		if len(begins) == 0 {
			return
		}
		if t.Numbering() != number {
			number = t.Numbering()
			first := begins[0].Step
			whole = whole && first <= len(out.begins)+1
			out.Before = ""
			if first > 1 {
				out.Before = out.Source
			}
			out.loop, out.begins = first, out.begins[:min(len(out.begins), first-1)]
			out.Source, out.On = t.Source(), t.On()
		}
		for _, b := range begins {
			out.begins = append(out.begins, b.Time)
		}
	}
	if err := s.trace.Events(func(e *event.Event) { take(t.See(e, nil)) }); err != nil {
		return nil, fmt.Errorf("follow the loops: %w", err)
	}
	take(t.Complete(nil))
	if !whole || out.loop <= 1 {
		return nil, nil
	}
	return out, nil
}

// Find is the steps of a trace, as Search has them.
func Find(t *view.Trace, r *Rules) (*Table, error) { return NewSearch(t, r).Table() }

// numbered reports whether steps begin with a later one than the first. Of the first ones some can be missing while a program runs:
// the names of their stacks are not known at once.
func numbered(s *event.Steps) bool {
	return s.First > 1 && len(s.Begins) > 0 && slices.IsSorted(s.Begins)
}
