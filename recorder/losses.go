// SPDX-License-Identifier: Apache-2.0

package recorder

import "github.com/gputrace/gputrace/event"

// lossWatch checks a source's count of lost events at every read, to find out when they were lost.
type lossWatch struct {
	events uint64 // number lost up to looked
	looked uint64 // time of the last check, on the clock of the events
}

// look reports events that were lost since the last check.
func (w *lossWatch) look(s Source, tell func(from, to uint64)) {
	begun := s.Now()
	if events := s.Lost(); events > w.events {
		tell(w.looked, s.Now())
		w.events = events
	}
	w.looked = begun
}

// lose records a process's own losses in the live set and in the recording, when events of any process were lost. It
// ignores losses after the end of the recording, which affect nothing that is shown.
func (p *Process) lose(from, to uint64) {
	n := p.target.Lost()
	switch {
	case n <= p.lost:
		return
	case p.frozen.until != 0 && from >= p.frozen.until:
		p.frozen.lost += n - p.lost
	default:
		loss := event.Loss{From: from, To: to, Events: n - p.lost}
		p.heap.Lose(uint32(p.PID()), loss)
		p.observer.Event(&Loss{p, loss})
	}
	p.lost = n
}
