// SPDX-License-Identifier: Apache-2.0

package pagemodel

import (
	"cmp"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/sorts"
)

// PhaseSpan is a time in which a thread made allocations of one phase only: from the first to the last of them.
type PhaseSpan struct {
	Phase    phases.Phase
	From, To uint64 // CLOCK_BOOTTIME nanoseconds, both in it
}

// phaseSpans collects the phases of all threads.
type phaseSpans struct {
	spans   []PhaseSpan
	running map[uint32]int // of a thread: its last span
	more    bool
}

func newPhaseSpans() phaseSpans { return phaseSpans{running: map[uint32]int{}} }

// add takes an allocation.
func (p *phaseSpans) add(e *event.Event, phase phases.Phase) {
	if p.more || e.Stack == 0 {
		return
	}
	i, ok := p.running[e.TID]
	if !ok || p.spans[i].Phase != phase {
		i = len(p.spans)
		p.running[e.TID] = i
		p.spans = append(p.spans, PhaseSpan{phase, e.Time, e.Time})
	}
	p.spans[i].To = max(p.spans[i].To, e.Time)
	p.more = len(p.spans) > maxPhaseSpans
}

// sorted is the spans by time; nil: they were too many.
func (p *phaseSpans) sorted() []PhaseSpan {
	if p.more {
		return nil
	}
	sorts.Func(p.spans, func(x, y PhaseSpan) int { return cmp.Or(cmp.Compare(x.From, y.From), cmp.Compare(x.To, y.To)) })
	return p.spans
}
