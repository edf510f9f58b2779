// SPDX-License-Identifier: Apache-2.0

package heap

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap/internal/blocks"
)

const (
	mib = 1 << 20
	pid = 7
)

var cuda0 = event.Device{Type: event.DeviceCUDA, Index: 0}

// torchEvent is a report of the caching allocator: size > 0 allocates, size < 0 frees.
func torchEvent(addr uint64, size int64, allocated uint64) *event.Event {
	e := &event.Event{Time: 1, PID: pid, TID: pid, Kind: event.KindAlloc, Layer: event.LayerAllocator, Device: cuda0, Addr: addr,
		Size: uint64(size), Requested: event.Unknown, Stream: event.Unknown, Allocated: allocated, Reserved: 64 * mib, Stack: 1}
	if size < 0 {
		e.Kind, e.Size = event.KindFree, uint64(-size)
	}
	return e
}

func deviceEvent(kind event.Kind, addr, size uint64) *event.Event {
	return &event.Event{Time: 1, PID: pid, TID: pid, Kind: kind, Layer: event.LayerDevice, Device: cuda0, Addr: addr, Size: size,
		Requested: event.Unknown, Allocated: event.Unknown, Reserved: event.Unknown, Call: "cudaMalloc", Stack: 2}
}

func apply(h *Heap, events ...*event.Event) {
	for i, e := range events {
		e.Time = h.now + uint64(i) + 1
		h.Apply(e)
	}
}

func TestTorchAccount(t *testing.T) {
	type want struct {
		live, before, allocated, peak uint64
		lost                          int64
		gaps, unknownFrees, lostFrees uint64
	}
	for name, row := range map[string]struct {
		events []*event.Event
		want   want
	}{
		"first event allocates": {
			[]*event.Event{torchEvent(100, 512, 1512)},
			want{live: 512, before: 1000, allocated: 1512, peak: 1512},
		},
		"first event frees a block from before": {
			[]*event.Event{torchEvent(100, -512, 488)},
			want{before: 488, allocated: 488, peak: 1000, unknownFrees: 1},
		},
		"nothing lived before": {
			[]*event.Event{torchEvent(100, 512, 512), torchEvent(100, -512, 0)},
			want{peak: 512},
		},
		"lost allocation": {
			[]*event.Event{torchEvent(100, 512, 512), torchEvent(300, 512, 2048)},
			want{live: 1024, allocated: 2048, peak: 2048, lost: 1024, gaps: 1},
		},
		"lost free, seen by the total": {
			[]*event.Event{torchEvent(100, 512, 512), torchEvent(200, 512, 512)},
			want{live: 1024, allocated: 512, peak: 512, lost: -512, gaps: 1},
		},
		"lost free, seen by the address too": {
			[]*event.Event{torchEvent(100, 512, 512), torchEvent(100, 1024, 1024)},
			want{live: 1024, allocated: 1024, peak: 1024, gaps: 1, lostFrees: 1},
		},
		"free of more than lived before": {
			[]*event.Event{torchEvent(100, 512, 1024), torchEvent(900, -1024, 0)},
			want{live: 512, lost: -512, peak: 1024, unknownFrees: 1},
		},
		"free of another size": { // its free and an allocation of 1024 were lost
			[]*event.Event{torchEvent(100, 512, 512), torchEvent(100, -1024, 0)},
			want{peak: 512, gaps: 1},
		},
		"no totals": {
			[]*event.Event{torchEvent(100, 512, event.Unknown), torchEvent(200, 64, event.Unknown), torchEvent(200, -64, event.Unknown)},
			want{live: 512, before: event.Unknown, allocated: event.Unknown, peak: 576},
		},
		"total missing once": {
			[]*event.Event{torchEvent(100, 512, 512), torchEvent(200, 64, event.Unknown), torchEvent(300, 64, 640)},
			want{live: 640, allocated: 640, peak: 640},
		},
		"total below the allocation": {
			[]*event.Event{torchEvent(100, 512, 500)},
			want{live: 512, allocated: 500, peak: 500, lost: -12, gaps: 1},
		},
		"total appears below what is known to live": { // frees were lost before it
			[]*event.Event{torchEvent(100, 512, event.Unknown), torchEvent(200, 64, 100)},
			want{live: 576, allocated: 100, peak: 512, lost: -476},
		},
		"total appears after frees from before": {
			[]*event.Event{torchEvent(900, -64, event.Unknown), torchEvent(100, 512, 1512)},
			want{live: 512, before: 1000, allocated: 1512, peak: 1512, unknownFrees: 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := New()
			apply(h, row.events...)
			a := h.Totals().Accounts[0]
			require.Equal(t, row.want, want{a.Live.Bytes, a.Before, a.Allocated, a.Peak, a.Lost, a.Gaps, a.UnknownFrees, a.LostFrees})
			require.Zero(t, h.Totals().Ignored)
		})
	}
}

