// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	flags "github.com/gputrace/gputrace/cmd/gputrace/internal/cli"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"
	"github.com/urfave/cli/v2"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/compare"
	"github.com/gputrace/gputrace/internal/eventtest"
	"github.com/gputrace/gputrace/recording"
)

// parseDiffLine runs a command line up to the point where files would be opened.
func parseDiffLine(t *testing.T, line string) (diffOptions, error) {
	t.Helper()
	var got diffOptions
	app := newApp()
	app.Command("diff").Action = func(c *cli.Context) (err error) {
		got, err = parseDiff(c)
		return err
	}
	args, err := flags.Order(app, append([]string{"gputrace", "diff"}, strings.Fields(line)...))
	require.NoError(t, err)
	return got, app.Run(args)
}

func TestParseDiff(t *testing.T) {
	type want struct {
		paths         string
		before, after string
		by            view.RowKind
		format        string
		top           int
	}
	for line, w := range map[string]want{
		"a b":                         {"a b", "end", "end", view.ByLine, "text", 20},
		"a b --at peak":               {"a b", "peak", "peak", view.ByLine, "text", 20},
		"a --at peak b --at end":      {"a b", "peak", "end", view.ByLine, "text", 20},
		"a --at 10s":                  {"a", "10s", "end", view.ByLine, "text", 20},
		"a --at 10s --at 20s --top 0": {"a", "10s", "20s", view.ByLine, "text", 0},
		"a b --by stack -f json":      {"a b", "end", "end", view.ByStack, "json", 20},
		"a b --by holder --json":      {"a b", "end", "end", view.ByHolder, "json", 20},
	} {
		o, err := parseDiffLine(t, line)
		require.NoError(t, err, line)
		before, after := (&compare.Options{Paths: o.paths, At: o.at}).Moments()
		require.Equal(t, w, want{strings.Join(o.paths, " "), before.String(), after.String(), o.by, o.format.Name, o.top}, line)
	}
}

func TestParseDiffRefuses(t *testing.T) {
	for line, want := range map[string]string{
		"":                               "which files?",
		"a b c":                          "which files?",
		"a":                              "a moment with --at",
		"a b --at 1s --at 2s --at 3s":    "3 times",
		"a b --by name":                  `"name": not one of line, function, stack, layer, device,`,
		"a b --json -f html":             "give only one",
		"a b -f png":                     `"png": not one of text, json, html or pprof`,
		"a b --top -1":                   "not a number of rows",
		"a b --top x":                    "not a number of rows",
		"a b -o " + t.TempDir():          "exists already",
		"a b -o " + t.TempDir() + "/a/b": "its folder",
	} {
		_, err := parseDiffLine(t, line)
		requireUsage(t, err, want)
	}
}

// profileFile is a profile with one line, of so many bytes.
func profileFile(t *testing.T, kind string, bytes int64, packed bool) string {
	t.Helper()
	fn := &profile.Function{ID: 1, Name: "main", Filename: "/a/train.py"}
	loc := &profile.Location{ID: 1, Line: []profile.Line{{Function: fn, Line: 7}}}
	p := &profile.Profile{
		SampleType: []*profile.ValueType{{Type: kind, Unit: "bytes"}}, PeriodType: &profile.ValueType{}, Function: []*profile.Function{fn},
		Location: []*profile.Location{loc}, Sample: []*profile.Sample{{Location: []*profile.Location{loc}, Value: []int64{bytes}}},
	}
	path := filepath.Join(t.TempDir(), "x.pb.gz")
	f, err := os.Create(path)
	require.NoError(t, err)
	defer f.Close()
	if packed {
		require.NoError(t, p.Write(f))
	} else {
		require.NoError(t, p.WriteUncompressed(f))
	}
	return path
}

// TestDiffProfiles: profiles of other tools, packed and not.
func TestDiffProfiles(t *testing.T) {
	a, b := profileFile(t, "inuse_space", 1000, true), profileFile(t, "inuse_space", 1500, false)
	text, stderr, code := gputrace(t, "diff", a, b)
	require.Zero(t, code, stderr)
	require.Regexp(t, `(?m)^  train.py:7 +main +1000 B +1.5 KiB +\+500 B +unknown$`, text)
	require.Contains(t, text, "change   +500 B\n")
	require.Contains(t, text, "verdict  500 B more in use: 1000 B before, 1.5 KiB after; the largest change is\n         +500 B of "+
		"train.py:7 main\n")
	_, stderr, code = gputrace(t, "diff", a, b, "--by", "holder")
	require.Equal(t, exitUsage, code)
	require.Contains(t, stderr, "is a profile")

	out := filepath.Join(t.TempDir(), "diff.pb.gz")
	_, stderr, code = gputrace(t, "diff", a, b, "-f", "pprof", "-o", out)
	require.Zero(t, code, stderr)
	content, err := os.ReadFile(out)
	require.NoError(t, err)
	p, err := profile.Parse(bytes.NewReader(content))
	require.NoError(t, err)
	require.Len(t, p.Sample, 2)
	require.EqualValues(t, 500, p.Sample[0].Value[0]+p.Sample[1].Value[0])
	_, stderr, code = gputrace(t, "diff", a, b, "-f", "pprof", "-o", out)
	require.Equal(t, exitUsage, code)
	require.Contains(t, stderr, "--force")
}

