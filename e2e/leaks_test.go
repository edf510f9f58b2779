// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// leakReport is what gputrace leaks --json writes.
type leakReport struct {
	Verdict string
	Steps   struct {
		Count  int
		Source string
		On     string
	}
	Findings []leakFinding
}

type leakFinding struct {
	Kind, Function, Holder string
	Advice                 string
	File                   string
	Line                   int
	Requested              float64 `json:"requested_bytes_per_step"`
	Bytes                  float64 `json:"block_bytes_per_step"`
	Blocks                 float64 `json:"blocks_per_step"`
	Period                 int     `json:"period_steps"`
	First                  int     `json:"first_step"`
	Phase                  string
	UsualEnd               string `json:"usual_end"`
}

// leaksOf records a script from its start on, and gives the verdict on the recording. The device is small: 512 B a
// step matter on a busy machine too.
func leaksOf(t *testing.T, script string, args ...string) *leakReport {
	t.Helper()
	p := startTrainingIn(t, []string{"STANDIN_GPU_MEM=2GiB"}, script, args...).ready(t)
	c := startCommand(t, p)
	p.release(t)
	p.done(t)
	c.interrupt(t)
	return leaksIn(t, filepath.Join(c.out(), traceFile))
}

func leaksIn(t *testing.T, path string) *leakReport {
	t.Helper()
	var out, talk bytes.Buffer
	cmd := exec.Command(env.binary, "leaks", path, "--json")
	cmd.Stdout, cmd.Stderr = &out, &talk
	_ = cmd.Run() // its exit code is looked at
	r := &leakReport{}
	require.NoError(t, json.Unmarshal(out.Bytes(), r), talk.String())
	require.Equal(t, map[string]int{"growing": 3, "steady": 0}[r.Verdict], cmd.ProcessState.ExitCode())
	return r
}

// The model of leaks_patterns.py in these tests: as small as it gets, so that its steps are quick.
const (
	leakBatch = 4
	leakWidth = 8
)

// parameterBytes is those of its parameters: convolutions, each with a batch norm, and the head.
func parameterBytes() float64 {
	const w = leakWidth
	n := 9*3*w + 2*w
	in := w
	for _, out := range []int{w, 2 * w, 4 * w, 8 * w} {
		n += 9*in*out + 3*9*out*out + 4*2*out
		if in != out {
			n += in*out + 2*out
		}
		in = out
	}
	return 4 * float64(n+8*w*10+10)
}

// TestLeaks: each pattern is found with its line, its bytes and its period, and its repaired twin is steady.
func TestLeaks(t *testing.T) {
	const images = leakBatch * 3 * 32 * 32 * 4
	const features = leakBatch * 8 * leakWidth * 4 // one for each channel of the last stage, which has 4x4 of them
	parameters := parameterBytes()
	tests := []struct {
		pattern   int
		code      string // on the line
		requested float64
		blocks    float64
		period    int
		holder    string
		usualEnd  string
	}{
		{1, "return F.relu(x)", 16 * features, 1, 1, "kept[", "backward"},
		{2, "g.norm().item() if trainer.fixed else g.clone()", parameters, 62, 3, "snapshots[", ""},
		{3, "else images.clone()", images, 1, 1, "seen[", ""},
		{4, "return F.relu(x)", 8 * features, 1, 1, "captured[", "backward"},
		{5, "graveyard[-1].step()", 2 * parameters, 124, 3, "", ""},
		{6, "scaled = scaler.scale(loss)", 4, 1, 1, "history[", ""},
		{7, "results.append((images.clone(), trainer.model(images)))", 0, 80, 1, "results[", ""},
		{8, "value = (detached.tanh() * detached).mean()", features + 4, 2, 1, "fragments[", ""},
	}
	for _, tt := range tests {
		args := []string{"--steps", "60", "--batch", itoa(leakBatch), "--width", itoa(leakWidth), "--pattern", itoa(tt.pattern)}
		t.Run(fmt.Sprint(tt.pattern), func(t *testing.T) {
			t.Parallel()
			r := leaksOf(t, "leaks_patterns.py", append(args, "--counters", "DIR/counters")...)
			if tt.pattern == 6 && os.Getenv("GPUTRACE_REAL") == "1" {
				require.Equal(t, "steady", r.Verdict, "512 B of a step take years to fill a whole device")
				return
			}
			require.Equal(t, "growing", r.Verdict)
			require.Equal(t, "optimizer", r.Steps.Source, "SGD allocates nothing in its steps, but they are marked")
			require.Equal(t, 59, r.Steps.Count)
			f := r.Findings[0]
			require.Contains(t, sourceLine(t, f.File, f.Line), tt.code)
			require.Equal(t, "leak", f.Kind)
			require.Equal(t, tt.period, f.Period)
			period := float64(f.Period)
			require.InDelta(t, tt.blocks, f.Blocks*period, 1e-6)
			if tt.requested > 0 {
				require.InDelta(t, tt.requested, f.Requested*period, 1e-3, "exact to the byte")
			}
			require.InDelta(t, 11, f.First, 2)
			require.Equal(t, tt.usualEnd, f.UsualEnd)
			if f.Holder != "" && !strings.HasPrefix(f.Holder, "C++ ") { // a busy machine can end the search for holders early
				require.Contains(t, f.Holder, tt.holder)
			}
		})
		if tt.pattern%2 == 0 && os.Getenv("GPUTRACE_LEAKS") != "all" {
			continue
		}
		t.Run(fmt.Sprint(tt.pattern, " fixed"), func(t *testing.T) {
			t.Parallel()
			requireSteady(t, leaksOf(t, "leaks_patterns.py", append(args, "--fixed")...))
		})
	}
}

func requireSteady(t *testing.T, r *leakReport) {
	t.Helper()
	require.Equal(t, "steady", r.Verdict, "%+v", r.Findings)
	require.Empty(t, r.Findings)
}

// sourceLine is the text of a line of a script.
func sourceLine(t *testing.T, file string, line int) string {
	t.Helper()
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	lines := strings.Split(string(b), "\n")
	require.Less(t, line, len(lines))
	return lines[line-1]
}

// TestLeaksHealthy: loops that keep memory for a while have no findings.
func TestLeaksHealthy(t *testing.T) {
	for loop, want := range map[string]string{
		"evaluation": "optimizer", "accumulation": "optimizer", "checkpointing": "optimizer", "varying": "optimizer", "averaged": "optimizer",
		"queued": "optimizer", "adversarial": "optimizer", "scaled": "optimizer",
		// written when the thresholds had been chosen
		"cyclic": "optimizer", "cached": "optimizer", "serving": "period", "rescheduled": "optimizer", "pooled": "optimizer",
	} {
		t.Run(loop, func(t *testing.T) {
			t.Parallel()
			r := leaksOf(t, "healthy.py", "--loop", loop, "--steps", "100")
			requireSteady(t, r)
			require.Equal(t, want, r.Steps.Source)
			count := 99.
			if loop == "accumulation" {
				count = 24
			}
			require.Less(t, math.Abs(count-float64(r.Steps.Count)), 2., r.Steps.On)
		})
	}
}
