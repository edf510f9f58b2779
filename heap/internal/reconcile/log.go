// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"errors"
	"fmt"

	"github.com/gputrace/gputrace/event"
)

// maxLogged is how many frees, and how many changes, of one device are logged while it is watched: 64 MiB each.
const maxLogged = 1 << 22

// Logs is what events did to the blocks of a process's devices while it is watched.
type Logs map[event.Device]*Log

// At returns the log of a device.
func (l Logs) At(d event.Device) *Log {
	if l[d] == nil {
		l[d] = &Log{}
	}
	return l[d]
}

// Log is what events did to the blocks of one device. The zero value is empty.
type Log struct {
	frees   []free
	changes []change
}

// free says when an address was freed.
type free struct{ addr, time uint64 }

// change is the time of an event and the bytes by which it changed the sum of the blocks. Changes are logged for allocators whose
// events have no totals.
type change struct {
	time  uint64
	bytes int64
}

// Note logs an event. It reports false if the log is full.
func (l *Log) Note(e *event.Event) bool {
	if max(len(l.frees), len(l.changes)) >= maxLogged {
		return false
	}
	if e.Kind == event.KindFree {
		l.frees = append(l.frees, free{e.Addr, e.Time})
	}
	if e.Device.Allocator().Totals() {
		return true
	}
	c := change{time: e.Time}
	switch {
	case e.Size == event.Unknown:
	case e.Kind == event.KindAlloc:
		c.bytes = int64(e.Size)
	case e.Kind == event.KindFree:
		c.bytes = -int64(e.Size)
	}
	l.changes = append(l.changes, c)
	return true
}

// Freed returns the addresses that were freed from a time on.
func (l *Log) Freed(from uint64) map[uint64]struct{} {
	out := map[uint64]struct{}{}
	for _, s := range l.frees {
		if s.time >= from {
			out[s.addr] = struct{}{}
		}
	}
	return out
}

// Total adds the changes after an observation to its total, for an allocator whose events have no totals.
func (l *Log) Total(o *event.Observation) (uint64, error) {
	if o.Allocated == event.Unknown {
		return 0, errors.New("the allocator's total moved")
	}
	total := int64(o.Allocated)
	for _, c := range l.changes {
		switch {
		case c.time > o.To:
			total += c.bytes
		case c.time >= max(o.From, o.Counted):
			return 0, fmt.Errorf("an event of %+d B came during the observation", c.bytes)
		}
	}
	if total < 0 {
		return 0, errors.New("more was freed than there was")
	}
	return uint64(total), nil
}
