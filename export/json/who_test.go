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
	"github.com/gputrace/gputrace/inspect/who"
)

// heldReport has a block with everything, one with nothing, and numbers that a float64 would round.
func heldReport() *who.Report {
	key := who.Path{{Kind: who.StepModule, Name: "__main__"}, {Kind: who.StepAttribute, Name: "model"}}
	path := who.Path{
		{Kind: who.StepFrame, Frame: &who.Frame{Thread: 77, Depth: 2, Function: "main", File: "/job/<a>.py", Line: 9}},
		{Kind: who.StepLocal, Name: "opt\x1b", Addr: 1<<53 + 1, Type: "AdamW"},
		{Kind: who.StepKey, KeyKind: who.KeyObject, KeyAddr: 5, KeyPath: key, KeyType: "Parameter"},
		{Kind: who.StepKey, KeyKind: who.KeyString, Name: "exp_avg"},
		{Kind: who.StepKey, KeyKind: who.KeyInt},
	}
	tensors := []who.Tensor{
		{Impl: 1, Object: 2, Class: "Parameter", Shape: []int64{}, DType: "float32", RequiresGrad: who.Yes, Kind: who.KindOptimizer},
		{Impl: 1<<64 - 1, RequiresGrad: who.Unknown},
	}
	full := who.Block{
		Block:  inspect.Block{Addr: 1<<53 + 1, Size: 3 << 20, Requested: 4, Stream: 1<<64 - 1, State: inspect.StateAllocated},
		Device: 1, Pool: inspect.Pool{Small: true, ID: [2]uint64{1, 2}}, Category: who.CategoryOptimizer, Path: path, Others: []who.Path{key},
		Tensors: tensors, Holders: 2, Missing: 1, Complete: who.No, Confirmed: true, Age: time.Millisecond,
	}
	none := who.Block{Block: inspect.Block{Addr: 0x200, Size: 512, Requested: inspect.Unknown, State: inspect.StatePending}, Why: "no layout"}
	return &who.Report{
		PID: 4821, Python: "3.11.7", Torch: "2.15.0", Time: 1500 * uint64(time.Millisecond),
		Devices: []who.Device{{DeviceTotals: inspect.DeviceTotals{Device: 1, Allocated: 3 << 20, Reserved: 4 << 20}, Active: 3<<20 + 512}},
		Blocks:  []who.Block{full, none},
		Totals:  []who.Total{{Category: who.CategoryOptimizer, Blocks: 1, Bytes: 3 << 20}, {Category: who.CategoryUnknown, Blocks: 1, Bytes: 512}},
		Notes:   []string{"a note"},
		Stats:   who.Stats{BytesRead: 1, BytesHeld: 2, Objects: 3, Native: 4, Frozen: 5, Copy: 6, Confirm: 7, Elapsed: 8},
	}
}

// busy has nothing but what changed while it was read, on two devices.
func busy() *who.Report {
	c := inspect.Changing{BlocksLow: 2, BlocksHigh: 3, BytesLow: 1024, BytesHigh: 2048, Ranges: 1, RangeBytes: 4096}
	return &who.Report{
		PID: 4821, Devices: []who.Device{{Active: 1024, Changing: &c}, {DeviceTotals: inspect.DeviceTotals{Device: 1}, Active: 1024, Changing: &c}},
		Totals: []who.Total{{Category: who.CategoryChanging, Blocks: 4, Bytes: 2048}},
	}
}

func TestWriteWho(t *testing.T) {
	boot := time.Unix(1795000000, 0)
	for name, w := range map[string]Who{
		"all":     {Holders: holders.New(heldReport()), Command: []string{"python", "a\x1b[2J<b>"}, Boot: boot, Only: -1},
		"one":     {Holders: holders.New(heldReport()), Boot: boot, By: holders.ByDType, Top: 1, Only: 1},
		"nothing": {Holders: holders.New(&who.Report{PID: 1}), Boot: boot, Only: -1},
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
