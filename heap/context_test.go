// SPDX-License-Identifier: Apache-2.0

package heap

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

const (
	contextA, contextB uint64 = 0xa000, 0xb000 // on device 0 and device 1
)

// in says where an event happened.
func in(e *event.Event, context uint64, device int8) *event.Event {
	e.Context, e.Device.Index = context, device
	return e
}

// made is a context, by cuCtxCreate or, with PrimaryCtx in the name, by reference.
func made(context uint64, device int8, name string) *event.Event {
	e := in(call(event.KindAlloc, event.LayerHolder, event.ObjectContext, context, event.Unknown), event.Unknown, device)
	e.Call = name
	return e
}

func freedSite(context uint64, device int8) *event.Event {
	return in(call(event.KindReset, event.LayerHolder, event.ObjectContext, context, event.Unknown), event.Unknown, device)
}

// givenBack is a reference of a device's primary context.
func givenBack(device int8) *event.Event {
	e := in(call(event.KindFree, event.LayerHolder, event.ObjectContext, 0, event.Unknown), event.Unknown, device)
	e.Call = "cuDevicePrimaryCtxRelease"
	return e
}

// sample is something of everything, in two contexts and devices.
func sample() []*event.Event {
	async := in(call(event.KindAlloc, event.LayerDevice, event.ObjectMemory, 0x10000, 1), contextA, 0)
	async.Call = "cuMemAllocAsync"
	pooled := in(call(event.KindAlloc, event.LayerDevice, event.ObjectMemory, 0x20000, 2), contextA, 0)
	pooled.Handle = 0x77
	return []*event.Event{
		async, pooled,
		in(call(event.KindAlloc, event.LayerDevice, event.ObjectMemory, 0x30000, 4), contextA, 0),
		in(call(event.KindAlloc, event.LayerDevice, event.ObjectArray, 0x30000, 8), contextA, 0),
		in(call(event.KindAlloc, event.LayerHost, event.ObjectMemory, 0x40000, 16), contextA, 0),
		in(call(event.KindAlloc, event.LayerDevice, event.ObjectPhysical, 3, 32), contextA, 0),
		in(call(event.KindAlloc, event.LayerVirtual, event.ObjectMemory, 0x50000, 64), contextA, 0),
		in(call(event.KindAlloc, event.LayerDevice, event.ObjectMemory, 0x60000, 128), contextB, 1),
		in(call(event.KindAlloc, event.LayerHost, event.ObjectMemory, 0x70000, 256), contextB, 1),
	}
}

// liveBytes adds up the live set; the sizes of sample identify its blocks.
func liveBytes(h *Heap) uint64 {
	sum := uint64(0)
	for b := range h.Blocks() {
		if b.Size != event.Unknown {
			sum += b.Size
		}
	}
	return sum
}

