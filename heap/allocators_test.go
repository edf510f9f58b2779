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
		PID: pid, TID: pid, Kind: kind, Layer: event.LayerAllocator, Device: event.Device{Type: event.DeviceCUDA.Of(unlisted)},
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

// bfcEvent is an event of BFC, which has sizes but no totals, at a time.
func bfcEvent(time uint64, kind event.Kind, addr, size uint64) *event.Event {
	e := otherEvent(kind, addr, size)
	e.Time, e.Device, e.Requested = time, bfc0, size
	return e
}

var bfc0 = event.Device{Type: event.DeviceCUDA.Of(allocators.BFC)}

// bfcObservation is a reading at time 100.
func bfcObservation(allocators, allocated uint64, blocks ...event.ObservedBlock) event.Observation {
	return event.Observation{
		PID: pid, Device: bfc0, From: 99, To: 101, Allocated: allocated, Reserved: 8 * mib, Allocators: allocators, Blocks: blocks,
	}
}

func bfcBlock(addr, size uint64) event.ObservedBlock {
	return event.ObservedBlock{Addr: addr, Size: size, Requested: size - 1, Stream: event.Unknown}
}

// applyAt applies events that have their times.
func applyAt(h *Heap, events ...*event.Event) {
	for _, e := range events {
		h.Apply(e)
	}
}

// TestReadTotals: the total of an allocator that reports none follows from a reading and the events after it.
func TestReadTotals(t *testing.T) {
	h := New()
	applyAt(h, bfcEvent(10, event.KindAlloc, 0x1000, 100), bfcEvent(11, event.KindFree, 0x9000, 70))
	h.Watch(pid)
	applyAt(h, bfcEvent(50, event.KindAlloc, 0x2000, 200), bfcEvent(110, event.KindAlloc, 0x3000, 300))
	applyAt(h, bfcEvent(111, event.KindFree, 0x5000, 500))
	seen := []event.ObservedBlock{
		{Addr: 0x1000, Size: 100, Requested: 100}, {Addr: 0x2000, Size: 200, Requested: 200}, bfcBlock(0x4000, 400), bfcBlock(0x5000, 500),
	}
	_, err := h.Reconcile(bfcObservation(1, 1201, seen...))
	require.ErrorIs(t, err, ErrUnproved)
	_, err = h.Reconcile(bfcObservation(1, event.Unknown, seen...))
	require.ErrorIs(t, err, ErrUnproved)
	_, err = h.Reconcile(bfcObservation(1, 100, seen...))
	require.ErrorIs(t, err, ErrUnproved, "it would be below 0")
	again := bfcObservation(1, 1200, seen...)
	again.To = 110
	_, err = h.Reconcile(again)
	require.ErrorIs(t, err, ErrUnproved, "an event came during it")
	r, err := h.Reconcile(bfcObservation(1, 1200, seen...))
	require.NoError(t, err)
	require.True(t, r.First && r.Agreed() && r.SegmentsProved)
	h.Unwatch(pid)
	a := &h.Totals().Accounts[0]
	require.Equal(t, []uint64{1000, 600, 400, 8 * mib}, []uint64{a.Allocated, a.Live.Bytes, a.Before, a.Reserved})
	require.EqualValues(t, 1000, a.Peak)
	require.EqualValues(t, 101, a.PeakTime)
	require.EqualValues(t, 970, a.Baseline, "with the two that were freed")
	require.Zero(t, a.Lost)

	applyAt(h, bfcEvent(120, event.KindFree, 0x4000, 400), bfcEvent(121, event.KindAlloc, 0x4000, 50))
	a = &h.Totals().Accounts[0]
	require.Equal(t, []uint64{650, 650, 0}, []uint64{a.Allocated, a.Live.Bytes, a.Before})
	apply(h, deviceEvent(event.KindAlloc, 0x100000, 4*mib))
	require.Equal(t, event.Unknown, h.Totals().Accounts[0].Reserved, "it may have taken that")
}

// TestReadTotalsOfTwo: blocks of a device's second allocator, which shows itself later, are from before; then a difference is a loss.
func TestReadTotalsOfTwo(t *testing.T) {
	h := New()
	applyAt(h, bfcEvent(10, event.KindAlloc, 0x1000, 100))
	h.Watch(pid)
	one := event.ObservedBlock{Addr: 0x1000, Size: 100, Requested: 100}
	_, err := h.Reconcile(bfcObservation(1, 100, one))
	require.NoError(t, err)
	state := h.State()
	r, err := h.Reconcile(bfcObservation(2, 150, one, bfcBlock(0x2000, 50)))
	require.NoError(t, err)
	require.True(t, r.First && r.Agreed())
	a := &h.Totals().Accounts[0]
	require.Equal(t, []uint64{150, 50, 0}, []uint64{a.Allocated, a.Before, a.Gaps})
	r, err = h.Reconcile(bfcObservation(2, 180, one, bfcBlock(0x2000, 50), bfcBlock(0x3000, 30)))
	require.NoError(t, err)
	require.False(t, r.First || r.Agreed())
	require.EqualValues(t, 30, r.Missing)
	require.EqualValues(t, 30, h.Totals().Accounts[0].Recovered.Bytes)

	again := New()
	require.NoError(t, again.SetState(state))
	again.Watch(pid)
	r, err = again.Reconcile(bfcObservation(1, 100, one))
	require.NoError(t, err)
	require.False(t, r.First, "a checkpoint has it")
}

// TestRegions: the regions of an allocator without totals come from the last reading, also in a checkpoint. They divide its memory until
// the driver hands out more.
func TestRegions(t *testing.T) {
	h := New()
	require.Nil(t, h.Segments(pid, bfc0))
	applyAt(h, bfcEvent(10, event.KindAlloc, 0x1000, 100))
	before := h.State()
	h.Watch(pid)
	o := bfcObservation(1, 500, event.ObservedBlock{Addr: 0x1000, Size: 100, Requested: 100}, bfcBlock(0x2000, 400))
	o.Reserved, o.Segments = 0x3000, []event.ObservedSegment{{Addr: 0x8000, Size: 0x1000}, {Addr: 0x1000, Size: 0x2000}}
	_, err := h.Reconcile(o)
	require.NoError(t, err)
	h.Unwatch(pid)
	want := []Segment{{Addr: 0x1000, Size: 0x2000}, {Addr: 0x8000, Size: 0x1000}}
	other := New()
	require.NoError(t, other.SetState(h.State()))
	require.Greater(t, h.State()[0], before[0], "an older gputrace cannot read it")
	for _, h := range []*Heap{h, other} {
		require.Equal(t, want, h.Segments(pid, bfc0))
		p, ok := h.Parts(pid, bfc0)
		require.True(t, ok)
		require.Equal(t, Parts{Reserved: 0x3000, Allocated: 500, Requested: 499, InactiveSplit: 0x2000 - 500, Free: 0x1000, Largest: 0x1000}, p)
		applyAt(h, bfcEvent(120, event.KindFree, 0x2000, 400))
		p, ok = h.Parts(pid, bfc0)
		require.True(t, ok)
		require.EqualValues(t, 100, p.Allocated)
		apply(h, deviceEvent(event.KindAlloc, 0x100000, 4*mib))
		_, ok = h.Parts(pid, bfc0)
		require.False(t, ok, "it may have taken that")
	}
	damaged := h.State()
	require.ErrorIs(t, New().SetState(damaged[:len(damaged)-3]), ErrState)
}
