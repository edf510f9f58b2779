// SPDX-License-Identifier: Apache-2.0

package heap

import (
	"maps"
	"slices"

	"github.com/gputrace/gputrace/event"
)

// A free is applied when the call is entered, because its address can be handed out again before the call returns. If
// the call turns out to have failed, the free is undone:
//
//	enter free(A)   A is freed, undoRecord{A} is in the ring   another thread may get A from here on
//	success         the thread's next call finishes the record
//	failure         the record is removed from the ring, and A is in use again
//
// The ring holds the last calls of all threads. Only a thread's latest call can still be running, so each thread has at
// most one unfinished record; a record that leaves the ring is finished.

// undoRecord records what a free, unmap or reset removed, until it is known whether the call failed.
type undoRecord struct {
	addr, time uint64
	pid, tid   uint32
	layer      event.Layer
	sort       event.Object
	kind       event.Kind

	process      *process
	account      *DriverAccount // account on which it was counted
	unknown      bool           // the target was not known memory
	finished     bool           // the thread has made another call since
	object       *object        // the object that lost a reference; nil: none
	mappings     []*mapping     // removed mappings
	ranges       []pieceRange   // ranges removed from pieces
	*resetEffect                // effect of a reset; nil: not a reset
}

// undoLog is a ring of the last frees of the driver layers.
type undoLog struct {
	ring   []undoRecord
	next   int
	last   map[uint32]int // each thread's latest, as an index in ring
	pushes uint64         // number of records ever pushed
}

func (l *undoLog) push(e *event.Event, u undoRecord) {
	u.addr, u.time, u.pid, u.tid, u.layer, u.sort, u.kind = e.Addr, e.Time, e.PID, e.TID, e.Layer, e.Object, e.Kind
	l.pushes++
	if i, ok := l.last[u.tid]; ok { // the thread's previous call has returned
		l.ring[i].finish()
	}
	at := l.next
	if len(l.ring) < maxUndo {
		at = len(l.ring)
		l.ring = append(l.ring, u)
	} else {
		old := &l.ring[at]
		old.finish()
		if l.last[old.tid] == at {
			delete(l.last, old.tid)
		}
		*old = u
		l.next = (at + 1) % maxUndo
	}
	if l.last == nil {
		l.last = map[uint32]int{}
	}
	l.last[u.tid] = at
}

// finish marks the call as returned without failure.
func (u *undoRecord) finish() {
	if u.finished || u.process == nil {
		return
	}
	u.finished = true
	for o := range u.objects {
		o.dead = o.refs <= 0 && o.sort != event.ObjectPhysical && o.sort != event.ObjectContext
	}
}

// objects yields the objects that lost a reference to the call.
func (u *undoRecord) objects(yield func(*object) bool) {
	if u.object != nil && !yield(u.object) || u.resetEffect == nil {
		return
	}
	for _, list := range [][]*object{u.freed, u.pending} {
		for _, o := range list {
			if !yield(o) {
				return
			}
		}
	}
}

// latest yields the records, latest first.
func (l *undoLog) latest(yield func(*undoRecord) bool) {
	n := len(l.ring)
	for i := range n {
		if u := &l.ring[(l.next+2*n-1-i)%n]; u.process != nil && !yield(u) {
			return
		}
	}
}

// take removes the latest free that matches a failure from the log and returns it.
func (l *undoLog) take(e *event.Event) (undoRecord, bool) {
	for u := range l.latest {
		if u.addr == e.Addr && u.pid == e.PID && u.tid == e.TID && u.layer == e.Layer && u.sort == e.Object {
			found := *u
			*u = undoRecord{tid: u.tid}
			return found, true
		}
	}
	return undoRecord{}, false
}

// running yields the calls of a process's other threads that may not have returned: at most the latest one of each thread.
func (l *undoLog) running(p *process, tid uint32) func(func(*undoRecord) bool) {
	return func(yield func(*undoRecord) bool) {
		for _, i := range l.last {
			if u := &l.ring[i]; u.process == p && u.tid != tid && !u.finished && !yield(u) {
				return
			}
		}
	}
}

// pending lists what such calls have begun to free.
func (l *undoLog) pending(p *process, tid uint32) []*object {
	objects := map[*object]struct{}{}
	for other := range l.running(p, tid) {
		for o := range other.objects {
			if !o.dead {
				objects[o] = struct{}{}
			}
		}
	}
	return sortedObjects(maps.Keys(objects))
}

// objectInFlight returns the object of an address or handle that another thread may be freeing; if that call fails, the object
// was live all the time. Of several, it returns the one that had the address or handle last: the others were freed before.
func (l *undoLog) objectInFlight(p *process, sort event.Object, addr uint64, tid uint32) *object {
	var found *object
	for u := range l.running(p, tid) {
		for o := range u.objects {
			if o.addr == addr && o.sort == sort && (found == nil || o.listed > found.listed) {
				found = o
			}
		}
	}
	return found
}

// unmappingHandle returns physical memory without a reference that another thread may be unmapping.
func (l *undoLog) unmappingHandle(p *process, handle uint64, tid uint32) *object {
	var found *object
	for u := range l.running(p, tid) {
		for _, m := range u.mappings {
			if o := m.behind; o != nil && o.addr == handle && (found == nil || o.touched > found.touched) {
				found = o
			}
		}
	}
	return found
}

// unmapping lists the mappings that overlap [lo, hi) and that another thread may be removing.
func (l *undoLog) unmapping(p *process, lo, hi uint64, tid uint32) []*mapping {
	var out []*mapping
	for u := range l.running(p, tid) {
		for _, m := range u.mappings {
			if m.addr < hi && lo < m.addr+m.size && !slices.Contains(out, m) {
				out = append(out, m)
			}
		}
	}
	return out
}

// restore undoes the same thread's last free of that address or handle.
func (h *Heap) restore(e *event.Event) {
	u, ok := h.undo.take(e)
	if !ok {
		h.failures++
		return
	}
	p, d := u.process, u.account
	d.FailedFrees++
	switch u.kind {
	case event.KindFree:
		d.Frees--
		if u.unknown {
			d.UnknownFrees--
		}
	case event.KindUnmap:
		d.Unmaps--
		if u.unknown {
			d.UnknownUnmaps--
		}
	case event.KindReset:
		d.Resets--
	}
	if u.object != nil && !h.restoreRef(p, u.object, e.Time) && !u.unknown {
		d.LostFrees++
	}
	for _, m := range u.mappings {
		h.remap(p, d, m, e.Time)
	}
	for _, c := range u.ranges {
		h.restorePieces(p, d, c, e.Time)
	}
	if u.resetEffect != nil {
		h.undoReset(p, u.resetEffect, e.Time)
	}
}
