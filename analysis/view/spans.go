// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"slices"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/event"
)

// PhaseSpan is a time in which a thread made allocations of one phase only: from the first to the last of them.
type PhaseSpan struct {
	PID, TID    uint32
	Phase       phases.Phase
	From, To    uint64 // CLOCK_BOOTTIME nanoseconds, both in it
	Allocations uint64
	Bytes       uint64 // of those whose size is known
}

// StepSpan is one step of a program.
type StepSpan struct {
	Number   int
	From, To uint64 // CLOCK_BOOTTIME nanoseconds, the first and the last in it
}

// phaseSpans lists the phases of all threads between two times, CLOCK_BOOTTIME nanoseconds, both in it: the first most of them. see takes
// the events, and sorted is what they came to; more reports whether there are others. Allocations without a stack are in none.
func (t *Trace) phaseSpans(from, to uint64, most int) (see func(e *event.Event), sorted func() (spans []PhaseSpan, more bool)) {
	c := t.classifier()
	running := map[uint64]int{} // of a thread: its last span
	var spans []PhaseSpan
	more := false
	see = func(e *event.Event) {
		if e.Kind != event.KindAlloc || e.Layer != event.LayerAllocator || e.Stack == 0 || e.Time < from || e.Time > to {
			return
		}
		phase, id := c.shown(e.Stack), uint64(e.PID)<<32|uint64(e.TID)
		i, ok := running[id]
		if !ok || spans[i].Phase != phase {
			if len(spans) == most {
				more = true
				delete(running, id)
				return
			}
			i = len(spans)
			running[id] = i
			spans = append(spans, PhaseSpan{PID: e.PID, TID: e.TID, Phase: phase, From: e.Time, To: e.Time})
		}
		s := &spans[i]
		s.To, s.Allocations = max(s.To, e.Time), s.Allocations+1
		if e.Size != event.Unknown {
			s.Bytes += e.Size
		}
	}
	return see, func() ([]PhaseSpan, bool) {
		slices.SortStableFunc(spans, func(x, y PhaseSpan) int {
			return cmp.Or(cmp.Compare(x.PID, y.PID), cmp.Compare(x.TID, y.TID), cmp.Compare(x.From, y.From))
		})
		return spans, more
	}
}
