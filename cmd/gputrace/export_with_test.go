// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/internal/eventtest"
	"github.com/gputrace/gputrace/recording"
)

// profilerTrace is a trace of torch.profiler with one slice, which begins at a second after the Unix epoch and lasts a millisecond.
func profilerTrace(pid int, second float64) string {
	const format = `{"traceEvents": [{"ph": "X", "name": "the range", "pid": %d, "tid": %d, "ts": %.3f, "dur": 1000}]}`
	return fmt.Sprintf(format, pid, pid, second*1e6)
}

// TestExportWith: a trace of torch.profiler, gzipped or not, is in the timeline; one of another time or process too, with a warning.
func TestExportWith(t *testing.T) {
	path, trace := recorded(t, 13, 2000)
	dir := t.TempDir()
	file := func(name, text string) string {
		name = filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		return name
	}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, err := z.Write([]byte(profilerTrace(eventtest.PID, 1_700_000_000)))
	require.NoError(t, err)
	require.NoError(t, z.Close())
	last := float64(trace.Last()-trace.First()) / 1e9
	for name, c := range map[string]struct{ text, warning string }{
		"plain.json":  {profilerTrace(eventtest.PID, 1_700_000_000.001), ""},
		"zipped.json": {zipped.String(), ""},
		"before.json": {
			profilerTrace(eventtest.PID, 1_699_999_999.997),
			"the trace covers 2023-11-14 22:13:19.997 to 2023-11-14 22:13:19.998 UTC, the recording 2023-11-14 22:13:20.000 to",
		},
		"after.json":   {profilerTrace(eventtest.PID, 1_700_000_000+last+1), "no moment in common"},
		"another.json": {profilerTrace(7, 1_700_000_000), fmt.Sprintf("the trace is of process 7, the recording of process %d", eventtest.PID)},
		"kinds.json": {
			strings.Replace(profilerTrace(eventtest.PID, 1_700_000_000), "[", `[{"ph": "b"},`, 1), `left out: events of the unknown type "b": 1`,
		},
		"none.json": {`{"traceEvents": []}`, "the trace has no events"},
	} {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(dir, name+".pftrace")
			with := file(name, c.text)
			_, stderr, code := gputrace(t, "export", "-f", "perfetto", "--with", with, "-o", out, path)
			require.Equal(t, exitOK, code, stderr)
			require.Equal(t, c.warning != "", strings.Contains(stderr, "warning"), stderr)
			require.Contains(t, flat(stderr), c.warning)
			b, err := os.ReadFile(out)
			require.NoError(t, err)
			require.Equal(t, name != "none.json", bytes.Contains(b, []byte("the range")))
		})
	}
	out := filepath.Join(dir, "two.pftrace")
	one := file("one.json", profilerTrace(eventtest.PID, 1_700_000_000))
	two := file("two.json", strings.Replace(profilerTrace(eventtest.PID, 1_700_000_000.002), "range", "second range", 1))
	_, stderr, code := gputrace(t, "export", path, "-f", "perfetto", "-o", out, "--with", one, "--with", two)
	require.Equal(t, exitOK, code, stderr)
	b, err := os.ReadFile(out)
	require.NoError(t, err)
	require.Contains(t, string(b), "the range")
	require.Contains(t, string(b), "the second range")
}

// TestExportWithErrors: nothing is written if a trace of torch.profiler cannot be merged, and the error names it.
func TestExportWithErrors(t *testing.T) {
	path, _ := recorded(t, 14, 300)
	dir := t.TempDir()
	good := filepath.Join(dir, "good.json")
	require.NoError(t, os.WriteFile(good, []byte(profilerTrace(eventtest.PID, 1_700_000_000)), 0o600))
	s := eventtest.Random(14, 300)
	timeless := filepath.Join(dir, "timeless.gputrace")
	w, err := recording.Create(timeless, &recording.Info{PID: eventtest.PID}, s.Stack, nil)
	require.NoError(t, err)
	require.NoError(t, w.Write(s.Events))
	require.NoError(t, w.Close(&recording.End{}))
	for name, c := range map[string]struct {
		text, want string
		args       []string
		code       int
	}{
		"cut":         {profilerTrace(1, 1_700_000_000)[:70], "the file is cut off", nil, exitInvalid},
		"text":        {"no JSON", "at byte 0 of its text", nil, exitInvalid},
		"old":         {profilerTrace(1, 1_600_000_000), "of the recording was started: the trace covers 2020-09-13", nil, exitInvalid},
		"no base":     {profilerTrace(1, 1), "so its times are unknown", nil, exitInvalid},
		"no clock":    {profilerTrace(1, 1_700_000_000), "timeless.gputrace does not contain the time of day", []string{timeless}, exitInvalid},
		"chrome":      {profilerTrace(1, 1_700_000_000), "only -f perfetto", []string{"-f", "chrome", path}, exitUsage},
		"dataset":     {profilerTrace(1, 1_700_000_000), "without a moment, a range, --by or --with", []string{"-f", "dataset", path}, exitUsage},
		"missing":     {"", "no such file", []string{"--with", filepath.Join(dir, "none.json"), path}, exitUsage},
		"twice":       {"", "given twice", []string{"--with", good, "--with", good, path}, exitUsage},
		"folder":      {"", "this is a folder", []string{"--with", dir, path}, exitUsage},
		"second file": {"{", "second file.json", []string{"--with", good, path}, exitInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			with, out := filepath.Join(dir, name+".json"), filepath.Join(t.TempDir(), "x.pftrace")
			args := []string{"export", "-o", out}
			if c.text != "" {
				require.NoError(t, os.WriteFile(with, []byte(c.text), 0o600))
				args = append(args, "--with", with)
			}
			if c.args == nil {
				c.args = []string{path}
			}
			if !strings.Contains(strings.Join(c.args, " "), "-f ") {
				args = append(args, "-f", "perfetto")
			}
			_, stderr, code := gputrace(t, append(args, c.args...)...)
			require.Equal(t, c.code, code, stderr)
			require.Contains(t, flat(stderr), c.want)
			entries, err := os.ReadDir(filepath.Dir(out))
			require.NoError(t, err)
			require.Empty(t, entries)
		})
	}
}