func TestBaselineFromOutside(t *testing.T) {
	h := New()
	h.SetBaseline(pid, cuda0, 1000, 2000)
	a := h.Totals().Accounts[0]
	require.Equal(t, []uint64{1000, 2000, 1000, 1000, 1000}, []uint64{a.Allocated, a.Reserved, a.Before, a.Baseline, a.Peak})

	apply(h, torchEvent(100, 512, 1612)) // 100 bytes came between the reading and this event
	h.SetBaseline(pid, cuda0, 5, 5)      // too late
	a = h.Totals().Accounts[0]
	require.Equal(t, []uint64{1612, 1000, 512}, []uint64{a.Allocated, a.Before, a.Live.Bytes})
	require.EqualValues(t, 100, a.Lost)
	require.Equal(t, []Gap{{Time: 1, PID: pid, Device: cuda0, Bytes: 100}}, h.Totals().Gaps)
}

func TestOutOfMemory(t *testing.T) {
	h := New()
	oom := torchEvent(0, 1, 3000)
	oom.Kind, oom.Size = event.KindOutOfMemory, 1<<60
	refused := deviceEvent(event.KindOutOfMemory, 0, 1<<60)
	apply(h, oom, refused, torchEvent(100, 512, 3512))
	b := h.Totals()
	require.EqualValues(t, 1, b.Accounts[0].OOMs)
	require.EqualValues(t, 1, b.Drivers[0].OOMs)
	require.EqualValues(t, 3000, b.Accounts[0].Before)
	require.Zero(t, b.GapCount)
}

func TestAccountsAreSeparate(t *testing.T) {
	h := New()
	other := torchEvent(100, 64, 64)
	other.Device.Index = 1
	child := torchEvent(100, 32, 32)
	child.PID = pid + 1
	apply(h, torchEvent(100, 512, 512), other, child, torchEvent(100, -512, 0))
	b := h.Totals()
	require.Len(t, b.Accounts, 3)
	for i, live := range []uint64{0, 64, 32} {
		require.Equal(t, live, b.Accounts[i].Live.Bytes)
		require.Zero(t, b.Accounts[i].LostFrees+b.Accounts[i].UnknownFrees)
	}
}

func TestRequestedBytes(t *testing.T) {
	h := New()
	known := torchEvent(100, 512, 512)
	known.Requested = 300
	apply(h, known, torchEvent(200, 512, 1024))
	site := h.Snapshot().Sites[0]
	require.Equal(t, Count{Objects: 2, Bytes: 1024, Requested: 300, RequestedObjects: 1}, site.Inuse)
	apply(h, torchEvent(100, -512, 512))
	site = h.Snapshot().Sites[0]
	require.Equal(t, Count{Objects: 1, Bytes: 512}, site.Inuse)
	require.Equal(t, Count{Objects: 2, Bytes: 1024, Requested: 300, RequestedObjects: 1}, site.Alloc)
}

func TestGapsKeepTheLast(t *testing.T) {
	h := New()
	total := uint64(0)
	for i := range uint64(maxGaps + 5) {
		total += 512 + i // i bytes too many
		apply(h, torchEvent(4096+i*512, 512, total))
	}
	b := h.Totals()
	require.EqualValues(t, maxGaps+4, b.GapCount) // the first event has no gap: 0 bytes
	require.Len(t, b.Gaps, maxGaps)
	require.EqualValues(t, maxGaps+4, b.Gaps[maxGaps-1].Bytes)
	require.EqualValues(t, 5, b.Gaps[0].Bytes)
	require.EqualValues(t, (maxGaps+4)*(maxGaps+5)/2, b.Accounts[0].GapBytes)
}

