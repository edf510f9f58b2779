// SPDX-License-Identifier: Apache-2.0

package view

import (
	"slices"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// AtPeak is the view of the moment at which the memory of each device was at its peak: what is in use is what was in use then,
// and the allocators' totals are those of then. Devices have their peaks at different times. The counts of what was allocated
// over time stay as they are. On a device without a caching allocator it is the peak of each layer.
func (v *View) AtPeak() *View {
	s := *v.Snapshot
	s.Accounts = slices.Clone(s.Accounts)
	out := &View{Snapshot: &s, Sites: slices.Clone(v.Sites), options: v.options, classifier: v.classifier}
	for i := range s.Accounts {
		a := &s.Accounts[i]
		a.Allocated, a.Before, a.Lost, a.Reserved = a.Peak, a.PeakBefore, a.PeakLost, a.PeakReserved
		if a.Before == event.Unknown {
			a.Allocated = event.Unknown
		}
		a.BeforeBlocks, a.Live, a.Recovered = heap.Count{}, heap.Count{}, heap.Count{}
	}
	for i := range out.Sites {
		site := &out.Sites[i]
		site.Inuse = site.Peak
		if site.Layer == event.LayerAllocator && site.Origin != heap.OriginBefore {
			addLive(s.Accounts, site)
		}
	}
	return out
}

func addLive(accounts []heap.Account, s *Site) {
	for i := range accounts {
		if a := &accounts[i]; a.PID == s.PID && a.Device == s.Device {
			a.Live = a.Live.Plus(s.Inuse)
		}
	}
}
