// SPDX-License-Identifier: Apache-2.0

package heap

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

// inuseAt is what is in use on a device, by site, as of now.
func inuseAt(h *Heap, device event.Device) map[Site]Count {
	out := map[Site]Count{}
	for _, s := range h.Snapshot().Sites {
		if s.Device == device && s.Inuse.Objects > 0 {
			out[siteName(&s)] = s.Inuse
		}
	}
	return out
}

func siteName(s *Site) Site {
	return Site{Layer: s.Layer, Device: s.Device, PID: s.PID, Stack: s.Stack, Call: s.Call, Segment: s.Segment, Origin: s.Origin}
}

// peaksOf is what was in use at the peak of a device, as the sites tell.
func peaksOf(h *Heap, device event.Device) map[Site]Count {
	out := map[Site]Count{}
	for _, s := range h.Snapshot().Sites {
		if s.Device == device && s.Peak.Objects > 0 {
			out[siteName(&s)] = s.Peak
		}
	}
	return out
}

// TestPeakBySite: what each site had in use at the peak of its device is what a copy made at that moment has, with and without
// losses, beside memory of the driver that came before and comes after the allocator's first event.
func TestPeakBySite(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 7))
		devices := []event.Device{{Type: event.DeviceCUDA}, {Type: event.DeviceCUDA, Index: 1}}
		oracles := []*allocator{{rng, map[uint64]uint64{}, 0}, {rng, map[uint64]uint64{}, 0}}
		h := New()
		raw := &driverModel{map[uint64]Block{}, map[uint32]Block{}}
		wants, peaks := make([]map[Site]Count, 2), make([]uint64, 2)
		for n := range 3000 {
			i := rng.IntN(2)
			var e *event.Event
			if rng.IntN(4) == 0 || n < 20 {
				e = raw.step(rng)
			} else if e = oracles[i].step(); seed%2 == 1 && rng.IntN(20) == 0 {
				continue // lost
			}
			e.Device, e.Stack, e.Time = devices[i], event.StackID(1+rng.IntN(6)), uint64(n+1)
			if e.Layer != event.LayerAllocator {
				e.Device = devices[0]
			}
			h.Apply(e)
			for k, d := range devices {
				a := h.accounts[accountKey{e.PID, d}]
				again := e.Layer == event.LayerAllocator && e.Device == d // the last of equal ones is the peak
				if a != nil && (a.Peak > peaks[k] || again && a.Allocated == peaks[k]) {
					peaks[k], wants[k] = a.Peak, inuseAt(h, d)
				}
			}
		}
		for k, d := range devices {
			got := peaksOf(h, d)
			require.Equal(t, wants[k], got, "seed %d, device %d", seed, k)
			a := h.accounts[accountKey{pid, d}]
			torch := int64(a.PeakBefore) + a.PeakLost
			for s, c := range got {
				if s.Layer == event.LayerAllocator {
					torch += int64(c.Bytes)
				}
			}
			require.EqualValues(t, a.Peak, torch)
		}
	}
}

// TestPeakOfDriver: where there is no caching allocator the sites tell of the peak of their layer.
func TestPeakOfDriver(t *testing.T) {
	h := New()
	e := func(kind event.Kind, addr, size uint64, stack event.StackID) *event.Event {
		out := deviceEvent(kind, addr, size)
		out.Stack = stack
		return out
	}
	apply(h, e(event.KindAlloc, 0x1000, 100, 1), e(event.KindAlloc, 0x2000, 50, 2), e(event.KindFree, 0x1000, event.Unknown, 0),
		e(event.KindAlloc, 0x3000, 60, 2))
	s := h.Snapshot()
	require.Equal(t, []uint64{150, 110}, []uint64{s.Drivers[0].Peak, s.Drivers[0].Live.Bytes})
	require.Equal(t, [][2]uint64{{100, 0}, {50, 110}}, [][2]uint64{
		{s.Sites[0].Peak.Bytes, s.Sites[0].Inuse.Bytes}, {s.Sites[1].Peak.Bytes, s.Sites[1].Inuse.Bytes},
	})
}
