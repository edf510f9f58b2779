// SPDX-License-Identifier: Apache-2.0

// Package refusals finds the requests for memory that failed: what the driver refuses PyTorch's caching allocator is mostly none, since the
// allocator returns what it has cached and asks again.
package refusals

import (
	"slices"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/event"
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
	// no caching allocator. Of the backend cudaMallocAsync they are the refusals behind that of Event.
	Tries []event.Event
	// WentOn reports that the thread, or of the backward pass's own threads the program, asked for memory again.
	WentOn bool
}

// refused is an event of a refusal, and what its thread did next.
type refused struct {
	event event.Event
	next  *event.Event // allocation, or refusal reported by PyTorch, of the same thread; nil: there was none
	// served is the next block, or refusal reported by PyTorch, of the same thread: what became of a request for which the caching
	// allocator asked the driver. Between, it may ask several times, as for the pages of an expandable segment. nil: there was none.
	served *event.Event
	other  bool // another thread allocated a block later
}

// Program is what the events themselves do not say.
type Program struct {
	Stack func(id event.StackID) *event.Stack // nil: not known
	Cache func(pid uint32) bool               // whether the process has a caching allocator
}

// threadKey names a thread.
type threadKey struct{ pid, tid uint32 }

// Log collects refused requests while a recording is read, in the order of its events.
type Log struct {
	list    []refused
	waiting map[threadKey][]int // of list, those without next
	asked   map[threadKey][]int // of list, the driver's refusals without served
	open    []int               // of list, PyTorch's reports that wait for other
}

// See takes an event that was applied.
func (l *Log) See(e *event.Event) {
	ask := e.Kind == event.KindAlloc || e.Kind == event.KindOutOfMemory
	if !ask {
		return
	}
	reported := e.Kind == event.KindOutOfMemory && e.Layer == event.LayerTorch
	if len(l.waiting) > 0 {
		l.settle(e, reported)
	}
	if len(l.asked) > 0 && e.Layer == event.LayerTorch {
		l.serve(e)
	}
	if e.Kind != event.KindOutOfMemory || len(l.list) == keptOOMs*(1+maxTries) {
		return
	}
	if l.waiting == nil {
		l.waiting, l.asked = map[threadKey][]int{}, map[threadKey][]int{}
	}
	key := threadKey{e.PID, e.TID}
	l.waiting[key] = append(l.waiting[key], len(l.list))
	if reported {
		l.open = append(l.open, len(l.list))
	} else {
		l.asked[key] = append(l.asked[key], len(l.list))
	}
	l.list = append(l.list, refused{event: *e})
}

// settle notes what a thread asks for after a refusal.
func (l *Log) settle(e *event.Event, reported bool) {
	key := threadKey{e.PID, e.TID}
	waits := l.waiting[key]
	if e.Kind == event.KindAlloc || reported {
		next := *e
		for _, i := range waits {
			l.list[i].next = &next
		}
		delete(l.waiting, key)
	} else { // the driver refuses again: a report before was followed by another request
		l.waiting[key] = slices.DeleteFunc(waits, func(i int) bool {
			if l.list[i].event.Layer != event.LayerTorch {
				return false
			}
			next := *e
			l.list[i].next = &next
			return true
		})
	}
	if e.Kind == event.KindAlloc && e.Layer == event.LayerTorch {
		l.open = slices.DeleteFunc(l.open, func(i int) bool {
			if l.list[i].event.PID != e.PID || l.list[i].event.TID == e.TID {
				return false
			}
			l.list[i].other = true
			return true
		})
	}
}

// serve notes what became of a request of the caching allocator's.
func (l *Log) serve(e *event.Event) {
	key, served := threadKey{e.PID, e.TID}, *e
	for _, i := range l.asked[key] {
		l.list[i].served = &served
	}
	delete(l.asked, key)
}

