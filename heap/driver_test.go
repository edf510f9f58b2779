// SPDX-License-Identifier: Apache-2.0

package heap

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

// inuse is what a layer holds that no torch block is in, by call.
func inuse(h *Heap, layer event.Layer) map[string]uint64 {
	out := map[string]uint64{}
	for _, s := range h.Snapshot().Sites {
		if s.Layer == layer && !s.Segment {
			out[s.Call] += s.Inuse.Bytes
		}
	}
	return out
}

func TestFreeIsRetiredAtEntryAndRestored(t *testing.T) {
	h := New()
	alloc := deviceEvent(event.KindAlloc, 1*mib, 4096)
	apply(h, alloc)
	allocatedBlock := h.Snapshot()
	apply(h, deviceEvent(event.KindFree, 1*mib, event.Unknown))
	require.Zero(t, h.Totals().Drivers[0].Live)
	require.Zero(t, inuse(h, event.LayerDevice)["cudaMalloc"])

	failed := deviceEvent(event.KindFreeFailed, 1*mib, event.Unknown)
	failed.Stack = 99 // the stack that counts is that of the allocation
	apply(h, failed)
	after := h.Snapshot()
	require.Equal(t, allocatedBlock.Sites, after.Sites)
	require.EqualValues(t, 4096, after.Drivers[0].Live.Bytes)
	require.Equal(t, []uint64{0, 1}, []uint64{after.Drivers[0].Frees, after.Drivers[0].FailedFrees})
	for b := range h.Blocks() {
		require.Equal(t, []uint64{alloc.Time, 2}, []uint64{b.Time, uint64(b.Stack)})
	}
}

// Between the entry of a free and its return another thread can be given the address.
func TestAddressReusedWhileFreeIsInFlight(t *testing.T) {
	h := New()
	second := deviceEvent(event.KindAlloc, 1*mib, 8192)
	second.TID, second.Stack = pid+1, 3
	apply(h, deviceEvent(event.KindAlloc, 1*mib, 4096), deviceEvent(event.KindFree, 1*mib, event.Unknown), second)
	d := h.Totals().Drivers[0]
	require.Equal(t, Count{Objects: 1, Bytes: 8192}, d.Live)
	require.Zero(t, d.LostFrees)
}

func TestFailedFreeGoesToItsThread(t *testing.T) {
	h := New()
	other := deviceEvent(event.KindFree, 1*mib, event.Unknown)
	other.TID = pid + 1
	stranger := deviceEvent(event.KindFreeFailed, 1*mib, event.Unknown)
	stranger.TID = pid + 2
	apply(h, deviceEvent(event.KindAlloc, 1*mib, 4096), other, stranger)
	require.Zero(t, h.Totals().Drivers[0].Live)
	require.EqualValues(t, 1, h.Totals().Failures)

	own := deviceEvent(event.KindFreeFailed, 1*mib, event.Unknown)
	own.TID = pid + 1
	apply(h, own, own) // a failure undoes one free, once
	require.EqualValues(t, 4096, h.Totals().Drivers[0].Live.Bytes)
	require.EqualValues(t, 2, h.Totals().Failures)
}

func TestFailedFreeOfUnknownAddress(t *testing.T) {
	h := New()
	apply(h, deviceEvent(event.KindFree, 9*mib, event.Unknown))
	require.EqualValues(t, 1, h.Totals().Drivers[0].UnknownFrees)
	apply(h, deviceEvent(event.KindFreeFailed, 9*mib, event.Unknown))
	d := h.Totals().Drivers[0]
	require.Equal(t, []uint64{0, 0, 1}, []uint64{d.UnknownFrees, d.Frees, d.FailedFrees})
}

func TestUndoIsBounded(t *testing.T) {
	h := New()
	for i := range uint64(3 * maxUndo) {
		apply(h, deviceEvent(event.KindAlloc, (i+1)*4096, 4096), deviceEvent(event.KindFree, (i+1)*4096, event.Unknown))
	}
	require.LessOrEqual(t, h.blocks.Cap(), maxUndo+1)
	apply(h, deviceEvent(event.KindFreeFailed, 2*maxUndo*4096, event.Unknown)) // out of the ring by one
	require.EqualValues(t, 1, h.Totals().Failures)
	apply(h, deviceEvent(event.KindFreeFailed, (2*maxUndo+1)*4096, event.Unknown)) // the oldest in it
	require.EqualValues(t, 1, h.Totals().Drivers[0].Live.Objects)
}

