// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/machine"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/inspect"
	"github.com/gputrace/gputrace/internal/nvml"
	"github.com/gputrace/gputrace/process"
)

// madeState is an allocator with the figures that a test wants.
type madeState struct {
	totals   []inspect.DeviceTotals
	segments []inspect.Segment
	stats    []inspect.MemoryStats
	limits   [][]uint64
	sizes    []uint64
	err      error
	errs     []error // of the next readings of the map, before err
	reads    int     // of the map
	called   func()  // by each reading of the map
}

func (m *madeState) Totals(context.Context) ([]inspect.DeviceTotals, error) { return m.totals, m.err }

func (m *madeState) Sweep(context.Context) (*inspect.Sweep, error) {
	out := &inspect.Sweep{Window: inspect.Window{To: 9}}
	for _, d := range m.totals {
		out.Devices = append(out.Devices, inspect.DeviceSweep{Before: d, After: d, Window: inspect.Window{From: 1, To: 9, Settled: true},
			Balanced: true})
	}
	return out, m.err
}

func (m *madeState) MapNow(context.Context, time.Duration) (*inspect.Map, error) {
	m.reads++
	if m.called != nil {
		m.called()
	}
	err := m.err
	if len(m.errs) > 0 {
		err, m.errs = m.errs[0], m.errs[1:]
	}
	out := &inspect.Map{}
	for _, d := range m.totals {
		out.Devices = append(out.Devices, inspect.DeviceMap{DeviceTotals: d, Segments: m.segments})
	}
	return out, err
}

func (m *madeState) MemoryStats(context.Context) ([]inspect.MemoryStats, error) { return m.stats, nil }
func (m *madeState) Limits(context.Context) ([][]uint64, error)                 { return m.limits, nil }
func (m *madeState) DeviceSizes(context.Context) ([]uint64, error)              { return m.sizes, nil }

// finds returns a finder that knows one allocator.
func finds(m *madeState, err error) finder {
	return func(*process.Process) (stateReader, error) {
		if err != nil {
			return nil, err
		}
		return m, nil
	}
}

// lookFor is a survey, and what it says of one process; nil: nothing.
func lookFor(t *testing.T, p *process.Process, d *Driver, find finder) (*machine.Report, *machine.Process) {
	t.Helper()
	r, err := lookAround(t.Context(), d, func(q *process.Process) (stateReader, error) {
		if q.PID != p.PID {
			return nil, inspect.ErrNoAllocator
		}
		return find(q)
	})
	require.NoError(t, err)
	for _, list := range [][]machine.Process{r.Processes, r.Idle} {
		for i := range list {
			if list[i].PID == p.PID {
				return r, &list[i]
			}
		}
	}
	return r, nil
}

// TestSurvey: a process that has the driver loaded is shown with what its allocator and the driver say, device by device.
func TestSurvey(t *testing.T) {
	t.Parallel()
	p := program(t, "gpuprogram", "libcuda.so.1", "libggml-cuda.so")
	state := &madeState{totals: []inspect.DeviceTotals{{Device: 0, Allocated: 5, Reserved: 8}, {Device: 1}}}
	reading := &nvml.Reading{Devices: []nvml.Device{
		{Index: 0, MIG: -1, Name: "NVIDIA H200", Total: 100, Used: 40, Processes: []nvml.Process{{PID: uint32(p.PID), Used: 12}}},
		{Index: 1, MIG: -1, Name: "NVIDIA L4", Total: 50, Used: nvml.Unknown},
	}}
	r, got := lookFor(t, p, driverOf(reading), finds(state, nil))
	require.NotNil(t, got)
	me, err := user.Current()
	require.NoError(t, err)
	require.Equal(t, []any{os.Getpid(), me.Username, "gpuprogram", true, false, ""},
		[]any{got.Parent, got.User, got.Name, got.Driver, got.Unused, got.Why})
	require.Equal(t, []string{"-c", "echo up; read _", "of a test"}, got.Command[1:])
	require.Equal(t, []string{"llama.cpp"}, got.Frameworks)
	require.Len(t, got.Devices, 1, "a device without memory is none that it uses")
	require.EqualValues(t, 5, got.Devices[0].Allocated)
	require.EqualValues(t, 8, got.Devices[0].Reserved)
	require.Equal(t, []machine.GPU{{Index: 0, Name: "NVIDIA H200", Used: 40, Total: 100},
		{Index: 1, Name: "NVIDIA L4", Used: event.Unknown, Total: 50}}, r.GPUs)
	require.GreaterOrEqual(t, r.Searched, 2)
	require.NotContains(t, append(r.Processes, r.Idle...), os.Getpid())
	if nvml.InnerNamespace() && got.Devices[0].Driver == event.Unknown {
		return // the driver's numbers would be those of the host
	}
	require.EqualValues(t, 12, got.Devices[0].Driver)
	require.Equal(t, "NVIDIA H200", got.Devices[0].Name)
}

