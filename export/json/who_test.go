// SPDX-License-Identifier: Apache-2.0

//go:build linux

package json

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/holders"
	"github.com/gputrace/gputrace/inspect"
	scan "github.com/gputrace/gputrace/inspect/holders"
)

// heldReport has a block with everything, one with nothing, and numbers that a float64 would round.
func heldReport() *scan.Report {
	key := scan.Path{{Kind: scan.StepModule, Name: "__main__"}, {Kind: scan.StepAttribute, Name: "model"}}
	path := scan.Path{
		{Kind: scan.StepFrame, Frame: &scan.Frame{Thread: 77, Depth: 2, Function: "main", File: "/job/<a>.py", Line: 9}},
		{Kind: scan.StepLocal, Name: "opt\x1b", Addr: 1<<53 + 1, Type: "AdamW"},
		{Kind: scan.StepKey, KeyKind: scan.KeyObject, KeyAddr: 5, KeyPath: key, KeyType: "Parameter"},
		{Kind: scan.StepKey, KeyKind: scan.KeyString, Name: "exp_avg"},
		{Kind: scan.StepKey, KeyKind: scan.KeyInt},
	}
	tensors := []scan.Tensor{
		{Impl: 1, Object: 2, Class: "Parameter", Shape: []int64{}, DType: "float32", RequiresGrad: scan.Yes, Kind: scan.KindOptimizer},
		{Impl: 1<<64 - 1, RequiresGrad: scan.Unknown},
	}
	full := scan.Block{
		Block:  inspect.Block{Addr: 1<<53 + 1, Size: 3 << 20, Requested: 4, Stream: 1<<64 - 1, State: inspect.StateAllocated},
		Device: 1, Pool: inspect.Pool{Small: true, ID: [2]uint64{1, 2}}, Category: scan.CategoryOptimizer, Path: path, Others: []scan.Path{key},
		Tensors: tensors, Holders: 2, Missing: 1, Complete: scan.No, Confirmed: true, Age: time.Millisecond,
	}
	none := scan.Block{Block: inspect.Block{Addr: 0x200, Size: 512, Requested: inspect.Unknown, State: inspect.StatePending}, Why: "no layout"}
	return &scan.Report{
		PID: 4821, Python: "3.11.7", Torch: "2.15.0", Time: 1500 * uint64(time.Millisecond),
		Devices: []scan.Device{{DeviceTotals: inspect.DeviceTotals{Device: 1, Allocated: 3 << 20, Reserved: 4 << 20}, Active: 3<<20 + 512}},
		Blocks:  []scan.Block{full, none},
		Totals: []scan.Total{{Category: scan.CategoryOptimizer, Blocks: 1, Bytes: 3 << 20},
			{Category: scan.CategoryUnknown, Blocks: 1, Bytes: 512}},
		Notes: []string{"a note"},
		Stats: scan.Stats{BytesRead: 1, BytesHeld: 2, Objects: 3, Native: 4, Frozen: 5, Copy: 6, Confirm: 7, Elapsed: 8},
	}
}

// busy has nothing but what changed while it was read, on two devices.
func busy() *scan.Report {
	c := inspect.Changing{BlocksLow: 2, BlocksHigh: 3, BytesLow: 1024, BytesHigh: 2048, Ranges: 1, RangeBytes: 4096}
	return &scan.Report{
		PID: 4821, Devices: []scan.Device{{Active: 1024, Changing: &c}, {DeviceTotals: inspect.DeviceTotals{Device: 1}, Active: 1024,
			Changing: &c}},
		Totals: []scan.Total{{Category: scan.CategoryChanging, Blocks: 4, Bytes: 2048}},
	}
}

func TestWriteWho(t *testing.T) {
	boot := time.Unix(1795000000, 0)
	for name, w := range map[string]Who{
		"all":     {Holders: holders.New(heldReport()), Command: []string{"python", "a\x1b[2J<b>"}, Boot: boot, Only: -1},
		"one":     {Holders: holders.New(heldReport()), Boot: boot, By: holders.ByDType, Top: 1, Only: 1},
		"nothing": {Holders: holders.New(&scan.Report{PID: 1}), Boot: boot, Only: -1},
		"busy":    {Holders: holders.New(busy()), Boot: boot, By: holders.ByCategory, Only: -1},
	} {
		t.Run(name, func(t *testing.T) {
			var buf bytes.Buffer
			require.NoError(t, WriteWho(&buf, w))
			require.Equal(t, 1, strings.Count(buf.String(), "\n"))
			require.NotContains(t, buf.String(), "\x1b")
			require.NotContains(t, buf.String(), "null")
			require.True(t, json.Valid(buf.Bytes()))
			goldenWho(t, name, buf.Bytes())
		})
	}
}

// goldenWho compares JSON, indented so that a change can be read.
func goldenWho(t *testing.T, name string, text []byte) {
	t.Helper()
	var got bytes.Buffer
	require.NoError(t, json.Indent(&got, text, "", "  "))
	file := filepath.Join("testdata", "who."+name+".golden")
	if *update {
		require.NoError(t, os.WriteFile(file, got.Bytes(), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), got.String())
}

func TestWriteWhoError(t *testing.T) {
	require.ErrorIs(t, WriteWho(fullDisk{}, Who{Holders: holders.New(heldReport()), Only: -1}), errFull)
}
