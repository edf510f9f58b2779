// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/inspect"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/tracer"
)

// churn allocates and frees at full speed in several threads and streams until it is stopped; then it holds what it has.
const churn = `
import os, random, threading, time, torch
kept = {}
def work(n):
    r, mine = random.Random(n), []
    with torch.cuda.stream(torch.cuda.Stream()):
        while not os.path.exists('DIR/go'):
            for _ in range(100):
                mine.append(torch.empty(r.choice((1, 700, 5000, 300000, 3000000, 30000000)), dtype=torch.uint8, device='cuda'))
                if len(mine) > 60:
                    del mine[::r.randrange(2, 5)]
            if r.random() < 0.1:
                torch.cuda.empty_cache()
    kept[n] = mine
before = [torch.empty(1000 * n, dtype=torch.uint8, device='cuda') for n in range(1, 50)]
threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
for t in threads:
    t.start()
print('READY', os.getpid(), flush=True)
for t in threads:
    t.join()
print('DONE', torch.cuda.memory_allocated(), flush=True)
while not os.path.exists('DIR/hold'):
    time.sleep(0.01)
`

// bootTime is the clock of the events, nanoseconds.
func bootTime() uint64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts)
	return uint64(ts.Nano())
}

// joined is a trace into a heap that is compared with the allocator state.
type joined struct {
	tracer    *tracer.Tracer
	heap      *heap.Heap
	allocator *inspect.Allocator
	pid       uint32
	buf       []event.Event
}

func join(t *testing.T, pid int) *joined {
	t.Helper()
	p, err := process.Open(pid)
	require.NoError(t, err)
	tr := tracer.Open(options())
	t.Cleanup(func() { _ = tr.Close() })
	_, err = tr.Add(p)
	require.NoError(t, err)
	a, err := inspect.Find(p)
	require.NoError(t, err)
	return &joined{tr, heap.New(), a, uint32(pid), make([]event.Event, 0, 4096)}
}

// drain applies all events up to a time.
func (j *joined) drain(t *testing.T, to uint64) {
	t.Helper()
	for {
		begun := bootTime()
		var err error
		j.buf, err = j.tracer.Read(j.buf[:0])
		require.NoError(t, err)
		for i := range j.buf {
			j.heap.Apply(&j.buf[i])
		}
		if begun > to && len(j.buf) < cap(j.buf) {
			return
		}
	}
}

// round reads the allocator state once beside the running program and reconciles the heap with it.
func (j *joined) round(t *testing.T) (heap.Result, error) {
	t.Helper()
	j.heap.Watch(j.pid)
	defer j.heap.Unwatch(j.pid)
	s, err := j.allocator.Sweep(t.Context())
	require.NoError(t, err)
	j.drain(t, s.To)
	require.Len(t, s.Devices, 1)
	d := &s.Devices[0]
	o := event.Observation{
		PID: j.pid, Device: event.Device{Type: event.DeviceCUDA}, From: d.Window.From, To: d.Window.To, Allocated: event.Unknown,
		Reserved: event.Unknown,
	}
	if d.Balanced {
		o.Allocated, o.Reserved = d.Before.Allocated, d.Before.Reserved
	}
	for i := range d.Segments {
		g := &d.Segments[i]
		if d.Balanced {
			o.Segments = append(o.Segments, event.ObservedSegment{Addr: g.Addr, Size: g.Size, Expandable: g.Expandable})
		}
		for addr, b := range held(g.Blocks) {
			o.Blocks = append(o.Blocks, event.ObservedBlock{Addr: addr, Size: b.Size, Requested: b.Requested, Stream: b.Stream})
		}
	}
	return j.heap.Reconcile(o)
}

// held is the blocks that the program holds, by address.
func held(blocks []inspect.Block) map[uint64]inspect.Block {
	out := map[uint64]inspect.Block{}
	for _, b := range blocks {
		if b.State == inspect.StateAllocated {
			out[b.Addr] = b
		}
	}
	return out
}

