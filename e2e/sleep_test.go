// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/recording"
)

// The version of torch_memory_saver, with which SGLang's servers sleep.
const memorySaver = "torch_memory_saver==0.0.10"

// serverStage is a line of server.py's output.
type serverStage struct {
	name                              string
	time, device, allocated, reserved uint64
}

// TestSleep records servers whose weights and cache are released and taken back by torch_memory_saver: loaded by PyTorch as an allocator,
// and preloaded, where its cudaMalloc is in front of the runtime's. At each stage the recording has the bytes that the driver says it
// has handed out, and PyTorch's own totals.
func TestSleep(t *testing.T) {
	packages := installed(t, memorySaver, "--no-deps")
	for _, saver := range []string{"torch", "preload"} {
		t.Run(saver, func(t *testing.T) {
			t.Parallel()
			stages, screen := checkSleep(t, saver, []string{"PYTHONPATH=" + packages})
			kept := stages[len(stages)-1].device - stages[5].device // since the first sleep, in three steps
			require.EqualValues(t, 3*24<<20, kept)
			require.Contains(t, screen, "then 106.0 MiB: at least 24.0 MiB more each time")
		})
	}
}

// TestSleepLate attaches when the model is loaded: the reservations of the segments' addresses were not seen, and each sleep is.
func TestSleepLate(t *testing.T) {
	const smallSegment = 2 << 20 // of the one tensor that is not the server's
	p, c := serve(t, []string{"PYTHONPATH=" + installed(t, memorySaver, "--no-deps")}, "torch", "late")
	stages := stagesOf(t, p)
	require.Len(t, stages, 12)
	for i, got := range replayStages(t, filepath.Join(c.out(), traceFile), stages) {
		want, s := uint64(0), &stages[i]
		if s.name == "asleep" || s.name == "held" {
			want = stages[2].reserved - smallSegment
		}
		require.Equal(t, want, got.asleep.Segments, "%d, %s", i, s.name)
	}
	screen := joinedLines(c.stdout.String())
	require.Contains(t, screen, "asleep 4 times, now since")
	require.Contains(t, screen, "at least 24.0 MiB more each time")
	require.NotContains(t, screen, "in use at the peak")
}

// checkSleep records server.py with a saver, compares the recording with what it printed, and returns that and the first screen.
func checkSleep(t *testing.T, saver string, environment []string) ([]serverStage, string) {
	t.Helper()
	p, c := serve(t, environment, saver)
	stages := stagesOf(t, p)
	names := []string{"start", "loaded", "profiled", "cached", "captured", "asleep", "awake", "asleep", "awake", "asleep", "awake", "held"}
	require.Len(t, stages, len(names))
	for i, got := range replayStages(t, filepath.Join(c.out(), traceFile), stages) {
		s := &stages[i]
		require.Equal(t, names[i], s.name)
		require.Equal(t, s.device-stages[0].device, got.device, "device memory at stage %d, %s", i, s.name)
		if i > 0 {
			require.Equal(t, []uint64{s.allocated, s.reserved}, []uint64{got.allocated, got.reserved}, "PyTorch's at stage %d, %s", i, s.name)
		}
		want := heap.Asleep{}
		if s.name == "asleep" || s.name == "held" { // all that PyTorch had when the cache was there
			want.Segments, want.Blocks.Bytes = stages[3].reserved-stages[0].reserved, stages[3].allocated-stages[0].allocated
		}
		require.Equal(t, []uint64{want.Segments, want.Blocks.Bytes}, []uint64{got.asleep.Segments, got.asleep.Blocks.Bytes}, "%d, %s", i, s.name)
	}
	screen := joinedLines(c.stdout.String())
	require.Contains(t, screen, "256.1 MiB of it asleep, without memory")
	require.Contains(t, screen, "asleep 4 times, now since")
	require.Contains(t, screen, "released 258.0 MiB")
	for _, part := range []string{"serving weights 128.1 MiB", "KV cache 128.0 MiB", "activations 0 B", "CUDA graphs 512.0 KiB",
		"outside PyTorch 8.0 MiB", "other 72.0 MiB"} {
		require.Contains(t, screen, part)
	}
	require.NotContains(t, screen, "in use at the peak", "nothing counts twice when it is awake again")
	return stages, screen
}

// serve records server.py until its last sleep.
func serve(t *testing.T, environment []string, args ...string) (*target, *command) {
	t.Helper()
	dir := t.TempDir()
	program, err := os.ReadFile(workload("server.py"))
	require.NoError(t, err)
	script := filepath.Join(dir, "vllm", "worker.py") // its functions have the names of vLLM's
	require.NoError(t, os.Mkdir(filepath.Dir(script), 0o700))
	require.NoError(t, os.WriteFile(script, program, 0o600))
	p := startIn(t, dir, environment, filepath.Join(env.testdata, "run"), append([]string{script, dir}, args...)...).ready(t)
	c := newCommand(t, "-p", itoa(p.pid), "-o", "OUT").start(t).ready(t)
	p.release(t)
	p.done(t)
	c.interrupt(t)
	return p, c
}

func stagesOf(t *testing.T, p *target) (out []serverStage) {
	t.Helper()
	for _, line := range p.output() {
		if !strings.HasPrefix(line, "STAGE ") {
			continue
		}
		var s serverStage
		_, err := fmt.Sscanf(line, "STAGE %s %d %d %d %d", &s.name, &s.time, &s.device, &s.allocated, &s.reserved)
		require.NoError(t, err)
		out = append(out, s)
	}
	return out
}

// replayedStage is what a recording has of a moment: the bytes that calls of the driver handed out, and PyTorch's totals.
type replayedStage struct {
	device, allocated, reserved uint64
	asleep                      heap.Asleep
}

func replayStages(t *testing.T, path string, stages []serverStage) (out []replayedStage) {
	t.Helper()
	reader, err := recording.Open(path)
	require.NoError(t, err)
	defer reader.Close()
	h := heap.New()
	note := func(until uint64) {
		for len(out) < len(stages) && stages[len(out)].time < until {
			out = append(out, stageOf(h.Totals()))
		}
	}
	require.NoError(t, h.Walk(reader, heap.Walker{Before: func(e *event.Event) bool {
		note(e.Time)
		return true
	}}))
	note(math.MaxUint64)
	return out
}

func stageOf(totals heap.Totals) (s replayedStage) {
	for i := range totals.Drivers {
		if d := &totals.Drivers[i]; d.Layer == event.LayerDevice {
			s.device += d.Live.Bytes - d.Found.Bytes
		}
	}
	if len(totals.Accounts) > 0 {
		s.allocated, s.reserved = totals.Accounts[0].Allocated, totals.Accounts[0].Reserved
	}
	if len(totals.Asleep) > 0 {
		s.asleep = totals.Asleep[0]
	}
	return s
}
