// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/internal/eventtest"
	"github.com/gputrace/gputrace/recording"
)

// TestDataset: recordings and folders of jobs become a dataset with its queries, and exporting them again changes nothing.
func TestDataset(t *testing.T) {
	dir := t.TempDir()
	result := filepath.Join(dir, "run 7", "rank0-pid7")
	require.NoError(t, os.MkdirAll(result, 0o755))
	j := eventtest.NewJob()
	j.Pass(eventtest.Input, eventtest.Forward)
	write := func(started time.Time) {
		info := &recording.Info{PID: 7, Name: "train.py", Started: started, Rank: &recording.Rank{World: 2}}
		w, err := recording.Create(filepath.Join(result, export.TraceName), info, j.Stack, nil)
		require.NoError(t, err)
		require.NoError(t, w.Write(j.Events))
		require.NoError(t, w.Close(&recording.End{}))
	}
	write(time.Date(2026, 11, 28, 23, 59, 59, 0, time.UTC))
	out := filepath.Join(dir, "fleet")
	for range 2 {
		_, stderr, code := gputrace(t, "export", filepath.Dir(result), "-f", "dataset", "-o", out)
		require.Zero(t, code, stderr)
		require.Contains(t, stderr, "1 process")
		for _, table := range []string{"moments", "lines"} {
			files, err := filepath.Glob(filepath.Join(out, table, "job=run%207", "day=2026-11-28", "rank=0", "*.parquet"))
			require.NoError(t, err)
			require.Len(t, files, 1)
		}
	}
	require.FileExists(t, filepath.Join(out, "queries", "skew.sql"))
	_, stderr, code := gputrace(t, "export", result, "-f", "dataset", "-o", out, "--job", "other")
	require.Zero(t, code, stderr)
	require.DirExists(t, filepath.Join(out, "moments", "job=other"))

	bad := filepath.Join(dir, "run 7", "rank1-pid8")
	require.NoError(t, os.MkdirAll(bad, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(bad, export.TraceName), []byte("no recording"), 0o644))
	_, stderr, code = gputrace(t, "export", filepath.Dir(result), "-f", "dataset", "-o", filepath.Join(dir, "without"))
	require.Equal(t, 5, code, stderr)
	require.Contains(t, flat(stderr), "left out: open recording "+flat(bad))
	require.Contains(t, flat(stderr), "1 process")
	require.DirExists(t, filepath.Join(dir, "without", "moments", "job=run%207"))
	require.NoError(t, os.RemoveAll(bad))

	require.NoError(t, os.Remove(filepath.Join(result, export.TraceName)))
	write(time.Time{})
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{result, "-f", "dataset", "--at", "peak"}, exitUsage, "without a moment"},
		{[]string{result, "-f", "dataset", "--by", "line"}, exitUsage, "without a moment"},
		{[]string{result, "-f", "dataset", "-o", "-"}, exitUsage, "-f dataset is a folder"},
		{[]string{result, "-f", "json", "--job", "x"}, exitUsage, "--job"},
		{[]string{result, "-f", "dataset,json"}, exitUsage, "give it alone"},
		{[]string{"-f", "dataset"}, exitUsage, "which recordings?"},
		{[]string{result, "-f", "dataset", "-o", out}, 5, "left out: " + result + ": it does not say when it was made"},
	} {
		_, stderr, code := gputrace(t, append([]string{"export"}, c.args...)...)
		require.Equal(t, c.code, code, "%v: %s", c.args, stderr)
		require.Contains(t, flat(stderr), c.says, "%v", c.args)
	}
}
