// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package tracer

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/tracer/internal/program"
	"github.com/gputrace/gputrace/tracer/returnprobe"
)

// inKernel counts what of the kernel's is held by this process: programs, maps, links, perf events.
func inKernel(t *testing.T) (n int) {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, f := range files {
		to, err := os.Readlink("/proc/self/fd/" + f.Name())
		if err == nil && (strings.Contains(to, "bpf") || strings.Contains(to, "perf_event")) {
			n++
		}
	}
	return n
}

// TestNothingHalfAttached: whatever keeps a trace from beginning, nothing of it is left, in the kernel or in the process.
func TestNothingHalfAttached(t *testing.T) {
	_ = returnprobe.Ask(true, returnprobe.NotTried) // features are asked for once, and closed
	for name, c := range map[string]struct {
		library string
		options Options
		outcome returnprobe.Trial
		want    error
	}{
		"a map is refused":          {program.Torch, Options{RingBytes: 4097}, returnprobe.Survived, ErrNotLoaded},
		"returns would kill":        {program.Driver, Options{}, returnprobe.Killed, ErrUnsafeReturns},
		"none of the functions":     {"libcudart.so.13", Options{}, returnprobe.Survived, ErrNoSymbol},
		"no library":                {"something", Options{}, returnprobe.Survived, ErrNoCUDA},
		"by perf, a map is refused": {program.Torch, Options{RingBytes: 4097, PerfUprobes: true}, returnprobe.Survived, ErrNotLoaded},
	} {
		for _, job := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				c.options.ReturnTrial = c.outcome
				o, p := startOwnAs(t, c.library, true)
				before := inKernel(t)
				require.ErrorIs(t, startAndClose(p, c.options, job), c.want)
				require.Equal(t, before, inKernel(t))
				require.NoError(t, o.Step(3))
				require.False(t, hasProbePage(t, p))
			})
		}
	}
}

// startAndClose returns the error with which a trace does not begin.
func startAndClose(p *process.Process, o Options, job bool) error {
	o.Job = job
	tr := Open(&o)
	_, err := tr.Add(p)
	if cerr := tr.Close(); cerr != nil {
		return cerr
	}
	return err
}

// TestLoadError: the text is that of the cause, which is found too.
func TestLoadError(t *testing.T) {
	err := &loadError{unix.E2BIG}
	require.ErrorIs(t, err, ErrNotLoaded)
	require.ErrorIs(t, err, unix.E2BIG)
	require.Equal(t, unix.E2BIG.Error(), err.Error())
}
