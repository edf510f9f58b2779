// SPDX-License-Identifier: Apache-2.0

// Package steps divides a program's events into steps: iterations of a training loop, requests of a server. They are recognised by
// the stacks of allocations, so that nothing is added to what is traced. The rules are in docs/leaks.md.
package steps

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
)

// ErrNoSuchStep: Rules.On is not in the stacks of the recording.
var ErrNoSuchStep = errors.New("no allocation was made below it three times or more")

// Find is the steps of a trace, which is read twice. Where the beginning of the trace was dropped, they are those that were recorded
// with it, which have their numbers; Rules.On is what was chosen then, unless it is something else. A trace without steps is no error,
// but for ErrNoSuchStep.
func Find(t *view.Trace, r *Rules) (*Table, error) {
	m := r.marker()
	noted, whole := t.Steps()
	if noted != nil && m.chosen == "" {
		m.chosen = noted.Chosen
	}
	if noted != nil && whole && noted.Chosen == m.chosen && numbered(noted) {
		return &Table{Source: Source(noted.Source), On: noted.On, first: noted.First, begins: noted.Begins, end: t.Last()}, nil
	}
	s := newSurvey(m, t.Stack)
	if err := t.Events(func(e *event.Event) { s.see(e) }); err != nil {
		return nil, fmt.Errorf("look for steps: %w", err)
	}
	on := s.choose()
	switch {
	case on == nil && m.chosen != "" && m.chosen == r.marker().chosen:
		return nil, fmt.Errorf("step on %s: %w", m.chosen, ErrNoSuchStep)
	case on == nil:
		return &Table{}, nil
	}
	out := &Table{Source: on.mark.source, On: on.mark.name(m.library, t.Stack), first: 1, end: t.Last()}
	c := newClock(m, t.Stack, on.mark)
	err := t.Events(func(e *event.Event) {
		if c.see(e) {
			out.begins = append(out.begins, e.Time)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("count steps: %w", err)
	}
	return out, nil
}

// numbered reports whether steps begin with a later one than the first. Of the first ones some can be missing while a program runs:
// the names of their stacks are not known at once.
func numbered(s *event.Steps) bool {
	return s.First > 1 && len(s.Begins) > 0 && slices.IsSorted(s.Begins)
}
