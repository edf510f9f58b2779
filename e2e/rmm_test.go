// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

package e2e

import (
	"fmt"
	"io"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/allocator"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/recording"
)

// The version of RMM whose pool is tested, and what it imports beside NumPy. The runtime in it and in these bindings is the build that
// cupy has too, whose wheel names the functions (static_runtime.py).
const rmm = "rmm-cu13==26.10.0"

var rmmNeeds = []string{"librmm-cu13==26.10.0", "rapids-logger==0.3.0", "cuda-bindings==13.2.0", cupyPath}

// rmmUsed is what RMM counted between the attach and the end of rmm_pool.py.
type rmmUsed struct {
	bytes, blocks, peak, allBytes, allBlocks uint64 // of StatisticsResourceAdaptor: before the pool rounds requests
	rounded                                  uint64 // the bytes of the blocks in use
	grown, other                             uint64 // bytes that the pools took from the driver
}

// TestRMM records a program whose pool is under two adaptors, and CuPy above them. The recording equals RMM's own figures to the byte,
// a block that passes several resources counts once, and the first screen has the line that keeps buffers.
func TestRMM(t *testing.T) {
	u, out, screen := recordRMM(t)
	require.Contains(t, screen, "GROWING rmm_pool.py:")
	require.Contains(t, screen, "keeps 1.0 MiB more each step")
	require.Contains(t, screen, "RMM reports no totals")
	require.NotContains(t, screen, "PyTorch")

	end := replayTrace(t, filepath.Join(out, traceFile), nil).end.Totals()
	require.Len(t, end.Accounts, 2, "what CuPy has is RMM's")
	first, second := &end.Accounts[0], &end.Accounts[1]
	if first.Device.Index == 1 {
		first, second = second, first
	}
	count := func(blocks, size, requested uint64) heap.Count {
		return heap.Count{Objects: blocks, Bytes: size, Requested: requested, RequestedObjects: blocks}
	}
	require.Equal(t, []string{"cuda:0", "cuda:1"}, []string{first.Device.String(), second.Device.String()})
	require.Equal(t, allocator.RMM, first.Device.Allocator())
	require.Equal(t, count(u.blocks, u.rounded, u.bytes), first.Live)
	all, peak := requestsIn(t, filepath.Join(out, traceFile), 0)
	require.Equal(t, []uint64{u.allBlocks, u.allBytes, u.peak}, []uint64{first.Allocs, all, peak})
	require.Equal(t, count(10, 10*3072, 10*3000), second.Live)
	require.Zero(t, first.UnknownFrees+first.LostFrees+first.Gaps+second.UnknownFrees+end.Ignored)
	segments := map[string]uint64{}
	for i := range end.Drivers {
		if d := &end.Drivers[i]; d.Layer == event.LayerDevice && d.Segments.Bytes > 0 {
			segments[d.Device.String()] += d.Segments.Bytes
		}
	}
	require.Equal(t, map[string]uint64{"cuda:0": u.grown, "cuda:1": u.other}, segments, "what the pools took from the driver")
}

// recordRMM attaches to rmm_pool.py when it has a pool and a block, and returns what RMM counted from then on, the folder of the recording
// and the first screen.
func recordRMM(t *testing.T) (u rmmUsed, out, screen string) {
	t.Helper()
	dir := t.TempDir()
	packages := installed(t, rmm, append([]string{"--no-deps"}, rmmNeeds...)...) + ":" + installed(t, cupy, "--no-deps", cupyPath)
	environment := []string{"PYTHONPATH=" + packages, "STANDIN_GPUS=2"}
	p := startIn(t, dir, environment, filepath.Join(env.testdata, "run"), workload("rmm_pool.py"), dir).ready(t)
	c := newCommand(t, "-p", itoa(p.pid), "-o", "OUT").start(t).ready(t)
	p.release(t)
	_, err := fmt.Sscanf(p.await(t, "USED "), "USED %d %d %d %d %d %d %d %d", &u.bytes, &u.blocks, &u.peak, &u.allBytes, &u.allBlocks,
		&u.rounded, &u.grown, &u.other)
	require.NoError(t, err)
	c.interrupt(t)
	require.Contains(t, joinedLines(c.stderr.String()), "RMM 26.10.00")
	return u, c.out(), joinedLines(c.stdout.String())
}

// requestsIn returns the bytes that were asked for on a device, in all and at the moment when most of them were in use.
func requestsIn(t *testing.T, path string, device int8) (all, peak uint64) {
	t.Helper()
	reader, err := recording.Open(path)
	require.NoError(t, err)
	defer reader.Close()
	live, blocks := uint64(0), map[uint64]uint64{}
	for err == nil {
		var events []event.Event
		events, err = reader.Read(make([]event.Event, 0, 1000))
		reader.Annotations() // nothing is read past those that were not asked for
		for i := range events {
			e := &events[i]
			switch {
			case e.Layer != event.LayerAllocator || e.Device.Index != device:
			case e.Kind == event.KindAlloc:
				blocks[e.Addr] = e.Requested
				all, live = all+e.Requested, live+e.Requested
				peak = max(peak, live)
			case e.Kind == event.KindFree:
				live -= blocks[e.Addr]
			}
		}
	}
	require.ErrorIs(t, err, io.EOF)
	return all, peak
}
