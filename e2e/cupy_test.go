// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/allocator"
)

// The version of CuPy whose pool is tested, and what it imports beside NumPy.
const (
	cupy     = "cupy-cuda13x==14.2.0"
	cupyPath = "cuda-pathfinder==1.9.1"
)

// TestCuPy records a program of CuPy, to which it attaches while the program runs. The recording and who equal the pool's own figures to
// the byte. The first screen has the line that keeps arrays, and both name the list, and the view that keeps more than it shows.
func TestCuPy(t *testing.T) {
	dir := t.TempDir()
	packages := filepath.Join(dir, "site-packages")
	require.NoError(t, os.Symlink(installed(t, cupy, "--no-deps", cupyPath), packages))
	p := startIn(t, dir, []string{"PYTHONPATH=" + packages}, filepath.Join(env.testdata, "run"), workload("cupy_pool.py"), dir).ready(t)
	c := newCommand(t, "-p", itoa(p.pid), "-o", "OUT").start(t).ready(t)
	p.release(t)
	var used, total, kept uint64
	_, err := fmt.Sscanf(p.await(t, "USED "), "USED %d %d %d", &used, &total, &kept)
	require.NoError(t, err)
	checkCuPyHolders(t, p.pid, used)
	c.interrupt(t)
	screen := joinedLines(c.stdout.String())
	require.Contains(t, joinedLines(c.stderr.String()), "CuPy 14.2.0")
	require.Contains(t, screen, "GROWING")
	require.Contains(t, screen, "keeps 1.0 MiB more each step")
	require.Contains(t, screen, "cupy_pool.py:")
	require.Contains(t, screen, "CuPy reports no totals")
	require.NotContains(t, screen, "PyTorch")
	require.Contains(t, screen, "history[0..119]")

	end := replayTrace(t, filepath.Join(c.out(), traceFile), nil).end.Totals()
	require.Len(t, end.Accounts, 1)
	a := &end.Accounts[0]
	require.Equal(t, allocator.CuPy, a.Device.Allocator())
	require.Equal(t, "cuda:0", a.Device.String())
	require.Equal(t, []uint64{used, kept}, []uint64{a.Live.Bytes, a.Live.Requested})
	require.Zero(t, a.UnknownFrees+a.LostFrees+a.Gaps+end.Ignored)
	segments := uint64(0)
	for i := range end.Drivers {
		if end.Drivers[i].Layer == event.LayerDevice {
			segments += end.Drivers[i].Segments.Bytes
		}
	}
	require.Equal(t, total, segments, "what the pool took from the driver")
}

// checkCuPyHolders asks who holds the memory of cupy_pool.py, as it runs and stopped.
func checkCuPyHolders(t *testing.T, pid int, used uint64) {
	t.Helper()
	type row struct {
		Name, Tensors string
		Bytes, Blocks uint64
	}
	for _, args := range [][]string{nil, {"--freeze"}} {
		var report struct {
			CuPy    string
			Devices []struct {
				Allocator         string
				Allocated, Active uint64
				Uncounted         bool
			}
			Rows   []row
			Views  []struct{ Seen, Size uint64 }
			Counts struct {
				All uint64 `json:"all_found"`
			} `json:"reference_counts"`
			Notes []string
		}
		out, _, code := runs(t, append([]string{"who", "-p", itoa(pid), "--json"}, args...)...)
		require.Zero(t, code)
		require.NoError(t, json.Unmarshal([]byte(out), &report))
		require.Equal(t, "14.2.0", report.CuPy)
		require.Len(t, report.Devices, 1)
		d := report.Devices[0]
		require.Equal(t, "CuPy", d.Allocator)
		require.Equal(t, []uint64{used, used}, []uint64{d.Allocated, d.Active})
		require.False(t, d.Uncounted)
		require.Equal(t, []row{
			{"history[0..119]", "[512, 512] float32", 120 << 20, 120},
			{"corner", "[1, 1024] float64", 8 << 20, 1},
		}, report.Rows)
		require.Equal(t, uint64(121), report.Counts.All)
		require.Len(t, report.Views, 1)
		require.Equal(t, uint64(8<<20), report.Views[0].Size)
		require.Equal(t, uint64(8<<10), report.Views[0].Seen)
		require.Empty(t, report.Notes)
	}
	screen, _, _ := runs(t, "who", "-p", itoa(pid))
	require.Contains(t, joinedLines(screen), "the memory of CuPy's pool")
}
