// SPDX-License-Identifier: Apache-2.0

// Package refusals finds the requests for memory that failed: what the driver refuses PyTorch's caching allocator is mostly none, since the
// allocator returns what it has cached and asks again.
package refusals

import (
	"slices"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/event"
)

// keptOOMs is how many of the requests that failed are listed: the first ones, and the last.
const keptOOMs = 1000

// keptRefusals is how many refusals are kept at most. Of more the first half stays, and what is settled of the
// others is only counted, so that the one that ends a program is there, however many it survived.
const keptRefusals = keptOOMs * (1 + maxTries)

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
	// Skipped is how many requests that failed beside this one are not listed: mostly before it.
	Skipped int
}

// refused is an event of a refusal, and what its thread did next.
type refused struct {
	event event.Event
	next  *event.Event // allocation, or refusal reported by PyTorch, of the same thread; nil: there was none
	// served is the next block, or refusal reported by PyTorch, of the same thread: what became of a request for which the caching
	// allocator asked the driver. Between, it may ask several times, as for the pages of an expandable segment. nil: there was none.
	served *event.Event
	first  bool // of those with the same served
	again  bool // the thread was just refused the same, by the same function at another place
	other  bool // another thread allocated a block later
}

// Program is what the events themselves do not say.
type Program struct {
	Stack func(id event.StackID) *event.Stack // nil: not known
	Cache func(pid uint32) bool               // whether the process has a caching allocator
}

// threadKey names a thread.
type threadKey struct{ pid, tid uint32 }

// waits is, by thread, the indexes of those refusals of a list that wait for something.
type waits map[threadKey][]int

// Log collects refused requests while a recording is read, in the order of its events.
type Log struct {
	list    []refused
	waiting waits  // the driver's refusals without next
	reports waits  // PyTorch's reports without next
	asked   waits  // the driver's refusals without served
	open    waits  // PyTorch's reports that wait for other
	folded  folded // what was in list behind its first half
}

// all is what waits, of each sort.
func (l *Log) all() []waits { return []waits{l.waiting, l.reports, l.asked, l.open} }

// See takes an event that was applied.
func (l *Log) See(e *event.Event) {
	if e.Kind != event.KindAlloc && e.Kind != event.KindOutOfMemory {
		return
	}
	reported := e.Kind == event.KindOutOfMemory && e.Layer == event.LayerAllocator
	if len(l.waiting)+len(l.reports) > 0 {
		l.settle(e, reported)
	}
	if len(l.asked) > 0 && e.Layer == event.LayerAllocator {
		l.serve(e)
	}
	if e.Kind == event.KindOutOfMemory {
		l.add(e, reported)
	}
}

// add takes a refusal.
func (l *Log) add(e *event.Event, reported bool) {
	if l.waiting == nil {
		l.waiting, l.reports, l.asked, l.open = waits{}, waits{}, waits{}, waits{}
	}
	if len(l.list) >= keptRefusals {
		l.fold()
	}
	key, r := threadKey{e.PID, e.TID}, refused{event: *e}
	if w := l.waiting[key]; len(w) > 0 {
		last := &l.list[w[len(w)-1]]
		was := &last.event
		r.again = !last.again && was.Layer == e.Layer && was.Call == e.Call && was.Size == e.Size && was.Stack != e.Stack
	}
	sorts := []waits{l.waiting, l.asked}
	if reported {
		sorts = []waits{l.reports, l.open}
	}
	for _, w := range sorts {
		w[key] = append(w[key], len(l.list))
	}
	l.list = append(l.list, r)
}

// settle notes what a thread asks for after a refusal. Where the driver refuses again, only a report before was
// followed by another request.
func (l *Log) settle(e *event.Event, reported bool) {
	key, next := threadKey{e.PID, e.TID}, *e
	sorts := []waits{l.reports}
	if e.Kind == event.KindAlloc || reported {
		sorts = []waits{l.reports, l.waiting}
	}
	for _, w := range sorts {
		for _, i := range w[key] {
			l.list[i].next = &next
		}
		delete(w, key)
	}
	if e.Kind == event.KindAlloc && e.Layer == event.LayerAllocator {
		l.goOn(key)
	}
}

// goOn notes that a thread has allocated, for the reports of the others of its process.
func (l *Log) goOn(key threadKey) {
	for of, waits := range l.open {
		if of.pid != key.pid || of.tid == key.tid {
			continue
		}
		for _, i := range waits {
			l.list[i].other = true
		}
		delete(l.open, of)
	}
}