func TestReset(t *testing.T) {
	const all = 511
	const inA, ofDevice0, inB = 4 + 8 + 16, 1 + 2 + 4 + 8 + 16, 128 + 256
	for name, row := range map[string]struct {
		events    []*event.Event
		taken     uint64
		resets    uint64
		fromStart bool
	}{
		"context":          {[]*event.Event{freedSite(contextA, -1)}, inA, 1, false},
		"other context":    {[]*event.Event{freedSite(contextB, -1)}, inB, 1, false},
		"unknown context":  {[]*event.Event{freedSite(0xc000, -1)}, 0, 1, false},
		"device":           {[]*event.Event{freedSite(0, 0)}, ofDevice0, 1, false},
		"other device":     {[]*event.Event{freedSite(0, 1)}, inB, 1, false},
		"failed":           {[]*event.Event{freedSite(0, 0), failed(freedSite(0, 0))}, 0, 0, false},
		"both, one failed": {[]*event.Event{freedSite(contextA, -1), freedSite(0, 1), failed(freedSite(0, 1))}, inA, 1, false},
		"failed, then in earnest": {[]*event.Event{freedSite(contextA, -1), failed(freedSite(contextA, -1)), freedSite(contextA, -1)},
			inA, 1, false},
		"last reference": {[]*event.Event{made(contextB, 1, "cuDevicePrimaryCtxRetain"), givenBack(1)}, inB, 0, true},
		"last reference, failed": {[]*event.Event{made(contextB, 1, "cuDevicePrimaryCtxRetain"), givenBack(1), failed(givenBack(1))},
			0, 0, true},
		"not the last reference": {[]*event.Event{made(contextB, 1, "cudaMalloc"), made(contextB, 1, "cudaMalloc"), givenBack(1)}, 0,
			0, true},
		"references from before":       {[]*event.Event{made(contextB, 1, "cuDevicePrimaryCtxRetain"), givenBack(1), givenBack(1)}, 0, 0, false},
		"reference of unknown context": {[]*event.Event{givenBack(1)}, 0, 0, true},
		"device, context created":      {[]*event.Event{made(contextA, 0, "cuCtxCreate"), freedSite(0, 0)}, 1 + 2, 1, false},
		"device, another is primary":   {[]*event.Event{made(0xc000, 0, "cuDevicePrimaryCtxRetain"), freedSite(0, 0)}, 1 + 2, 1, false},
		"device, it is primary":        {[]*event.Event{made(contextA, 0, "cudaSetDevice"), freedSite(0, 0)}, ofDevice0, 1, false},
		"created, destroyed":           {[]*event.Event{made(contextA, 0, "cuCtxCreate"), freedSite(contextA, -1)}, inA, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := New()
			if row.fromStart {
				h.FromStart(pid)
			}
			apply(h, sample()...)
			require.EqualValues(t, all, liveBytes(h))
			apply(h, row.events...)
			require.EqualValues(t, all-row.taken, liveBytes(h))
			var resets, objects, bytes uint64
			for _, d := range h.Totals().Drivers {
				resets, objects, bytes = resets+d.Resets, objects+d.ResetFrees, bytes+d.Doubtful.Objects
			}
			require.Equal(t, row.resets, resets)
			require.Equal(t, row.taken == 0, objects == 0)
			require.Zero(t, bytes)
			require.Zero(t, h.Totals().Ignored+h.Totals().Failures)
			checkSums(t, h)
			checkStructure(t, h)
		})
	}
}

func TestContextsAreCounted(t *testing.T) {
	h := New()
	h.FromStart(pid)
	apply(h, made(contextA, 0, "cuDevicePrimaryCtxRetain"), made(contextA, 0, "cuDevicePrimaryCtxRetain"), made(contextB, 0, "cuCtxCreate"))
	d := accountOf(h, event.LayerHolder, 0)
	require.Equal(t, []uint64{2, 2, 1}, []uint64{d.Live.Objects, d.Allocs, d.Retains})
	apply(h, givenBack(0), freedSite(contextB, -1), failed(freedSite(contextB, -1)))
	require.EqualValues(t, 2, accountOf(h, event.LayerHolder, 0).Live.Objects)
	apply(h, givenBack(-1), freedSite(contextB, -1)) // the only primary context there is
	d = accountOf(h, event.LayerHolder, 0)
	require.Equal(t, []uint64{0, 2, 0}, []uint64{d.Live.Objects, d.Frees, d.UnknownFrees})
}

// A reference that is taken while another seems to be the last, but is not given back after all.
func TestContextIsRetainedMeanwhile(t *testing.T) {
	h := New()
	h.FromStart(pid)
	apply(h, made(contextA, 0, "cuDevicePrimaryCtxRetain"), in(call(event.KindAlloc, event.LayerDevice, event.ObjectMemory, 0x30000, 4),
		contextA, 0))
	again := made(contextA, 0, "cuDevicePrimaryCtxRetain")
	again.TID = pid + 1
	apply(h, givenBack(0), again, failed(givenBack(0)))
	require.EqualValues(t, 4, liveBytes(h))
	apply(h, givenBack(0))
	require.EqualValues(t, 4, liveBytes(h))
	apply(h, givenBack(0))
	require.Zero(t, liveBytes(h))
	require.Zero(t, accountOf(h, event.LayerHolder, 0).Live)
	checkStructure(t, h)
}

