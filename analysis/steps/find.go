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
	"github.com/gputrace/gputrace/heap"
)

// ErrNoSuchStep: Rules.On is not in the stacks of the recording.
var ErrNoSuchStep = errors.New("no allocation was made below it three times or more")

// Find is the steps of a trace: those that were recorded with it, unless Rules.On is something else. Else it is replayed twice.
// A trace without steps is no error, but for ErrNoSuchStep.
func Find(t *view.Trace, r *Rules) (*Table, error) {
	m := r.marker()
	if table := recorded(t, m.chosen); table != nil {
		return table, nil
	}
	s := newSurvey(m, t.Stack)
	if err := t.Replay(before(func(e *event.Event) { s.see(e) })); err != nil {
		return nil, fmt.Errorf("look for steps: %w", err)
	}
	on := s.choose()
	switch {
	case on == nil && m.chosen != "":
		return nil, fmt.Errorf("step on %s: %w", m.chosen, ErrNoSuchStep)
	case on == nil:
		return &Table{}, nil
	}
	out := &Table{Source: on.mark.source, On: on.mark.name(m.library, t.Stack), first: 1, end: t.Last()}
	c := newClock(m, t.Stack, on.mark)
	err := t.Replay(before(func(e *event.Event) {
		if c.see(e) {
			out.begins = append(out.begins, e.Time)
		}
	}))
	if err != nil {
		return nil, fmt.Errorf("count steps: %w", err)
	}
	return out, nil
}

// recorded is the steps that were recorded with a trace; nil: there are none of use.
func recorded(t *view.Trace, chosen string) *Table {
	s, whole := t.Steps()
	if s == nil || !whole && s.First != 1 || len(s.Begins) == 0 || !slices.IsSorted(s.Begins) || s.First < 1 {
		return nil
	}
	if chosen != "" && (Source(s.Source) != SourceChosen || s.Chosen != chosen) {
		return nil
	}
	return &Table{Source: Source(s.Source), On: s.On, first: s.First, begins: s.Begins, end: t.Last()}
}

func before(see func(e *event.Event)) *view.Visitor {
	return &view.Visitor{Before: func(e *event.Event, _ *heap.Heap) { see(e) }}
}
