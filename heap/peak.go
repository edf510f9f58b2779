package heap

import "github.com/gputrace/gputrace/event"

// moment is when something was at its peak: the sites that belong to it know what was in use then. A site that has not
// changed since has it in use still, so that a peak costs no more than the sites that changed since the one before.
type moment struct{ changed []uint32 }

// change gives a site that is about to change.
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

// mark makes now the moment.
func (h *Heap) mark(m *moment) {
	for _, i := range m.changed {
		if s := &h.sites.list[i]; s.moment == m {
			s.changed = false
		}
	}
	m.changed = m.changed[:0]
}

// peak is what was in use at the site's moment.
func (s *siteCounts) peak() Count {
	if s.changed {
		return s.atPeak
	}
	return s.Inuse
}

// momentOf is the peak of the caching allocator on a site's device or, where there is none, of the site's layer there.
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

// adopt makes the peak of an account that is new the moment of the sites on its device that were there before.
func (h *Heap) adopt(a *account) {
	for i := range h.sites.list {
		if s := &h.sites.list[i]; s.key.pid == a.PID && s.key.device == a.Device && s.moment != nil {
			s.moment, s.changed = &a.moment, false
		}
	}
}

// peaked takes down that an account is at its peak.
func (h *Heap) peaked(a *account, total, time uint64) {
	a.Peak, a.PeakTime, a.PeakReserved = total, time, a.Reserved
	a.PeakBefore, a.PeakLost = event.Unknown, 0
	if a.based {
		a.PeakBefore, a.PeakLost = a.Before, a.Lost
	}
	h.mark(&a.moment)
}
