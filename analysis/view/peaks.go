// SPDX-License-Identifier: Apache-2.0

package view

import (
	"iter"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// Peak is the peak of one device of one process, which a replay is still to come to.
type Peak struct {
	PID    uint32
	Layer  event.Layer
	Device event.Device
	Bytes  uint64
	Time   uint64 // CLOCK_BOOTTIME nanoseconds; 0: before the first event

	over bool
}

// Peaks are peaks that a replay looks for.
type Peaks []Peak

// NewPeaks lists what was at its peak when, as heap.Site.Peak has it: the caching allocator's memory on each device, and by layer
// that of devices without one.
func NewPeaks(s *heap.Snapshot) Peaks {
	var out Peaks
	torch := map[uint32]map[event.Device]bool{}
	for i := range s.Accounts {
		a := &s.Accounts[i]
		out = append(out, Peak{a.PID, event.LayerAllocator, a.Device, a.Peak, a.PeakTime, false})
		if torch[a.PID] == nil {
			torch[a.PID] = map[event.Device]bool{}
		}
		torch[a.PID][a.Device] = true
	}
	for i := range s.Drivers {
		if d := &s.Drivers[i]; !torch[d.PID][d.Device] {
			out = append(out, Peak{d.PID, d.Layer, d.Device, d.Peak, d.PeakTime, false})
		}
	}
	return out
}

// Reached yields the peaks that an event has led to, each once.
func (p Peaks) Reached(h *heap.Heap, e *event.Event) iter.Seq[*Peak] {
	return func(yield func(*Peak) bool) {
		for i := range p {
			k := &p[i]
			if k.over || k.Time != e.Time || k.PID != e.PID || !k.reached(h) {
				continue
			}
			k.over = true
			if !yield(k) {
				return
			}
		}
	}
}

func (k *Peak) reached(h *heap.Heap) bool {
	if k.Layer == event.LayerAllocator {
		a, ok := h.Account(k.PID, k.Device)
		return ok && a.Peak == k.Bytes && a.PeakTime == k.Time
	}
	d, ok := h.Driver(k.PID, k.Layer, k.Device)
	return ok && d.Peak == k.Bytes && d.PeakTime == k.Time
}

// Passed reports whether all peaks were reached.
func (p Peaks) Passed() bool {
	for i := range p {
		if !p[i].over {
			return false
		}
	}
	return true
}
