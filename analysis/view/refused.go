// SPDX-License-Identifier: Apache-2.0

package view

import (
	"slices"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// keptOOMs is of how many refused requests the times are kept.
const keptOOMs = 1000

// maxTries is how many refusals of the driver are kept of one request: the allocator asks two or three times.
const maxTries = 8

// Refusal is a request for memory that failed: the program got an error, whatever it made of it.
type Refusal struct {
	// Event is PyTorch's report; of Reported false, the driver's call that failed.
	Event    event.Event
	Reported bool
	// Tries are what the driver refused the caching allocator for it, in order; nil: the allocator did not ask the driver, or there is
	// no caching allocator.
	Tries []event.Event
	// WentOn reports that the thread, or of the backward pass's own threads the program, asked for memory again.
	WentOn bool
}

// refused is an event of a refusal, and what its thread did next.
type refused struct {
	event event.Event
	next  *event.Event // allocation, or refusal reported by PyTorch, of the same thread; nil: there was none
	other bool         // another thread allocated a block later
}

// threadKey names a thread.
type threadKey struct{ pid, tid uint32 }

// refusals collects refused requests while a trace is read.
type refusals struct {
	list    []refused
	waiting map[threadKey][]int // of list, those without next
	open    []int               // of list, PyTorch's reports that wait for other
}

// see takes an event that was applied.
func (r *refusals) see(e *event.Event) {
	ask := e.Kind == event.KindAlloc || e.Kind == event.KindOutOfMemory
	if !ask {
		return
	}
	reported := e.Kind == event.KindOutOfMemory && e.Layer == event.LayerTorch
	if len(r.waiting) > 0 {
		r.settle(e, reported)
	}
	if e.Kind != event.KindOutOfMemory || len(r.list) == keptOOMs*(1+maxTries) {
		return
	}
	if r.waiting == nil {
		r.waiting = map[threadKey][]int{}
	}
	key := threadKey{e.PID, e.TID}
	r.waiting[key] = append(r.waiting[key], len(r.list))
	if reported {
		r.open = append(r.open, len(r.list))
	}
	r.list = append(r.list, refused{event: *e})
}

// settle notes what a thread asks for after a refusal.
func (r *refusals) settle(e *event.Event, reported bool) {
	key := threadKey{e.PID, e.TID}
	waits := r.waiting[key]
	if e.Kind == event.KindAlloc || reported {
		next := *e
		for _, i := range waits {
			r.list[i].next = &next
		}
		delete(r.waiting, key)
	} else { // the driver refuses again: a report before was followed by another request
		r.waiting[key] = slices.DeleteFunc(waits, func(i int) bool {
			if r.list[i].event.Layer != event.LayerTorch {
				return false
			}
			next := *e
			r.list[i].next = &next
			return true
		})
	}
	if e.Kind == event.KindAlloc && e.Layer == event.LayerTorch {
		r.open = slices.DeleteFunc(r.open, func(i int) bool {
			if r.list[i].event.PID != e.PID || r.list[i].event.TID == e.TID {
				return false
			}
			r.list[i].other = true
			return true
		})
	}
}

// Refusals are the requests that failed, in order: at most 1000 of them. What a driver refuses the caching allocator is none as long as
// PyTorch does not report it: returning cached memory to the driver helps mostly. recovered is how many requests were satisfied so, or
// by asking again.
func (t *Trace) Refusals() (failed []Refusal, recovered int) {
	var tries []event.Event
	for i := range t.refused.list {
		r := &t.refused.list[i]
		switch {
		case r.event.Layer == event.LayerTorch:
			failed = append(failed, t.reported(r, tries))
		case t.asks(&r.event) && r.next != nil && r.next.Kind == event.KindOutOfMemory:
			tries = append(tries, r.event)
			continue
		case t.asks(&r.event):
			recovered++
			continue
		case r.recovered():
			recovered++
			continue
		default:
			failed = append(failed, Refusal{Event: r.event, WentOn: r.next != nil})
		}
		if len(failed) == keptOOMs {
			break
		}
	}
	return failed, recovered
}

// reported is the refusal of a report of PyTorch's.
func (t *Trace) reported(r *refused, tries []event.Event) Refusal {
	out := Refusal{Event: r.event, Reported: true, WentOn: r.next != nil || r.other && !t.hasPython(r.event.Stack)}
	for i := len(tries) - 1; i >= 0 && len(out.Tries) < maxTries; i-- {
		if e := &tries[i]; e.PID == r.event.PID && e.TID == r.event.TID {
			if r.event.Time-e.Time > r.event.Time-t.before(r) {
				break
			}
			out.Tries = append(out.Tries, *e)
		}
	}
	slices.Reverse(out.Tries)
	return out
}

// before is the time of the report before one of the same thread, CLOCK_BOOTTIME nanoseconds; 0: there was none.
func (t *Trace) before(r *refused) uint64 {
	last := uint64(0)
	for i := range t.refused.list {
		e := &t.refused.list[i].event
		if e.Layer == event.LayerTorch && e.PID == r.event.PID && e.TID == r.event.TID && e.Time < r.event.Time {
			last = e.Time
		}
	}
	return last
}

// asks reports whether a driver's call is the caching allocator's.
func (t *Trace) asks(e *event.Event) bool {
	caching := slices.ContainsFunc(t.end.Snapshot.Accounts, func(a heap.Account) bool { return a.PID == e.PID })
	st := t.Stack(e.Stack)
	return caching && st != nil && stacks.IsSegment(st)
}

// recovered reports whether the same was asked for again at once, and given.
func (r *refused) recovered() bool {
	n := r.next
	return n != nil && n.Kind == event.KindAlloc && n.Layer == r.event.Layer && n.Call == r.event.Call && n.Size == r.event.Size
}

// hasPython reports whether a thread runs Python code; the backward pass's own threads mostly do not.
func (t *Trace) hasPython(id event.StackID) bool {
	st := t.Stack(id)
	return st == nil || slices.ContainsFunc(st.Frames, func(f event.Frame) bool { return f.Kind == event.FramePython })
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
