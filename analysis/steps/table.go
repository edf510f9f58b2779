// SPDX-License-Identifier: Apache-2.0

package steps

import (
	"slices"
	"sort"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/event"
)

// Table is the steps of a recording, by the times at which they begin. Steps are numbered from 1. The zero value has none.
type Table struct {
	Source Source // by what they were recognised; empty: there are none
	Before Source // by what those of an earlier loop were recognised; empty: there is none
	On     string // the line or function that a step begins with; of SourcePeriod, the line that recurs

	first  int      // number of the first step of begins
	loop   int      // number of the first step of the loop that runs at the end; 0: first
	begins []uint64 // CLOCK_BOOTTIME nanoseconds, ascending
	end    uint64   // of the recording

	around []event.Frame // of SourcePeriod, the calls that lead to the loop, outermost first, and a line of it; nil: not known
}

// Returned reports whether the function whose loop the steps are may have returned, as far as a later stack of its thread shows. Only the
// outermost loop is known to be over then.
func (t *Table) Returned(st *event.Stack) bool {
	if st == nil || len(t.around) < 2 {
		return false
	}
	at := 0
	for _, f := range slices.Backward(stacks.Ran(st.Frames)) {
		if f.Kind != event.FramePython {
			continue
		}
		call := &t.around[at]
		switch {
		case f.File != call.File || f.Func != call.Func:
			return at > 0
		case at == len(t.around)-1:
			return false
		case f.Line != call.Line:
			return true
		}
		at++
	}
	return at > 0 && st.Status.Complete()
}

// TableOf is the table of steps that begin at given times, ascending, the first of them number first, in a recording that ends at end.
func TableOf(first int, begins []uint64, end uint64) *Table {
	return &Table{first: first, begins: begins, end: end}
}

// At is the step that runs at a time, CLOCK_BOOTTIME nanoseconds; 0: it is before the first one, or there are none. The event that a
// step begins with is part of it.
func (t *Table) At(time uint64) int {
	n := sort.Search(len(t.begins), func(i int) bool { return t.begins[i] > time })
	if n == 0 {
		return 0
	}
	return t.first + n - 1
}

// Count is how many steps were seen from their beginning to their end.
func (t *Table) Count() int { return max(0, len(t.begins)-1) }

// First is the number of the first step that there is; 0: there is none. It is above 1 where the beginning of a recording was dropped.
func (t *Table) First() int {
	if len(t.begins) == 0 {
		return 0
	}
	return t.first
}

// Last is the number of the last step, which runs when the recording ends; 0: there is none.
func (t *Table) Last() int {
	if len(t.begins) == 0 {
		return 0
	}
	return t.first + len(t.begins) - 1
}

// Span is the times of the first and the last nanosecond of a step, CLOCK_BOOTTIME. ok is false when there is no such step.
func (t *Table) Span(step int) (from, to uint64, ok bool) {
	i := step - t.first
	switch {
	case i < 0 || i >= len(t.begins):
		return 0, 0, false
	case i == len(t.begins)-1:
		return t.begins[i], max(t.begins[i], t.end), true
	}
	return t.begins[i], t.begins[i+1] - 1, true
}

// Loop is the number of the first step of the loop that runs at the end, which Source and On are of; 0: there is
// none. Steps before it are of loops that have ended.
func (t *Table) Loop() int { return max(t.loop, t.First()) }

// Period is the mean length of a complete step of the loop that runs at the end, nanoseconds; 0: not known.
func (t *Table) Period() float64 {
	of := t.begins[max(0, min(t.Loop()-t.first, len(t.begins))):]
	if len(of) < 2 {
		return 0
	}
	return float64(of[len(of)-1]-of[0]) / float64(len(of)-1)
}
