// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package local

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/allocator"
	"github.com/gputrace/gputrace/inspect"
	"github.com/gputrace/gputrace/inspect/bfc"
	"github.com/gputrace/gputrace/internal/nvml"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/recorder"
	"github.com/gputrace/gputrace/recorder/reconcile"
)

var (
	bfcGPU  = event.Device{Type: event.DeviceCUDA.Of(allocator.BFC)}
	bfcHost = event.Device{Type: event.DeviceCPU.Of(allocator.BFC)}
)

// bfcImage is a process with BFC allocators: objects of 4 KiB, each with one region of 1 KiB that is one chunk.
type bfcImage map[uint64][]byte

func (m bfcImage) ReadAt(b []byte, addr uint64) (int, error) {
	page := m[addr&^4095]
	if page == nil {
		return 0, errors.New("bad address")
	}
	return copy(b, page[addr&4095:]), nil
}

// add adds an allocator whose chunk is in use, with a request in bytes; locked: a thread holds it all the time.
func (m bfcImage) add(object, requested uint64, locked bool) {
	page := make([]byte, 4096)
	write := func(at int, words ...uint64) {
		for i, w := range words {
			binary.LittleEndian.PutUint64(page[at+8*i:], w)
		}
	}
	const region, chunk, handle = 0x800, 0x900, 0xa00
	start, none := object<<8, ^uint64(0)
	write(region, start, 1024, start+1024, object+handle)
	write(chunk, 1024, requested, 1, start, none, none)
	mutex := uint64(0)
	if locked {
		mutex = 8
	}
	write(0x100, mutex, object+region, object+region+48, object+region+48, object+chunk, object+chunk+64, object+chunk+64, none, 2, 1, 1024)
	m[object] = page
}

// TestPools: the allocators of a device are one observation. A device with an allocator that cannot be read is left out, with the reason.
func TestPools(t *testing.T) {
	image := bfcImage{0x50000: make([]byte, 4096)}
	image.add(0x10000, 1000, false)
	image.add(0x20000, 500, false)
	image.add(0x30000, 700, false)
	var s pools
	for _, e := range []event.Event{
		{Handle: 0x10000, Device: bfcGPU}, {Handle: 0x20000, Device: bfcGPU},
		{Handle: 0x10000, Device: bfcGPU}, {Handle: 0x30000, Device: bfcHost},
	} {
		s.note(image, &e)
	}
	require.Len(t, s.all(), 3)
	out := &reconcile.State{Until: 5}
	require.NoError(t, s.read(t.Context(), 7, out))
	require.NoError(t, out.Unread)
	require.Len(t, out.Devices, 2)
	gpu, host := &out.Devices[0], &out.Devices[1]
	require.Greater(t, out.Until, uint64(5))
	require.LessOrEqual(t, gpu.From, gpu.To)
	require.Equal(t, []any{uint32(7), bfcGPU}, []any{gpu.PID, gpu.Device})
	require.Equal(t, []uint64{2048, 2048, 2}, []uint64{gpu.Allocated, gpu.Reserved, gpu.Allocators})
	require.Equal(t, []event.ObservedBlock{
		{Addr: 0x1000000, Size: 1024, Requested: 1000, Stream: event.Unknown},
		{Addr: 0x2000000, Size: 1024, Requested: 500, Stream: event.Unknown},
	}, gpu.Blocks)
	require.Equal(t, []any{bfcHost, uint64(1024), event.Unknown}, []any{host.Device, host.Allocated, host.Reserved})

	require.Equal(t, []bool{true, true}, []bool{gpu.From <= gpu.Counted, gpu.Counted <= gpu.To})

	s.note(image, &event.Event{Handle: 0x50000, Device: bfcGPU})
	out = &reconcile.State{}
	require.NoError(t, s.read(t.Context(), 7, out))
	require.ErrorIs(t, out.Unread, bfc.ErrUnknownLayout)
	require.Len(t, out.Devices, 1)
	require.Equal(t, bfcHost, out.Devices[0].Device)

	image.add(0x40000, 1, true)
	s.note(image, &event.Event{Handle: 0x40000, Device: bfcGPU})
	require.ErrorIs(t, s.read(t.Context(), 7, out), bfc.ErrChanged)
	for n := range uint64(2 * maxPools) {
		s.note(image, &event.Event{Handle: n, Device: bfcGPU})
	}
	require.Len(t, s.all(), maxPools)
}

// TestPoolsSearch: allocators are searched for once, unless the search was ended early.
func TestPoolsSearch(t *testing.T) {
	p, err := process.Open(os.Getpid())
	require.NoError(t, err)
	var s pools
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	s.search(ended, p)
	require.False(t, s.searched)
	s.search(t.Context(), p)
	require.True(t, s.searched)
	require.Empty(t, s.all())
}

// TestFindAllocators: a process without an allocator has none, and the reason is PyTorch's.
func TestFindAllocators(t *testing.T) {
	p, err := process.Open(os.Getpid())
	require.NoError(t, err)
	_, err = FindAllocators(t.Context(), p)
	require.ErrorIs(t, err, inspect.ErrNoAllocator)
	require.NotErrorIs(t, err, bfc.ErrNoAllocator)
}

