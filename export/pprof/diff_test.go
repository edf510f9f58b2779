// SPDX-License-Identifier: Apache-2.0

package pprof

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"
)

// diffed is two profiles of runs that differ, and the difference.
func diffed(t *testing.T) (before, after, diff string) {
	t.Helper()
	before, p := write(t, inUse)
	q := p.Copy()
	for i, s := range q.Sample {
		s.Value[inuseSpace] += int64(i%3)*1000 - 500
		s.Value[inuseObjects] += int64(i % 3)
	}
	q.Sample = q.Sample[1:]
	q.Sample[0].Label["site"] = []string{"other.py:1 f"}
	after = filepath.Join(t.TempDir(), "after.pb.gz")
	save(t, after, func(b *bytes.Buffer) error { return q.Write(b) })
	diff = filepath.Join(t.TempDir(), "diff.pb.gz")
	save(t, diff, func(b *bytes.Buffer) error { return WriteDiff(b, p, q) })
	return before, after, diff
}

func save(t *testing.T, path string, content func(*bytes.Buffer) error) {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, content(&b))
	require.NoError(t, os.WriteFile(path, b.Bytes(), 0o600))
}

// header is what pprof prints above its tables of the files and their times.
var header = regexp.MustCompile(`(?m)^(File|Time|Duration|Build ID): .*\n`)

func pprofText(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command("go", append([]string{"tool", "pprof"}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.Env = append(os.Environ(), "PPROF_TMPDIR="+t.TempDir())
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	return header.ReplaceAllString(string(out), "")
}

// TestDiffIsDiffBase: pprof shows of the difference what it shows of the two files, percentages and labels too.
func TestDiffIsDiffBase(t *testing.T) {
	before, after, diff := diffed(t)
	for _, view := range [][]string{
		{"-top"}, {"-top", "-cum"}, {"-top", "-lines"}, {"-top", "-sample_index=inuse_objects"}, {"-top", "-sample_index=alloc_space"},
		{"-traces"}, {"-tags"}, {"-top", "-tagfocus=device=cuda:0"},
	} {
		want := pprofText(t, append(append([]string{}, view...), "-diff_base", before, after)...)
		got := pprofText(t, append(append([]string{}, view...), diff)...)
		if view[0] == "-tags" { // it lists labels of one value in any order
			want, got = sortedLines(want), sortedLines(got)
		}
		require.Equal(t, want, got, strings.Join(view, " "))
		if view[0] == "-top" && len(view) == 1 {
			require.Contains(t, want, "-0.49kB", "something was freed")
		}
	}
}

func sortedLines(text string) string {
	lines := strings.Split(text, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func TestDiffOfOne(t *testing.T) {
	_, p := write(t, inUse)
	kept := p.Copy()
	var b bytes.Buffer
	require.NoError(t, WriteDiff(&b, p, p))
	require.Equal(t, kept.String(), p.String(), "the profiles are not changed")
	d, err := profile.Parse(&b)
	require.NoError(t, err)
	require.Zero(t, sum(d, inuseSpace, "", ""))
	require.Zero(t, d.DurationNanos)
}

func TestDiffRefuses(t *testing.T) {
	_, p := write(t, inUse)
	require.ErrorContains(t, WriteDiff(&bytes.Buffer{}, p, foreign()), "compare profiles")
	require.ErrorIs(t, WriteDiff(fullDisk{}, p, p), errFull)
}
