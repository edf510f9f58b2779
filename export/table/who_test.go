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

	"github.com/gputrace/gputrace/analysis/holders"
	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event/allocator"
	"github.com/gputrace/gputrace/inspect"
	scan "github.com/gputrace/gputrace/inspect/holders"
)

// heldBlock makes a block of a megabyte for each number in its size.
func heldBlock(size int, category scan.Category, name string, tensors ...scan.Tensor) scan.Block {
	b := scan.Block{
		Block: inspect.Block{Addr: uint64(size) << 32, Size: uint64(size) * mib, Requested: uint64(size)*mib - 3,
			State: inspect.StateAllocated},
		Category: category, Tensors: tensors, Holders: 2, Complete: scan.Yes, Confirmed: true, Age: 1500 * time.Microsecond,
		Path: scan.Path{{Kind: scan.StepModule, Name: "__main__", Type: "module"}, {Kind: scan.StepAttribute, Name: name, Type: "Tensor",
			Addr: 0x55d0}},
	}
	return b
}

func heldTensor(dtype string, shape ...int64) scan.Tensor {
	if shape == nil {
		shape = []int64{}
	}
	return scan.Tensor{
		Impl: 0x5590, Object: 0x55d0, Class: "Tensor", DType: dtype, Shape: shape, Strides: shape, Offset: 4, RequiresGrad: scan.No,
	}
}

// heldReport has blocks of many kinds, with names that a program could choose.
func heldReport() *scan.Report {
	lost := heldBlock(3, scan.CategoryUnknown, "")
	lost.Path, lost.Why, lost.Confirmed, lost.Complete = nil, "no path held when it was read again\x1b[2J", false, scan.Unknown
	lost.Tensors = []scan.Tensor{{Impl: 0x5591}}
	blas := heldBlock(8, scan.CategoryWorkspace, "")
	blas.Path, blas.Class, blas.Holders = nil, "cuBLAS workspace", 0
	long := heldBlock(5, scan.CategoryTensor, strings.Repeat("very_", 30)+"long", heldTensor("float32", 10), heldTensor("float32", 2))
	long.Complete, long.Missing = scan.No, 1
	pending := heldBlock(2, scan.CategoryPending, "")
	pending.Path, pending.State = nil, inspect.StatePending
	local := heldBlock(7, scan.CategoryOptimizer, "")
	local.ByShape = true
	local.Path = scan.Path{
		{Kind: scan.StepFrame, Frame: &scan.Frame{File: "/job/a_long_name_of_a_file.py", Line: 9, Function: "Trainer.step"}},
		{Kind: scan.StepLocal, Name: "optimizer"}, {Kind: scan.StepAttribute, Name: "state"},
		{Kind: scan.StepKey, KeyKind: scan.KeyString, Name: "a rather long key"}, {Kind: scan.StepIndex, Index: 7},
	}
	scalar := heldBlock(1, scan.CategoryTensor, "a\x1b[1mb", heldTensor("bool"))
	r := &scan.Report{
		PID: 4821, Python: "3.11.7", Torch: "2.15.0+cu132", Time: 3 * uint64(time.Second),
		Devices: []scan.Device{{DeviceTotals: inspect.DeviceTotals{Device: 0, Allocated: 124 * mib, Reserved: 200 * mib}, Active: 126 * mib}},
		Blocks: []scan.Block{
			heldBlock(60, scan.CategoryParameter, "weight", heldTensor("bfloat16", 30, 1<<20)),
			heldBlock(40, scan.CategoryGraph, "loss", heldTensor("float32", 10, 1<<20)), blas, long, lost, pending, scalar, local,
		},
		Notes: []string{"the stack of thread 7 could not be read\x07"},
		Stats: scan.Stats{BytesRead: 254 * mib, Elapsed: 612 * time.Millisecond},
	}
	return r
}

func whoInput(r *scan.Report, by holders.Grouping, top int) WhoInput {
	return WhoInput{Holders: holders.New(r), Command: "python train\x1b.py", Boot: time.Unix(0, 0).UTC(), By: by, Top: top}
}

func TestWho(t *testing.T) {
	stopped := heldReport()
	stopped.Stats.Frozen = 250 * time.Millisecond
	unsteady := heldReport()
	moved := &unsteady.Blocks[1]
	moved.Category, moved.Path, moved.Confirmed, moved.Why = scan.CategoryChanging, nil, false, "its holder changed while it was read"
	unsteady.Devices[0].Changing = &inspect.Changing{BlocksLow: 1, BlocksHigh: 3, BytesLow: mib, BytesHigh: 2 * mib, Ranges: 2,
		RangeBytes: 5 * mib}
	for name, in := range map[string]WhoInput{
		"busy":     whoInput(unsteady, holders.ByCategory, 0),
		"owner":    whoInput(heldReport(), holders.ByOwner, 4),
		"shape":    whoInput(stopped, holders.ByShape, 0),
		"category": whoInput(heldReport(), holders.ByCategory, 0),
		"nothing":  whoInput(&scan.Report{PID: 1}, holders.ByOwner, 0),
	} {
		t.Run(name, func(t *testing.T) {
			goldens(t, "who."+name, func(w io.Writer, width int) error {
				in.Width = width
				return Who(w, in)
			})
		})
	}
}

