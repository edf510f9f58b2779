// SPDX-License-Identifier: Apache-2.0

package heap

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

const sleepUnit = 2 * mib

// slept is what a heap has to say of the sleeping segments: bytes of segments and of blocks that are asleep, of segments and of other
// device memory, and PyTorch's reserved bytes.
type slept struct{ segments, blocks, awake, other, reserved uint64 }

func sleptOf(h *Heap) slept {
	var s slept
	totals := h.Totals()
	for _, a := range totals.Asleep {
		s.segments, s.blocks = s.segments+a.Segments, s.blocks+a.Blocks.Bytes
	}
	d := accountOf(h, event.LayerDevice, 0)
	s.awake, s.other, s.reserved = d.Segments.Bytes, d.Live.Bytes-d.Segments.Bytes, totals.Accounts[0].Reserved
	return s
}

func addresses(kind event.Kind, addr, size uint64) *event.Event {
	return call(kind, event.LayerVirtual, event.ObjectMemory, addr, size)
}

// blockIn is a block that PyTorch hands out, with what it has reserved afterwards.
func blockIn(addr, size, allocated, reserved uint64) *event.Event {
	e := torchEvent(addr, int64(size), allocated)
	e.Reserved = reserved
	return e
}

func freedIn(addr, size, allocated, reserved uint64) *event.Event {
	e := blockIn(addr, size, allocated, reserved)
	e.Kind = event.KindFree
	return e
}

// served is a server: two segments of a sleeping allocator at 8 and 16 MiB, with 1 MiB in use in each, and one that is PyTorch's own.
func served() []*event.Event {
	return []*event.Event{
		deviceEvent(event.KindAlloc, 64*mib, sleepUnit), blockIn(64*mib, mib, mib, sleepUnit),
		addresses(event.KindAlloc, 8*mib, sleepUnit), created(1, sleepUnit), mappedAt(8*mib, sleepUnit, 1),
		blockIn(8*mib, mib, 2*mib, 2*sleepUnit),
		addresses(event.KindAlloc, 16*mib, sleepUnit), created(2, sleepUnit), mappedAt(16*mib, sleepUnit, 2),
		blockIn(16*mib, mib, 3*mib, 3*sleepUnit),
	}
}

func sleepAt(addr, handle uint64) []*event.Event {
	return []*event.Event{unmappedAt(addr, sleepUnit), released(handle)}
}

func wakeAt(addr, handle uint64) []*event.Event {
	return []*event.Event{created(handle, sleepUnit), mappedAt(addr, sleepUnit, handle)}
}

func TestSleepAndWake(t *testing.T) {
	const u = sleepUnit
	for name, row := range map[string]struct {
		events [][]*event.Event
		want   slept
	}{
		"awake":               {nil, slept{0, 0, 3 * u, 0, 3 * u}},
		"one asleep":          {[][]*event.Event{sleepAt(8*mib, 1)}, slept{u, mib, 2 * u, 0, 3 * u}},
		"both asleep":         {[][]*event.Event{sleepAt(8*mib, 1), sleepAt(16*mib, 2)}, slept{2 * u, 2 * mib, u, 0, 3 * u}},
		"awake by new memory": {[][]*event.Event{sleepAt(8*mib, 1), wakeAt(8*mib, 3)}, slept{0, 0, 3 * u, 0, 3 * u}},
		"the handle again":    {[][]*event.Event{sleepAt(8*mib, 1), wakeAt(8*mib, 1)}, slept{0, 0, 3 * u, 0, 3 * u}},
		"released first":      {[][]*event.Event{{released(1), unmappedAt(8*mib, u)}, wakeAt(8*mib, 3)}, slept{0, 0, 3 * u, 0, 3 * u}},
		"a block meanwhile":   {[][]*event.Event{sleepAt(8*mib, 1), {blockIn(65*mib, mib, 4*mib, 3*u)}}, slept{u, mib, 2 * u, 0, 3 * u}},
		"freed asleep": {[][]*event.Event{sleepAt(8*mib, 1), {freedIn(8*mib, mib, 2*mib, 3*u)},
			{addresses(event.KindFree, 8*mib, event.Unknown)}}, slept{0, 0, 2 * u, 0, 2 * u}},
		"other memory there": {[][]*event.Event{sleepAt(8*mib, 1), {deviceEvent(event.KindAlloc, 8*mib, u)}}, slept{0, 0, 2 * u, u, 2 * u}},
		"the unmap failed":   {[][]*event.Event{{unmappedAt(8*mib, u), failed(unmappedAt(8*mib, u))}}, slept{0, 0, 3 * u, 0, 3 * u}},
	} {
		t.Run(name, func(t *testing.T) {
			h := New()
			apply(h, served()...)
			for _, events := range row.events {
				apply(h, events...)
			}
			require.Equal(t, row.want, sleptOf(h))
			require.Equal(t, row.want.segments, h.AsleepBytes(pid, cuda0))
			require.Equal(t, row.want, sleptOf(copyOf(t, h)), "a copy by its state")
			if parts, ok := h.Parts(pid, cuda0); name != "other memory there" { // a block is in no segment
				require.True(t, ok)
				require.Equal(t, row.want.reserved, parts.Reserved)
			}
		})
	}
}

