// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package local

import (
	"context"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/inspect"
	"github.com/gputrace/gputrace/internal/nvml"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/recorder"
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
		{Device: -1, Used: figures.Unknown, Why: nvml.ErrNotListed.Error(), Name: "NVIDIA H200", UUID: "GPU-1", Total: 3 << 30,
			All: figures.Unknown},
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

// TestPlace: what calls do not say of the device is cuda:0 where the process can have no other, and stays unknown elsewhere.
func TestPlace(t *testing.T) {
	one, two := &nvml.Reading{Devices: []nvml.Device{*h200(0)}}, &nvml.Reading{Devices: []nvml.Device{*h200(0), *h200(1)}}
	first, second := nvml.Use{Ordinal: 0}, nvml.Use{Ordinal: 1}
	require.True(t, seesOne(one, nil, true), "whatever the program does to CUDA_VISIBLE_DEVICES")
	require.True(t, seesOne(two, []nvml.Use{first}, false))
	require.False(t, seesOne(two, []nvml.Use{first}, true), "it may still make others visible")
	require.False(t, seesOne(two, []nvml.Use{{Ordinal: -1}}, false))
	require.False(t, seesOne(two, []nvml.Use{first, second}, false))

	unknown := event.Device{Type: event.DeviceCUDA, Index: -1}
	in := []event.Event{
		{PID: 1, Layer: event.LayerDevice, Device: unknown},
		{PID: 1, Layer: event.LayerDevice, Device: event.Device{Type: event.DeviceCUDA, Index: 1}},
		{PID: 1, Layer: event.LayerHost, Device: unknown}, {PID: 2, Layer: event.LayerDevice, Device: unknown},
		{PID: 3, Layer: event.LayerDevice, Device: unknown},
		{PID: 1, Layer: event.LayerDevice, Device: event.Device{Type: event.DeviceHIP, Index: -1}},
	}
	look := &firstLook{done: make(chan struct{}), single: true}
	l := &live{inspectors: map[uint32]*inspector{1: {first: look}, 2: {first: &firstLook{done: look.done}}}}
	before := slices.Clone(in)
	l.place(in)
	require.Equal(t, before, in, "the driver has not answered")
	l.patience = time.Millisecond
	l.place(in)
	require.Equal(t, before, in, "nor soon enough")
	require.LessOrEqual(t, l.patience, time.Duration(0))
	l.patience = time.Hour
	time.AfterFunc(10*time.Millisecond, func() { close(look.done) })
	l.place(in)
	before[0].Device.Index = 0
	require.Equal(t, before, in)
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
		Before: inspect.DeviceTotals{Device: 1, Allocated: 512, Reserved: 2048}, After: inspect.DeviceTotals{Device: 1, Allocated: 512,
			Reserved: 2048},
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

// used is a reading of one device on which the driver lists a process of this machine, with other processes.
func used(p *process.Process, bytes uint64, others ...nvml.Process) *nvml.Reading {
	return &nvml.Reading{Driver: "580.65", Devices: []nvml.Device{
		{MIG: -1, Name: "NVIDIA H200", UUID: "GPU-1", Total: 3 << 30, Used: 99,
			Processes: append([]nvml.Process{{PID: uint32(p.PID), Used: bytes}}, others...)},
	}}
}

// TestReadMemory: driver and allocator of the same moment, which is when the driver says the same before and after.
func TestReadMemory(t *testing.T) {
	t.Parallel()
	p := program(t, "trainer", "libcuda.so.1")
	state := &madeState{
		totals: []inspect.DeviceTotals{{Device: 0, Allocated: 512, Reserved: 4096}}, limits: [][]uint64{{}, {77, 78}},
		sizes: []uint64{0, 1 << 30},
		segments: []inspect.Segment{
			{Addr: 0x1000, Size: 2048, Pool: inspect.Pool{ID: [2]uint64{0, 3}},
				Blocks: []inspect.Block{{Addr: 0x1000, Size: 512, State: inspect.StateAllocated}, {Addr: 0x1200, Size: 1536}}},
			{Addr: 0x9000, Size: 2048, Blocks: []inspect.Block{{Addr: 0x9000, Size: 2048}}},
		},
	}
	before := bootTime()
	m := readMemory(t.Context(), p, driverOf(used(p, 7), used(p, 8),
		used(p, 9, nvml.Process{PID: 1 << 21, Used: 5}, nvml.Process{PID: 1<<21 + 1, Used: nvml.Unknown})), state).Memory()
	require.Equal(t, 3, state.reads, "until the driver's figures stand still")
	require.False(t, m.Moved)
	require.True(t, m.HasTorch)
	require.Len(t, m.Torch, 1)
	require.EqualValues(t, 512, m.Torch[0].Allocated)
	require.True(t, before <= m.Time && m.Time <= bootTime())
	require.Equal(t, []figures.Limit{{Device: 1, Bytes: 77}, {Device: 1, Bytes: 78}}, m.Limits)
	require.Equal(t, []figures.DeviceSize{{Device: 1, Bytes: 1 << 30}}, m.Sizes)
	require.Equal(t, []figures.Range{{Device: 0, Addr: 0x1000, Size: 2048, Pool: [2]uint64{0, 3}}}, m.Private)
	require.Len(t, m.Driver, 1)
	if m.Driver[0].Used == figures.Unknown && nvml.InnerNamespace() {
		return // the driver's numbers would be those of the host
	}
	require.EqualValues(t, 9, m.Driver[0].Used)
	require.Equal(t, []figures.Processes{{Device: 0,
		By: []figures.ProcessUse{{PID: 1 << 21, Used: 5}, {PID: 1<<21 + 1, Used: figures.Unknown}}}}, m.Others)
}

// TestReadMemoryMoving: figures that never stand still are given up after some tries, and said to have moved.
func TestReadMemoryMoving(t *testing.T) {
	t.Parallel()
	p := program(t, "trainer", "libcuda.so.1")
	var readings []*nvml.Reading
	for i := range uint64(2 * readingTries) {
		readings = append(readings, used(p, i+1))
	}
	state := &madeState{}
	require.True(t, readMemory(t.Context(), p, driverOf(readings...), state).Memory().Moved)
	require.Equal(t, readingTries, state.reads)

	state.reads = 0
	ctx, cancel := context.WithCancel(t.Context())
	state.called = cancel
	require.True(t, readMemory(ctx, p, driverOf(readings...), state).moved)
	require.Equal(t, 1, state.reads, "nobody waits for it any more")
}

// TestReadMemoryParts: without the driver there is the allocator, and without the allocator the driver. A state that was read stays when
// a later reading fails.
func TestReadMemoryParts(t *testing.T) {
	t.Parallel()
	p := program(t, "trainer", "libcuda.so.1")
	gone := &Driver{opened: make(chan struct{}), err: nvml.ErrNoLibrary}
	close(gone.opened)
	state := &madeState{totals: []inspect.DeviceTotals{{Allocated: 512, Reserved: 512}}}
	m := readMemory(t.Context(), p, gone, state).Memory()
	require.ErrorIs(t, m.DriverErr, nvml.ErrNoLibrary)
	require.Empty(t, m.Driver)
	require.True(t, m.HasTorch)
	require.Equal(t, 1, state.reads)

	m = readMemory(t.Context(), p, driverOf(used(p, 7)), nil).Memory()
	require.False(t, m.HasTorch)
	require.NoError(t, m.TorchErr)
	require.Len(t, m.Driver, 1)
	require.Nil(t, m.Private, "they were not read")
	require.Len(t, ReadMemory(t.Context(), p, driverOf(used(p, 7)), nil).uses, 1)

	no := errors.New("it changed")
	m = readMemory(t.Context(), p, driverOf(used(p, 7)), &madeState{err: no}).Memory()
	require.ErrorIs(t, m.TorchErr, no)
	require.False(t, m.HasTorch)
	state = &madeState{totals: state.totals, err: no, errs: []error{nil}}
	m = readMemory(t.Context(), p, driverOf(used(p, 7), used(p, 8)), state).Memory()
	require.True(t, m.HasTorch)
	require.NoError(t, m.TorchErr)
}

// TestFresh: a process has no device memory yet when it has not loaded the driver, or the driver knows its devices and lists it on none.
func TestFresh(t *testing.T) {
	t.Parallel()
	cpu, gpu := program(t, "cpuprogram"), program(t, "gpuprogram", "libcuda.so.1")
	require.True(t, loadsDriver(gpu))
	require.False(t, loadsDriver(cpu))
	fresh := func(p *process.Process, d *Driver) bool {
		i := newInspector(t.Context(), p, d)
		return i.Memory(t.Context()).Fresh
	}
	silent := driverOf(&nvml.Reading{Devices: []nvml.Device{{MIG: -1, Err: errors.New("not supported")}}})
	require.True(t, fresh(cpu, silent))
	require.False(t, fresh(gpu, silent), "it cannot say")
	require.False(t, fresh(gpu, driverOf(&nvml.Reading{})), "there is no device that it could be listed on")
	require.True(t, fresh(gpu, driverOf(&nvml.Reading{Devices: []nvml.Device{{MIG: -1}}})))
	require.False(t, fresh(gpu, driverOf(used(gpu, 7))))

	i := newInspector(t.Context(), gpu, driverOf(used(gpu, 7)))
	<-i.first.done
	version, devices := i.Driver()
	require.Equal(t, "580.65", version)
	require.Equal(t, []string{"cuda:0 NVIDIA H200 3.0 GiB"}, devices)
}

// TestInspector: the allocator is found once, and its figures are those of the recorder's forms.
func TestInspector(t *testing.T) {
	t.Parallel()
	p := program(t, "trainer", "libcuda.so.1")
	i := newInspector(t.Context(), p, driverOf(&nvml.Reading{}))
	found := 0
	state := &madeState{totals: []inspect.DeviceTotals{{Device: 1, Allocated: 512, Reserved: 2048}}}
	i.find = func(*process.Process) (stateReader, error) { found++; return state, nil }
	require.False(t, i.Memory(t.Context()).HasTorch, "it was not found so far")
	totals, err := i.Totals(t.Context())
	require.NoError(t, err)
	require.Equal(t, []recorder.Totals{{Device: 1, Allocated: 512, Reserved: 2048}}, totals)
	got, err := i.AllocatorState(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 9, got.Until)
	require.Len(t, got.Devices, 1)
	require.EqualValues(t, 512, got.Devices[0].Allocated)
	require.EqualValues(t, p.PID, got.Devices[0].PID)
	require.True(t, i.Memory(t.Context()).HasTorch)
	require.Equal(t, 1, found)

	state.err = inspect.ErrOtherBackend
	_, err = i.Totals(t.Context())
	require.ErrorIs(t, err, reconcile.ErrNoState)
	require.ErrorIs(t, err, inspect.ErrOtherBackend)
	state.err = errors.New("it changed")
	_, err = i.AllocatorState(t.Context())
	require.ErrorIs(t, err, state.err)
	require.NotErrorIs(t, err, reconcile.ErrNoState)
	_, err = i.Holders(t.Context())
	require.ErrorIs(t, err, reconcile.ErrNoState, "there is no PyTorch in it")

	i.use <- struct{}{} // somebody reads
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	require.ErrorIs(t, i.Memory(ctx).TorchErr, context.DeadlineExceeded)
	<-i.use
	_, err = i.Totals(t.Context())
	require.ErrorIs(t, err, state.err, "the reading before has ended")
	require.Empty(t, i.use)
}