// Failed are the requests that failed, in order: at most 1000 of them. What a driver refuses the caching allocator is none as long as
// PyTorch does not report it: returning cached memory to the driver helps mostly. recovered is how many requests were satisfied so, or
// by asking again.
func (l *Log) Failed(p *Program) (failed []Refusal, recovered int) {
	var tries []event.Event
	var served *event.Event // of the last request that was satisfied in the end
	var last *refused       // of the last of failed
	for i := range l.list {
		r := &l.list[i]
		switch {
		case r.event.Layer == event.LayerTorch:
			failed = append(failed, l.reported(r, tries, p))
		case p.asks(&r.event) && r.isReported():
			tries = append(tries, r.event)
			continue
		case p.asks(&r.event):
			if r.served == nil || r.served != served { // else the same request, refused once more
				recovered++
			}
			served = r.served
			continue
		case r.recovered():
			recovered++
			continue
		case last != nil && p.repeats(r, last, &failed[len(failed)-1]):
			f := &failed[len(failed)-1]
			f.Tries = append(f.Tries, r.event)
			continue
		default:
			failed = append(failed, Refusal{Event: r.event, WentOn: r.next != nil})
		}
		last = r
		if len(failed) == keptOOMs {
			break
		}
	}
	return failed, recovered
}

// isReported reports whether PyTorch reported that a request of the caching allocator's failed.
func (r *refused) isReported() bool {
	outcome := r.served
	if outcome == nil {
		outcome = r.next
	}
	return outcome != nil && outcome.Kind == event.KindOutOfMemory
}

// repeats reports whether PyTorch's backend cudaMallocAsync asks once more, from another place of its own, for what it was refused, as
// 2.15 does after it has trimmed the pool, and 2.6 does not. Asked from the same place, it is another request of the program.
func (p *Program) repeats(r, last *refused, failed *Refusal) bool {
	x, y := &r.event, &last.event
	same := x.PID == y.PID && x.TID == y.TID && x.Call == y.Call && x.Size == y.Size && r.next == last.next
	if !same || x.Layer != event.LayerDevice || y.Layer != event.LayerDevice || !stacks.IsAsyncBackend(p.Stack(x.Stack), x.Call) {
		return false
	}
	return x.Stack != y.Stack && !slices.ContainsFunc(failed.Tries, func(e event.Event) bool { return e.Stack == x.Stack })
}

// reported is the refusal of a report of PyTorch's.
func (l *Log) reported(r *refused, tries []event.Event, p *Program) Refusal {
	out := Refusal{Event: r.event, Reported: true, WentOn: r.next != nil || r.other && !p.hasPython(r.event.Stack)}
	for i := len(tries) - 1; i >= 0 && len(out.Tries) < maxTries; i-- {
		if e := &tries[i]; e.PID == r.event.PID && e.TID == r.event.TID {
			if r.event.Time-e.Time > r.event.Time-l.before(r) {
				break
			}
			out.Tries = append(out.Tries, *e)
		}
	}
	slices.Reverse(out.Tries)
	return out
}

// before is the time of the report before one of the same thread, CLOCK_BOOTTIME nanoseconds; 0: there was none.
func (l *Log) before(r *refused) uint64 {
	last := uint64(0)
	for i := range l.list {
		e := &l.list[i].event
		if e.Layer == event.LayerTorch && e.PID == r.event.PID && e.TID == r.event.TID && e.Time < r.event.Time {
			last = e.Time
		}
	}
	return last
}

// asks reports whether a driver's call is the caching allocator's.
func (p *Program) asks(e *event.Event) bool {
	st := p.Stack(e.Stack)
	return st != nil && stacks.IsSegment(st) && p.Cache(e.PID)
}

// recovered reports whether the same was asked for again at once, and given.
func (r *refused) recovered() bool {
	n := r.next
	return n != nil && n.Kind == event.KindAlloc && n.Layer == r.event.Layer && n.Call == r.event.Call && n.Size == r.event.Size
}

// hasPython reports whether a thread runs Python code; the backward pass's own threads mostly do not.
func (p *Program) hasPython(id event.StackID) bool {
	st := p.Stack(id)
	return st == nil || slices.ContainsFunc(st.Frames, func(f event.Frame) bool { return f.Kind == event.FramePython })
}
