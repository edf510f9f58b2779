// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

package local

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/inspect"
	"github.com/gputrace/gputrace/internal/nvml"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/recorder/reconcile"
)

func h200(index int) *nvml.Device {
	return &nvml.Device{Index: index, MIG: -1, Name: "NVIDIA H200", UUID: "GPU-1", Total: 3 << 30, Used: nvml.Unknown}
}

func TestReadingInput(t *testing.T) {
	m := &Reading{
		moved: true, driverErr: nvml.ErrOrder,
		uses: []nvml.Use{{Ordinal: 1, Device: h200(0), Used: 7}, {Ordinal: -1, Device: h200(1), Used: nvml.Unknown, Err: nvml.ErrNotListed}},
	}
	in := m.Memory().Input(4711)
	require.EqualValues(t, 4711, in.PID)
	require.True(t, in.Moved)
	require.Equal(t, nvml.ErrOrder.Error(), in.DriverWhy)
	require.Nil(t, in.Torch)
	require.Equal(t, []figures.DriverUse{
		{Device: 1, Used: 7, Name: "NVIDIA H200", UUID: "GPU-1", Total: 3 << 30, All: figures.Unknown},
		{Device: -1, Used: figures.Unknown, Why: nvml.ErrNotListed.Error(), Name: "NVIDIA H200", UUID: "GPU-1", Total: 3 << 30, All: figures.Unknown},
	}, in.Driver)
}

func TestSameUse(t *testing.T) {
	use := nvml.Use{Ordinal: 1, Device: h200(0), Used: 7}
	for name, change := range map[string]func(u *nvml.Use){
		"ordinal": func(u *nvml.Use) { u.Ordinal++ },
		"used":    func(u *nvml.Use) { u.Used++ },
		"device":  func(u *nvml.Use) { u.Device = h200(1) },
	} {
		other := use
		require.True(t, sameUse(use, other))
		change(&other)
		require.False(t, sameUse(use, other), name)
	}
}

func TestFirstLook(t *testing.T) {
	l := &firstLook{done: make(chan struct{}), version: "580.65", seen: []nvml.Use{{Device: h200(0)}, {Ordinal: -1, Device: h200(1)}, {}, {}}}
	version, devices := l.known()
	require.Empty(t, version)
	require.Empty(t, devices)
	close(l.done)
	version, devices = l.known()
	require.Equal(t, "580.65", version)
	require.Equal(t, []string{"cuda:0 NVIDIA H200 3.0 GiB", "cuda:? NVIDIA H200 3.0 GiB", "and 2 more"}, devices)
}

func TestLoadsDriver(t *testing.T) {
	p, err := process.Open(os.Getpid())
	require.NoError(t, err)
	require.False(t, loadsDriver(p))
}

// TestHangingDriver: a driver that never answers keeps nobody waiting.
func TestHangingDriver(t *testing.T) {
	p, err := process.Open(os.Getpid())
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	i := newInspector(ctx, p, &Driver{opened: make(chan struct{})})
	m := i.Memory(ctx)
	require.ErrorIs(t, m.DriverErr, context.DeadlineExceeded)
}

// TestAllocatorInUse: one reading at a time; whoever waits does so no longer than asked.
func TestAllocatorInUse(t *testing.T) {
	p, err := process.Open(os.Getpid())
	require.NoError(t, err)
	i := newInspector(t.Context(), p, OpenDriver())
	_, err = i.Totals(t.Context())
	require.ErrorIs(t, err, reconcile.ErrNoState, "this program has no PyTorch")
	require.ErrorIs(t, err, inspect.ErrNoAllocator)
	i.use <- struct{}{}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err = i.AllocatorState(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestObservation(t *testing.T) {
	sweep := &inspect.DeviceSweep{
		Before: inspect.DeviceTotals{Device: 1, Allocated: 512, Reserved: 2048}, After: inspect.DeviceTotals{Device: 1, Allocated: 512, Reserved: 2048},
		Window: inspect.Window{From: 3, To: 9, Settled: true}, Balanced: true,
		Segments: []inspect.Segment{{Addr: 0x1000, Size: 2048, Expandable: true, Blocks: []inspect.Block{
			{Addr: 0x1000, Size: 512, Requested: 500, Stream: 4, State: inspect.StateAllocated},
			{Addr: 0x1200, Size: 512, Requested: 512, State: inspect.StatePending}, {Addr: 0x1400, Size: 1024},
		}}},
	}
	cuda1 := event.Device{Type: event.DeviceCUDA, Index: 1}
	want := event.Observation{
		PID: 7, Device: cuda1, From: 3, To: 9, Blocks: []event.ObservedBlock{{Addr: 0x1000, Size: 512, Requested: 500, Stream: 4}},
		Segments: []event.ObservedSegment{{Addr: 0x1000, Size: 2048, Expandable: true}}, Allocated: 512, Reserved: 2048,
	}
	require.Equal(t, want, observation(7, sweep))

	sweep.Balanced = false // segments can be there in parts
	want.Segments, want.Reserved = nil, event.Unknown
	require.Equal(t, want, observation(7, sweep))
	sweep.Window.Settled = false // a change may be on its way
	want.Allocated = event.Unknown
	require.Equal(t, want, observation(7, sweep))
	sweep.Window.Settled, sweep.After.Allocated = true, 1024
	require.Equal(t, want, observation(7, sweep))
}
