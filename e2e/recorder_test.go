// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"cmp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

// recorderKinds are the actions of PyTorch's recorder that the allocator also reports. free_requested is the moment when
// the program gives a block back; free_completed can come later.
var recorderKinds = map[string]event.Kind{
	"alloc": event.KindAlloc, "free_requested": event.KindFree, "oom": event.KindOutOfMemory,
}

// threads allocates from several threads, streams and devices at once.
const threads = `
import argparse, random, sys, threading
sys.path.insert(0, 'WORKLOADS')
import sidecar, torch
options = sidecar.arguments(argparse.ArgumentParser()).parse_args(
    ['--wait', '--go', 'DIR/go', '--hold', 'DIR/hold', '--snapshot', 'DIR/snapshot'])
side = sidecar.Sidecar(options)
def churn(number):
    device, chance, kept = torch.device('cuda', number % 2), random.Random(number), []
    with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream(device)):
        for _ in range(500):
            kept.append(torch.empty(chance.randrange(1, 1 << 20), device=device))
            if len(kept) > 10:
                del kept[chance.randrange(len(kept))]
            if chance.random() < 0.1:
                kept[-1].record_stream(torch.cuda.current_stream(device))
workers = [threading.Thread(target=churn, args=(number,)) for number in range(6)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
side.finish()
`

// TestRecorderThreads compares events of six threads on two devices with PyTorch's recorder.
func TestRecorderThreads(t *testing.T) {
	p := startPythonIn(t, []string{"STANDIN_GPUS=2"}, strings.ReplaceAll(threads, "WORKLOADS", workload(""))).ready(t)
	require.NotZero(t, compareWithRecorder(t, p, true).count("free_requested"))
}

// compareWithRecorder traces a target that waits and records its own history, to its end, and compares the two. It returns the history.
func compareWithRecorder(t *testing.T, p *target, freeStacks bool) *history {
	t.Helper()
	o := options()
	o.FreeStacks = freeStacks
	tr := attach(t, p.pid, o, nil)
	p.release(t)
	p.done(t)
	tr.finishWhole(t)
	h := readHistory(t, p)
	checkEvents(t, tr, h)
	checkFrames(t, tr, h, freeStacks)
	return h
}

// TestRecorder compares with PyTorch's own recorder event for event and frame for frame.
func TestRecorder(t *testing.T) {
	tests := []struct {
		name       string
		args       []string
		env        []string
		freeStacks bool
		refused    bool // the device becomes full
	}{
		{name: "mlp.py", args: []string{"--steps", "50"}, freeStacks: true},
		{name: "gpt.py", args: []string{"--steps", "10"}},
		{name: "resnet.py", args: []string{"--steps", "5", "--batch", "4", "--size", "64"}},
		{name: "mlp.py", args: []string{"--steps", "20", "--workers", "2"}},
		{name: "mlp.py", args: []string{"--steps", "20"}, env: []string{"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"}},
		{name: "compiled.py", args: []string{"--steps", "10"}, freeStacks: true},
		{name: "leak.py", env: []string{"STANDIN_GPU_MEM=2GiB"}, refused: true},
	}
	for _, tt := range tests {
		t.Run(strings.Join(append(append([]string{tt.name}, tt.args...), tt.env...), " "), func(t *testing.T) {
			p := startTrainingIn(t, tt.env, tt.name, append(tt.args, "--snapshot", "DIR/snapshot", "--history", "python")...).ready(t)
			require.Equal(t, tt.refused, compareWithRecorder(t, p, tt.freeStacks).count("oom") > 0)
		})
	}
}

func (h *history) count(action string) uint64 {
	var n uint64
	for _, e := range h.entries {
		if e.Action == action {
			n++
		}
	}
	return n
}

// reported are the entries that the allocator reports, too.
func (h *history) reported() []entry {
	var out []entry
	for _, e := range h.entries {
		if recorderKinds[e.Action] != 0 {
			out = append(out, e)
		}
	}
	return out
}

// byDevice returns the torch events in the recorder's order: one device behind the other.
func (tr *trace) byDevice() []event.Event {
	out := tr.layer(event.LayerAllocator)
	slices.SortStableFunc(out, func(a, b event.Event) int { return cmp.Compare(a.Device.Index, b.Device.Index) })
	return out
}

func checkEvents(t *testing.T, tr *trace, h *history) {
	t.Helper()
	want, ours := h.reported(), tr.byDevice()
	require.Len(t, ours, len(want))
	counts := map[event.Kind]uint64{}
	for i, w := range want {
		e := &ours[i]
		counts[e.Kind]++
		require.Equal(t, recorderKinds[w.Action], e.Kind, "event %d: %+v, recorder %+v", i, e, w)
		require.Equal(t, event.Device{Type: event.DeviceCUDA, Index: int8(w.Device)}, e.Device)
		require.GreaterOrEqual(t, e.Size, w.Size, "event %d: block smaller than what was asked for", i)
		if e.Kind == event.KindOutOfMemory {
			continue
		}
		require.Equal(t, w.Addr, e.Addr, "event %d: %+v, recorder %+v", i, e, w)
		if e.Requested != event.Unknown {
			require.Equal(t, w.Size, e.Requested, "event %d: %+v, recorder %+v", i, e, w)
		}
		if e.Stream != event.Unknown {
			require.Equal(t, w.Stream, e.Stream, "event %d: %+v, recorder %+v", i, e, w)
		}
	}
	// PyTorch's counters have one block more: what brings up the device, before the attach.
	require.Equal(t, h.end.NumAlloc-1, counts[event.KindAlloc])
	require.Equal(t, h.end.NumFree-1, counts[event.KindFree])
	require.NotZero(t, counts[event.KindAlloc])
}

func checkFrames(t *testing.T, tr *trace, h *history, frees bool) {
	t.Helper()
	want, ours := h.reported(), tr.byDevice()
	var compared, wrong int
	for i, w := range want {
		if w.Action == "free_requested" && !frees {
			require.Zero(t, ours[i].Stack, "a stack that nobody asked for")
			continue
		}
		compared++
		if got := tr.python(ours[i].Stack); !sameFrames(got, w.Frames) {
			if wrong++; wrong <= 3 {
				t.Logf("event %d %s:\n  ours     %v\n  recorder %v\n  stack %+v", i, w.Action, got, w.Frames, tr.target.Stack(ours[i].Stack))
			}
		}
	}
	q := tr.quality(ours)
	t.Logf("%d events, %d with frames compared, %d unique stacks here, %d at the recorder (Python only), %d of %d complete",
		len(ours), compared, len(q.unique), h.stacks, q.complete, q.events)
	assert.Zero(t, wrong, "events whose Python frames differ, of %d", compared)
	assert.Equal(t, q.events, q.complete, "stacks that do not reach the outermost frame")
	require.NotZero(t, compared)
	require.Equal(t, compared, q.events, "events without a stack")
}
