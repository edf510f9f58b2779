// SPDX-License-Identifier: Apache-2.0

package heap

import "github.com/gputrace/gputrace/event"

// peakState is the last peak of an account. Each of its sites knows its use at the peak. A site that has not changed
// since the peak still has the same use, so a new peak only touches the sites that changed since the previous one.
type peakState struct{ changedSites []uint32 }

// siteForChange returns a site that is about to change, after saving its use at the peak.
func (h *Heap) siteForChange(i uint32) *siteCounts {
	s := &h.sites.list[i]
	if s.changed {
		return s
	}
	if s.peakState == nil {
		s.peakState = h.peakStateOf(&s.key)
	}
	s.changed, s.atPeak = true, s.Inuse
	s.peakState.changedSites = append(s.peakState.changedSites, i)
	return s
}

// setPeak makes the present moment the peak.
func (h *Heap) setPeak(m *peakState) {
	for _, i := range m.changedSites {
		if s := &h.sites.list[i]; s.peakState == m {
			s.changed = false
		}
	}
	m.changedSites = m.changedSites[:0]
}

// peak returns the site's use at the peak.
func (s *siteCounts) peak() Count {
	if s.changed {
		return s.atPeak
	}
	return s.Inuse
}

// peakStateOf returns the peak of the caching allocator on a site's device or, without an allocator there, of the site's layer.
func (h *Heap) peakStateOf(k *siteKey) *peakState {
	if a := h.accounts[accountKey{k.pid, k.device}]; a != nil {
		return &a.peak
	}
	return h.driverPeak(driverKey{k.pid, k.layer, k.device})
}

func (h *Heap) driverPeak(k driverKey) *peakState {
	m := h.driverPeaks[k]
	if m == nil {
		m = &peakState{}
		h.driverPeaks[k] = m
	}
	return m
}

// adoptSites attaches the existing sites on the device of a new account to that account's peak.
func (h *Heap) adoptSites(a *account) {
	for i := range h.sites.list {
		if s := &h.sites.list[i]; s.key.pid == a.PID && s.key.device == a.Device && s.peakState != nil {
			s.peakState, s.changed = &a.peak, false
		}
	}
}

// isPeak reports whether a total is the new peak. The last of equal totals is, because a job reaches the same peak in
// each step, and fewer blocks of a later step are from before the attach. Among events of the same time, as in a
// snapshot in microseconds, the first is, so that time and total identify the moment.
func isPeak(total, time, peak, peakTime uint64) bool {
	return total > peak || total == peak && time != peakTime
}

// recordPeak records that an account is at its peak.
func (h *Heap) recordPeak(a *account, total, time uint64) {
	a.Peak, a.PeakTime, a.PeakReserved = total, time, a.Reserved
	a.PeakBefore, a.PeakLost = event.Unknown, 0
	if a.hasTotal {
		a.PeakBefore, a.PeakLost = a.Before, a.Lost
	}
	h.setPeak(&a.peak)
}
