// SPDX-License-Identifier: Apache-2.0

package heap

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	allocators "github.com/gputrace/gputrace/event/allocator"
)

// unlisted is an allocator that is in no list: nothing is claimed of it.
const unlisted = 7

// otherEvent is of an allocator that reports no totals, and whose frees say no size.
func otherEvent(kind event.Kind, addr, size uint64) *event.Event {
	u := event.Unknown
	return &event.Event{
		PID: pid, TID: pid, Kind: kind, Layer: event.LayerTorch, Device: event.Device{Type: event.DeviceCUDA.Of(unlisted)},
		Addr: addr, Size: size, Requested: u, Stream: u, Handle: 9, Context: u, Allocated: u, Reserved: u, Stack: 3,
	}
}

// TestAllocatorsApart: two allocators on one device have an account each. A free without a size takes the block
// that lies there, and one of what was not seen to be allocated is counted and changes nothing.
func TestAllocatorsApart(t *testing.T) {
	h := New()
	apply(h,
		deviceEvent(event.KindAlloc, 0x100000, 4*mib),
		torchEvent(0x900000, 2*mib, 2*mib),
		otherEvent(event.KindAlloc, 0x100000, mib), otherEvent(event.KindAlloc, 0x200000, 2*mib),
		otherEvent(event.KindFree, 0x100000, event.Unknown), otherEvent(event.KindFree, 0x777000, event.Unknown),
	)
	totals := h.Totals()
	require.Zero(t, totals.Ignored)
	require.Len(t, totals.Accounts, 2)
	torch, other := &totals.Accounts[0], &totals.Accounts[1]
	require.Equal(t, []uint64{2 * mib, 2 * mib}, []uint64{torch.Allocated, torch.Live.Bytes})
	require.EqualValues(t, unlisted, other.Device.Allocator())
	require.Equal(t, cuda0, other.Device.Physical())
	require.EqualValues(t, 2*mib, other.Live.Bytes)
	require.Equal(t, []uint64{2, 2, 1}, []uint64{other.Allocs, other.Frees, other.UnknownFrees})
	require.Equal(t, event.Unknown, other.Allocated, "what it had before is not known")
	require.EqualValues(t, 3*mib, other.Peak)
	require.Len(t, totals.Drivers, 1)
	require.Equal(t, cuda0, totals.Drivers[0].Device, "the driver knows no allocators")
	require.EqualValues(t, 4*mib, totals.Drivers[0].Segments.Bytes, "its blocks lie there")

	again := New()
	require.NoError(t, again.SetState(h.State()))
	require.Equal(t, totals, again.Totals())
	apply(h, otherEvent(event.KindFree, 0x200000, event.Unknown), torchEvent(0x900000, -2*mib, 0))
	require.Empty(t, h.Totals().Gaps)
	for _, a := range h.Totals().Accounts {
		require.Zero(t, a.Live)
	}
}

// TestTorchFreesHaveSizes: a free of PyTorch's without a size is none that it makes.
func TestTorchFreesHaveSizes(t *testing.T) {
	h := New()
	e := torchEvent(0x1000, -1, 0)
	e.Size = event.Unknown
	apply(h, e)
	require.EqualValues(t, 1, h.Totals().Ignored)
}

// TestSamplesClaimNoSegments: a sample represents more than its block, so the driver's memory around it stays counted by itself.
func TestSamplesClaimNoSegments(t *testing.T) {
	h := New()
	sample := otherEvent(event.KindAlloc, 0x100000, 8*mib)
	sample.Device, sample.Requested = event.Device{Type: event.DeviceCUDA.Of(allocators.OTel)}, 64
	apply(h, deviceEvent(event.KindAlloc, 0x100000, 4*mib), sample)
	totals := h.Totals()
	require.EqualValues(t, 8*mib, totals.Accounts[0].Live.Bytes)
	require.EqualValues(t, 64, totals.Accounts[0].Live.Requested)
	require.Zero(t, totals.Drivers[0].Segments)
	require.EqualValues(t, 4*mib, totals.Drivers[0].Live.Bytes)
}
