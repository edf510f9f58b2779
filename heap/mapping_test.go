// SPDX-License-Identifier: Apache-2.0

package heap

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

// call is an event about something else than plain device memory.
func call(kind event.Kind, layer event.Layer, object event.Object, addr, size uint64) *event.Event {
	e := deviceEvent(kind, addr, size)
	e.Layer, e.Object, e.Handle, e.Context = layer, object, event.Unknown, event.Unknown
	return e
}

func created(handle, size uint64) *event.Event {
	return call(event.KindAlloc, event.LayerDevice, event.ObjectPhysical, handle, size)
}

func released(handle uint64) *event.Event {
	return call(event.KindFree, event.LayerDevice, event.ObjectPhysical, handle, event.Unknown)
}

func mappedAt(addr, size, handle uint64) *event.Event {
	e := call(event.KindMap, event.LayerDevice, event.ObjectPhysical, addr, size)
	e.Handle = handle
	return e
}

func unmappedAt(addr, size uint64) *event.Event {
	return call(event.KindUnmap, event.LayerDevice, event.ObjectPhysical, addr, size)
}

func retained(handle uint64) *event.Event {
	return call(event.KindRetain, event.LayerDevice, event.ObjectPhysical, handle, event.Unknown)
}

func imported(handle uint64) *event.Event {
	return call(event.KindAlloc, event.LayerShared, event.ObjectPhysical, handle, event.Unknown)
}

// failed is the failure of a call.
func failed(e *event.Event) *event.Event {
	out := *e
	out.Kind = event.KindFreeFailed
	return &out
}

// account is the account of a layer on a device; all zero when there is none.
func accountOf(h *Heap, layer event.Layer, device int8) DriverAccount {
	for _, d := range h.Totals().Drivers {
		if d.Layer == layer && d.Device.Index == device {
			return d
		}
	}
	return DriverAccount{}
}

func TestPhysicalMemory(t *testing.T) {
	const handle, unit = 5, 2 * mib
	for name, row := range map[string]struct {
		events []*event.Event
		live   uint64 // units in use
	}{
		"created":               {[]*event.Event{created(handle, unit)}, 1},
		"released":              {[]*event.Event{created(handle, unit), released(handle)}, 0},
		"mapped, counted once":  {[]*event.Event{created(handle, unit), mappedAt(8*mib, unit, handle), mappedAt(16*mib, unit, handle)}, 1},
		"released while mapped": {[]*event.Event{created(handle, unit), mappedAt(8*mib, unit, handle), released(handle)}, 1},
		"released, then unmapped": {[]*event.Event{created(handle, unit), mappedAt(8*mib, unit, handle), released(handle),
			unmappedAt(8*mib, unit)}, 0},
		"unmapped, then released": {[]*event.Event{created(handle, unit), mappedAt(8*mib, unit, handle), unmappedAt(8*mib, unit),
			released(handle)}, 0},
		"mapped twice, unmapped once": {[]*event.Event{created(handle, unit), mappedAt(8*mib, unit, handle), mappedAt(16*mib, unit, handle),
			released(handle), unmappedAt(8*mib, unit)}, 1},
		"unmapped at once": {[]*event.Event{created(handle, unit), mappedAt(8*mib, unit, handle), mappedAt(10*mib, unit, handle),
			released(handle), unmappedAt(8*mib, 2*unit)}, 0},
		"unmapped, size not known": {[]*event.Event{created(handle, unit), mappedAt(8*mib, unit, handle), released(handle),
			unmappedAt(8*mib, event.Unknown)}, 0},
		"retained": {[]*event.Event{created(handle, unit), retained(handle), released(handle)}, 1},
		"retained while only mapped": {[]*event.Event{created(handle, unit), mappedAt(8*mib, unit, handle), released(handle), retained(handle),
			unmappedAt(8*mib, unit)}, 1},
		"imported here":  {[]*event.Event{created(handle, unit), imported(handle), released(handle)}, 1},
		"release failed": {[]*event.Event{created(handle, unit), released(handle), failed(released(handle))}, 1},
		"unmap failed": {[]*event.Event{created(handle, unit), mappedAt(8*mib, unit, handle), mappedAt(10*mib, unit, handle), released(handle),
			unmappedAt(8*mib, 2*unit), failed(unmappedAt(8*mib, 2*unit)), unmappedAt(8*mib, unit)}, 1},
		"handle used again while the old memory is mapped": {[]*event.Event{created(handle, unit), mappedAt(8*mib, unit, handle),
			released(handle),
			created(handle, 3*unit), released(handle)}, 1},
		"old memory unmapped after that": {[]*event.Event{created(handle, unit), mappedAt(8*mib, unit, handle), released(handle),
			created(handle, 3*unit), unmappedAt(8*mib, unit)}, 3},
		"release lost, handle used again": {[]*event.Event{created(handle, unit), created(handle, 3*unit)}, 3},
		"unmap lost, address used again": {[]*event.Event{created(handle, unit), mappedAt(8*mib, unit, handle), released(handle),
			created(6, unit), mappedAt(8*mib, unit, 6)}, 1},
		"handle from before":         {[]*event.Event{mappedAt(8*mib, unit, 77), unmappedAt(8*mib, unit)}, 0},
		"handle equal to an address": {[]*event.Event{created(mib, unit), deviceEvent(event.KindAlloc, mib, unit), released(mib)}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			h := New()
			apply(h, row.events...)
			require.Equal(t, row.live*unit, accountOf(h, event.LayerDevice, 0).Live.Bytes)
			require.Zero(t, h.Totals().Ignored+h.Totals().Failures)
			checkStructure(t, h)
			checkSums(t, h)
		})
	}
}