// serve notes what became of a request of the caching allocator's.
func (l *Log) serve(e *event.Event) {
	key, served := threadKey{e.PID, e.TID}, *e
	for n, i := range l.asked[key] {
		l.list[i].served, l.list[i].first = &served, n == 0
	}
	delete(l.asked, key)
}

// Failed are the requests that failed, in order: at most 1000 of them, the first and the last. What a driver refuses the caching allocator
// is none as long as PyTorch does not report it: returning cached memory to the driver helps mostly. recovered is how many requests were
// satisfied so, or by asking again.
func (l *Log) Failed(p *Program) (failed []Refusal, recovered int) {
	s := sorting{program: p, tries: map[threadKey][]event.Event{}}
	for i := range l.list {
		if i == keptRefusals/2 {
			s.count(&l.folded)
		}
		s.take(&l.list[i])
	}
	if n := len(s.failed); n > 0 {
		s.failed[n-1].Skipped += s.skipped
	}
	return s.failed, s.recovered
}

// Recovered lists when requests were refused that were satisfied in the end, CLOCK_BOOTTIME nanoseconds, in order: those of Failed's count
// that are kept, which are all unless there were thousands.
func (l *Log) Recovered(p *Program) []uint64 {
	s := sorting{program: p, tries: map[threadKey][]event.Event{}}
	for i := range l.list {
		s.take(&l.list[i])
	}
	return s.times
}

// sorting tells the requests that failed from those that were satisfied in the end.
type sorting struct {
	program   *Program
	failed    []Refusal
	recovered int
	times     []uint64                    // of recovered
	skipped   int                         // requests that failed and are not in failed, behind its last
	tries     map[threadKey][]event.Event // of the next report of a thread
	last      *refused                    // of the last of failed
}

func (s *sorting) take(r *refused) {
	p, key := s.program, threadKey{r.event.PID, r.event.TID}
	switch {
	case r.event.Layer == event.LayerAllocator:
		tries := s.tries[key]
		delete(s.tries, key)
		s.add(&Refusal{
			Event: r.event, Reported: true, Tries: tries[max(0, len(tries)-maxTries):],
			WentOn: r.next != nil || r.other && !p.hasPython(r.event.Stack),
		})
		s.last = r
	case p.asks(&r.event) && r.isReported():
		s.tries[key] = append(s.tries[key], r.event)
	case p.asks(&r.event):
		if r.served == nil || r.first { // else the same request, refused once more
			s.recover(r)
		}
	case r.recovered():
		s.recover(r)
	case s.last != nil && p.repeats(r, s.last, &s.failed[len(s.failed)-1]):
		f := &s.failed[len(s.failed)-1]
		f.Tries = append(f.Tries, r.event)
	default:
		s.add(&Refusal{Event: r.event, WentOn: r.next != nil})
		s.last = r
	}
}

// recover takes a request that was satisfied in the end.
func (s *sorting) recover(r *refused) {
	s.recovered, s.times = s.recovered+1, append(s.times, r.event.Time)
}

// add takes a request that failed. Of too many, the last one takes the place of the one before.
func (s *sorting) add(r *Refusal) {
	if len(s.failed) == keptOOMs {
		s.skipped += s.failed[keptOOMs-1].Skipped + 1
		s.failed = s.failed[:keptOOMs-1]
	}
	r.Skipped, s.skipped = s.skipped, 0
	s.failed = append(s.failed, *r)
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
	if !same || x.Layer != event.LayerDevice || y.Layer != event.LayerDevice || !p.isAsync(x) {
		return false
	}
	return x.Stack != y.Stack && !slices.ContainsFunc(failed.Tries, func(e event.Event) bool { return e.Stack == x.Stack })
}

// asks reports whether a driver's call is the caching allocator's.
func (p *Program) asks(e *event.Event) bool {
	st := p.Stack(e.Stack)
	return st != nil && stacks.IsSegment(st) && p.Cache(e.PID)
}

// isAsync reports whether a driver's call is that of the backend cudaMallocAsync.
func (p *Program) isAsync(e *event.Event) bool {
	return stacks.IsAsyncBackend(p.Stack(e.Stack), e.Call)
}

// recovered reports whether the same was asked for again at once, and given.
func (r *refused) recovered() bool {
	n := r.next
	return n != nil && n.Kind == event.KindAlloc && n.Layer == r.event.Layer && n.Call == r.event.Call && n.Size == r.event.Size
}

// hasPython reports whether a thread runs Python code; the backward pass's own threads mostly do not, whatever line their nodes are of.
func (p *Program) hasPython(id event.StackID) bool {
	st := p.Stack(id)
	return st == nil || slices.ContainsFunc(stacks.Ran(st.Frames), func(f event.Frame) bool { return f.Kind == event.FramePython })
}
