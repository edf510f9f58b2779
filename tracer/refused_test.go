// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

package tracer

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/process"
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
	_, _ = tryReturns() // features are asked for once, and closed
	for name, c := range map[string]struct {
		library string
		options Options
		outcome trial
		want    error
	}{
		"a map is refused":          {ownTorch, Options{RingBytes: 4097}, trialSurvived, ErrNotLoaded},
		"returns would kill":        {ownDriver, Options{}, trialKilled, ErrUnsafeReturns},
		"none of the functions":     {"libcudart.so.13", Options{}, trialSurvived, ErrNoSymbol},
		"no library":                {"something", Options{}, trialSurvived, ErrNoCUDA},
		"by perf, a map is refused": {ownTorch, Options{RingBytes: 4097, PerfUprobes: true}, trialSurvived, ErrNotLoaded},
	} {
		for _, job := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				pretend(t, c.outcome)
				o, p := startOwnAs(t, c.library, true)
				before := inKernel(t)
				require.ErrorIs(t, startAndClose(p, c.options, job), c.want)
				require.Equal(t, before, inKernel(t))
				require.NoError(t, o.step(3))
				require.False(t, hasProbePage(t, p))
			})
		}
	}
}

// startAndClose gives the error with which a trace does not begin.
func startAndClose(p *process.Process, o Options, job bool) error {
	if !job {
		t, err := Start(p, &o)
		if err == nil {
			_ = t.Close()
		}
		return err
	}
	o.Job = true
	s, err := Open(&o)
	if err != nil {
		return err
	}
	_, err = s.Add(p)
	if cerr := s.Close(); cerr != nil {
		return cerr
	}
	return err
}

// TestRefusal: the sentence names the kernel, what it lacks if anything, and what it said, without the verifier's log.
func TestRefusal(t *testing.T) {
	err := &loadError{unix.E2BIG}
	require.ErrorIs(t, err, ErrNotLoaded)
	require.ErrorIs(t, err, unix.E2BIG)
	require.Regexp(t, `^Linux \S+ has all that the programs use, and refuses them: argument list too long$`, Refusal(err))
	all := Features
	t.Cleanup(func() { Features = all })
	lacks := func() error { return ErrNoFeature }
	Features = []Feature{{"a map", "9.1", "", lacks}, {"a luxury", "9.2", "is done without", lacks}, {"a helper", "9.3", "", lacks}}
	require.Regexp(t, `^Linux \S+ cannot be traced on, it lacks a map \(since 9.1\), a helper \(since 9.3\): argument list too long$`, Refusal(err))
}
