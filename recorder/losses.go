// SPDX-License-Identifier: Apache-2.0

package recorder

import "github.com/gputrace/gputrace/event"

// lossWatch looks at a source's count of lost events at every read, so that it is known when they were lost.
type lossWatch struct {
	events uint64 // that were lost up to looked
	looked uint64 // on the clock of the events
}

// look tells of events that were lost since the last look.
func (w *lossWatch) look(s Source, tell func(from, to uint64)) {
	begun := s.Now()
	if events := s.Lost(); events > w.events {
		tell(w.looked, s.Now())
		w.events = events
	}
	w.looked = begun
}

// lose notes in the live set, and in the recording, what a process lost of its own when events of any process were lost. What was lost behind the
// end of the recording is missing from nothing that is shown.
func (p *Process) lose(from, to uint64) {
	n := p.target.Lost()
	switch {
	case n <= p.lost:
		return
	case p.frozen.until != 0 && from >= p.frozen.until:
		p.frozen.lost += n - p.lost
	default:
		p.heap.Lose(uint32(p.PID()), event.Loss{From: from, To: to, Events: n - p.lost})
	}
	p.lost = n
}
