// SPDX-License-Identifier: Apache-2.0

//go:build linux

package table

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/allocator"
	"github.com/gputrace/gputrace/analysis/balance"
	"github.com/gputrace/gputrace/analysis/holders"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/inspect"
	scan "github.com/gputrace/gputrace/inspect/holders"
)

// tiles makes a segment of n equal blocks; those whose number is in held are allocated.
func tiles(addr, size uint64, n int, pool inspect.Pool, stream uint64, held ...int) inspect.Segment {
	s := inspect.Segment{Addr: addr, Size: size * uint64(n), Pool: pool, Stream: stream}
	for i := range n {
		s.Blocks = append(s.Blocks, inspect.Block{Addr: addr + uint64(i)*size, Size: size, Stream: stream})
	}
	for _, i := range held {
		s.Blocks[i].State, s.Blocks[i].Requested = inspect.StateAllocated, size-12
	}
	return s
}

func device(number int, segments ...inspect.Segment) inspect.DeviceMap {
	d := inspect.DeviceMap{DeviceTotals: inspect.DeviceTotals{Device: number}, Time: start + uint64(number), Segments: segments}
	for _, s := range segments {
		d.Reserved += s.Size
		for _, b := range s.Blocks {
			if b.State == inspect.StateAllocated {
				d.Allocated += b.Size
			}
		}
	}
	return d
}

// odds have one segment of each kind, and texts that a program could choose.
func odds() *inspect.Map {
	waiting := tiles(0x7f0000600000, mib, 2, inspect.Pool{Small: true}, 0x55b7f448d430)
	waiting.Blocks[0].State, waiting.Blocks[0].Requested = inspect.StatePending, 1000
	wrong := device(2, tiles(0x7e0000000000, 512, 4, inspect.Pool{Small: true}, 0, 0))
	wrong.Reserved, wrong.Allocated = wrong.Reserved+512, wrong.Allocated-512
	return &inspect.Map{Devices: []inspect.DeviceMap{
		device(0,
			tiles(0x7f0000000000, mib, 10, inspect.Pool{}, 0, 1, 3, 5, 7, 9),
			tiles(0x7f0000600000-20*mib, 20*mib, 1, inspect.Pool{}, 0, 0),
			waiting,
			tiles(0x7f1000000000, 300*gib, 1, inspect.Pool{ID: [2]uint64{1<<64 - 1, 1 << 63}}, 1<<47-1),
		),
		device(1),
		wrong,
	}}
}

// crowd has more segments than are shown.
func crowd() *inspect.Map {
	var segments []inspect.Segment
	for i := range 14 {
		segments = append(segments, tiles(0x7f0000000000+uint64(i)<<24, mib, 3+i, inspect.Pool{}, 0, 1))
	}
	return &inspect.Map{Devices: []inspect.DeviceMap{device(0, segments...)}}
}

// busy has parts that changed while they were read: of one device between bounds, of another to the byte.
func busy() *inspect.Map {
	part := func(s *inspect.Segment, i int) { s.Blocks[i].State, s.Blocks[i].Requested = inspect.StateChanging, 0 }
	first, second := tiles(0x7f0000000000, mib, 10, inspect.Pool{}, 0, 1, 3), tiles(0x7f0001000000, 4*mib, 1, inspect.Pool{}, 0)
	part(&first, 5)
	part(&second, 0)
	m := &inspect.Map{Devices: []inspect.DeviceMap{device(0, first, second), device(1, second)}}
	for i := range m.Devices {
		d := &m.Devices[i]
		d.Allocated += mib
		d.Active = d.Allocated
	}
	m.Devices[0].Changing = &inspect.Changing{BlocksLow: 1, BlocksHigh: 3, BytesLow: mib, BytesHigh: 2 * mib, Ranges: 2, RangeBytes: 5 * mib}
	m.Devices[1].Changing = &inspect.Changing{BlocksLow: 1, BlocksHigh: 1, BytesLow: mib, BytesHigh: mib, Ranges: 1, RangeBytes: 4 * mib}
	return m
}

func TestDump(t *testing.T) {
	for name, m := range map[string]*inspect.Map{"odds": odds(), "crowd": crowd(), "busy": busy(), "nothing": {}} {
		t.Run(name, func(t *testing.T) {
			in := DumpInput{State: allocator.New(m), PID: 4821, Command: "python train.py", Boot: time.Unix(0, 0).UTC()}
			goldens(t, "dump."+name, func(w io.Writer, width int) error {
				in.Width = width
				return Dump(w, in)
			})
		})
	}
}

