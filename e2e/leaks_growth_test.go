// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLeaksGrowth: growth is net, weighed, and of the loop that runs at the end. The first screen while it runs,
// and the one that is made of its recording, are the same.
func TestLeaksGrowth(t *testing.T) {
	tests := map[string]struct {
		code      string  // on the line; empty: it is steady
		requested float64 // each step
		source    string
		screen    []string
	}{
		"older_queue":      {"self.queue.append(", 1 << 15, "optimizer", []string{"keeps 64.0 KiB more every 2 steps"}},
		"older_full_queue": {"", 0, "optimizer", []string{"STEADY nothing grew from step to step"}},
		"passes":           {"self.kept.append(", 1 << 12, "optimizer", []string{"keeps 4.0 KiB more each step", "of 199"}},
		"curve":            {"", 0, "optimizer", []string{"STEADY nothing that matters grew from step to step", "note", "a day"}},
		"collected":        {"made = [torch.zeros(", 1 << 16, "optimizer", []string{"keeps 64.0 KiB more each step"}},
		"loops": {"self.kept.append(", 1 << 20, "period",
			[]string{"Loops.serve keeps 1.0 MiB more each step", "Loops.warm_up kept 1.0 MiB more each step"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startTraining(t, "growth.py", "--case", name, "--steps", "200").ready(t)
			c := startCommand(t, p)
			p.release(t)
			p.done(t)
			c.interrupt(t)
			recording := filepath.Join(c.out(), traceFile)
			r := leaksIn(t, recording)
			require.Equal(t, tt.source, r.Steps.Source)
			if tt.code == "" {
				requireSteady(t, r)
			} else {
				require.Equal(t, "growing", r.Verdict)
				require.Len(t, r.Findings, 1)
				f := r.Findings[0]
				require.Contains(t, sourceLine(t, f.File, f.Line), tt.code)
				require.InDelta(t, tt.requested, f.Requested, 1e-3, "exact to the byte")
			}
			again, err := exec.Command(env.binary, "report", recording).Output()
			require.NoError(t, err)
			for _, text := range tt.screen {
				for where, screen := range map[string]string{"live": c.stdout.String(), "report": string(again)} {
					require.Contains(t, joinedLines(screen), text, where)
				}
			}
		})
	}
}

// joinedLines is a screen without the breaks of its lines.
func joinedLines(screen string) string {
	return string(bytes.Join(bytes.Fields([]byte(screen)), []byte(" ")))
}
