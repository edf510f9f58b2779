// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/internal/eventtest"
	"github.com/gputrace/gputrace/recording"
)

// recorded writes random events to a file, and gives what they come to.
func recorded(t *testing.T, seed uint64, n int) (string, *view.Trace) {
	t.Helper()
	s := eventtest.Random(seed, n)
	path := filepath.Join(t.TempDir(), "trace.gputrace")
	info := &recording.Info{
		Gputrace: "0.1.0", Started: time.Unix(1_700_000_000, 0), StartedBoot: s.Events[0].Time, Attached: s.Events[0].Time,
		PID: eventtest.PID, Name: "python", Cmdline: []string{"python", "train.py"},
	}
	w, err := recording.Create(path, info, s.Stack, nil)
	require.NoError(t, err)
	require.NoError(t, w.Write(s.Events))
	require.NoError(t, w.Close(&recording.End{Reason: recording.ReasonStopped, Duration: time.Second}))
	trace, err := view.NewTrace(s, nil)
	require.NoError(t, err)
	return path, trace
}

// foldedSum adds up a file of folded stacks.
func foldedSum(t *testing.T, path string) (sum uint64) {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	for line := range strings.Lines(string(b)) {
		n, err := strconv.ParseUint(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]), 10, 64)
		require.NoError(t, err)
		sum += n
	}
	return sum
}

func unzip(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	z, err := gzip.NewReader(bytes.NewReader(b))
	require.NoError(t, err)
	out, err := io.ReadAll(z)
	require.NoError(t, err)
	return out
}

// TestExportTimelines: one recording, and every view of it says the same.
func TestExportTimelines(t *testing.T) {
	path, trace := recorded(t, 11, 3000)
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	require.Equal(t, exitOK, run([]string{"gputrace", "export", "-f", "perfetto,chrome,speedscope,folded", "-o", dir, path}))
	require.Equal(t, exitOK, run([]string{"gputrace", "export", "-f", "folded", "--at", "peak", "-o", file("peak.folded"), path}))
	require.Equal(t, exitOK, run([]string{"gputrace", "export", "-f", "perfetto", "-o", file("plain.pftrace"), path}))

	total, peak := trace.End().Total(), trace.Peak().Total()
	require.Equal(t, total, foldedSum(t, file("memory.folded")))
	require.Equal(t, peak, foldedSum(t, file("peak.folded")))
	b, err := os.ReadFile(file("memory.speedscope.json"))
	require.NoError(t, err)
	var flames struct {
		Profiles []struct {
			Name string `json:"name"`
			End  uint64 `json:"endValue"`
		} `json:"profiles"`
	}
	require.NoError(t, json.Unmarshal(b, &flames))
	require.Len(t, flames.Profiles, 3)
	require.Equal(t, []uint64{total, peak}, []uint64{flames.Profiles[0].End, flames.Profiles[1].End})
	require.Contains(t, flames.Profiles[1].Name, "peak")

	var chrome struct {
		Events []struct {
			Phase, Name string
			Args        map[string]any
		} `json:"traceEvents"`
		Base int64 `json:"baseTimeNanoseconds"`
	}
	require.NoError(t, json.Unmarshal(unzip(t, file("timeline.json.gz")), &chrome))
	require.Equal(t, int64(1_696_186_170_000_000_000), chrome.Base, "1,700,000,000 s, rounded down to 7,889,238 s")
	require.Greater(t, len(chrome.Events), 3000)

	plain, err := os.ReadFile(file("plain.pftrace"))
	require.NoError(t, err)
	require.True(t, bytes.Equal(plain, unzip(t, file("timeline.pftrace.gz"))), "the same, zipped")
}

// TestExportEmptyRange: a range without events is an error, not an empty picture.
func TestExportEmptyRange(t *testing.T) {
	path, _ := recorded(t, 12, 300)
	out := filepath.Join(t.TempDir(), "x.json")
	require.Equal(t, exitUsage, run([]string{"gputrace", "export", "-f", "chrome", "--from", "10s", "-o", out, path}))
	require.NoFileExists(t, out)
}
