//go:build amd64

package main

import (
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/tracer"
)

// lossWatch looks at the kernel's counters of lost events at every read of the ring, so that it is known when they were lost.
type lossWatch struct {
	events uint64 // that were lost up to looked
	looked uint64 // CLOCK_BOOTTIME nanoseconds
}

// look tells of events that were lost since the last look.
func (w *lossWatch) look(t *tracer.Session, tell func(event.Loss)) {
	begun := bootNanos()
	events := t.Lost()
	if events > w.events {
		tell(event.Loss{From: w.looked, To: bootNanos(), Events: events - w.events})
		w.events = events
	}
	w.looked = begun
}

// lose tells the live set, and the recording, of lost events.
func (s *session) lose(l event.Loss) { s.heap.Lose(uint32(s.target.PID), l) }