// An address that was handed out again shows that its memory was given back, by a call that was lost.
func TestFailedFreeOfAnAddressInUse(t *testing.T) {
	alloc := func(context uint64) *event.Event {
		return in(call(event.KindAlloc, event.LayerDevice, event.ObjectMemory, 0x30000, 4), context, 0)
	}
	free := call(event.KindFree, event.LayerDevice, event.ObjectMemory, 0x30000, event.Unknown)
	for _, taken := range []*event.Event{free, freedSite(contextA, -1)} {
		h := New()
		apply(h, alloc(contextA), taken, alloc(contextB), failed(taken))
		d := accountOf(h, event.LayerDevice, 0)
		require.EqualValues(t, 4, d.Live.Bytes)
		require.Equal(t, []uint64{2, 0, 1}, []uint64{d.Allocs, d.ResetFrees, d.LostFrees})
		checkSums(t, h)
	}
}

// What is not known to be in a context that goes is kept, and said to be in doubt, unless there is no other it could be in.
func TestResetOfUnknownContexts(t *testing.T) {
	plain := func() *event.Event {
		return in(call(event.KindAlloc, event.LayerDevice, event.ObjectMemory, 0x30000, 4), event.Unknown, -1)
	}
	h := New()
	apply(h, plain(), freedSite(contextA, -1))
	require.Zero(t, liveBytes(h), "no other context was seen")

	h = New()
	apply(h, plain(), freedSite(0, 0))
	require.Zero(t, liveBytes(h), "no other device was seen")

	h = New()
	apply(h, plain(), in(call(event.KindAlloc, event.LayerDevice, event.ObjectMemory, 0x40000, 8), contextB, 1), freedSite(contextA, -1))
	d := accountOf(h, event.LayerDevice, -1)
	require.Equal(t, Count{Objects: 1, Bytes: 4}, d.Doubtful)
	require.Equal(t, Count{Objects: 1, Bytes: 4}, d.Live)
	apply(h, failed(freedSite(contextA, -1)))
	require.Zero(t, accountOf(h, event.LayerDevice, -1).Doubtful)
	apply(h, freedSite(0, 0), freedSite(0, -1))
	require.Equal(t, Count{Objects: 1, Bytes: 4}, accountOf(h, event.LayerDevice, -1).Doubtful, "in doubt twice, counted once")
	require.Equal(t, Count{Objects: 1, Bytes: 8}, accountOf(h, event.LayerDevice, 1).Doubtful, "which device was reset is not known")
	apply(h, deviceEvent(event.KindFree, 0x30000, event.Unknown))
	require.Zero(t, accountOf(h, event.LayerDevice, -1).Doubtful)
	checkSums(t, h)

	h = New()
	elsewhere := in(call(event.KindAlloc, event.LayerDevice, event.ObjectMemory, 0x50000, 16), event.Unknown, 1)
	apply(h, made(contextA, 0, "cuCtxCreate"), made(contextB, 1, "cuCtxCreate"), elsewhere, freedSite(contextA, -1))
	require.Zero(t, accountOf(h, event.LayerDevice, 1).Doubtful, "the context is of another device")
	require.EqualValues(t, 16, liveBytes(h))
}

// Of two calls that free the same object at the same time one fails; the object is freed, whichever that is.
func TestResetWhileAFreeIsInFlight(t *testing.T) {
	block := func() *event.Event {
		return in(call(event.KindAlloc, event.LayerDevice, event.ObjectMemory, 0x30000, 4), contextA, 0)
	}
	free := call(event.KindFree, event.LayerDevice, event.ObjectMemory, 0x30000, event.Unknown)
	reset := freedSite(contextA, -1)
	reset.TID = pid + 1
	for name, row := range map[string]struct {
		events []*event.Event
		live   uint64
	}{
		"free first, it fails":    {[]*event.Event{free, reset, failed(free)}, 0},
		"free first, both fail":   {[]*event.Event{free, reset, failed(free), failed(reset)}, 4},
		"free first, reset fails": {[]*event.Event{free, reset, failed(reset)}, 0},
		"reset first, it fails":   {[]*event.Event{reset, free, failed(reset)}, 0},
		"reset first, both fail":  {[]*event.Event{reset, free, failed(reset), failed(free)}, 4},
		"reset first, free fails": {[]*event.Event{reset, free, failed(free)}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			h := New()
			apply(h, block())
			for _, e := range row.events {
				once := *e
				apply(h, &once)
			}
			require.Equal(t, row.live, liveBytes(h))
			d := accountOf(h, event.LayerDevice, 0)
			require.EqualValues(t, 1, d.Allocs)
			require.Zero(t, d.LostFrees)
			checkSums(t, h)
		})
	}
}