// TestReconcileRunningJob: the live set is the allocator's, block for block, from a reading that raced with the program on;
// no later reading finds a difference, and in the end the two are equal.
func TestReconcileRunningJob(t *testing.T) {
	for name, environment := range map[string][]string{
		"native": nil, "expandable segments": {"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"},
	} {
		t.Run(name, func(t *testing.T) {
			p := startPythonIn(t, environment, churn).ready(t)
			j := join(t, p.pid)
			proved, segments := 0, 0
			for range 60 {
				r, err := j.round(t)
				if err != nil {
					require.ErrorIs(t, err, heap.ErrUnproved)
					continue
				}
				proved++
				require.Equal(t, proved == 1, r.First)
				require.True(t, r.Agreed(), "reading %d: %+v", proved, r)
				if r.SegmentsProved {
					segments++
				}
			}
			p.release(t)
			p.done(t)
			r, err := j.round(t)
			require.NoError(t, err)
			require.True(t, r.Agreed(), "%+v", r)
			require.True(t, r.SegmentsProved)
			require.Zero(t, j.tracer.Lost())
			checkLiveEqualsState(t, j)
			t.Logf("%d of 60 readings were proved, of %d the segments too; %d events", proved, segments, j.heap.Totals().Events)
			require.Greater(t, proved, 5)
		})
	}
}

// checkLiveEqualsState compares a heap with the map of a program that holds still.
func checkLiveEqualsState(t *testing.T, j *joined) {
	t.Helper()
	m, err := j.allocator.Map(t.Context())
	require.NoError(t, err)
	want, got := map[uint64]inspect.Block{}, map[uint64]inspect.Block{}
	for i := range m.Devices[0].Segments {
		maps.Copy(want, held(m.Devices[0].Segments[i].Blocks))
	}
	for b := range j.heap.Blocks() {
		if b.Layer == event.LayerAllocator {
			got[b.Addr] = inspect.Block{Addr: b.Addr, Size: b.Size, Requested: b.Requested, Stream: b.Stream, State: inspect.StateAllocated}
		}
	}
	require.Equal(t, want, got)
	a := j.heap.Totals().Accounts[0]
	require.Zero(t, a.Lost)
	require.Equal(t, m.Devices[0].Allocated, a.Live.Bytes+a.Before)
	require.Equal(t, []uint64{m.Devices[0].Reserved, m.Devices[0].Reserved}, []uint64{a.Reserved, a.SegmentBytes})
}

// TestRecordComparesWithState: a recording of a job at full speed says that what it has is what the allocator has.
func TestRecordComparesWithState(t *testing.T) {
	p := startPython(t, churn).ready(t)
	c := startCommand(t, p)
	c.signal(t, syscall.SIGUSR1)
	eventually(t, "the comparison that was asked for", func() bool { return strings.Contains(c.stderr.String(), "live = allocator state: ") })
	c.interrupt(t)
	checks := readRecording(t, filepath.Join(c.out(), traceFile)).end.Checks
	require.GreaterOrEqual(t, checks.Made, uint64(2))
	require.Zero(t, checks.Differences)
	require.NotContains(t, c.stderr.String(), "warning")
}

// TestRecordHealsLosses: what lost events left is put right once the losses are over, and each byte is in a block again.
func TestRecordHealsLosses(t *testing.T) {
	p := startPython(t, churn).ready(t)
	c := startCommand(t, p, "--ring-size", "4096")
	eventually(t, "losses", func() bool {
		return !strings.Contains(c.stderr.String(), "lost 0 events\n") && strings.Contains(c.stderr.String(), "lost ")
	})
	p.release(t)
	line := p.await(t, "DONE")
	eventually(t, "the comparison after the losses", func() bool { return strings.Contains(c.stderr.String(), "put the live set right") })
	c.interrupt(t)
	inuse, _ := c.profiles(t)
	checkAllocated(t, inuse, line)
	for _, s := range inuse.Sample {
		require.Positive(t, s.Value[2], "no bytes without a block: %v", s.Label)
	}
	require.Positive(t, readRecording(t, filepath.Join(c.out(), traceFile)).end.Checks.Differences)
}

// TestAttachToRunningCalls: an attach to threads that are in the middle of calls loses none.
func TestAttachToRunningCalls(t *testing.T) {
	p := startPython(t, churn).ready(t)
	for range 8 {
		tr := attach(t, p.pid, options(), nil)
		eventually(t, "events of calls", func() bool {
			return slices.ContainsFunc(tr.hits(t), func(h figures.Hits) bool { return h.Emitted > 100 })
		})
		tr.finishWhole(t)
		require.NoError(t, tr.Close())
	}
}
