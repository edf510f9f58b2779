// SPDX-License-Identifier: Apache-2.0

//go:build linux

package allocator

import (
	"testing"

	"github.com/stretchr/testify/require"

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
	for n, want := range [][]uint64{nil, {0x4000000}, {0x4000000, 0x1000000}, {0x4000000, 0x1000000, 0x9000000}, {0x4000000, 0x1000000, 0x9000000, 0x8000000}} {
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
