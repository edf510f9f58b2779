// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

package e2e

import (
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

// TestCuPy records a program of CuPy. The recording equals the pool's own figures to the byte, and the first screen has the line that
// keeps arrays.
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
	c.interrupt(t)
	screen := joinedLines(c.stdout.String())
	require.Contains(t, joinedLines(c.stderr.String()), "CuPy 14.2.0")
	require.Contains(t, screen, "GROWING")
	require.Contains(t, screen, "keeps 1.0 MiB more each step")
	require.Contains(t, screen, "cupy_pool.py:")
	require.Contains(t, screen, "CuPy reports no totals")
	require.NotContains(t, screen, "PyTorch")

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
