// SPDX-License-Identifier: Apache-2.0

//go:build linux

package allocator

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/inspect"
)

// streamed puts a block on another stream.
func streamed(stream uint64, b inspect.Block) inspect.Block {
	b.Stream = stream
	return b
}

func TestInactiveByPool(t *testing.T) {
	m := &inspect.Map{Devices: []inspect.DeviceMap{{Segments: []inspect.Segment{
		tiles(0x1000000, private, free(4*mib), free(6*mib)), // free as a whole: no inactive split
		tiles(0x2000000, large, allocated(10*mib, 10*mib)),
		tiles(0x4000000, large, free(3*mib), allocated(2*mib, 2*mib), free(15*mib), streamed(5, free(7*mib))),
		tiles(0x8000000, small, pending(512), free(512), allocated(512, 4), free(2048), allocated(512, 4), free(2047*512)),
	}}}}
	d := New(m).Devices[0]
	require.Equal(t, []InactiveSplits{
		{Pool: large, Count: 2, Bytes: 18 * mib, Largest: 15 * mib, Classes: []SizeClass{
			{From: 2 * mib, Below: 8 * mib, Count: 1, Bytes: 3 * mib, Largest: 3 * mib},
			{From: 8 * mib, Below: 32 * mib, Count: 1, Bytes: 15 * mib, Largest: 15 * mib},
		}},
		{Pool: large, Stream: 5, Count: 1, Bytes: 7 * mib, Largest: 7 * mib, Classes: []SizeClass{
			{From: 2 * mib, Below: 8 * mib, Count: 1, Bytes: 7 * mib, Largest: 7 * mib},
		}},
		{Pool: small, Count: 3, Bytes: 2052 * 512, Largest: 2047 * 512, Classes: []SizeClass{
			{From: 512, Below: 2048, Count: 1, Bytes: 512, Largest: 512},
			{From: 2048, Below: 8192, Count: 1, Bytes: 2048, Largest: 2048},
			{From: mib / 2, Below: 2 * mib, Count: 1, Bytes: 2047 * 512, Largest: 2047 * 512},
		}},
	}, d.InactiveByPool())

	// They are the inactive splits that the sums of the device count.
	d = New(sample()).Devices[0]
	var count, bytes, largest uint64
	for _, h := range d.InactiveByPool() {
		for _, c := range h.Classes {
			require.Less(t, c.Largest, c.Below)
			require.GreaterOrEqual(t, c.Largest, c.From)
			count, bytes, largest = count+c.Count, bytes+c.Bytes, max(largest, c.Largest)
		}
	}
	require.Equal(t, []uint64{d.InactiveSplitCount, d.Memory.InactiveSplit, d.LargestInactiveSplit}, []uint64{count, bytes, largest})
}

func TestInactiveOfAnySize(t *testing.T) {
	for _, size := range []uint64{0, 1, 511, 512, 1<<61 - 1, 1 << 61, 1<<64 - 1} {
		var h InactiveSplits
		h.add(size)
		require.Len(t, h.Classes, 1)
		require.Equal(t, size, h.Classes[0].Largest)
		require.GreaterOrEqual(t, size, h.Classes[0].From)
	}
}

// TestInactiveOfOneClass: splits of one class of sizes are added up.
func TestInactiveOfOneClass(t *testing.T) {
	var h InactiveSplits
	for _, size := range []uint64{512, 3072, 1024, 2048} {
		h.add(size)
	}
	require.Equal(t, InactiveSplits{Count: 4, Bytes: 6656, Largest: 3072, Classes: []SizeClass{
		{From: 512, Below: 2048, Count: 2, Bytes: 1536, Largest: 1024}, {From: 2048, Below: 8192, Count: 2, Bytes: 5120, Largest: 3072},
	}}, h)
}

func TestTorchOfState(t *testing.T) {
	b := New(sample())
	rows := b.Torch()
	require.Len(t, rows, 2)
	m := &b.Devices[0].Memory
	require.Equal(t, []uint64{m.Reserved, m.Allocated, m.Requested, m.Pending, m.InactiveSplit, m.Free}, []uint64{
		uint64(rows[0].Reserved), uint64(rows[0].Allocated), uint64(rows[0].Requested), uint64(rows[0].Pending),
		uint64(rows[0].InactiveSplit), uint64(rows[0].Free),
	})
	require.Equal(t, figures.TorchMemory{Device: 1}, rows[1])
	d := &rows[0]
	require.Equal(t, d.Reserved, d.Allocated+d.Pending+d.InactiveSplit+d.Free)
	var largest uint64
	for i := range b.Devices[0].Segments {
		for _, block := range b.Devices[0].Segments[i].Blocks {
			if block.State == inspect.StateFree {
				largest = max(largest, block.Size)
			}
		}
	}
	require.EqualValues(t, largest, d.Largest)
	require.NotZero(t, largest)
}

// TestMostSplit: segments that are free as a whole, however large, leave those that are pinned in their places.
func TestMostSplit(t *testing.T) {
	var d DeviceState
	for i, split := range []uint64{0, 5, 0, 9, 1} { // 0: free as a whole
		s := SegmentState{Memory: Memory{Free: 100}}
		if split > 0 {
			s.Memory = Memory{InactiveSplit: split, InactiveSplitCount: 1, LargestInactiveSplit: split, AllocatedCount: uint64(i)}
		}
		d.Segments = append(d.Segments, s)
	}
	var got []uint64
	for _, s := range d.MostSplit(2) {
		got = append(got, s.InactiveSplit)
	}
	require.Equal(t, []uint64{9, 5}, got)
	require.Len(t, d.MostSplit(10), 3)
}
