// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

package tracer

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/tracer/hook"
)

// TestGuard: what was seen decides; without it the version, and what is not known counts as unsafe.
func TestGuard(t *testing.T) {
	version := func(major, minor, patch uint32) uint32 { return major<<16 | minor<<8 | patch }
	for name, c := range map[string]struct {
		guard guard
		safe  bool
	}{
		"no filter":                        {guard{kernel: version(6, 11, 0)}, true},
		"no filter, kernel unknown":        {guard{}, true},
		"no filter, though others die":     {guard{kernel: version(6, 12, 5), tried: trialKilled}, true},
		"before the system call":           {guard{version(6, 10, 255), true, trialNotMade}, true},
		"first with it":                    {guard{version(6, 11, 0), true, trialNotMade}, false},
		"6.12":                             {guard{version(6, 12, 0), true, trialNotMade}, false},
		"6.12 that may have the exemption": {guard{version(6, 12, 200), true, trialNotMade}, false},
		"6.13":                             {guard{version(6, 13, 255), true, trialNotMade}, false},
		"first with the exemption":         {guard{version(6, 14, 0), true, trialNotMade}, true},
		"7.3":                              {guard{version(7, 3, 4), true, trialNotMade}, true},
		"kernel unknown":                   {guard{0, true, trialNotMade}, false},
		"6.12 that was seen to exempt it":  {guard{version(6, 12, 40), true, trialSurvived}, true},
		"6.12 that was seen not to":        {guard{version(6, 12, 5), true, trialKilled}, false},
		"old, but has it all the same":     {guard{version(5, 14, 0), true, trialKilled}, false},
		"new, but has lost the exemption":  {guard{version(7, 0, 0), true, trialKilled}, false},
	} {
		require.Equal(t, c.safe, c.guard.safe(), name)
	}
}

// TestTryReturns: the kernel that the tests run on exempts it, or is older: else the tests of containers would kill them.
func TestTryReturns(t *testing.T) {
	tried, err := tryReturns()
	require.NoError(t, err)
	require.Equal(t, trialSurvived, tried)
}

// TestOwnDies tells a program that a signal ends from one that ends by itself.
func TestOwnDies(t *testing.T) {
	for script, died := range map[string]bool{"read x; kill -SEGV $$": true, "read x; kill -KILL $$": true, "exit 3": false, "": false} {
		o, err := startOwn("/bin/sh", "-c", script)
		require.NoError(t, err)
		require.Equal(t, died, errors.Is(o.step('\n'), errOwnEnded), script)
		o.close()
	}
}

// TestOwnFilter: the program forbids itself what a container's runtime does not know, and answers.
func TestOwnFilter(t *testing.T) {
	for _, filtered := range []bool{false, true} {
		_, p := startOwnAs(t, ownDriver, filtered)
		got, err := p.Filtered()
		require.NoError(t, err)
		require.Equal(t, filtered, got)
	}
}

// startOwnAs starts the program under the name of a library.
func startOwnAs(t *testing.T, name string, filtered bool) (*own, *process.Process) {
	t.Helper()
	dir, err := placeOwn(name)
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	args := []string{"filtered"}
	if !filtered {
		args = nil
	}
	o, err := startOwn(filepath.Join(dir, name), args...)
	require.NoError(t, err)
	t.Cleanup(o.close)
	require.NoError(t, o.step(1))
	p, err := process.Open(o.cmd.Process.Pid)
	require.NoError(t, err)
	return o, p
}

// pretend has the kernel be one on which a trial ended so.
func pretend(t *testing.T, outcome trial) {
	t.Helper()
	real := tryReturns
	tryReturns = func() (trial, error) { return outcome, nil }
	t.Cleanup(func() { tryReturns = real })
}