// Nothing is dropped silently: what is about memory from before the first event is counted.
func TestMappingsOfUnknownMemory(t *testing.T) {
	h := New()
	apply(h, mappedAt(8*mib, mib, 77), retained(77), released(77), unmappedAt(8*mib, mib), unmappedAt(8*mib, mib),
		failed(unmappedAt(8*mib, mib)))
	d := accountOf(h, event.LayerDevice, 0)
	require.Equal(t, []uint64{1, 1, 1, 1, 1, 0, 1}, []uint64{d.Maps, d.UnknownMaps, d.UnknownRetains, d.UnknownFrees, d.Unmaps,
		d.UnknownUnmaps, d.FailedFrees})
	require.Zero(t, d.Live)
}

func TestSharedMemory(t *testing.T) {
	h := New()
	opened := call(event.KindAlloc, event.LayerShared, event.ObjectMemory, 8*mib, event.Unknown)
	apply(h, opened, opened, imported(9))
	d := accountOf(h, event.LayerShared, 0)
	require.Equal(t, Count{Objects: 2, Unsized: 2}, d.Live)
	require.Equal(t, []uint64{2, 1, 0}, []uint64{d.Allocs, d.Retains, d.LostFrees}) // opened twice is one more reference

	closed := call(event.KindFree, event.LayerShared, event.ObjectMemory, 8*mib, event.Unknown)
	apply(h, closed)
	require.EqualValues(t, 2, accountOf(h, event.LayerShared, 0).Live.Objects)
	apply(h, closed, mappedAt(16*mib, 2*mib, 9), torchEvent(16*mib, 512, 512), released(9))
	require.Equal(t, Count{Objects: 1, Unsized: 1}, accountOf(h, event.LayerShared, 0).Live) // mapped
	require.Zero(t, accountOf(h, event.LayerDevice, 0).Segments)
	apply(h, unmappedAt(16*mib, 2*mib))
	require.Zero(t, accountOf(h, event.LayerShared, 0).Live)
	checkSums(t, h)
}

// One function gives back memory of several layers: cuMemFree a mapped external buffer or a graph's memory, cuMemRelease an
// imported handle or host memory, zeMemFree pinned memory.
func TestFreeFindsOtherLayers(t *testing.T) {
	for _, layer := range []event.Layer{event.LayerHost, event.LayerShared, event.LayerVirtual} {
		for _, object := range []event.Object{event.ObjectMemory, event.ObjectPhysical, event.ObjectArray} {
			h := New()
			free := call(event.KindFree, event.LayerDevice, object, mib, event.Unknown)
			apply(h, call(event.KindAlloc, layer, object, mib, 4096), free)
			require.Zero(t, accountOf(h, layer, 0).Live, "%s %s", layer, object)
			apply(h, failed(free))
			d := accountOf(h, layer, 0)
			require.Equal(t, Count{Objects: 1, Bytes: 4096}, d.Live, "%s %s", layer, object)
			require.Equal(t, Count{Objects: 1, Bytes: 4096}, d.ByObject[object])
			require.Zero(t, d.UnknownFrees)
		}
	}
	h := New()
	pool := call(event.KindAlloc, event.LayerHolder, event.ObjectPool, mib, event.Unknown)
	apply(h, pool, call(event.KindFree, event.LayerDevice, event.ObjectPool, mib, event.Unknown),
		call(event.KindFree, event.LayerVirtual, event.ObjectMemory, mib, event.Unknown))
	require.EqualValues(t, 1, accountOf(h, event.LayerHolder, 0).Live.Objects)
	apply(h, call(event.KindTrim, event.LayerHolder, event.ObjectPool, mib, 0))
	require.EqualValues(t, 1, accountOf(h, event.LayerHolder, 0).Trims)
}

