// SPDX-License-Identifier: Apache-2.0

//go:build linux

package allocator

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event/allocator"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/inspect"
)

const mib = 1 << 20

// tiles makes a segment of blocks, one behind the other.
func tiles(addr uint64, pool inspect.Pool, blocks ...inspect.Block) inspect.Segment {
	s := inspect.Segment{Addr: addr, Pool: pool}
	for _, b := range blocks {
		b.Addr = addr + s.Size
		s.Size += b.Size
		s.Blocks = append(s.Blocks, b)
	}
	return s
}

func allocated(size, requested uint64) inspect.Block {
	return inspect.Block{Size: size, Requested: requested, State: inspect.StateAllocated}
}

func pending(size uint64) inspect.Block {
	return inspect.Block{Size: size, Requested: size - 1, State: inspect.StatePending}
}

func free(size uint64) inspect.Block { return inspect.Block{Size: size} }

var (
	large   = inspect.Pool{}
	small   = inspect.Pool{Small: true}
	private = inspect.Pool{ID: [2]uint64{1, 0}}
)

// sample has one segment of each kind: full, with inactive splits, held by a pending block alone, and free.
func sample() *inspect.Map {
	return &inspect.Map{Devices: []inspect.DeviceMap{
		{
			DeviceTotals: inspect.DeviceTotals{Device: 0, Allocated: 12*mib + 512, Reserved: 46 * mib}, Time: 7,
			Segments: []inspect.Segment{
				tiles(0x1000000, private, free(4*mib), free(6*mib)),
				tiles(0x2000000, large, allocated(10*mib, 10*mib-100)),
				tiles(0x4000000, large, free(3*mib), allocated(2*mib, 2*mib), free(15*mib)),
				tiles(0x8000000, small, pending(512), free(mib), allocated(512, 4), free(mib-1024)),
				tiles(0x9000000, small, pending(mib), free(3*mib)),
			},
		},
		{DeviceTotals: inspect.DeviceTotals{Device: 1}},
	}}
}

func TestState(t *testing.T) {
	b := New(sample())
	require.Len(t, b.Devices, 2)
	d := &b.Devices[0]
	require.Equal(t, Memory{
		Reserved: 46 * mib, Allocated: 12*mib + 512, Requested: 12*mib - 96, Pending: mib + 512, InactiveSplit: 23*mib - 1024, Free: 10 * mib,
		LargestInactiveSplit: 15 * mib, SegmentCount: 5, FreeSegmentCount: 1, AllocatedCount: 3, PendingCount: 2, InactiveSplitCount: 5,
	}, d.Memory)
	require.EqualValues(t, 608, d.Rounding())
	require.Zero(t, d.Unexplained())
	require.Zero(t, d.Miscounted())
	require.EqualValues(t, 7, d.Time)
	require.Equal(t, Memory{}, b.Devices[1].Memory)
	require.Empty(t, b.Devices[1].Pools)
}

func TestStatePools(t *testing.T) {
	d := New(sample()).Devices[0]
	var pools []inspect.Pool
	var sum Memory
	for i := range d.Pools {
		pools = append(pools, d.Pools[i].Pool)
		sum.add(&d.Pools[i].Memory)
	}
	require.Equal(t, []inspect.Pool{large, small, private}, pools)
	require.Equal(t, d.Memory, sum)
	require.Equal(t, Memory{
		Reserved: 30 * mib, Allocated: 12 * mib, Requested: 12*mib - 100, InactiveSplit: 18 * mib, LargestInactiveSplit: 15 * mib,
		SegmentCount: 2, AllocatedCount: 2, InactiveSplitCount: 2,
	}, d.Pools[0].Memory)
}

// TestStateThatDoesNotBalance: a difference shows with its sign.
func TestStateThatDoesNotBalance(t *testing.T) {
	m := sample()
	m.Devices[0].Reserved += 5
	m.Devices[0].Allocated -= 7
	d := New(m).Devices[0]
	require.EqualValues(t, 5, d.Unexplained())
	require.EqualValues(t, -7, d.Miscounted())
}

