// SPDX-License-Identifier: Apache-2.0

//go:build linux

package json

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/allocator"
	"github.com/gputrace/gputrace/analysis/balance"
	"github.com/gputrace/gputrace/analysis/holders"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/inspect"
	scan "github.com/gputrace/gputrace/inspect/holders"
)

var update = flag.Bool("update", false, "write the golden files anew")

// sample has every state, a private pool, a device without memory, and numbers that a float64 would round.
func sample() Dump {
	m := &inspect.Map{Devices: []inspect.DeviceMap{
		{
			DeviceTotals: inspect.DeviceTotals{Device: 0, Allocated: 512, Reserved: 1<<21 + 1024}, Time: 1500 * uint64(time.Millisecond),
			Segments: []inspect.Segment{
				{Addr: 0x7f0000000000, Size: 1 << 21, Pool: inspect.Pool{Small: true}, Blocks: []inspect.Block{
					{Addr: 0x7f0000000000, Size: 512, Requested: 4, State: inspect.StateAllocated},
					{Addr: 0x7f0000000200, Size: 512, Requested: 1, State: inspect.StatePending},
					{Addr: 0x7f0000000400, Size: 1<<21 - 1024},
				}},
				{Addr: 1<<53 + 1, Size: 1024, Stream: 1<<64 - 1, Expandable: true, Pool: inspect.Pool{ID: [2]uint64{1 << 63, 2}},
					Blocks: []inspect.Block{
						{Addr: 1<<53 + 1, Size: 1024, Stream: 1<<64 - 1},
					}},
			},
		},
		{DeviceTotals: inspect.DeviceTotals{Device: 1}, Time: 7},
	}}
	return Dump{State: allocator.New(m), PID: 4821, Command: []string{"python", "a\x1b[2J<b>"}, Boot: time.Unix(1795000000, 0)}
}

// changing has a part that changed while it was read.
func changing() Dump {
	m := &inspect.Map{Devices: []inspect.DeviceMap{{
		DeviceTotals: inspect.DeviceTotals{Allocated: 1024, Reserved: 1 << 21}, Active: 1536, Time: 7,
		Changing: &inspect.Changing{BlocksLow: 2, BlocksHigh: 3, BytesLow: 1024, BytesHigh: 2048, Ranges: 1, RangeBytes: 1<<21 - 1024},
		Segments: []inspect.Segment{{Addr: 1 << 21, Size: 1 << 21, Blocks: []inspect.Block{
			{Addr: 1 << 21, Size: 512, Requested: 4, State: inspect.StateAllocated},
			{Addr: 1<<21 + 512, Size: 512},
			{Addr: 1<<21 + 1024, Size: 1<<21 - 1024, State: inspect.StateChanging},
		}}},
	}}}
	return Dump{State: allocator.New(m), PID: 1, Boot: time.Unix(0, 0)}
}

// balanced has figures of the driver: known, unknown, and of no known device.
func balanced(moved bool) Dump {
	d := sample()
	d.Balance = balance.New(&balance.Input{
		PID: 4821, Torch: d.State.Torch(), DriverWhy: "which device is which is not known", Moved: moved,
		Driver: []figures.DriverUse{
			{Device: 0, Used: 1<<60 + 1, Name: "NVIDIA H200", UUID: "GPU-1", Total: 1 << 61, All: figures.Unknown},
			{Device: 1, Used: 1 << 20, Name: "NVIDIA H200", UUID: "MIG-2", Total: figures.Unknown, All: figures.Unknown},
			{Device: -1, Used: figures.Unknown, Why: "not listed", Total: figures.Unknown, All: figures.Unknown},
		},
	})
	return d
}

// named has a holder of its first block, and one of its second as that was at another moment.
func named() Dump {
	d := sample()
	path := scan.Path{{Kind: scan.StepModule, Name: "__main__"}, {Kind: scan.StepAttribute, Name: "loss"}}
	blocks := []scan.Block{
		{Block: d.State.Devices[0].Segments[0].Blocks[0], Category: scan.CategoryTensor, Path: path},
		{Block: d.State.Devices[0].Segments[0].Blocks[1], Category: scan.CategoryTensor, Path: path},
	}
	blocks[1].State = inspect.StateAllocated
	d.Holders = holders.New(&scan.Report{Blocks: blocks})
	return d
}

// regions are allocators of JAX, on a device and in host memory.
func regions() Dump {
	block := inspect.Block{Addr: 1 << 30, Size: 512, Requested: 500, ID: 7, State: inspect.StateAllocated}
	of := func(name string, host bool) inspect.DeviceMap {
		return inspect.DeviceMap{
			DeviceTotals: inspect.DeviceTotals{Allocated: 512, Reserved: 512}, Active: 512, Name: name, Host: host,
			Segments: []inspect.Segment{{Addr: 1 << 30, Size: 512, Blocks: []inspect.Block{block}}},
		}
	}
	state := allocator.New(&inspect.Map{Devices: []inspect.DeviceMap{of("xla_gpu_host_bfc", true), of("GPU_0_bfc", false)}})
	use := figures.DriverUse{Used: 1000, Total: figures.Unknown, All: figures.Unknown}
	return Dump{State: state, PID: 1, Boot: time.Unix(0, 0), Notes: []string{"one is missing"},
		Balance: balance.New(&balance.Input{PID: 1, Torch: state.Torch(), Driver: []figures.DriverUse{use}})}
}

func TestWriteDump(t *testing.T) {
	unnamed := sample()
	unnamed.HoldersWhy = "no Python to read"
	for name, d := range map[string]Dump{
		"names": named(), "names.none": unnamed, "busy": changing(), "bfc": regions(),
		"all": sample(), "nothing": {State: allocator.New(&inspect.Map{}), PID: 1}, "balance": balanced(true),
	} {
		t.Run(name, func(t *testing.T) {
			var buf bytes.Buffer
			require.NoError(t, WriteDump(&buf, d))
			require.Equal(t, 1, strings.Count(buf.String(), "\n"))
			require.NotContains(t, buf.String(), "\x1b")
			cmd := exec.Command("python3", "-m", "json.tool")
			cmd.Stdin = &buf
			got, err := cmd.Output()
			require.NoError(t, err)
			file := filepath.Join("testdata", "dump."+name+".golden")
			if *update {
				require.NoError(t, os.MkdirAll("testdata", 0o755))
				require.NoError(t, os.WriteFile(file, got, 0o644))
			}
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, string(want), string(got))
		})
	}
}

type fullDisk struct{}

var errFull = errors.New("full")

func (fullDisk) Write([]byte) (int, error) { return 0, errFull }

func TestWriteDumpError(t *testing.T) {
	require.ErrorIs(t, WriteDump(fullDisk{}, sample()), errFull)
}
