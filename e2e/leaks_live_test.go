// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/leaks"
)

// leaksPattern are the arguments of leaks_patterns.py for a pattern that goes on until it is killed.
func leaksPattern(pattern int, more ...string) []string {
	return append([]string{"--steps", "0", "--batch", itoa(leakBatch), "--width", itoa(leakWidth), "--pattern", itoa(pattern)}, more...)
}

// watchLeaks is what leaks -p says of a script that runs: of three seconds, and of more where they hold too few steps.
func watchLeaks(t *testing.T, flags []string, args ...string) (*leakReport, int) {
	t.Helper()
	p := startTraining(t, args[0], append(args[1:], "--counters", "DIR/counters")...).ready(t)
	p.release(t)
	p.awaitSteps(t, 30) // the leak is older than the attach
	var r *leakReport
	var code int
	for _, window := range []string{"3s", "20s"} {
		if r, code = watchFor(t, p, append(flags, "-d", window)); r.Steps.Count >= leaks.MinSteps {
			break
		}
	}
	require.GreaterOrEqual(t, r.Steps.Count, leaks.MinSteps)
	return r, code
}

func watchFor(t *testing.T, p *target, flags []string) (*leakReport, int) {
	t.Helper()
	var out, talk bytes.Buffer
	args := []string{"--cache-dir", env.cache, "leaks", "-p", itoa(p.pid), "--json"}
	cmd := exec.Command(env.binary, append(args, flags...)...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = &out, &talk, t.TempDir()
	_ = cmd.Run() // its exit code is looked at
	r := &leakReport{}
	require.NoError(t, json.Unmarshal(out.Bytes(), r), talk.String())
	requireNoLeftovers(t, cmd.Dir)
	return r, cmd.ProcessState.ExitCode()
}

// TestLeaksLive: a process that has leaked since before the attach is found by what it does now; repaired twins of some and healthy loops
// are steady. TestLeaks has all patterns and twins in recordings, from which the same program finds the same; here
// are a hook, one that grows every third step, a gradient and a line of many blocks, or with GPUTRACE_LEAKS=all
// each.
func TestLeaksLive(t *testing.T) {
	all := os.Getenv("GPUTRACE_LEAKS") == "all"
	const features = leakBatch * 8 * leakWidth * 4 // one for each channel of the last stage, which has 4x4 of them
	for pattern, want := range map[int]struct {
		code, holder      string
		requested, blocks float64
		period            int
	}{
		1: {"return F.relu(x)", "kept[", 16 * features, 1, 1},
		2: {"g.norm().item() if trainer.fixed else g.clone()", "snapshots[", parameterBytes(), 62, 3},
		3: {"else images.clone()", "seen[", leakBatch * 3 * 32 * 32 * 4, 1, 1},
		4: {"return F.relu(x)", "captured[", 8 * features, 1, 1},
		5: {"graveyard[-1].step()", "graveyard[", 2 * parameterBytes(), 124, 3},
		6: {"scaled = scaler.scale(loss)", "history[", 4, 1, 1},
		7: {"results.append((images.clone(), trainer.model(images)))", "results[", 0, 80, 1},
		8: {"value = (detached.tanh() * detached).mean()", "fragments[", features + 4, 2, 1},
	} {
		if !all && !slices.Contains([]int{1, 5, 6, 8}, pattern) {
			continue
		}
		t.Run(itoa(pattern), func(t *testing.T) {
			r, code := watchLeaks(t, nil, append([]string{"leaks_patterns.py"}, leaksPattern(pattern)...)...)
			require.Equal(t, 3, code)
			require.Equal(t, "growing", r.Verdict)
			f := r.Findings[0]
			require.Contains(t, sourceLine(t, f.File, f.Line), want.code)
			require.Equal(t, want.period, f.Period)
			require.InDelta(t, want.blocks, f.Blocks*float64(f.Period), 1e-3)
			if want.requested > 0 {
				require.InDelta(t, want.requested, f.Requested*float64(f.Period), 1e-3, "exact to the byte")
			}
			if f.Holder != "" && !strings.HasPrefix(f.Holder, "C++ ") { // a busy machine can end the search for holders early
				require.Contains(t, f.Holder, want.holder)
			}
		})
		if pattern%3 != 2 { // the other twins are steady in recordings, by TestLeaks
			continue
		}
		t.Run(itoa(pattern)+" fixed", func(t *testing.T) {
			r, code := watchLeaks(t, []string{"--no-holders"}, append([]string{"leaks_patterns.py"}, leaksPattern(pattern, "--fixed")...)...)
			requireSteady(t, r)
			require.Zero(t, code)
		})
	}
	loops := []string{"evaluation", "queued", "adversarial", "serving"}
	if !all { // TestLeaksHealthy has all in recordings
		loops = []string{"queued", "serving"}
	}
	for _, loop := range loops {
		t.Run(loop, func(t *testing.T) {
			r, code := watchLeaks(t, []string{"--no-holders"}, "healthy.py", "--loop", loop, "--steps", "0")
			requireSteady(t, r)
			require.Zero(t, code)
		})
	}
}

// TestLeaksOfNative: a program without Python has steps by what it calls again and again, and what it keeps of them is found.
func TestLeaksOfNative(t *testing.T) {
	standin, err := output(filepath.Join(env.testdata, "setup.sh"), "--print", "standin")
	require.NoError(t, err)
	watch := func(args ...string) (*leakReport, int) {
		p := startIn(t, t.TempDir(), []string{"LD_LIBRARY_PATH=" + standin}, filepath.Join(env.programs, "buffers"), args...)
		p.await(t, "TURNS")
		return watchFor(t, p, []string{"-d", "6s"})
	}
	r, code := watch("--keep")
	require.Equal(t, 3, code)
	require.Equal(t, "growing", r.Verdict)
	require.Len(t, r.Findings, 1)
	f := r.Findings[0]
	require.Equal(t, "device", f.Kind)
	require.Equal(t, "keep_buffer", f.Function)
	require.Equal(t, 5, f.Period)
	require.InDelta(t, 1, f.Blocks*5, 1e-6)
	require.InDelta(t, 1<<16, f.Bytes*5, 1e-3)
	r, code = watch()
	requireSteady(t, r)
	require.Zero(t, code)
}

// TestLeaksKilled: while it records it says what leaks and who holds it, and the recording of a job that was killed has both.
func TestLeaksKilled(t *testing.T) {
	p := startTraining(t, "leaks_patterns.py", leaksPattern(3)...).ready(t)
	c := startCommand(t, p)
	p.release(t)
	eventually(t, "the verdict and the holder", func() bool {
		said := c.stderr.String()
		return strings.Contains(said, "growing: leaks_patterns.py:") && strings.Contains(said, "held by  ")
	})
	p.signal(t, syscall.SIGKILL)
	c.succeeds(t)
	require.Regexp(t, `(?m)^GROWING  leaks_patterns\.py:\d+ kept_inputs keeps 48\.0 KiB more each step`, c.stdout.String())
	trace := filepath.Join(c.out(), traceFile)
	r := leaksIn(t, trace)
	require.Equal(t, "growing", r.Verdict)
	require.Contains(t, r.Findings[0].Holder, "seen[")
	report, err := exec.Command(env.binary, "report", trace).Output()
	require.NoError(t, err)
	require.Regexp(t, `(?m)^GROWING  leaks_patterns\.py:\d+ kept_inputs keeps 48\.0 KiB more each step`, string(report))
}

// TestStepViews: the end of a step is what PyTorch says of it, to the byte, and steps have the allocations that it counted in them.
func TestStepViews(t *testing.T) {
	p := startTraining(t, "leaks_patterns.py", "--steps", "40", "--batch", itoa(leakBatch), "--width", itoa(leakWidth), "--pattern", "3",
		"--counters", "DIR/counters").ready(t)
	c := startCommand(t, p, "--step-on", "Trainer.batch")
	p.release(t)
	p.done(t)
	c.interrupt(t)
	trace := filepath.Join(c.out(), traceFile)
	want := readCounters(t, p)
	require.Len(t, want, 40)
	for _, step := range []int{1, 2, 11, 39} {
		require.EqualValues(t, want[step-1].Allocated, exportedJSON(t, trace, "--at", "step:"+itoa(step)).allocated(), "step %d", step)
	}
	for _, of := range [][2]int{{2, 2}, {12, 12}, {10, 30}, {39, 39}} {
		got := exportedJSON(t, trace, "--steps", itoa(of[0])+":"+itoa(of[1]))
		require.EqualValues(t, want[of[1]-1].NumAlloc-want[of[0]-2].NumAlloc, got.allocations(), "steps %d to %d", of[0], of[1])
	}
	left := exportedJSON(t, trace, "--steps", "12:30")
	require.EqualValues(t, 19, left.inUse(fmt.Sprintf("leaks_patterns.py:%d kept_inputs",
		lineWith(t, "leaks_patterns.py", "else images.clone()"))), "a block of each step is left")
}

// lineWith is the number of the line of a training script that has a text.
func lineWith(t *testing.T, script, text string) int {
	t.Helper()
	b, err := os.ReadFile(workload(script))
	require.NoError(t, err)
	before, _, found := strings.Cut(string(b), text)
	require.True(t, found, text)
	return 1 + strings.Count(before, "\n")
}

// exportedFile is what export -f json writes.
type exportedFile struct {
	Accounts []struct{ Allocated uint64 }
	Sites    []struct {
		Name, Layer  string
		Alloc, Inuse struct{ Blocks uint64 }
	}
}

func exportedJSON(t *testing.T, trace string, args ...string) *exportedFile {
	t.Helper()
	out, err := exec.Command(env.binary, append([]string{"export", trace, "-f", "json", "-o", "-"}, args...)...).Output()
	require.NoError(t, err)
	f := &exportedFile{}
	require.NoError(t, json.Unmarshal(out, f))
	return f
}

func (f *exportedFile) allocated() (sum uint64) {
	for _, a := range f.Accounts {
		sum += a.Allocated
	}
	return sum
}

func (f *exportedFile) allocations() (sum uint64) {
	for _, s := range f.Sites {
		if s.Layer == "torch" {
			sum += s.Alloc.Blocks
		}
	}
	return sum
}

func (f *exportedFile) inUse(name string) (sum uint64) {
	for _, s := range f.Sites {
		if s.Name == name {
			sum += s.Inuse.Blocks
		}
	}
	return sum
}