func TestMostFree(t *testing.T) {
	d := New(sample()).Devices[0]
	addresses := func(n int) (out []uint64, all int) {
		most, all := d.MostFree(n)
		for i := range most {
			out = append(out, most[i].Addr)
		}
		return out, all
	}
	for n, want := range [][]uint64{nil, {0x4000000}, {0x4000000, 0x1000000}, {0x4000000, 0x1000000, 0x9000000},
		{0x4000000, 0x1000000, 0x9000000, 0x8000000}} {
		got, all := addresses(n)
		require.Equal(t, want, got)
		require.Equal(t, 4, all)
	}
	got, _ := addresses(100)
	require.Len(t, got, 4)
	most, all := New(sample()).Devices[1].MostFree(1)
	require.Empty(t, most)
	require.Zero(t, all)
}

func TestGapsAndPins(t *testing.T) {
	d := New(sample()).Devices[0]
	s := &d.Segments[2]
	require.Equal(t, []Block{{Addr: 0x4000000 + 5*mib, Size: 15 * mib}, {Addr: 0x4000000, Size: 3 * mib}}, s.FreeBlocks())
	require.Equal(t, []Block{{Addr: 0x4000000 + 3*mib, Size: 2 * mib, Requested: 2 * mib, State: inspect.StateAllocated}}, s.Pins())
	pins := d.Segments[3].Pins()
	require.Len(t, pins, 2)
	require.True(t, Pending(&pins[0]) && Held(&pins[0]))
	require.True(t, !Pending(&pins[1]) && Held(&pins[1]))
	require.Empty(t, d.Segments[0].Pins())
}

// TestStateThatChanges: what changed while it was read is in no other figure of the map; the allocator's own totals say the rest.
func TestStateThatChanges(t *testing.T) {
	changing := func(size uint64) inspect.Block { return inspect.Block{Size: size, State: inspect.StateChanging} }
	m := &inspect.Map{Devices: []inspect.DeviceMap{{
		DeviceTotals: inspect.DeviceTotals{Allocated: 9 * mib, Reserved: 40 * mib}, Active: 11 * mib, Changing: &inspect.Changing{Ranges: 2},
		Segments: []inspect.Segment{
			tiles(0x1000000, large, free(4*mib), changing(6*mib)),
			tiles(0x2000000, large, allocated(5*mib, 5*mib), changing(3*mib), free(2*mib)),
			tiles(0x4000000, large, free(20*mib)),
		},
	}}}
	b := New(m)
	d := &b.Devices[0]
	require.EqualValues(t, 9*mib, d.ChangingBytes)
	require.Equal(t, []uint64{6 * mib, 3 * mib, 0}, []uint64{d.Segments[0].Changing, d.Segments[1].Changing, d.Segments[2].Changing})
	require.Equal(t, Memory{
		Reserved: 40 * mib, Allocated: 5 * mib, Requested: 5 * mib, InactiveSplit: 6 * mib, Free: 20 * mib, LargestInactiveSplit: 4 * mib,
		SegmentCount: 3, FreeSegmentCount: 1, AllocatedCount: 1, InactiveSplitCount: 2,
	}, d.Memory, "a segment of which something changed is not free as a whole")
	require.Zero(t, d.Unexplained())
	require.Zero(t, d.Miscounted(), "not known")
	require.EqualValues(t, 24*mib, d.Segments[0].FreeBytes()+d.Segments[2].FreeBytes())
	require.True(t, Changing(&d.Segments[0].Blocks[1]))
	require.False(t, Changing(&d.Segments[0].Blocks[0]))
	require.Equal(t, []figures.TorchMemory{{
		Reserved: 40 * mib, Allocated: 9 * mib, Requested: figures.Unknown, Pending: 2 * mib, InactiveSplit: 9 * mib, Free: 20 * mib,
		Largest: 20 * mib,
	}}, b.Torch())

	m.Devices[0].Changing = nil
	d = &New(m).Devices[0]
	require.EqualValues(t, 4*mib, d.Miscounted())
	require.EqualValues(t, 5*mib, New(m).Torch()[0].Allocated, "of a map that stood still the blocks count")
}