// givenBack is a recording of a line that has so many MiB at the peak, of which one MiB in so many is in use at the
// end, and of 5 MiB of the driver's that stay.
func givenBack(t *testing.T, mebibytes, part int) string {
	t.Helper()
	j := eventtest.NewJob()
	j.Obtain(event.LayerDevice, "libcudart.so!cudaMalloc libcublas.so!create /home/a/train.py:3:main", 5<<20)
	var blocks []uint64
	for range mebibytes {
		blocks = append(blocks, j.Alloc(eventtest.Report+" /home/a/train.py:7:main", 1<<20))
	}
	for i, addr := range blocks {
		if part == 0 || i%part != 0 {
			j.Free(addr)
		}
	}
	path := filepath.Join(t.TempDir(), "trace.gputrace")
	w, err := recording.Create(path, &recording.Info{PID: eventtest.PID}, j.Stack, nil)
	require.NoError(t, err)
	require.NoError(t, w.Write(j.Events))
	require.NoError(t, w.Close(&recording.End{}))
	return path
}

// TestDiffEmptied: where both programs have given their memory back by the end, their peaks are compared, and it is said so.
func TestDiffEmptied(t *testing.T) {
	const emptied = "what was in use at their peaks is compared"
	empty, more, kept := givenBack(t, 200, 0), givenBack(t, 210, 150), givenBack(t, 200, 40)
	for name, tt := range map[string]struct {
		args   []string
		change string
		warns  bool
	}{
		"both":                     {[]string{empty, more}, "+10.0 MiB", true},
		"both, of the ends":        {[]string{empty, more, "--at", "end"}, "+2.0 MiB", false},
		"one is in use at its end": {[]string{empty, kept}, "+5.0 MiB", false},
		"none is empty":            {[]string{kept, kept}, "0 B", false},
	} {
		text, stderr, code := gputrace(t, append([]string{"diff"}, tt.args...)...)
		require.Zero(t, code, stderr)
		require.Regexp(t, `in all .* `+regexp.QuoteMeta(tt.change)+` `, text, name)
		require.Equal(t, tt.warns, strings.Contains(stderr, emptied), "%s: %s", name, stderr)
	}
	same, _, code := gputrace(t, "diff", empty, empty)
	require.Zero(t, code)
	require.Contains(t, same, "205.0 MiB", "of the peak, with the driver's")
}

// TestDiffSnapshots: snapshots of PyTorch's, with each other and with a profile that was made of one.
func TestDiffSnapshots(t *testing.T) {
	const a, b = "../../recording/pytorch/testdata/torch-2.15.0.pickle", "../../recording/pytorch/testdata/torch-2.15.0-expandable.pickle"
	made := filepath.Join(t.TempDir(), "b.pb.gz")
	_, stderr, code := gputrace(t, "export", b, "-f", "pprof", "-o", made)
	require.Zero(t, code, stderr)
	text, stderr, code := gputrace(t, "diff", a, b)
	require.Zero(t, code, stderr)
	mixed, stderr, code := gputrace(t, "diff", a, made)
	require.Zero(t, code, stderr)
	total := regexp.MustCompile(`(?m)^(before|after|change) .* B\b.*$`)
	require.Len(t, total.FindAllString(text, -1), 3, text)
	require.Equal(t, total.FindAllString(text, -1), total.FindAllString(mixed, -1))
	same, stderr, code := gputrace(t, "diff", b, made)
	require.Zero(t, code, stderr)
	require.Regexp(t, `(?m)^  \d+ rows without a change`, same)
	require.Contains(t, same, "change   0 B\n")
	require.NotRegexp(t, `(?m)(new|gone|moved|edited)$`, same)
}

func TestDiffRefuses(t *testing.T) {
	dir := t.TempDir()
	good, text, packed := profileFile(t, "inuse_space", 1, true), filepath.Join(dir, "text"), filepath.Join(dir, "packed")
	require.NoError(t, os.WriteFile(text, []byte("hello"), 0o644))
	require.NoError(t, os.WriteFile(packed, []byte("\x1f\x8bhello"), 0o644))
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{good, dir + "/none"}, exitError, "no such file"},
		{[]string{good, text}, exitInvalid, text},
		{[]string{packed, good}, exitInvalid, packed},
		{[]string{good, profileFile(t, "cpu", 1, true)}, exitInvalid, "no inuse_space"},
		{[]string{good, good, "--at", "peak"}, exitUsage, "a profile is of one moment"},
		{[]string{good, "--at", "peak"}, exitUsage, "a profile is of one moment"},
	} {
		stdout, stderr, code := gputrace(t, append([]string{"diff"}, c.args...)...)
		require.Equal(t, c.code, code, stderr)
		require.Contains(t, stderr, c.want)
		require.Empty(t, stdout)
	}
}
