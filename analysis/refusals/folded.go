// SPDX-License-Identifier: Apache-2.0

package refusals

import (
	"slices"

	"github.com/gputrace/gputrace/event"
)

// folded is refusals of which there were too many to be kept.
type folded struct {
	reported int // by PyTorch
	driver   map[foldKey]foldCount
}

// foldKey is what is needed to tell whether a driver's call was the caching allocator's, once the program is known.
type foldKey struct {
	pid   uint32
	stack event.StackID
	call  string
}

// foldCount is what became of driver's calls that were refused.
type foldCount struct {
	served    int // as calls of the caching allocator's: requests that were satisfied in the end
	recovered int // as calls of others: asked for again and given
	failed    int // not
	again     int // not, and the backend cudaMallocAsync asked a second time
}

// newest is how many of the last refusals are kept also where nearly all are of requests that failed.
const newest = keptOOMs / 10

// fold makes room: of the second half of the list it counts what was satisfied in the end, and where that is not
// enough all but the newest.
func (l *Log) fold() {
	if l.folded.driver == nil {
		l.folded.driver = map[foldKey]foldCount{}
	}
	waiting := map[int]bool{}
	for _, w := range []waits{l.waiting, l.reports, l.asked} {
		for _, indexes := range w {
			for _, i := range indexes {
				waiting[i] = true
			}
		}
	}
	l.drop(len(l.list), func(i int) bool { return !waiting[i] && l.list[i].given() })
	if len(l.list) > keptRefusals*3/4 {
		l.drop(len(l.list)-newest, func(int) bool { return true })
	}
}

// given reports whether a request was satisfied in the end, whoever made it.
func (r *refused) given() bool {
	return r.event.Layer == event.LayerDevice && (r.recovered() || r.served != nil && r.served.Kind == event.KindAlloc)
}

// drop counts those of the second half of the list, up to an end, of which which is true, and takes them out.
func (l *Log) drop(end int, which func(i int) bool) {
	at, n := make([]int, len(l.list)), 0 // where each is now
	for i := range l.list {
		if i >= keptRefusals/2 && i < end && which(i) {
			l.folded.add(&l.list[i])
			at[i] = -1
			continue
		}
		l.list[n] = l.list[i]
		at[i] = n
		n++
	}
	clear(l.list[n:])
	l.list = l.list[:n]
	for _, w := range l.all() {
		for key, indexes := range w {
			for k, i := range indexes {
				indexes[k] = at[i]
			}
			w[key] = slices.DeleteFunc(indexes, func(i int) bool { return i < 0 })
		}
	}
}

func (f *folded) add(r *refused) {
	if r.event.Layer == event.LayerAllocator {
		f.reported++
		return
	}
	key := foldKey{r.event.PID, r.event.Stack, r.event.Call}
	c := f.driver[key]
	if !r.isReported() && (r.served == nil || r.first) {
		c.served++
	}
	switch {
	case r.recovered():
		c.recovered++
	case r.again:
		c.again++
	default:
		c.failed++
	}
	f.driver[key] = c
}

// count adds what was folded to the requests that failed and to those that were satisfied.
func (s *sorting) count(f *folded) {
	s.skipped += f.reported
	for key, c := range f.driver {
		e := event.Event{PID: key.pid, Stack: key.stack, Call: key.call, Layer: event.LayerDevice}
		if s.program.asks(&e) {
			s.recovered += c.served
			continue
		}
		s.recovered += c.recovered
		s.skipped += c.failed
		if !s.program.isAsync(&e) {
			s.skipped += c.again
		}
	}
}