// TestSurveyIdle: a process with the runtime or PyTorch alone is shown, its allocator is not looked for, and the driver does not list it;
// one without any of them is not shown.
func TestSurveyIdle(t *testing.T) {
	t.Parallel()
	none := driverOf(&nvml.Reading{})
	for _, library := range []string{"libcudart.so.12", "libtorch_cuda.so"} {
		_, got := lookFor(t, program(t, "idle", library), none, finds(nil, errors.New("it was looked for")))
		require.NotNil(t, got, library)
		require.False(t, got.Driver)
		require.False(t, got.Unused)
		require.Empty(t, got.Why)
		require.Empty(t, got.Devices)
	}
	_, got := lookFor(t, program(t, "cpu", "libother.so"), none, finds(nil, nil))
	require.Nil(t, got)
}

// TestSurveyState: why nothing is known of an allocator's memory, or that there is none.
func TestSurveyState(t *testing.T) {
	t.Parallel()
	torch, other := program(t, "trainer", "libcuda.so.1", "libc10.so"), program(t, "other", "libcuda.so.1")
	none := driverOf(&nvml.Reading{})
	empty := []inspect.DeviceTotals{{Device: 0}}
	for _, c := range []struct {
		name   string
		p      *process.Process
		state  *madeState
		err    error
		unused bool
		why    string
	}{
		{name: "another program", p: other, err: inspect.ErrNoAllocator},
		{name: "without memory", p: torch, state: &madeState{totals: empty}, unused: true},
		{name: "no device yet", p: torch, state: &madeState{}, unused: true},
		{name: "not permitted", p: torch, err: fmt.Errorf("read: %w", process.ErrPermission), why: "not permitted to read its memory"},
		{name: "unknown layout", p: torch, err: errors.New("unknown layout\nmore of it"), why: "unknown layout"},
		{name: "totals", p: torch, state: &madeState{err: errors.New("it changed")}, why: "it changed"},
	} {
		_, got := lookFor(t, c.p, none, finds(c.state, c.err))
		require.NotNil(t, got, c.name)
		require.True(t, got.Driver, c.name)
		require.Equal(t, c.unused, got.Unused, c.name)
		require.Equal(t, c.why, got.Why, c.name)
		require.Empty(t, got.Devices, c.name)
	}
}

// TestSurveyTime: a process whose memory cannot be read in time is shown without its figures.
func TestSurveyTime(t *testing.T) {
	t.Parallel()
	p := program(t, "trainer", "libcuda.so.1")
	ctx, cancel := context.WithCancel(t.Context())
	c := &candidate{process: p, maps: []process.Mapping{}, out: machine.Process{Driver: true}}
	cancel()
	c.readState(ctx, finds(&madeState{err: context.Canceled}, nil))
	require.Equal(t, "its allocator's totals could not be read in time", c.out.Why)
	require.False(t, c.out.Unused)
}

