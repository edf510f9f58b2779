// SPDX-License-Identifier: Apache-2.0

//go:build linux

package snapshot

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/allocator"
	"github.com/gputrace/gputrace/event"
	allocators "github.com/gputrace/gputrace/event/allocator"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/inspect"
	"github.com/gputrace/gputrace/recording/pytorch"
)

// pools are two allocators of a device and one of host memory, as inspect/bfc reads them.
func pools() *inspect.Map {
	of := func(name string, device int, host bool, at uint64) inspect.DeviceMap {
		return inspect.DeviceMap{
			DeviceTotals: inspect.DeviceTotals{Device: device, Allocated: 512, Reserved: 2048}, Active: 512, Name: name, Host: host,
			Segments: []inspect.Segment{
				{Addr: at, Size: 1024, Blocks: []inspect.Block{
					{Addr: at, Size: 512, Requested: 500, ID: at >> 12, State: inspect.StateAllocated}, {Addr: at + 512, Size: 512},
				}},
				{Addr: at + 0x10000, Size: 1024, Blocks: []inspect.Block{{Addr: at + 0x10000, Size: 1024}}},
			},
		}
	}
	return &inspect.Map{Devices: []inspect.DeviceMap{
		of("xla_gpu_host_bfc", 0, true, 0x100000), of("GPU_0_bfc", 0, false, 0x200000), of("GPU_1_bfc", 1, false, 0x300000),
	}}
}

// TestBFC: CPython reads the regions as segments, with the allocator's name and the number of each allocation. Host memory has a number of
// its own, and gputrace takes none of it for PyTorch's.
func TestBFC(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, Write(&out, allocator.New(pools())))
	var got struct {
		Segments []struct {
			Device int
			Frames []struct{ Filename, Name string }
			Blocks []struct {
				State string
				ID    uint64 `json:"allocation_id"`
			}
		}
		Traces    [][]int `json:"device_traces"`
		Allocator string
		Host      int `json:"host_devices_from"`
	}
	python(t, readValue, out.Bytes(), &got)
	require.Len(t, got.Traces, 3)
	require.Equal(t, []any{"BFC", 2}, []any{got.Allocator, got.Host})
	require.Equal(t, []int{2, 2, 0, 0, 1, 1}, []int{got.Segments[0].Device, got.Segments[1].Device, got.Segments[2].Device,
		got.Segments[3].Device, got.Segments[4].Device, got.Segments[5].Device})
	require.Equal(t, "GPU_0_bfc", got.Segments[2].Frames[0].Name)
	require.Equal(t, "host memory", got.Segments[0].Frames[1].Name)
	require.EqualValues(t, 0x200, got.Segments[2].Blocks[0].ID)

	s, err := pytorch.New(&out)
	require.NoError(t, err)
	require.Equal(t, "BFC memory snapshot", s.Info().Name)
	h := heap.New()
	require.NoError(t, h.Replay(s))
	for _, d := range []event.Device{{Type: event.DeviceCUDA}, {Type: event.DeviceCUDA, Index: 1}, {Type: event.DeviceCPU}} {
		d.Type = d.Type.Of(allocators.BFC)
		require.Len(t, h.Segments(0, d), 2, d)
		a, ok := h.Account(0, d)
		require.True(t, ok)
		require.Equal(t, []uint64{512, 500}, []uint64{a.Allocated, a.Live.Requested + a.BeforeBlocks.Requested}, d)
	}
	require.Len(t, h.Totals().Accounts, 3)

	mixed := pools()
	mixed.Devices[0].Name, mixed.Devices[0].Host = "", false
	out.Reset()
	require.NoError(t, Write(&out, allocator.New(mixed)))
	require.NotContains(t, out.String(), "host_devices_from", "PyTorch's and others")
	python(t, readValue, out.Bytes(), &got)
	require.Len(t, got.Segments, 2, "PyTorch's only")
}
