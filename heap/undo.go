// SPDX-License-Identifier: Apache-2.0

package heap

import (
	"maps"
	"slices"

	"github.com/gputrace/gputrace/event"
)

// A free is applied when the call is entered, because its address can be handed out again before the call returns. It is undone when
// the call turns out to have failed:
//
//	enter free(A)   A is freed, undoRecord{A} is in the ring   another thread may get A from here on
//	success         the thread's next call finishes the record
//	failure         the record is taken out of the ring: what it took is in use again
//
// The ring has the last calls of all threads. Only the latest of a thread can still be running, so that each thread has at most one
// record that is not finished; what leaves the ring is finished.

// undoRecord is a free, unmap or reset that may yet turn out to have failed: what it took.
type undoRecord struct {
	addr, time uint64
	pid, tid   uint32
	layer      event.Layer
	sort       event.Object
	kind       event.Kind

	process      *process
	account      *DriverAccount // that it was counted on
	unknown      bool           // it was of nothing that was known
	finished     bool           // the thread has made another call since
	object       *object        // that lost a reference; nil: none
	mappings     []*mapping     // that were undone
	ranges       []pieceRange   // that were removed from pieces
	*resetEffect                // by a reset; nil: it is none
}

// undoLog is a ring of the last frees of the driver layers.
type undoLog struct {
	ring   []undoRecord
	next   int
	last   map[uint32]int // index in ring of each thread's latest
	pushes uint64         // forgotten ones too
}

func (l *undoLog) push(e *event.Event, u undoRecord) {
	u.addr, u.time, u.pid, u.tid, u.layer, u.sort, u.kind = e.Addr, e.Time, e.PID, e.TID, e.Layer, e.Object, e.Kind
	l.pushes++
	if i, ok := l.last[u.tid]; ok { // the thread's call before has returned
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

// finish: the call is over, and has not failed.
func (u *undoRecord) finish() {
	if u.finished || u.process == nil {
		return
	}
	u.finished = true
	for o := range u.objects {
		o.dead = o.refs <= 0 && o.sort != event.ObjectPhysical && o.sort != event.ObjectContext
	}
}

// objects yields what the call took a reference of.
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

// latest yields the entries, latest first.
func (l *undoLog) latest(yield func(*undoRecord) bool) {
	n := len(l.ring)
	for i := range n {
		if u := &l.ring[(l.next+2*n-1-i)%n]; u.process != nil && !yield(u) {
			return
		}
	}
}

// take finds the latest free that a failure is about, and forgets it.
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

// running yields the calls of a process's other threads that may not have returned: of each its latest, at most.
func (l *undoLog) running(p *process, tid uint32) func(func(*undoRecord) bool) {
	return func(yield func(*undoRecord) bool) {
		for _, i := range l.last {
			if u := &l.ring[i]; u.process == p && u.tid != tid && !u.finished && !yield(u) {
				return
			}
		}
	}
}

// pending lists what the calls of a process's other threads that may not have returned have begun to free.
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

// objectInFlight is the object of an address or handle that another thread's call may just be taking: should that fail, it was
// there all the time. Of several it is the one that had the address or handle last: the others were freed since.
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

// unmappingHandle is physical memory without a reference that another thread may just be unmapping.
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

// unmapping lists the mappings that overlap [lo, hi) and that another thread may just be undoing.
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

// restore undoes the same thread's last free there.
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
