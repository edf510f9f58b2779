// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/export"
)

// torchSnapshot is a snapshot that PyTorch wrote.
const torchSnapshot = "../../recording/pytorch/testdata/torch-2.15.0.pickle"

// A snapshot is taken for what it is by its content, whatever it is called.
func TestReportOfSnapshot(t *testing.T) {
	b, err := os.ReadFile(torchSnapshot)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "trace.gputrace")
	require.NoError(t, os.WriteFile(file, b, 0o644))
	out, talk, code := gputrace(t, "report", file)
	require.Equal(t, exitOK, code, talk)
	require.Regexp(t, `^gputrace  PyTorch memory snapshot  `, out)
	require.NotContains(t, out, "pid 0")
	require.Contains(t, out, "now 21.0 MiB · peak 26.0 MiB")
	require.Contains(t, out, "reserved 42.0 MiB")
	require.Contains(t, out, "train.py:3")
	out, talk, code = gputrace(t, "report", "-v", file)
	require.Equal(t, exitOK, code, talk)
	require.Contains(t, out, "live     21.0 MiB (22,022,144 B)")
	require.Contains(t, out, "peak     26.0 MiB (27,265,024 B)")
	require.Contains(t, out, "reserved 42.0 MiB (44,040,192 B)")
	require.Contains(t, out, "train.py:3")
}

// What is no snapshot is refused with the code for it, and said why.
func TestWrongSnapshots(t *testing.T) {
	b, err := os.ReadFile(torchSnapshot)
	require.NoError(t, err)
	for _, tt := range []struct{ name, content, want string }{
		{"truncated", string(b[:1000]), "it ends early, at byte 1000"},
		{"program", "\x80\x04cos\nsystem\n(X\x04\x00\x00\x00truetR.", "at byte 2: malformed pickle: opcode GLOBAL would run code"},
		{"other data", "\x80\x02}.", `no "segments"`},
		{"short", "\x80", "not a recording"},
	} {
		file := filepath.Join(t.TempDir(), "snapshot.pickle")
		require.NoError(t, os.WriteFile(file, []byte(tt.content), 0o644))
		for _, args := range [][]string{{"report", file}, {"export", file, "-f", "json", "-o", "-"}} {
			out, talk, code := gputrace(t, args...)
			require.Equal(t, exitInvalid, code, tt.name)
			require.Contains(t, talk, tt.want, tt.name)
			require.Empty(t, out, tt.name)
		}
	}
}

// Every format can be made of a snapshot.
func TestExportOfSnapshot(t *testing.T) {
	dir := t.TempDir()
	_, talk, code := gputrace(t, "export", torchSnapshot, "-f", strings.Join(export.Names(), ","), "-o", dir)
	require.Equal(t, exitOK, code, talk)
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, len(export.Formats))

	profile, talk, code := gputrace(t, "export", torchSnapshot, "-f", "pprof", "-o", "-")
	require.Equal(t, exitOK, code, talk)
	require.NotEmpty(t, profile)

	// What was exported as a snapshot is one again.
	out, talk, code := gputrace(t, "report", filepath.Join(dir, "snapshot.pickle"))
	require.Equal(t, exitOK, code, talk)
	want, _, _ := gputrace(t, "report", torchSnapshot)
	figures := func(text string) string { return regexp.MustCompile(`\n  (page|more) .*`).ReplaceAllString(text, "") }
	require.Equal(t, figures(want), figures(out))

	var f struct {
		Summary struct{ Bytes uint64 }
	}
	b, err := os.ReadFile(filepath.Join(dir, "memory.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &f))
	require.EqualValues(t, 22022144, f.Summary.Bytes)
}

// What a format cannot do is said before it is tried.
func TestExportRefuses(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"-f", "snapshot", "--min-size", "1KiB"}, "a snapshot has all blocks"},
		{[]string{"-f", "parquet", "--at", "peak"}, "-f parquet shows the course of time"},
		{[]string{"-f", "csv", "--at", "peak"}, "-f csv shows the course of time"},
		{[]string{"-f", "csv", "--by", "moon"}, `--by "moon": not one of line, function, stack, layer, device, phase`},
	} {
		file := filepath.Join(t.TempDir(), "out")
		_, talk, code := gputrace(t, append([]string{"export", torchSnapshot, "-o", file}, tt.args...)...)
		require.Equal(t, exitUsage, code, tt.want)
		require.Contains(t, talk, tt.want)
		require.NoFileExists(t, file)
	}
}

// The sums of a moment are those of the report.
func TestExportSums(t *testing.T) {
	out, talk, code := gputrace(t, "export", torchSnapshot, "-f", "csv", "--by", "line", "--at", "peak", "-o", "-")
	require.Equal(t, exitOK, code, talk)
	require.Contains(t, out, "[before attach],,,18875392,")
	require.Contains(t, out, "train.py:3 keep,/home/anna/train.py,3,8389632,4,")
}