// TestStats: each statistic of the allocator is taken over to its place; what it does not count is not known.
func TestStats(t *testing.T) {
	in := inspect.MemoryStats{Device: 3, Retries: 5, OOMs: inspect.Unknown}
	next := uint64(100)
	for i := range in.Stats {
		for _, c := range []*inspect.Counter{&in.Stats[i].All, &in.Stats[i].Large, &in.Stats[i].Small} {
			*c = inspect.Counter{Current: next, Peak: next + 1, Allocated: next + 2, Freed: inspect.Unknown}
			next += 10
		}
	}
	in.OversizeAllocations = inspect.Counter{Current: 1, Peak: inspect.Unknown, Allocated: 3, Freed: 4}
	in.OversizeSegments = inspect.Counter{Current: 5, Peak: 6, Allocated: inspect.Unknown, Freed: 8}
	out := Stats([]inspect.MemoryStats{in, {Device: 1, Retries: inspect.Unknown}})
	require.Len(t, out, 2)
	s := &out[0]
	require.Equal(t, 3, s.Device)
	require.Equal(t, []figures.Bytes{5, figures.Unknown}, []figures.Bytes{s.Retries, s.OOMs})
	n := figures.Bytes(100)
	for i := range s.Stats {
		for _, c := range []figures.Counter{s.Stats[i].All, s.Stats[i].Large, s.Stats[i].Small} {
			require.Equal(t, figures.Counter{Current: n, Peak: n + 1, Allocated: n + 2, Freed: figures.Unknown}, c)
			n += 10
		}
	}
	require.Equal(t, figures.Counter{Current: 1, Peak: figures.Unknown, Allocated: 3, Freed: 4}, s.OversizeAllocations)
	require.Equal(t, figures.Counter{Current: 5, Peak: 6, Allocated: figures.Unknown, Freed: 8}, s.OversizeSegments)
	require.Equal(t, []figures.Bytes{figures.Unknown, 0}, []figures.Bytes{out[1].Retries, out[1].OOMs})
	require.Empty(t, Stats(nil))
}

// TestStateOfBFC: allocators with a name are TensorFlow's and JAX's. A device has one row for them, and host memory has no row.
func TestStateOfBFC(t *testing.T) {
	of := func(name string, device int, host bool, segments ...inspect.Segment) inspect.DeviceMap {
		return inspect.DeviceMap{DeviceTotals: inspect.DeviceTotals{Device: device}, Name: name, Host: host, Segments: segments}
	}
	m := &inspect.Map{Devices: []inspect.DeviceMap{
		{Segments: []inspect.Segment{tiles(0x1000000, large, allocated(mib, 1000))}},
		of("GPU_0_bfc", 0, false, tiles(0x2000000, large, allocated(mib, 900), free(2*mib))),
		of("GPU_collectivememory_0_bfc", 0, false, tiles(0x3000000, large, free(3*mib))),
		of("xla_gpu_host_bfc", 0, true, tiles(0x4000000, large, free(mib))),
		of("GPU_1_bfc", 1, false),
	}}
	s := New(m)
	require.Equal(t, []figures.TorchMemory{
		{Reserved: mib, Allocated: mib, Requested: 1000},
		{Reserved: 6 * mib, Allocated: mib, Requested: 900, InactiveSplit: 2 * mib, Free: 3 * mib, Largest: 3 * mib, Allocator: allocator.BFC},
		{Device: 1, Allocator: allocator.BFC},
	}, s.Torch())
	require.Equal(t, []any{allocator.BFC, "xla_gpu_host_bfc", true}, []any{s.Devices[3].Allocator, s.Devices[3].Name, s.Devices[3].Host})
	require.EqualValues(t, 3*mib, s.Devices[2].LargestFree())
}
