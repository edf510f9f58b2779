// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestProfile compares the written profiles with PyTorch's counters and the driver's ledger at the moment of the end.
func TestProfile(t *testing.T) {
	tests := []struct {
		script string
		args   []string
	}{
		{"mlp.py", []string{"--steps", "30"}},
		{"gpt.py", []string{"--steps", "5"}},
		{"resnet.py", []string{"--steps", "5", "--batch", "4", "--size", "64"}},
	}
	for _, tt := range tests {
		t.Run(tt.script, func(t *testing.T) {
			ledger := filepath.Join(t.TempDir(), "ledger")
			p := startTrainingIn(t, []string{"STANDIN_LEDGER=" + ledger, "STANDIN_LEDGER_SYNC=1"}, tt.script,
				append(tt.args, "--snapshot", "DIR/snapshot")...).ready(t)
			c := startCommand(t, p)
			p.release(t)
			p.done(t)
			c.interrupt(t)
			h := readHistory(t, p)
			inuse, alloc := c.profiles(t)
			require.EqualValues(t, h.end.Allocated, sum(t, inuse, "inuse_space", "torch"))
			require.EqualValues(t, h.count("alloc"), sum(t, alloc, "alloc_objects", "torch"))
			device := int64(deviceMemory(t, ledger).bytes()) // what the driver gave, the segments among it
			require.Equal(t, device-int64(h.end.Reserved), sum(t, inuse, "inuse_space", "device"))
			require.Equal(t, "inuse_space", inuse.DefaultSampleType)
			require.Equal(t, "alloc_space", alloc.DefaultSampleType)
			checkPprof(t, c, tt.script)
		})
	}
}

func checkPprof(t *testing.T, c *command, script string) {
	t.Helper()
	for _, flags := range [][]string{nil, {"-lines"}} {
		rows, all := pprofTop(t, filepath.Join(c.out(), "inuse.pb.gz"), flags...)
		require.Contains(t, all, "Type: inuse_space")
		require.Contains(t, firstPython(rows), script+":", "the script's own line is not on top:\n%s",
			strings.Join(rows[:min(len(rows), 10)], "\n"))
	}
	_, all := pprofTop(t, filepath.Join(c.out(), "alloc.pb.gz"))
	require.Contains(t, all, "Type: alloc_space")
}

// firstPython is the first row that names a Python line. Gradients are allocated by threads without any Python frame, and
// can come before it.
func firstPython(rows []string) string {
	for _, row := range rows {
		if strings.Contains(row, ".py:") {
			return row
		}
	}
	return ""
}

// TestLateAttach attaches in the middle of training: what was allocated before is named by its holders, and the total is exact.
func TestLateAttach(t *testing.T) {
	p := startTraining(t, "mlp.py", "--steps", "60", "--counters", "DIR/counters", "--snapshot", "DIR/snapshot").ready(t)
	p.release(t)
	p.freeze(t, 20)
	c := startCommand(t, p)
	p.thaw(t)
	p.done(t)
	c.interrupt(t)
	h := readHistory(t, p)
	inuse, _ := c.profiles(t)
	require.EqualValues(t, h.end.Allocated, sum(t, inuse, "inuse_space", "torch"))
	var bytes int64
	before := leaves(inuse, "[before attach]")
	for _, n := range before {
		bytes += n
	}
	require.Greater(t, bytes, int64(h.end.Allocated/2), "the model and the optimizer lived before")
	t.Log(before)
	require.Less(t, before["[before attach]"], bytes/20, "what holds it is known")
	require.Regexp(t, `before attach: .*[1-9].* live in torch .*cuda:0`, c.stderr.String())
}

// TestTwoTracers traces one process with two gputraces at once.
func TestTwoTracers(t *testing.T) {
	p := startTraining(t, "mlp.py", "--steps", "30", "--snapshot", "DIR/snapshot").ready(t)
	first, second := startCommand(t, p), startCommand(t, p, "--free-stacks")
	p.release(t)
	p.done(t)
	first.interrupt(t)
	second.interrupt(t)
	h := readHistory(t, p)
	for _, c := range []*command{first, second} {
		inuse, alloc := c.profiles(t)
		require.EqualValues(t, h.end.Allocated, sum(t, inuse, "inuse_space", "torch"))
		require.EqualValues(t, h.count("alloc"), sum(t, alloc, "alloc_objects", "torch"))
	}
}

// TestOverflow lets a small ring overflow while gputrace sleeps: the summary and the profile say what is lost, and the
// profile's total is still exact.
func TestOverflow(t *testing.T) {
	p := startTraining(t, "leak.py", "--steps", "200", "--counters", "DIR/counters", "--snapshot", "DIR/snapshot").ready(t)
	c := startCommand(t, p, "--ring-size", "256KiB")
	c.freeze(t)
	p.release(t)
	p.freeze(t, 100)
	c.thaw(t)
	p.thaw(t)
	p.done(t)
	c.interrupt(t)
	inuse, _ := c.profiles(t)
	require.EqualValues(t, readHistory(t, p).end.Allocated, sum(t, inuse, "inuse_space", "torch"))
	require.Positive(t, readRecording(t, filepath.Join(c.out(), traceFile)).checkLaw(t))
	require.Contains(t, c.stdout.String(), "ring full")
	require.Regexp(t, `(?m)^events lost: .*[1-9]`, strings.Join(inuse.Comments, "\n"))
	require.Regexp(t, `[1-9][0-9,]* dropped`, strings.Join(inuse.Comments, "\n"))
	bytes, samples := leaf(inuse, "[lost events]")
	require.Equal(t, 1, samples)
	require.Positive(t, bytes, "a leak: more allocations than frees are missing")
}