func TestSegments(t *testing.T) {
	for name, row := range map[string]struct {
		events   []*event.Event
		loose    uint64 // bytes in use that are no segment
		segments uint64 // bytes in use that are
		alloc    uint64 // bytes ever allocated that are no segment
	}{
		"block at the start":   {[]*event.Event{torchEvent(2*mib, 512, 512)}, 4 * mib, 2 * mib, 4 * mib},
		"block at the end":     {[]*event.Event{torchEvent(4*mib-512, 512, 512)}, 4 * mib, 2 * mib, 4 * mib},
		"block just behind":    {[]*event.Event{torchEvent(4*mib, 512, 512)}, 4 * mib, 2 * mib, 4 * mib},
		"block before all":     {[]*event.Event{torchEvent(1*mib, 512, 512)}, 6 * mib, 0, 6 * mib},
		"block ends at start":  {[]*event.Event{torchEvent(2*mib-512, 512, 512)}, 6 * mib, 0, 6 * mib},
		"block behind all":     {[]*event.Event{torchEvent(8*mib, 512, 512)}, 6 * mib, 0, 6 * mib},
		"block over two":       {[]*event.Event{torchEvent(3*mib, 2*mib, 2*mib)}, 2 * mib, 4 * mib, 2 * mib},
		"block over all three": {[]*event.Event{torchEvent(2*mib, 6*mib, 6*mib)}, 0, 6 * mib, 0},
		"mark survives its blocks": {[]*event.Event{torchEvent(2*mib, 512, 512), torchEvent(2*mib, -512, 0)},
			4 * mib, 2 * mib, 4 * mib},
		"marked once": {[]*event.Event{torchEvent(2*mib, 512, 512), torchEvent(3*mib, 512, 1024)}, 4 * mib, 2 * mib, 4 * mib},
		"freed segment": {[]*event.Event{torchEvent(2*mib, 512, 512), torchEvent(2*mib, -512, 0),
			deviceEvent(event.KindFree, 2*mib, event.Unknown)},
			4 * mib, 0, 4 * mib},
		"freed segment whose free failed": {[]*event.Event{torchEvent(2*mib, 512, 512), deviceEvent(event.KindFree, 2*mib, event.Unknown),
			deviceEvent(event.KindFreeFailed, 2*mib, event.Unknown)}, 4 * mib, 2 * mib, 4 * mib},
		"address of a segment used again by another": {[]*event.Event{torchEvent(2*mib, 512, 512), torchEvent(2*mib, -512, 0),
			deviceEvent(event.KindFree, 2*mib, event.Unknown), deviceEvent(event.KindAlloc, 2*mib, mib)}, 5 * mib, 0, 5 * mib},
		"restored allocation becomes a segment": {[]*event.Event{deviceEvent(event.KindFree, 2*mib, event.Unknown),
			deviceEvent(event.KindFreeFailed, 2*mib, event.Unknown), torchEvent(2*mib, 512, 512)}, 4 * mib, 2 * mib, 4 * mib},
		"block in a freed allocation": {[]*event.Event{deviceEvent(event.KindFree, 2*mib, event.Unknown), torchEvent(2*mib, 512, 512)},
			4 * mib, 0, 6 * mib},
	} {
		t.Run(name, func(t *testing.T) {
			h := New()
			for _, start := range []uint64{6 * mib, 2 * mib, 4 * mib} { // neighbours, 2 MiB each, out of order
				apply(h, deviceEvent(event.KindAlloc, start, 2*mib))
			}
			apply(h, row.events...)
			d := h.Totals().Drivers[0]
			require.Equal(t, row.loose, inuse(h, event.LayerDevice)["cudaMalloc"])
			require.Equal(t, row.loose, d.Live.Bytes-d.Segments.Bytes)
			require.Equal(t, row.segments, d.Segments.Bytes)
			var alloc uint64
			for _, s := range h.Snapshot().Sites {
				if s.Layer == event.LayerDevice && !s.Segment {
					alloc += s.Alloc.Bytes
				}
			}
			require.Equal(t, row.alloc, alloc)
		})
	}
}

func TestOtherProcessAndHostMemoryAreNoSegments(t *testing.T) {
	h := New()
	host := deviceEvent(event.KindAlloc, 2*mib, 2*mib)
	host.Layer = event.LayerHost
	stranger := deviceEvent(event.KindAlloc, 2*mib, 2*mib)
	stranger.PID = pid + 1
	apply(h, host, stranger, torchEvent(2*mib, 512, 512))
	require.EqualValues(t, 2*mib, inuse(h, event.LayerHost)["cudaMalloc"])
	require.EqualValues(t, 2*mib, inuse(h, event.LayerDevice)["cudaMalloc"])
}

func TestFreeFromAnotherDevice(t *testing.T) {
	h := New()
	free := deviceEvent(event.KindFree, mib, event.Unknown)
	free.Device.Index = -1
	apply(h, deviceEvent(event.KindAlloc, mib, 4096), free)
	b := h.Totals()
	require.Len(t, b.Drivers, 1)
	require.Equal(t, []uint64{0, 1, 0}, []uint64{b.Drivers[0].Live.Bytes, b.Drivers[0].Frees, b.Drivers[0].UnknownFrees})
}
