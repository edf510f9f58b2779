// SPDX-License-Identifier: Apache-2.0

//go:build linux

package snapshot

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/holders"
	"github.com/gputrace/gputrace/inspect"
	scan "github.com/gputrace/gputrace/inspect/holders"
)

// heldState is an allocator state and the holders of two of its blocks; another block has changed since.
func heldState(t *testing.T) []byte {
	t.Helper()
	held := func(addr, size, requested, stream uint64, c scan.Category, name string, tensors ...scan.Tensor) scan.Block {
		return scan.Block{
			Block: inspect.Block{Addr: addr, Size: size, Requested: requested, Stream: stream, State: inspect.StateAllocated}, Category: c,
			Tensors: tensors,
			Path: scan.Path{{Kind: scan.StepModule, Name: "__main__"}, {Kind: scan.StepAttribute, Name: name},
				{Kind: scan.StepIndex, Index: int64(addr >> 9 & 1)}},
		}
	}
	h := holders.New(&scan.Report{Blocks: []scan.Block{
		held(0x7f0000000000, 5<<20, 5<<20-3, 0x55b7f448d430, scan.CategoryParameter, "weights",
			scan.Tensor{Shape: []int64{5, 1 << 20}, DType: "uint8"}),
		held(0x7f1000000000, 512, 1, 0, scan.CategoryTensor, "kept"),
		held(0x7f1000000400, 512, 3, 0, scan.CategoryTensor, "kept"),
		held(0x7f1000000800, 512, 6, 0, scan.CategoryTensor, "kept"),
	}})
	var buf bytes.Buffer
	require.NoError(t, WriteHeld(&buf, state(), h))
	return buf.Bytes()
}

func TestWriteHeld(t *testing.T) {
	type frame struct {
		Filename, Name string
		Line           int
	}
	var got struct {
		Segments []struct {
			Blocks []struct {
				Address uint64
				Frames  []frame
			}
		}
	}
	b := heldState(t)
	python(t, readValue, b, &got)
	frames := map[uint64][]frame{}
	for _, s := range got.Segments {
		for _, b := range s.Blocks {
			if len(b.Frames) > 0 {
				frames[b.Address] = b.Frames
			}
		}
	}
	kept := []frame{{"holder", "kept[0]", 0}, {"category", "other tensors", 0}}
	require.Equal(t, map[uint64][]frame{
		0x7f0000000000: {{"holder", "weights[0] [5, 1048576] uint8", 0}, {"category", "parameters", 0}},
		0x7f1000000000: kept, 0x7f1000000400: kept,
	}, frames)
	var ops map[string]int
	python(t, readOps, b, &ops)
	for op := range ops {
		require.Contains(t, viewer, op)
	}
}

// TestViewerShowsHolders: PyTorch's own tool adds up by the names.
func TestViewerShowsHolders(t *testing.T) {
	interpreter, tool := viewerTool(t)
	file := filepath.Join(t.TempDir(), "snapshot.pickle")
	require.NoError(t, os.WriteFile(file, heldState(t), 0o644))
	program := `
import importlib.util, pickle, sys
spec = importlib.util.spec_from_file_location("viz", sys.argv[1])
viz = importlib.util.module_from_spec(spec)
spec.loader.exec_module(viz)
snapshot = pickle.load(open(sys.argv[2], "rb"))
for segment in snapshot["segments"]:
    for block in segment["blocks"]:
        if block["frames"]:
            print(";".join(viz._frames_fmt(block["frames"], reverse=True)))
`
	out, err := exec.Command(interpreter, "-c", program, tool, file).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "category:0:parameters;holder:0:weights[0] [5, 1048576] uint8")
	for _, command := range []string{"stats", "segment_plot"} {
		args := []string{tool, command, file}
		if command != "stats" {
			args = append(args, "-o", filepath.Join(t.TempDir(), "out"))
		}
		out, err := exec.Command(interpreter, args...).CombinedOutput()
		require.NoError(t, err, "%s: %s", command, out)
	}
}

func TestWriteHeldError(t *testing.T) {
	require.ErrorIs(t, WriteHeld(fullDisk{}, state(), holders.New(&scan.Report{})), errFull)
}
