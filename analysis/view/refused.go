// SPDX-License-Identifier: Apache-2.0

package view

import (
	"slices"

	"github.com/gputrace/gputrace/analysis/refusals"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// Refusals are the requests that failed, as refusals.Log has them, and how many others were satisfied after the driver had refused them.
func (t *Trace) Refusals() (failed []refusals.Refusal, recovered int) {
	return t.refused.Failed(t.program())
}

// Recovered lists when the requests were refused that were satisfied in the end, as refusals.Log has them.
func (t *Trace) Recovered() []uint64 { return t.refused.Recovered(t.program()) }

func (t *Trace) program() *refusals.Program {
	return &refusals.Program{Stack: t.Stack, Cache: func(pid uint32) bool {
		return slices.ContainsFunc(t.end.Snapshot.Accounts, func(a heap.Account) bool { return a.PID == pid })
	}}
}

// OutOfMemory is when the requests of Refusals failed, CLOCK_BOOTTIME nanoseconds, in order.
func (t *Trace) OutOfMemory() []uint64 {
	var out []uint64
	for _, e := range t.Refused() {
		out = append(out, e.Time)
	}
	return out
}

// Refused is the events of Refusals.
func (t *Trace) Refused() []event.Event {
	failed, _ := t.Refusals()
	var out []event.Event
	for i := range failed {
		out = append(out, failed[i].Event)
	}
	return out
}
