package main

import "github.com/gputrace/gputrace/event"

// lossWatch looks at the kernel's counters of lost events at every read of the ring, so that it is known when they were lost.
type lossWatch struct {
	events uint64 // that were lost up to looked
	looked uint64 // CLOCK_BOOTTIME nanoseconds
}

// look tells the live set, and the recording, of events that were lost since the last look.
func (w *lossWatch) look(s *session) {
	begun := bootNanos()
	events := s.tracer.Lost()
	if events > w.events {
		s.heap.Lose(uint32(s.target.PID), event.Loss{From: w.looked, To: bootNanos(), Events: events - w.events})
		w.events = events
	}
	w.looked = begun
}
