// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64) && frameworks

package e2e

import (
	"cmp"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLeaksOfFrameworks: leaks in loops that frameworks run, which nobody here wrote, and the same jobs without. It needs what
// testdata/jobs/setup.sh installs:
//
//	go test -tags frameworks ./e2e -run TestLeaksOfFrameworks
func TestLeaksOfFrameworks(t *testing.T) {
	const hidden = 4 * 32 * 256 // bytes of an activation of leaking_lightning.py: 32 rows of 256
	for job, tt := range map[string]struct {
		code, holder      string
		requested, blocks float64 // each step
	}{
		"leaking_trainer": {code: "self.history.append(", holder: ".history[", requested: 4 * 64 * 128, blocks: 1},
		// Of each of eight layers: what normalization, GELU and the next layer save, mean and deviation of 32 rows. The mean at the end
		// saves nothing, and is kept itself.
		"leaking_lightning": {code: "self.losses.append(", holder: ".losses[", requested: 8*(3*hidden+2*4*32) - hidden + 4, blocks: 40},
		"leaking_timm":      {code: "cross_entropy(", holder: "losses[", requested: 4, blocks: 1},
	} {
		t.Run(job, func(t *testing.T) {
			r := frameworkJob(t, job, "leak")
			require.Equal(t, "growing", r.Verdict)
			f := r.Findings[0]
			require.Contains(t, sourceLine(t, f.File, f.Line), tt.code)
			require.Equal(t, 1, f.Period)
			require.InDelta(t, tt.blocks, f.Blocks, 1e-6)
			require.InDelta(t, tt.requested, f.Requested, 1e-3, "exact to the byte")
			require.Contains(t, f.Holder, tt.holder)
		})
		t.Run(job+" repaired", func(t *testing.T) { requireSteady(t, frameworkJob(t, job, "clean")) })
	}
}

// frameworkJob records some seconds of a job that runs, and gives the verdict.
func frameworkJob(t *testing.T, job, arg string) *leakReport {
	t.Helper()
	venv := cmp.Or(os.Getenv("JOBS_VENV"), filepath.Join(env.testdata, ".work", "jobs"))
	dir := t.TempDir()
	p := startIn(t, dir, []string{"RUN_PROGRAM=" + filepath.Join(venv, "bin", "python"), "HF_HUB_OFFLINE=1", "STANDIN_PRELOAD=0"},
		filepath.Join(env.testdata, "run"), filepath.Join(env.testdata, "jobs", job+".py"), arg)
	p.await(t, "TRAINING")
	c := startCommand(t, p, "-d", "10s", "-f", "none")
	require.Zero(t, c.code(t), c.stderr.String())
	return leaksIn(t, filepath.Join(c.out(), traceFile))
}
