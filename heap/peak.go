package heap

import "github.com/gputrace/gputrace/event"

// moment is the last peak of an account: each site that belongs to it knows what was in use then. A site that has not changed
// since then has the same in use now, so a new peak costs only the sites that changed since the previous one.
type moment struct{ changed []uint32 }

// change returns a site that is about to change, after it kept what was in use at the peak.
func (h *Heap) change(i uint32) *siteCounts {
	s := &h.sites.list[i]
	if s.changed {
		return s
	}
	if s.moment == nil {
		s.moment = h.momentOf(&s.key)
	}
	s.changed, s.atPeak = true, s.Inuse
	s.moment.changed = append(s.moment.changed, i)
	return s
}

// mark makes the present the peak.
func (h *Heap) mark(m *moment) {
	for _, i := range m.changed {
		if s := &h.sites.list[i]; s.moment == m {
			s.changed = false
		}
	}
	m.changed = m.changed[:0]
}

// peak is what was in use at the site's peak.
func (s *siteCounts) peak() Count {
	if s.changed {
		return s.atPeak
	}
	return s.Inuse
}

// momentOf returns the peak of the caching allocator on a site's device or, where there is none, of the site's layer there.
func (h *Heap) momentOf(k *siteKey) *moment {
	if a := h.accounts[accountKey{k.pid, k.device}]; a != nil {
		return &a.moment
	}
	return h.driverMoment(driverKey{k.pid, k.layer, k.device})
}

func (h *Heap) driverMoment(k driverKey) *moment {
	m := h.moments[k]
	if m == nil {
		m = &moment{}
		h.moments[k] = m
	}
	return m
}

// adopt gives the existing sites on the device of a new account that account's peak.
func (h *Heap) adopt(a *account) {
	for i := range h.sites.list {
		if s := &h.sites.list[i]; s.key.pid == a.PID && s.key.device == a.Device && s.moment != nil {
			s.moment, s.changed = &a.moment, false
		}
	}
}

// peaked records that an account is at its peak.
func (h *Heap) peaked(a *account, total, time uint64) {
	a.Peak, a.PeakTime, a.PeakReserved = total, time, a.Reserved
	a.PeakBefore, a.PeakLost = event.Unknown, 0
	if a.based {
		a.PeakBefore, a.PeakLost = a.Before, a.Lost
	}
	h.mark(&a.moment)
}
