// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package darwin

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// job is a recording of testdata/mac/job.py, and the program that answers questions about it.
type job struct {
	t     *testing.T
	trace string
	tool  string
	live  []uint64 // behind each step, by the job's own sums
	said  *noted
}

func recordJob(t *testing.T, args ...string) *job {
	t.Helper()
	f := buildFake(t)
	results, said, o, err := record(t, f, nil, append([]string{python(t, "3.11"), "testdata/mac/job.py", f.asked}, args...)...)
	require.NoError(t, err)
	traces := written(t, results, said, o, 1)
	j := &job{t: t, trace: traces[0], tool: filepath.Join(t.TempDir(), "gputrace"), said: said}
	for _, line := range lines(t, f.asked) {
		var step struct{ Live uint64 }
		require.NoError(t, json.Unmarshal([]byte(line), &step))
		j.live = append(j.live, step.Live)
	}
	out, err := exec.Command("go", "build", "-o", j.tool, "../cmd/gputrace").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return j
}

// ask runs a command on the recording, and fails where its answer speaks of another sort of device.
func (j *job) ask(code int, command string, args ...string) string {
	j.t.Helper()
	out, err := exec.Command(j.tool, append([]string{command, j.trace}, args...)...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = nil
		require.Equal(j.t, code, exit.ExitCode(), "%s\n%s\n%s", command, out, exit.Stderr)
	} else {
		require.Zero(j.t, code, command)
	}
	require.NoError(j.t, err)
	said := strings.ReplaceAll(string(out), `"expandable_segments": null`, "") // a key of every failure: it was not replayed
	require.NotRegexp(j.t, `(?i)cuda|nvidia|expandable`, said)
	return string(out)
}

// leakVerdict is what is looked at of gputrace leaks --json.
type leakVerdict struct {
	Verdict string
	Steps   struct {
		Count int
		Per   struct {
			Requested float64 `json:"requested_bytes"`
			Blocks    float64 `json:"block_bytes"`
			Reserved  float64 `json:"reserved_bytes"`
		} `json:"per_step"`
	}
	Findings []struct {
		Device    string
		Line      int
		Requested float64 `json:"requested_bytes_per_step"`
		Blocks    float64 `json:"block_bytes_per_step"`
	}
}

// TestLeakAnswers: of a job that keeps a batch of each step, the verdict has its line and its bytes, which are the job's own.
func TestLeakAnswers(t *testing.T) {
	const leak, buffer = 5_000_000, 5_013_504 // 306 pages of 16 KiB
	j := recordJob(t, "60", fmt.Sprint(leak))
	n := len(j.live)
	require.EqualValues(t, leak, (j.live[n-1]-j.live[n/2])/uint64(n-1-n/2), "the job's own sums")

	var v leakVerdict
	require.NoError(t, json.Unmarshal([]byte(j.ask(3, "leaks", "--json")), &v))
	require.Equal(t, "growing", v.Verdict)
	require.InDelta(t, 59, v.Steps.Count, 1)
	require.Len(t, v.Findings, 1)
	require.Equal(t, "mps:0", v.Findings[0].Device)
	require.EqualValues(t, leak, v.Findings[0].Requested)
	require.EqualValues(t, buffer, v.Findings[0].Blocks)
	require.EqualValues(t, leak, v.Steps.Per.Requested)
	require.EqualValues(t, buffer, v.Steps.Per.Blocks)
	require.InDelta(t, buffer, v.Steps.Per.Reserved, 32<<20/20, "heaps come in steps of 32 MiB")
	require.Regexp(t, `requested \+5000000 B, blocks \+5013504 B,\s+heaps \+5\d{6} B`, j.ask(3, "leaks"))

	require.Contains(t, j.ask(0, "report"), "GROWING")
	require.Contains(t, j.ask(0, "report", "-v"), "mps:0 1.0 GiB")
	require.Contains(t, j.ask(0, "summary"), "PyTorch MPS  memory summary")
	require.Contains(t, j.ask(4, "check", "--no-leaks"), "no-leaks")
	require.Contains(t, j.ask(0, "check", "--max-peak", "1GiB"), "mps:0 reached")
	var top struct {
		Verdict string
		Steps   int
		Memory  struct{ Allocated, Cached, Peak *uint64 }
	}
	require.NoError(t, json.Unmarshal([]byte(j.ask(0, "top", "--once", "--json")), &top))
	require.Equal(t, "growing", top.Verdict)
	require.Zero(t, *top.Memory.Allocated, "the program has freed all")
	require.Greater(t, *top.Memory.Peak, uint64(60*buffer))
	require.Greater(t, *top.Memory.Cached, uint64(math.Round(60*buffer)))
}

// TestOutOfMemoryAnswers: the last step needs far more than those before, which is the reason; the limit is
// PyTorch's, and what it is made of is named.
func TestOutOfMemoryAnswers(t *testing.T) {
	j := recordJob(t, "25", "0", "oom")
	text := j.ask(3, "oom")
	require.Regexp(t, `may\s+have\s+1\.7\s+GiB:\s+1\.7\s+\(PYTORCH_MPS_HIGH_WATERMARK_RATIO\)\s+x\s+1\.0\s+GiB\s+\(recommendedMaxWorkingSetSize\)`, text)
	require.Contains(t, text, "PyTorch did not\n         ask Metal for it")
	require.Contains(t, text, "untracked 3.0 MiB")
	require.Contains(t, text, "1.0 GiB recommended at most")
	var v struct {
		OOMs []struct {
			Device, Decision string
			Limit, Reserved  uint64
		}
	}
	require.NoError(t, json.Unmarshal([]byte(j.ask(3, "oom", "--json")), &v))
	require.Len(t, v.OOMs, 1)
	require.Equal(t, "mps:0", v.OOMs[0].Device)
	require.Equal(t, "full", v.OOMs[0].Decision)
	require.EqualValues(t, math.Floor(1.7*(1<<30)), v.OOMs[0].Limit)
	require.Greater(t, v.OOMs[0].Reserved, uint64(1<<30), "above the recommended size, which is no limit")
	require.Contains(t, j.ask(4, "check", "--no-oom"), "no-oom")
	require.Contains(t, j.ask(0, "report"), "OUT OF MEMORY")

	out, err := exec.Command(j.tool, "whatif", j.trace).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "PyTorch's allocator for CUDA, and this program used that for MPS")
}
