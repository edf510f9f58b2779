// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMarks: steps are recognised where no allocation shows them, by what PyTorch calls whether a profiler is on or not; as many as the
// program takes.
func TestMarks(t *testing.T) {
	for name, want := range map[string]struct{ source, code string }{
		"silent":      {"optimizer", "optimizer.step()"},
		"alternating": {"optimizer", "halves[0].step()"},
		"given":       {"backward", "torch.autograd.backward("},
		"loaded":      {"loader", "in enumerate(data, start=1)"},
	} {
		t.Run(name, func(t *testing.T) {
			trace := recordMarks(t, name)
			r := leaksIn(t, trace)
			requireSteady(t, r)
			require.Equal(t, want.source, r.Steps.Source, r.Steps.On)
			steps := 150 // more than it takes for a stack that is not walked again
			if want.source != "loader" {
				steps-- // the one that runs at the end; a loader is asked once more, at its end
			}
			require.Equal(t, steps, r.Steps.Count, r.Steps.On)
			on := regexp.MustCompile(`^marks\.py:(\d+) `).FindStringSubmatch(r.Steps.On)
			require.NotNil(t, on, r.Steps.On)
			require.Contains(t, sourceLine(t, workload("marks.py"), int(number(t, on[1]))), want.code)
		})
	}
}

// TestNoMarks: without steps nothing is probed for them.
func TestNoMarks(t *testing.T) {
	r := leaksIn(t, recordMarks(t, "silent", "--no-steps"))
	require.Equal(t, "backward", r.Steps.Source, "that allocates")
}

func recordMarks(t *testing.T, name string, flags ...string) string {
	t.Helper()
	p := startTraining(t, "marks.py", "--case", name, "--steps", "150").ready(t)
	c := startCommand(t, p, flags...)
	p.release(t)
	p.done(t)
	c.interrupt(t)
	return filepath.Join(c.out(), traceFile)
}