func TestSegmentsOfPages(t *testing.T) {
	const page = 2 * mib
	expand := func(h *Heap, pages ...uint64) { // page n has handle n + 1
		for _, n := range pages {
			apply(h, created(n+1, page), mappedAt(64*mib+n*page, page, n+1))
		}
	}
	h := New()
	expand(h, 0, 1, 2, 3)
	apply(h, torchEvent(64*mib, -512, 512)) // from now on segments are looked for
	expand(h, 4, 5)
	require.Zero(t, accountOf(h, event.LayerDevice, 0).Segments)
	apply(h, torchEvent(64*mib+page-512, 2*page, 5*mib))
	require.Equal(t, Count{Objects: 3, Bytes: 3 * page}, accountOf(h, event.LayerDevice, 0).Segments)
	apply(h, torchEvent(64*mib+4*page, 2*page, 9*mib), unmappedAt(64*mib+page, page), released(2))
	d := accountOf(h, event.LayerDevice, 0)
	require.Equal(t, []uint64{4 * page, 5 * page}, []uint64{d.Segments.Bytes, d.Live.Bytes})
	require.Equal(t, d.Live, d.ByObject[event.ObjectPhysical])
	checkSums(t, h)
	checkStructure(t, h)
}

// The driver's call does not always tell its device, or tells another type for the same one; torch's block does.
func TestSegmentTakesTheDeviceOfItsBlocks(t *testing.T) {
	for _, device := range []event.Device{{Type: event.DeviceXPU, Index: -1}, {Type: event.DeviceHIP, Index: 0}} {
		h := New()
		alloc := deviceEvent(event.KindAlloc, mib, mib)
		alloc.Device = device
		free := deviceEvent(event.KindFree, mib, event.Unknown)
		free.Device = device
		apply(h, alloc, torchEvent(mib, 512, 512))
		b := h.Totals()
		for _, d := range b.Drivers {
			want := Count{}
			if d.Device == cuda0 {
				want = Count{Objects: 1, Bytes: mib}
			}
			require.Equal(t, want, d.Live)
			require.Equal(t, want, d.Segments)
			require.Equal(t, want.Objects, d.Allocs)
		}
		checkSums(t, h)
		apply(h, free)
		require.EqualValues(t, 1, accountOf(h, event.LayerDevice, 0).Frees)
	}
}

func TestSegmentBytes(t *testing.T) {
	torch := func(addr uint64, size int64, allocated, reserved uint64) *event.Event {
		e := torchEvent(addr, size, allocated)
		e.Reserved = reserved
		return e
	}
	h := New()
	apply(h, deviceEvent(event.KindAlloc, 2*mib, 2*mib), torch(2*mib, 512, 512, 2*mib))
	says := func(segments, reserved uint64) {
		t.Helper()
		a := h.Totals().Accounts[0]
		require.Equal(t, []uint64{segments, reserved}, []uint64{a.SegmentBytes, a.Reserved})
	}
	says(2*mib, 2*mib)
	apply(h, torch(2*mib, -512, 0, 2*mib), deviceEvent(event.KindFree, 2*mib, event.Unknown))
	says(0, 0) // empty_cache(), of which the allocator reports nothing
	apply(h, deviceEvent(event.KindFreeFailed, 2*mib, event.Unknown))
	says(2*mib, 2*mib)
	apply(h, deviceEvent(event.KindFree, 2*mib, event.Unknown))
	apply(h, deviceEvent(event.KindAlloc, 8*mib, mib), torch(8*mib, 512, 512, 4*mib))
	says(mib, 4*mib) // 3 MiB were not seen
	apply(h, deviceEvent(event.KindFree, 8*mib, event.Unknown))
	says(mib, 4*mib) // as at the last report: it is not known what is reserved now

	late := New()
	apply(late, deviceEvent(event.KindAlloc, 8*mib, mib), torch(8*mib, 512, 4096, 4*mib))
	require.Equal(t, event.Unknown, late.Totals().Accounts[0].SegmentBytes) // from before

	based := New()
	based.SetBaseline(pid, cuda0, 0, 0)
	require.Zero(t, based.Totals().Accounts[0].SegmentBytes)
}