// TestSurveyDriver: what the driver says of a process is added to the row of the device, also of a process that we cannot look into; and
// a figure that it does not have is not known.
func TestSurveyDriver(t *testing.T) {
	t.Parallel()
	p := program(t, "trainer")
	listed := func(used uint64) *nvml.Reading {
		return &nvml.Reading{Devices: []nvml.Device{
			{Index: 0, MIG: -1, Name: "H200", Used: 99, Processes: []nvml.Process{{PID: uint32(p.PID), Used: used}}},
			{Index: 1, MIG: -1, Name: "L4"},
		}}
	}
	c := &candidate{process: p, out: machine.Process{}}
	c.addDriver(nil)
	require.False(t, c.out.Driver)
	c.addDriver(&nvml.Reading{Devices: []nvml.Device{{MIG: -1}}})
	require.False(t, c.out.Driver, "it is not listed")
	c.addDriver(&nvml.Reading{Devices: []nvml.Device{{MIG: -1, Err: errors.New("not supported")}}})
	require.False(t, c.out.Driver, "it is not known whether it is")
	require.Empty(t, c.out.Devices)

	c.addDriver(listed(7))
	require.True(t, c.out.Driver)
	require.Len(t, c.out.Devices, 1)
	require.EqualValues(t, 7, c.out.Devices[0].Driver)
	require.Equal(t, "H200", c.out.Devices[0].Name)
	require.EqualValues(t, event.Unknown, c.out.Devices[0].Allocated)
	require.EqualValues(t, event.Unknown, c.out.Devices[0].Reserved)

	c = &candidate{process: p}
	c.addDriver(listed(nvml.Unknown))
	require.True(t, c.out.Driver, "it is listed without its memory")
	require.EqualValues(t, event.Unknown, c.out.Devices[0].Driver)
}

// TestSurveyDevice: rows are of one device each. A device without a number is the only one that there is, where there is only one.
func TestSurveyDevice(t *testing.T) {
	t.Parallel()
	rows := func() *candidate {
		return &candidate{out: machine.Process{Devices: []machine.Memory{{Device: 0, Allocated: 1}, {Device: 1, Allocated: 2}}}}
	}
	require.EqualValues(t, 2, rows().device(1, 2).Allocated)
	require.EqualValues(t, event.Unknown, rows().device(2, 3).Allocated)
	require.EqualValues(t, event.Unknown, rows().device(-1, 1).Allocated, "which of the two?")
	one := rows()
	one.out.Devices = one.out.Devices[:1]
	require.EqualValues(t, 1, one.device(-1, 1).Allocated)
	require.EqualValues(t, event.Unknown, one.device(-1, 2).Allocated, "which of the two?")
	require.Len(t, one.out.Devices, 2)
}

// TestSurveyMissing: what could not be seen, and why.
func TestSurveyMissing(t *testing.T) {
	t.Parallel()
	require.NotContains(t, fmt.Sprint(missing(nil)), "driver")
	require.Contains(t, missing(fmt.Errorf("start: %w", nvml.ErrNoLibrary)),
		"the driver's own figures are not known: NVML (libnvidia-ml.so.1) is not there")
	require.Contains(t, missing(errors.New("a GPU is lost")), "the driver's own figures are not known: a GPU is lost")
	inner := "this is a container: processes outside of it are not seen"
	require.Equal(t, nvml.InnerNamespace(), slices.Contains(missing(nil), inner))

	p := program(t, "trainer", "libcuda.so.1")
	broken := &Driver{opened: make(chan struct{}), err: nvml.ErrNoLibrary}
	close(broken.opened)
	r, got := lookFor(t, p, broken, finds(nil, inspect.ErrNoAllocator))
	require.NotNil(t, got)
	require.Empty(t, r.GPUs)
	require.Contains(t, r.Missing[0], "NVML (libnvidia-ml.so.1) is not there")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := (&Driver{opened: make(chan struct{})}).reading(ctx)
	require.ErrorIs(t, err, context.Canceled, "a driver that hangs")
}
