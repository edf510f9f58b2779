// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package tracer

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/tracer/hook"
	"github.com/gputrace/gputrace/tracer/internal/kernel"
	"github.com/gputrace/gputrace/tracer/internal/program"
	"github.com/gputrace/gputrace/tracer/returnprobe"
)

// TestUnsafeReturns traces programs on a kernel that would kill those with a filter: those without are traced in full, PyTorch's
// layer is traced in any case, and a program of which nothing is left is refused, with nothing attached to it.
func TestUnsafeReturns(t *testing.T) {
	for name, c := range map[string]struct {
		library        string
		filtered, job  bool
		probes, events int
		warned         bool
	}{
		"driver, no filter":       {program.Driver, false, false, 2, 2, false},
		"driver, filter":          {program.Driver, true, false, 0, 0, false},
		"driver, no filter, job":  {program.Driver, false, true, 0, 0, true},
		"PyTorch, filter":         {program.Torch, true, false, 1, 2, false},
		"PyTorch, no filter, job": {program.Torch, false, true, 1, 2, false},
	} {
		t.Run(name, func(t *testing.T) {
			o, p := startOwnAs(t, c.library, c.filtered)
			tr, target, err := startEither(t, p, c.job)
			if c.probes == 0 {
				require.ErrorIs(t, err, ErrUnsafeReturns)
				require.Empty(t, tr.probes.Links)
				require.NoError(t, o.Step(1))
				return
			}
			require.NoError(t, err)
			require.Len(t, target.Found().Probes, c.probes)
			require.NoError(t, o.Step(1))
			events, err := tr.ReadAll()
			require.NoError(t, err)
			require.Len(t, events, c.events)
			require.Empty(t, tr.Warnings())
		})
	}
}

// startEither traces a process alone, or as one of a job.
func startEither(t *testing.T, p *process.Process, job bool) (*Tracer, *Target, error) {
	t.Helper()
	tr := Open(&Options{Job: job, ReturnTrial: returnprobe.Killed})
	t.Cleanup(func() { require.NoError(t, tr.Close()) })
	target, err := tr.Add(p)
	return tr, target, err
}

// TestSafeProbes: what goes without a return stays, and it is said once what does not.
func TestSafeProbes(t *testing.T) {
	tr := Open(&Options{Job: true})
	defer tr.Close()
	probes := []*kernel.Probe{probeOf(t, "reportMemoryUsageToProfiler"), probeOf(t, "cuMemAlloc_v2"), probeOf(t, "cuMemFree_v2")}
	tr.options.ReturnTrial = returnprobe.Killed
	require.Equal(t, probes[:1], tr.safeProbes(probes, nil))
	require.Len(t, tr.safeProbes(probes, nil), 1)
	warnings := tr.Warnings()
	require.Len(t, warnings, 1)
	require.ErrorContains(t, warnings[0], "are not traced, PyTorch's blocks are")
	require.ErrorContains(t, warnings[0], "seccomp=unconfined")
	tr.options.ReturnTrial = returnprobe.Survived
	require.Equal(t, probes, tr.safeProbes(probes, nil))
	require.Empty(t, tr.Warnings())
}

// startOwnAs starts the program under the name of a library.
func startOwnAs(t *testing.T, name string, filtered bool) (*program.Program, *process.Process) {
	t.Helper()
	dir, err := program.Place(program.Image, name)
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	args := []string{"filtered"}
	if !filtered {
		args = nil
	}
	o, err := program.Start(filepath.Join(dir, name), args...)
	require.NoError(t, err)
	t.Cleanup(o.Close)
	require.NoError(t, o.Step(1))
	p, err := process.Open(o.PID())
	require.NoError(t, err)
	return o, p
}

func probeOf(t *testing.T, label string) *kernel.Probe {
	t.Helper()
	i := slices.IndexFunc(hook.Rows, func(r hook.Row) bool { return r.Label() == label })
	require.GreaterOrEqual(t, i, 0, label)
	return &kernel.Probe{Library: hook.Rows[i].Library, File: "/x", Symbol: label, Row: &hook.Rows[i]}
}
