// SPDX-License-Identifier: Apache-2.0

//go:build linux

package holders

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/cpython"
	"github.com/gputrace/gputrace/cpython/pyobject"
	"github.com/gputrace/gputrace/inspect"
	"github.com/gputrace/gputrace/inspect/holders/internal/made"
	"github.com/gputrace/gputrace/inspect/holders/internal/memory"
	"github.com/gputrace/gputrace/inspect/holders/internal/torchlayout"
	"github.com/gputrace/gputrace/process"
)

// liveOf is the state of the made-up allocator.
func liveOf(m *made.Process) *liveBlocks {
	s := inspect.Segment{Addr: made.Device, Size: made.Block * uint64(m.Blocks)}
	for i := range m.Blocks {
		at := made.Device + made.Block*uint64(i)
		s.Blocks = append(s.Blocks, inspect.Block{Addr: at, Size: made.Block, Requested: 128, State: inspect.StateAllocated})
	}
	return newLive(&inspect.Map{Devices: []inspect.DeviceMap{{
		DeviceTotals: inspect.DeviceTotals{Allocated: s.Size, Reserved: s.Size}, Active: s.Size, Segments: []inspect.Segment{s},
	}}})
}

// readMade names the blocks, as read does for a process that is stopped. minor is the version that the interpreter is taken for;
// pages of the heap whose bit is set in absent are not there.
func readMade(t testing.TB, m *made.Process, minor int, absent uint64) (*Report, *reading) {
	t.Helper()
	p, err := process.Open(os.Getpid()) // whose memory is not read
	require.NoError(t, err)
	r := &reading{ctx: t.Context(), p: &linuxProcess{Process: p}, report: &Report{}, code: torchlayout.NewCode(p), frozen: true}
	regions, _ := m.Regions()
	var runs []memory.Run
	for i := range uint64(len(m.HeapBytes) >> memory.PageShift) {
		if absent>>i&1 == 0 {
			runs = append(runs, memory.Run{Addr: made.Heap + i<<memory.PageShift, Pages: 1})
		}
	}
	r.im, err = memory.New(t.Context(), m, regions, uint64(len(m.HeapBytes)>>memory.PageShift))
	require.NoError(t, err)
	t.Cleanup(r.im.Close)
	r.im.Reset(regions, runs)
	r.im.CopyHeap(runs, func() bool { return false })
	live := liveOf(m)
	r.first = live
	heap, err := pyobject.HeapAt(m, cpython.Version{Major: 3, Minor: minor}, m.Runtime, m.Types["type"])
	if err == nil {
		err = heap.Prove(r.im)
	}
	if err == nil {
		r.heap = heap
	}
	r.analyse(live, map[uint64]bool{uint64(os.Getpid()): true})
	require.NoError(t, r.assemble(live))
	return r.report, r
}
