// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// differed is what diff -f json writes, as far as it is looked at.
type differed struct {
	Bytes         int64
	Before, After struct{ Bytes, Blocks int64 }
	Rows          []differedRow
}

type differedRow struct {
	Bytes         int64
	Blocks        *int64
	Moved, Edited bool
	Before, After *struct {
		Name, Function, Source, File string
		Line                         int
		Bytes                        int64
	}
}

// gputrace runs a command that must succeed.
func gputrace(t *testing.T, args ...string) string {
	t.Helper()
	var out, talk bytes.Buffer
	cmd := exec.Command(env.binary, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = t.TempDir(), &out, &talk
	require.NoError(t, cmd.Run(), "%s\n%s", strings.Join(args, " "), &talk)
	require.NotContains(t, talk.String(), "warning")
	return out.String()
}

func diffJSON(t *testing.T, args ...string) *differed {
	t.Helper()
	d := &differed{}
	require.NoError(t, json.Unmarshal([]byte(gputrace(t, append([]string{"diff", "-f", "json"}, args...)...)), d))
	sum := int64(0)
	for i := range d.Rows {
		sum += d.Rows[i].Bytes
	}
	require.Equal(t, d.Bytes, sum)
	require.Equal(t, d.After.Bytes-d.Before.Bytes, sum)
	return d
}

// version is a training script in a folder of its own: mlp.py with some of its text replaced. At its end it says what is
// allocated.
func version(t *testing.T, folder string, changes ...string) string {
	t.Helper()
	changes = append(changes, "    side.finish()", "    print(\"ALLOCATED\", torch.cuda.memory_allocated(), flush=True)\n    side.finish()")
	b, err := os.ReadFile(workload("mlp.py"))
	require.NoError(t, err)
	for i := 0; i < len(changes); i += 2 {
		require.Equal(t, 1, strings.Count(string(b), changes[i]), changes[i])
	}
	dir := filepath.Join(t.TempDir(), folder)
	require.NoError(t, os.Mkdir(dir, 0o755))
	path := filepath.Join(dir, "train.py")
	require.NoError(t, os.WriteFile(path, []byte(strings.NewReplacer(changes...).Replace(string(b))), 0o644))
	return path
}

const keptSteps = 12

// recordVersion records a script from before its first step to behind its last one, and gives the folder of results and what
// PyTorch itself says is allocated.
func recordVersion(t *testing.T, script string) (out string, allocated int64) {
	t.Helper()
	dir := t.TempDir()
	p := startIn(t, dir, []string{"PYTHONPATH=" + filepath.Join(env.testdata, "workloads")}, filepath.Join(env.testdata, "run"), script,
		"--wait", "--go", dir+"/go", "--hold", dir+"/hold", "--steps", itoa(keptSteps)).ready(t)
	c := startCommand(t, p, "--no-holders")
	p.release(t)
	p.done(t)
	allocated, err := strconv.ParseInt(strings.TrimPrefix(p.await(t, "ALLOCATED "), "ALLOCATED "), 10, 64)
	require.NoError(t, err)
	c.interrupt(t)
	return c.out(), allocated
}

// TestDiff: two versions of a script on two machines, so to speak. The new one keeps 4 MiB more in each step, and the lines
// below a new comment have moved; nothing else is different, and the total is what PyTorch says.
func TestDiff(t *testing.T) {
	before, allocatedBefore := recordVersion(t, version(t, "job"))
	after, allocatedAfter := recordVersion(t, version(t, "copy of job",
		"def train_step(", "# A comment,\n# of several lines,\n# that moves what is below.\ndef train_step(",
		"    stream = loop.batches(loader)\n", "    stream = loop.batches(loader)\n    options.kept = []\n",
		"        side.step(step)\n", "        options.kept.append(torch.empty(1 << 20, device=\"cuda\"))\n        side.step(step)\n"))
	a, b := filepath.Join(before, "trace.gputrace"), filepath.Join(after, "trace.gputrace")
	d := diffJSON(t, a, b)
	torch := torchRow(t, a, b)
	require.Equal(t, allocatedBefore, torch.Before.Bytes)
	require.Equal(t, allocatedAfter, torch.After.Bytes)
	require.Equal(t, allocatedAfter-allocatedBefore, d.Bytes, "what is not torch's is the same")
	require.GreaterOrEqual(t, d.Bytes, int64(keptSteps*4<<20))
	requireKept(t, d)
	requireMoved(t, d)
	requireAgree(t, d, before, after)
	requireDiffBase(t, before, after)

	text := gputrace(t, "diff", a, b)
	require.Regexp(t, `(?m)^  train.py:65 .* options.kept.append\(.*\+12  new$`, text)
	require.Regexp(t, `(?m)^change +\+`+grouped(d.Bytes)+` B$`, text)
	same := diffJSON(t, b, b, "--at", "peak")
	for i := range same.Rows {
		require.Zero(t, same.Rows[i].Bytes)
	}
	requireMoments(t, b)
}

// torchRow is the change of the memory that PyTorch itself counts.
func torchRow(t *testing.T, before, after string) differedRow {
	t.Helper()
	for _, r := range diffJSON(t, before, after, "--by", "layer").Rows {
		if r.After != nil && r.After.Name == "torch" {
			return r
		}
	}
	require.FailNow(t, "no row of torch")
	return differedRow{}
}

// requireKept: the line that keeps more is the largest change.
func requireKept(t *testing.T, d *differed) {
	t.Helper()
	row := d.Rows[0]
	require.Nil(t, row.Before)
	require.Equal(t, `options.kept.append(torch.empty(1 << 20, device="cuda"))`, row.After.Source)
	require.EqualValues(t, keptSteps, *row.Blocks)
	require.GreaterOrEqual(t, row.Bytes, int64(keptSteps*4<<20))
	for _, r := range d.Rows[1:] {
		require.Less(t, max(r.Bytes, -r.Bytes), int64(1<<20), "the rest is what the allocator rounds: %+v", r.After)
		require.NotNil(t, r.Before, "%+v", r.After)
		require.NotNil(t, r.After, "%+v", r.Before)
	}
}

// requireMoved: lines below the comment were found again, at least three lines on.
func requireMoved(t *testing.T, d *differed) {
	t.Helper()
	moved := 0
	for _, r := range d.Rows[1:] {
		if filepath.Base(r.After.File) != "train.py" {
			continue
		}
		require.NotEqual(t, r.Before.File, r.After.File)
		require.Equal(t, r.Before.Source, r.After.Source)
		require.False(t, r.Edited)
		require.Equal(t, r.Moved, r.Before.Line != r.After.Line)
		if r.Moved {
			moved++
			require.Contains(t, []string{"train_step", "train", "main"}, r.After.Function)
			require.GreaterOrEqual(t, r.After.Line, r.Before.Line+3)
		}
	}
	require.Positive(t, moved)
}

// requireAgree: the profiles that were written at the end tell the same as the recordings, in every mixture and by every kind
// of row.
func requireAgree(t *testing.T, want *differed, before, after string) {
	t.Helper()
	for _, by := range []string{"line", "function", "layer", "device"} {
		recordings := diffJSON(t, before+"/trace.gputrace", after+"/trace.gputrace", "--by", by)
		require.Equal(t, want.Bytes, recordings.Bytes)
		profiles := diffJSON(t, before+"/inuse.pb.gz", after+"/inuse.pb.gz", "--by", by)
		require.Equal(t, recordings.Before, profiles.Before)
		require.Equal(t, recordings.After, profiles.After)
		require.Equal(t, sums(recordings), sums(profiles), by)
	}
	for _, pair := range [][2]string{{"/inuse.pb.gz", "/trace.gputrace"}, {"/trace.gputrace", "/inuse.pb.gz"}} {
		d := diffJSON(t, before+pair[0], before+pair[1])
		require.NotEmpty(t, d.Rows)
		for _, r := range d.Rows {
			require.True(t, r.Before != nil && r.After != nil && r.Bytes == 0 && *r.Blocks == 0, "%+v", r)
		}
	}
	peak := diffJSON(t, before+"/peak.pb.gz", before+"/trace.gputrace", "--at", "peak")
	for _, r := range peak.Rows {
		require.Zero(t, r.Bytes, "%+v", r.After)
	}
}

// sums is the bytes of each row of both sides, by name.
func sums(d *differed) [2]map[string]int64 {
	out := [2]map[string]int64{{}, {}}
	for _, r := range d.Rows {
		if r.Before != nil {
			out[0][r.Before.Name+" "+r.Before.Function] += r.Before.Bytes
		}
		if r.After != nil {
			out[1][r.After.Name+" "+r.After.Function] += r.After.Bytes
		}
	}
	return out
}

// requireDiffBase: pprof shows of the difference what it shows of the two profiles with -diff_base.
func requireDiffBase(t *testing.T, before, after string) {
	t.Helper()
	dir := t.TempDir()
	gputrace(t, "diff", before+"/trace.gputrace", after+"/trace.gputrace", "-f", "pprof", "-o", dir+"/diff.pb.gz")
	for _, side := range []string{before, after} {
		gputrace(t, "export", side+"/trace.gputrace", "-f", "pprof", "-o", dir+"/"+filepath.Base(filepath.Dir(side))+".pb.gz")
	}
	base, new := dir+"/"+filepath.Base(filepath.Dir(before))+".pb.gz", dir+"/"+filepath.Base(filepath.Dir(after))+".pb.gz"
	want, _ := pprofTop(t, new, "-diff_base", base)
	got, _ := pprofTop(t, dir+"/diff.pb.gz")
	require.Equal(t, want, got)
	require.Contains(t, got[0], "train.py")
}

// requireMoments: the difference of two moments of one recording is what was kept in between.
func requireMoments(t *testing.T, trace string) {
	t.Helper()
	d := diffJSON(t, trace, "--at", "0s")
	require.Equal(t, d, diffJSON(t, trace, "--at", "0s", "--at", "end"))
	require.EqualValues(t, keptSteps, *d.Rows[rowOf(t, d, "options.kept.append(")].Blocks)
	back := diffJSON(t, trace, "--at", "end", "--at", "0s")
	require.Equal(t, -d.Bytes, back.Bytes)
}

func rowOf(t *testing.T, d *differed, source string) int {
	t.Helper()
	for i, r := range d.Rows {
		if r.After != nil && strings.HasPrefix(r.After.Source, source) {
			return i
		}
	}
	require.FailNow(t, "no row", source)
	return 0
}