// ofBFC are the allocators of a program of TensorFlow or JAX.
func ofBFC() *inspect.Map {
	gpu := device(0, tiles(0x7f0000000000, mib, 10, inspect.Pool{}, 0, 1, 3, 5), tiles(0x7f0010000000, 8*mib, 1, inspect.Pool{}, 0))
	busy := device(1, tiles(0x7f0020000000, mib, 4, inspect.Pool{}, 0, 0))
	busy.Segments[0].Blocks[3].State = inspect.StateChanging
	busy.Changing = &inspect.Changing{BlocksLow: 1, BlocksHigh: 2, BytesLow: 512, BytesHigh: 512, Ranges: 1, RangeBytes: mib}
	busy.Allocated += 512
	host := device(0, tiles(0x7f0030000000, mib, 2, inspect.Pool{}, 0, 0, 1))
	gpu.Name, busy.Name, host.Name, host.Host = "GPU_0_bfc", "GPU_1_bfc", "xla_gpu_host_bfc\x1b", true
	return &inspect.Map{Devices: []inspect.DeviceMap{gpu, busy, host}}
}

// TestDumpBFC: the map of TensorFlow's and JAX's allocators has regions, no pools and no streams, and host memory apart.
func TestDumpBFC(t *testing.T) {
	state := allocator.New(ofBFC())
	var held []scan.Block
	for _, b := range state.Devices[0].Segments[0].Pins()[:2] {
		held = append(held, scan.Block{Block: b, Category: scan.CategoryTensor, Path: scan.Path{{Kind: scan.StepModule, Name: "params"}}})
	}
	use := figures.DriverUse{Used: 301 * gib, Name: "NVIDIA H200", Total: 400 * gib, All: 350 * gib}
	in := DumpInput{
		State: state, PID: 4821, Command: "python train.py", Boot: time.Unix(0, 0).UTC(), Frameworks: "JAX 0.10.2",
		Notes: []string{"one is missing"}, Balance: balance.New(&balance.Input{Torch: state.Torch(), Driver: []figures.DriverUse{use}}),
		Holders: holders.New(&scan.Report{Blocks: held}),
	}
	goldens(t, "dump.bfc", func(w io.Writer, width int) error {
		in.Width = width
		return Dump(w, in)
	})
	require.Equal(t, "beside BFC", restName(&in.Balance.Devices[0]))
}

// TestDumpBalance: the driver's figures, as far as there are any.
func TestDumpBalance(t *testing.T) {
	state := allocator.New(odds())
	says := func(device int, used uint64) figures.DriverUse {
		return figures.DriverUse{Device: device, Used: figures.Bytes(used), Name: "NVIDIA H200", UUID: "GPU-\x1b1", Total: 400 * gib,
			All: 350 * gib}
	}
	blind := says(0, event.Unknown)
	blind.Why = "NVML does not list the process"
	for name, in := range map[string]balance.Input{
		"driver": {Driver: []figures.DriverUse{says(0, 301*gib), says(1, 500*mib), says(2, 1024)}},
		"blind":  {Driver: []figures.DriverUse{blind}},
		"none":   {DriverWhy: "NVML is not there"},
		"unplaced": {Driver: []figures.DriverUse{says(-1, 301*gib), says(-1, 2*gib)}, DriverWhy: "which device is which is not known",
			Moved: true},
	} {
		t.Run(name, func(t *testing.T) {
			in.Torch = state.Torch()
			dump := DumpInput{State: state, PID: 4821, Command: "python train.py", Boot: time.Unix(0, 0).UTC(), Balance: balance.New(&in), Top: 1}
			goldens(t, "dump.balance."+name, func(w io.Writer, width int) error {
				dump.Width = width
				return Dump(w, dump)
			})
		})
	}
}

func TestDumpTop(t *testing.T) {
	var buf bytes.Buffer
	require.NoError(t, Dump(&buf, DumpInput{State: allocator.New(crowd()), Top: 14}))
	require.NotContains(t, buf.String(), "more segment")
	require.Equal(t, 14, strings.Count(buf.String(), "pinned"))
}

func TestDumpError(t *testing.T) {
	require.ErrorIs(t, Dump(fullDisk{}, DumpInput{State: allocator.New(crowd())}), errFull)
}

// TestDumpHolders: the blocks that pin a segment are named, as far as they are the same ones.
func TestDumpHolders(t *testing.T) {
	m := odds()
	var held []scan.Block
	for i, b := range m.Devices[0].Segments[0].Blocks[:6] {
		if b.State == inspect.StateAllocated {
			path := scan.Path{{Kind: scan.StepModule, Name: "__main__"}, {Kind: scan.StepAttribute, Name: "kept\x1b"},
				{Kind: scan.StepIndex, Index: int64(i)}}
			held = append(held, scan.Block{Block: b, Category: scan.CategoryTensor, Path: path})
		}
	}
	held[1].Requested++ // another block by now
	held[2].Path[1].Name = strings.Repeat("long", 100)
	for name, in := range map[string]DumpInput{
		"holders": {Holders: holders.New(&scan.Report{Blocks: held})}, "holders.none": {HoldersWhy: "no Python\x1b to read"},
	} {
		in.State, in.Top, in.Boot = allocator.New(m), 2, time.Unix(0, 0).UTC()
		goldens(t, "dump."+name, func(w io.Writer, width int) error {
			in.Width = width
			return Dump(w, in)
		})
	}
}