func TestIgnored(t *testing.T) {
	for name, change := range map[string]func(*event.Event){
		"kind 0":              func(e *event.Event) { e.Kind = 0 },
		"layer 0":             func(e *event.Event) { e.Layer = 0 },
		"layer beyond":        func(e *event.Event) { e.Layer = event.LayerHolder + 1 },
		"address 0":           func(e *event.Event) { e.Addr = 0 },
		"address max":         func(e *event.Event) { e.Addr = 1<<64 - 1 },
		"size max + 1":        func(e *event.Event) { e.Size = blocks.MaxBytes },
		"size unknown":        func(e *event.Event) { e.Size = event.Unknown },
		"total max + 1":       func(e *event.Event) { e.Allocated = blocks.MaxBytes },
		"torch free failed":   func(e *event.Event) { e.Kind = event.KindFreeFailed },
		"torch free unsized":  func(e *event.Event) { e.Kind, e.Size = event.KindFree, event.Unknown },
		"requested max + 1":   func(e *event.Event) { e.Requested = blocks.MaxBytes },
		"reserved impossible": func(e *event.Event) { e.Reserved = 1 << 63 },
		"torch free of kind":  func(e *event.Event) { e.Kind = event.KindUnmap },
		"object beyond":       func(e *event.Event) { e.Layer, e.Object = event.LayerDevice, event.ObjectExternal+1 },
		"free of address 0":   func(e *event.Event) { e.Layer, e.Kind, e.Addr = event.LayerDevice, event.KindFree, 0 },
		"map unsized":         func(e *event.Event) { e.Layer, e.Kind, e.Size = event.LayerDevice, event.KindMap, event.Unknown },
		"retain of handle 0":  func(e *event.Event) { e.Layer, e.Kind, e.Addr = event.LayerDevice, event.KindRetain, 0 },
	} {
		t.Run(name, func(t *testing.T) {
			h := New()
			e := torchEvent(100, 512, 512)
			h.Apply(e)
			before := h.Snapshot()
			bad := torchEvent(200, 64, 576)
			change(bad)
			h.Apply(bad)
			after := h.Snapshot()
			require.EqualValues(t, 1, after.Ignored)
			require.Equal(t, before.Sites, after.Sites)
			require.Equal(t, before.Accounts, after.Accounts)
		})
	}
}

func TestBlocks(t *testing.T) {
	h := New()
	apply(h, deviceEvent(event.KindAlloc, 4096, 4096), torchEvent(4096, 512, 512), torchEvent(8192, 64, 576), torchEvent(8192, -64, 512))
	got := map[event.Layer]Block{}
	for b := range h.Blocks() {
		got[b.Layer] = b.unnumbered()
	}
	require.Equal(t, map[event.Layer]Block{
		event.LayerAllocator: {PID: pid, Layer: event.LayerAllocator, Device: cuda0, Addr: 4096, Size: 512, Requested: event.Unknown,
			Stream: event.Unknown, Time: 3,
			Stack: 1},
		event.LayerDevice: {PID: pid, Layer: event.LayerDevice, Device: cuda0, Addr: 4096, Size: 4096, Requested: event.Unknown,
			Stream: event.Unknown,
			Time:   1, Stack: 2, Call: "cudaMalloc", Segment: true},
	}, got)
}

// TestApplyAll: with many blocks on two devices and some of a driver, batches of any length lead to what Apply leads to.
func TestApplyAll(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	live, total := map[uint64]bool{}, [2]uint64{}
	const addrs = 1 << 16 // so many that an index is read ahead
	var events []event.Event
	for range addrs {
		device := rng.IntN(2)
		addr := 512*rng.Uint64N(addrs) + 1<<40*uint64(device+1)
		size := int64(512)
		if live[addr] {
			size = -size
		}
		live[addr] = size > 0
		total[device] += uint64(size)
		e := *torchEvent(addr, size, total[device])
		e.Device.Index = int8(device)
		events = append(events, e)
		if rng.IntN(50) == 0 {
			events = append(events, *deviceEvent(event.KindAlloc, addr, 512))
		}
	}
	one, all := New(), New()
	for i := range events {
		one.Apply(&events[i])
	}
	for rest := events; len(rest) > 0; {
		n := min(len(rest), 1+rng.IntN(3*blocks.PrefetchBatch))
		all.ApplyAll(rest[:n])
		rest = rest[n:]
	}
	require.True(t, all.last.live.Large(), "so few blocks that nothing is read ahead")
	require.Equal(t, one.Snapshot(), all.Snapshot())
	require.Equal(t, blocksOf(one), blocksOf(all))
}

// unnumbered is the block without its number, which two heaps with the same blocks need not have in common.
func (b Block) unnumbered() Block {
	b.Number = 0
	return b
}