// TestExpandableSegmentsDoNotSleep: PyTorch itself unmaps parts of an expandable segment, and counts them.
func TestExpandableSegmentsDoNotSleep(t *testing.T) {
	h := New()
	apply(h, addresses(event.KindAlloc, 8*mib, 10*sleepUnit),
		created(1, sleepUnit), mappedAt(8*mib, sleepUnit, 1), created(2, sleepUnit), mappedAt(8*mib+sleepUnit, sleepUnit, 2),
		blockIn(8*mib, mib, mib, 2*sleepUnit), blockIn(8*mib+sleepUnit, mib, 2*mib, 2*sleepUnit))
	apply(h, freedIn(8*mib+sleepUnit, mib, mib, 2*sleepUnit))
	apply(h, sleepAt(8*mib+sleepUnit, 2)...)
	require.Equal(t, slept{0, 0, sleepUnit, 0, sleepUnit}, sleptOf(h))
}

// TestSegmentsFromBeforeSleep: the segments are known from the allocator state only, as after an attach to a server that has loaded its
// model; and what is observed of a sleeping server are segments without memory.
func TestSegmentsFromBeforeSleep(t *testing.T) {
	h := New()
	observe := func(time uint64) Result {
		h.Watch(pid)
		defer h.Unwatch(pid)
		o := withSegments(h, segmentAt(8*mib, sleepUnit, false), segmentAt(16*mib, sleepUnit, false))
		o.Blocks = []event.ObservedBlock{{Addr: 8 * mib, Size: mib, Requested: mib}, {Addr: 16 * mib, Size: mib, Requested: mib}}
		o.From, o.To, o.Allocated, o.Reserved = time, time+1, 2*mib, 2*sleepUnit
		r, err := h.Reconcile(o)
		require.NoError(t, err)
		return r
	}
	require.True(t, observe(1).SegmentsProved)
	require.Equal(t, slept{0, 0, 2 * sleepUnit, 0, 2 * sleepUnit}, sleptOf(h))
	apply(h, unmappedAt(8*mib, sleepUnit), unmappedAt(16*mib, sleepUnit))
	require.Equal(t, slept{2 * sleepUnit, 2 * mib, 0, 0, 2 * sleepUnit}, sleptOf(h))

	r := observe(h.now + 2*inFlightFor)
	require.True(t, r.SegmentsProved)
	require.Zero(t, r.SegmentsAdded, "they are no memory")
	require.Equal(t, slept{2 * sleepUnit, 2 * mib, 0, 0, 2 * sleepUnit}, sleptOf(h))
	for handle := range uint64(3) { // the reservations were not seen
		apply(h, wakeAt(8*mib, handle+1)...)
		require.Equal(t, slept{sleepUnit, mib, sleepUnit, 0, 2 * sleepUnit}, sleptOf(h))
		h = copyOf(t, h)
		apply(h, sleepAt(8*mib, handle+1)...)
		require.Equal(t, slept{2 * sleepUnit, 2 * mib, 0, 0, 2 * sleepUnit}, sleptOf(h))
	}
	apply(h, addresses(event.KindFree, 8*mib, event.Unknown))
	require.Equal(t, slept{sleepUnit, mib, 0, 0, sleepUnit}, sleptOf(h))
}
