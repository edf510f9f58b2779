// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// TestConservation lets a small ring overflow and checks that nothing gets lost unseen: every run of every probe is
// accounted for, as the kernel and PyTorch count them, and the missing bytes are known.
func TestConservation(t *testing.T) {
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	require.NoError(t, err)
	defer stats.Close()
	p := startTraining(t, "leak.py", "--steps", "200", "--pause", "199", "--resume", "DIR/resume",
		"--counters", "DIR/counters", "--snapshot", "DIR/snapshot").ready(t)
	gate := make(chan struct{})
	o := options()
	o.RingBytes = 256 << 10
	tr := attach(t, p.pid, o, gate)
	programs := ownPrograms(t)
	p.release(t)
	p.freeze(t, 100) // the ring is full by now
	close(gate)
	p.thaw(t)
	p.await(t, "PAUSED") // what comes last is not lost, however slow this reader is
	tr.awaitAll(t)
	p.touch(t, "resume")
	p.done(t)
	tr.finish(t)
	last := readHistory(t, p).end
	report := "libc10.so reportMemoryUsageToProfiler"
	all, runs, dropped := uint64(0), uint64(0), uint64(0)
	for _, h := range tr.hits(t) {
		all += h.Hits
		if h.Probe == report {
			runs, dropped = h.Hits, h.Lost()
		}
	}
	// One block came and went before the attach.
	require.Equal(t, last.NumAlloc+last.NumFree-2, runs, "runs of the report's probe, by PyTorch's counters")
	require.Equal(t, all, runCount(t, programs), "runs of all probes, by the kernel's count")
	require.NotZero(t, dropped, "the ring did not overflow: the test is empty")
	require.Len(t, tr.layer(event.LayerAllocator), int(runs-dropped))
	checkGaps(t, tr, last)
	t.Logf("%d runs, %d dropped", runs, dropped)
}

// checkGaps checks that what is lost is known to the byte once events are received again.
func checkGaps(t *testing.T, tr *trace, last counters) {
	t.Helper()
	h := heap.New()
	for i := range tr.events {
		h.Apply(&tr.events[i])
	}
	totals := h.Totals()
	require.Len(t, totals.Accounts, 1)
	a := totals.Accounts[0]
	require.Equal(t, last.Allocated, a.Allocated)
	require.Equal(t, int64(a.Allocated), int64(blockBytes(h)+a.Before)+a.Lost, "blocks, before and lost make the total")
	require.NotZero(t, a.Gaps)
	require.Positive(t, a.Lost, "a leak: more allocations than frees are missing")
	require.NotZero(t, totals.Gaps)
	sum := int64(0)
	for _, g := range totals.Gaps {
		sum += g.Bytes
	}
	t.Logf("%d gaps of %d bytes net, %d in absolute terms; %d bytes lost in the end", a.Gaps, sum, a.GapBytes, a.Lost)
}

// ownPrograms are the BPF programs that this process holds, as far as probes run them.
func ownPrograms(t *testing.T) []*ebpf.Program {
	t.Helper()
	files, err := filepath.Glob("/proc/self/fdinfo/*")
	require.NoError(t, err)
	var out []*ebpf.Program
	seen := map[ebpf.ProgramID]bool{}
	for _, path := range files {
		id, ok := programOf(path)
		if !ok || seen[id] {
			continue
		}
		seen[id] = true
		prog, err := ebpf.NewProgramFromID(id)
		require.NoError(t, err)
		info, err := prog.Info()
		require.NoError(t, err)
		if !slices.Contains([]string{"report", "enter", "leave"},
			info.Name) { // another watches for libraries: it is at no function of the hook table
			require.NoError(t, prog.Close())
			continue
		}
		t.Cleanup(func() { _ = prog.Close() }) // keeps its counters beyond the tracer
		out = append(out, prog)
	}
	require.NotEmpty(t, out)
	return out
}

// programOf reads prog_id of a descriptor that is a BPF program of uprobes (not a link to one, and of no other type).
func programOf(path string) (id ebpf.ProgramID, ok bool) {
	f, err := os.Open(path)
	if err != nil {
		return 0, false
	}
	defer f.Close()
	program := false
	for s := bufio.NewScanner(f); s.Scan(); {
		kind := ebpf.UnspecifiedProgram
		_, _ = fmt.Sscanf(s.Text(), "prog_type: %d", &kind)
		program = program || kind == ebpf.Kprobe
		if n, _ := fmt.Sscanf(s.Text(), "prog_id: %d", &id); n == 1 {
			ok = true
		}
	}
	return id, ok && program
}

// runCount is how often the kernel says that the programs ran.
func runCount(t *testing.T, programs []*ebpf.Program) uint64 {
	t.Helper()
	var n uint64
	for _, prog := range programs {
		stats, err := prog.Stats()
		require.NoError(t, err)
		n += stats.RunCount
	}
	return n
}
