// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"fmt"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

// threadCalls are the calls of all threads together. Their events fit the ring, so that nothing is lost for want of room.
const threadCalls = 96_000

// TestThreads has many threads report without a pause: each call is an event, or is counted as lost since the kernel did not get the
// ring's lock in time, as on virtual CPUs that do not run (docs/decisions/one-ring.md). e2e/kernels runs it on more CPUs than there are
// here.
func TestThreads(t *testing.T) {
	for _, c := range []struct{ threads, rings int }{{1, 0}, {16, 0}, {64, 0}, {16, 2}, {64, 8}} {
		threads := c.threads
		t.Run(fmt.Sprintf("%d, rings %d", threads, c.rings), func(t *testing.T) {
			o := options()
			o.Rings = c.rings
			dir, each := t.TempDir(), threadCalls/threads
			p := startIn(t, dir, nil, filepath.Join(env.programs, "hotloop"), "--depth", "20", "--threads", fmt.Sprint(threads),
				"--each", fmt.Sprint(each), "--go", filepath.Join(dir, "go")).ready(t)
			tr := attach(t, p.pid, o, nil)
			p.release(t)
			var calls, clock, cpu uint64
			_, err := fmt.Sscanf(p.await(t, "total "), "total %d ns %d cpu_ns %d", &calls, &clock, &cpu)
			require.NoError(t, err)
			p.wait(t)
			tr.finish(t)
			require.EqualValues(t, threadCalls, calls)
			lost := checkThreads(t, tr, calls)
			if lost == 0 {
				checkTurns(t, tr, threads, each)
			}
			t.Logf("%d of %d calls in %d threads on %d CPUs are events, %d were lost at the ring's lock; %.2f us of CPU time a call",
				calls-lost, calls, threads, runtime.NumCPU(), lost, float64(cpu)/float64(calls)/1000)
		})
	}
}

// checkThreads: every call is an event, or lost at the ring's lock. It gives how many are lost.
func checkThreads(t *testing.T, tr *trace, calls uint64) (lost uint64) {
	t.Helper()
	for _, h := range tr.hits(t) {
		if h.Probe != "libc10.so reportMemoryUsageToProfiler" {
			continue
		}
		require.Equal(t, calls, h.Hits)
		lost = h.Dropped["ring locked"]
		require.Equal(t, lost, h.Lost(), "%v", h.Dropped)
	}
	require.Len(t, tr.layer(event.LayerAllocator), int(calls-lost))
	require.Equal(t, lost, tr.Lost())
	return lost
}

// checkTurns: each thread has its own block, which it allocates and frees in turn.
func checkTurns(t *testing.T, tr *trace, threads, each int) {
	t.Helper()
	type thread struct {
		addr   uint64
		events int
	}
	found := map[uint32]*thread{}
	for _, e := range tr.layer(event.LayerAllocator) {
		h := found[e.TID]
		if h == nil {
			h = &thread{addr: e.Addr}
			found[e.TID] = h
		}
		require.Equal(t, h.addr, e.Addr)
		require.Equal(t, h.events%2 == 0, e.Kind == event.KindAlloc)
		h.events++
	}
	require.Len(t, found, threads)
	for _, h := range found {
		require.Equal(t, each, h.events)
	}
}