// TestAllocators: of several allocators, one that cannot be read is left out with a note. Without PyTorch, its figures are missing.
func TestAllocators(t *testing.T) {
	image := bfcImage{}
	image.add(0x10000, 1000, false)
	image.add(0x20000, 500, true)
	of := func(object uint64, name string) *bfc.Pool {
		return &bfc.Pool{Allocator: bfc.New(image, object), Name: name, Device: 1}
	}
	a := &Allocators{pools: &bfc.Found{
		Pools: []*bfc.Pool{of(0x10000, "GPU_1_bfc"), of(0x20000, "GPU_2_bfc")}, Unproved: []string{"GPU_3_bfc"}, Cut: true,
	}}
	require.Len(t, a.BFC(), 2)
	m, err := a.MapNow(t.Context(), time.Millisecond)
	require.NoError(t, err)
	require.Len(t, m.Devices, 1)
	require.Equal(t, []any{"GPU_1_bfc", 1, uint64(1024)}, []any{m.Devices[0].Name, m.Devices[0].Device, m.Devices[0].Allocated})
	notes := a.Notes()
	require.Len(t, notes, 3)
	require.Contains(t, notes[0], "GPU_2_bfc is not shown: read the BFC allocator at 0x20000: changed")
	require.Contains(t, notes[1], "GPU_3_bfc is not shown: it has taken no memory yet")
	a.pools.Pools = a.pools.Pools[1:]
	_, err = a.MapNow(t.Context(), time.Millisecond)
	require.ErrorIs(t, err, bfc.ErrChanged)
	stats, err := a.MemoryStats(t.Context())
	require.NoError(t, err)
	require.Empty(t, stats)
	limits, err := a.Limits(t.Context())
	require.NoError(t, err)
	require.Empty(t, limits)
	sizes, err := a.DeviceSizes(t.Context())
	require.NoError(t, err)
	require.Empty(t, sizes)
	require.Nil(t, (&Allocators{}).BFC())
	require.Nil(t, (&Allocators{}).Notes())
	require.Equal(t, []string{"allocators of TensorFlow and JAX are not shown: not proved"}, (&Allocators{failed: bfc.ErrUnproved}).Notes())
}

// TestPoolsBesideTorch: PyTorch's state comes first, and is not needed.
func TestPoolsBesideTorch(t *testing.T) {
	t.Parallel()
	p := program(t, "trainer", "libcuda.so.1")
	i := newInspector(t.Context(), p, driverOf(&nvml.Reading{}))
	state := &madeState{totals: []inspect.DeviceTotals{{Device: 1, Allocated: 512, Reserved: 2048}}}
	i.find = func(*process.Process) (stateReader, error) { return state, nil }
	image := bfcImage{}
	image.add(0x10000, 1000, false)
	i.pools.note(image, &event.Event{Handle: 0x10000, Device: bfcGPU})
	require.Equal(t, 1, i.Allocators())
	got, err := i.AllocatorState(t.Context())
	require.NoError(t, err)
	require.Len(t, got.Devices, 2)
	require.Equal(t, bfcGPU, got.Devices[1].Device)
	state.err = inspect.ErrNoAllocator
	got, err = i.AllocatorState(t.Context())
	require.NoError(t, err)
	require.Len(t, got.Devices, 1)
	state.err = errors.New("it changed")
	_, err = i.AllocatorState(t.Context())
	require.ErrorIs(t, err, state.err)
	state.err = inspect.ErrNoAllocator
	image.add(0x20000, 1, true)
	i.pools.note(image, &event.Event{Handle: 0x20000, Device: bfcGPU})
	_, err = i.AllocatorState(t.Context())
	require.ErrorIs(t, err, bfc.ErrChanged)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = i.AllocatorState(ended)
	require.ErrorIs(t, err, context.Canceled)
}

// TestShow: the first event of each allocator is noted, for its own process.
func TestShow(t *testing.T) {
	t.Parallel()
	p := program(t, "trainer", "libcuda.so.1")
	l, _, _ := openMade(t, &recorder.Options{PIDs: []int{p.PID}, Memory: "auto"})
	require.NoError(t, l.Start(t.Context()))
	pid := uint32(p.PID)
	l.place([]event.Event{
		{PID: pid, Layer: event.LayerAllocator, Handle: 0x10000, Device: bfcGPU},
		{PID: pid, Layer: event.LayerAllocator, Handle: 0x10000, Device: bfcGPU},
		{PID: pid + 1, Layer: event.LayerAllocator, Handle: 0x20000, Device: bfcGPU},
		{PID: pid, Layer: event.LayerAllocator, Handle: 0x30000, Device: bfcHost},
		{PID: pid, Layer: event.LayerAllocator, Handle: event.Unknown, Device: bfcGPU},
		{PID: pid, Layer: event.LayerAllocator, Handle: 0x40000},
		{PID: pid, Layer: event.LayerAllocator, Handle: 0x50000, Device: event.Device{Type: bfcGPU.Type, Index: -1}},
	})
	require.Equal(t, 2, l.inspectors[pid].Allocators())
}