// TestWhoBFC: TensorFlow and JAX are named, and the words are not PyTorch's.
func TestWhoBFC(t *testing.T) {
	array := heldBlock(60, scan.CategoryTensor, "kept")
	array.Allocator, array.ID, array.Host = allocator.BFC, 77, true
	array.Tensors = []scan.Tensor{{Object: 0x55d0, Class: "ArrayImpl", RequiresGrad: scan.No}}
	r := &scan.Report{
		PID: 4821, Python: "3.11.7", BFC: "JAX 0.10.2", Blocks: []scan.Block{array}, Devices: []scan.Device{
			{DeviceTotals: inspect.DeviceTotals{Reserved: gib}, Allocator: allocator.BFC, Name: "GPU_0_bfc\x1b"},
			{DeviceTotals: inspect.DeviceTotals{Allocated: 60 * mib, Reserved: gib}, Active: 60 * mib, Allocator: allocator.BFC, Host: true},
		},
	}
	goldens(t, "who.bfc", func(w io.Writer, width int) error {
		in := whoInput(r, holders.ByOwner, 0)
		in.Width = width
		if err := Who(w, in); err != nil {
			return err
		}
		return WhoBlock(w, in, 0)
	})
	r.Devices = append(r.Devices, scan.Device{DeviceTotals: inspect.DeviceTotals{Allocated: mib, Reserved: mib}, Active: mib})
	r.CuPy, r.Torch = "14.2.0", "2.15.0"
	var out strings.Builder
	require.NoError(t, Who(&out, whoInput(r, holders.ByOwner, 0)))
	require.Contains(t, out.String(), "PyTorch 2.15.0 · CuPy 14.2.0 · JAX 0.10.2")
}

func TestWhoBlock(t *testing.T) {
	r := heldReport()
	r.Blocks[3].Others = []scan.Path{{{Kind: scan.StepModule, Name: "other"}, {Kind: scan.StepAttribute, Name: "cache"}}}
	r.Blocks[0].Path = scan.Path{
		{Kind: scan.StepFrame, Frame: &scan.Frame{File: "/job/train.py", Line: 9, Function: "main"}},
		{Kind: scan.StepLocal, Name: "opt", Type: "AdamW", Addr: 0x7f01},
		{Kind: scan.StepKey, KeyKind: scan.KeyObject, KeyPath: r.Blocks[1].Path, Type: "dict", Addr: 0x7f02},
		{Kind: scan.StepKey, KeyKind: scan.KeyObject, KeyType: "Node", Type: "list", Addr: 0x7f03},
		{Kind: scan.StepIndex, Index: 7, Type: "Tensor", Addr: 0x7f04},
		{Kind: scan.StepGrad, Type: "Tensor", Addr: 0x7f05},
	}
	for i, name := range []string{"path", "graph", "workspace", "long", "lost"} {
		t.Run(name, func(t *testing.T) {
			goldens(t, "who.block."+name, func(w io.Writer, width int) error {
				in := whoInput(r, holders.ByOwner, 0)
				in.Width = width
				return WhoBlock(w, in, i)
			})
		})
	}
}

func TestWhoError(t *testing.T) {
	require.ErrorIs(t, Who(fullDisk{}, whoInput(heldReport(), holders.ByOwner, 0)), errFull)
	require.ErrorIs(t, WhoBlock(fullDisk{}, whoInput(heldReport(), holders.ByOwner, 0), 0), errFull)
}

func TestHeld(t *testing.T) {
	j := &view.Joined{Bytes: 400 * mib, Rows: []view.HeldSite{
		{Site: "a_long_folder_name/and_a_file.py:41 Trainer.step", Where: "train.py:108 Trainer.fit_all()",
			Holder: "kept_" + strings.Repeat("x", 60) + "[0..11]", Bytes: 300 * mib, Blocks: 12, Share: 0.75},
		{Site: stacks.BeforeAttach, Holder: "model\x1b.*", Bytes: 60 * mib, Blocks: 4, Share: 0.15},
		{Site: "t.py:9 main", Holder: view.NoHolder, Bytes: 40 * mib, Blocks: 1, Share: 0.1},
	}}
	goldens(t, "held", func(w io.Writer, width int) error {
		return Held(w, HeldInput{Joined: j, Title: "live in torch", Top: 2, Width: width})
	})
	var buf bytes.Buffer
	require.NoError(t, Held(&buf, HeldInput{Joined: j, Title: "live in torch"}))
	require.NotContains(t, buf.String(), "more row")
	buf.Reset()
	require.NoError(t, Held(&buf, HeldInput{Joined: &view.Joined{}}))
	require.Empty(t, buf.String())
	require.ErrorIs(t, Held(fullDisk{}, HeldInput{Joined: j}), errFull)
}