// TestUnsafeReturns traces programs on a kernel that would kill those with a filter: those without are traced in full, PyTorch's
// layer is traced in any case, and a program of which nothing is left is refused, with nothing attached to it.
func TestUnsafeReturns(t *testing.T) {
	pretend(t, trialKilled)
	for name, c := range map[string]struct {
		library        string
		filtered, job  bool
		probes, events int
		warned         bool
	}{
		"driver, no filter":       {ownDriver, false, false, 2, 2, false},
		"driver, filter":          {ownDriver, true, false, 0, 0, false},
		"driver, no filter, job":  {ownDriver, false, true, 0, 0, true},
		"PyTorch, filter":         {ownTorch, true, false, 1, 2, false},
		"PyTorch, no filter, job": {ownTorch, false, true, 1, 2, false},
	} {
		t.Run(name, func(t *testing.T) {
			o, p := startOwnAs(t, c.library, c.filtered)
			s, tr, err := startEither(t, p, c.job)
			if c.probes == 0 {
				require.ErrorIs(t, err, ErrUnsafeReturns)
				if s != nil {
					require.Empty(t, s.probes.links)
				}
				require.NoError(t, o.step(1))
				return
			}
			require.NoError(t, err)
			require.Len(t, tr.Found().Probes, c.probes)
			require.NoError(t, o.step(1))
			events, err := readOwnEvents(tr.Session)
			require.NoError(t, err)
			require.Len(t, events, c.events)
			require.Empty(t, tr.Warnings())
		})
	}
}

// startEither traces a process alone, or as one of a job.
func startEither(t *testing.T, p *process.Process, job bool) (*Session, *Tracer, error) {
	t.Helper()
	if !job {
		tr, err := Start(p, nil)
		if err != nil {
			return nil, nil, err
		}
		t.Cleanup(func() { require.NoError(t, tr.Close()) })
		return tr.Session, tr, nil
	}
	s, err := Open(&Options{Job: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	tr, err := s.Add(p)
	return s, tr, err
}

// TestSafeProbes: what goes without a return stays, and it is said once what does not.
func TestSafeProbes(t *testing.T) {
	s := newSession(&Options{Job: true})
	defer s.Close()
	probes := []*Probe{probeOf(t, "reportMemoryUsageToProfiler"), probeOf(t, "cuMemAlloc_v2"), probeOf(t, "cuMemFree_v2")}
	pretend(t, trialKilled)
	require.Equal(t, probes[:1], s.safeProbes(probes))
	require.Len(t, s.safeProbes(probes), 1)
	warnings := s.Warnings()
	require.Len(t, warnings, 1)
	require.ErrorContains(t, warnings[0], "are not traced, PyTorch's blocks are")
	require.ErrorContains(t, warnings[0], "seccomp=unconfined")
	pretend(t, trialSurvived)
	require.Equal(t, probes, s.safeProbes(probes))
	require.Empty(t, s.Warnings())
}

func TestCheckReturns(t *testing.T) {
	safe, says := CheckReturns(false)
	require.True(t, safe)
	require.Contains(t, says, "no seccomp filter")
	pretend(t, trialKilled)
	safe, says = CheckReturns(true)
	require.False(t, safe)
	require.Contains(t, says, "killed")
	pretend(t, trialSurvived)
	safe, _ = CheckReturns(true)
	require.True(t, safe)
}

// TestOwnImage: the committed program is what its source makes, up to where the linker puts its parts.
func TestOwnImage(t *testing.T) {
	made := filepath.Join(t.TempDir(), "own.elf")
	out, err := exec.Command("gcc", "-shared", "-nostdlib", "-Wl,-Bsymbolic,-z,noseparate-code,-z,norelro,--hash-style=sysv,--build-id=none,-e,_start",
		"-o", made, "own/own.S").CombinedOutput()
	require.NoError(t, err, "%s", out)
	image, err := os.ReadFile(made)
	require.NoError(t, err)
	require.Equal(t, textOf(t, image), textOf(t, ownImage))
}

// textOf is the code of an image, and where in it the symbols are.
func textOf(t *testing.T, image []byte) map[string]string {
	t.Helper()
	f, err := elf.NewFile(bytes.NewReader(image))
	require.NoError(t, err)
	text := f.Section(".text")
	code, err := text.Data()
	require.NoError(t, err)
	out := map[string]string{"code": string(code)}
	symbols, err := f.Symbols()
	require.NoError(t, err)
	for i, s := range symbols {
		if s.Section != elf.SectionIndex(0) && int(s.Section) < len(f.Sections) && f.Sections[s.Section] == text {
			out[fmt.Sprint(i, s.Name)] = fmt.Sprint(s.Value - text.Addr)
		}
	}
	return out
}

func probeOf(t *testing.T, label string) *Probe {
	t.Helper()
	i := slices.IndexFunc(hook.Rows, func(r hook.Row) bool { return r.Label() == label })
	require.GreaterOrEqual(t, i, 0, label)
	return &Probe{Library: hook.Rows[i].Library, File: "/x", Symbol: label, row: &hook.Rows[i]}
}
