// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/internal/exit"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/recorder"
	"github.com/gputrace/gputrace/tracer"
	"github.com/gputrace/gputrace/tracer/hook"
)

func TestExplain(t *testing.T) {
	loading := func(err error) error { return fmt.Errorf("%w: load: %w", tracer.ErrNotLoaded, err) }
	pid := os.Getpid()
	for name, c := range map[string]struct {
		err  error
		code int
		says string
	}{
		"gone":                 {fmt.Errorf("open pid 1: %w", process.ErrNotExist), exitNothing, fmt.Sprintf("no process %d", pid)},
		"not permitted":        {fmt.Errorf("read maps: %w", process.ErrPermission), exitNotPermitted, "not permitted to trace"},
		"EPERM":                {fmt.Errorf("load: %w", unix.EPERM), exitNotPermitted, "not permitted to trace"},
		"EACCES":               {fmt.Errorf("attach: %w", unix.EACCES), exitNotPermitted, "not permitted to trace"},
		"no CUDA":              {fmt.Errorf("pid 1: %w", tracer.ErrNoCUDA), exitNothing, "--wait"},
		"no symbol":            {fmt.Errorf("pid 1: %w", tracer.ErrNoSymbol), exitNothing, "unknown make"},
		"verifier":             {fmt.Errorf("load: %w", &ebpf.VerifierError{Cause: unix.EINVAL}), exitError, "uname -r"},
		"not loaded, verifier": {loading(&ebpf.VerifierError{Cause: unix.EACCES}), exitNothing, "and refuses them"},
		"not loaded, feature":  {loading(unix.E2BIG), exitNothing, "nothing was attached"},
		"no BPF at all":        {loading(unix.ENOSYS), exitNothing, "gputrace doctor"},
		"not loaded, EPERM":    {loading(unix.EPERM), exitNotPermitted, "not permitted to trace"},
		"not loaded, EACCES":   {loading(unix.EACCES), exitNotPermitted, "not permitted to trace"},
		"unsafe returns":       {fmt.Errorf("pid 1: %w", tracer.ErrUnsafeReturns), exitNothing, "seccomp=unconfined"},
		"something else":       {errors.New("the ring broke"), exitError, "the ring broke"},
	} {
		t.Run(name, func(t *testing.T) {
			got := explain(&recorder.AttachError{PID: pid, Err: c.err})
			require.ErrorIs(t, got, c.err, "the cause stays")
			require.ErrorContains(t, got, c.says)
			require.Equal(t, c.code, exit.Code(got))
		})
	}
}

// TestExplainOutcome: how a recording without data ended is an exit code; an error of writing is none of attaching.
func TestExplainOutcome(t *testing.T) {
	for _, c := range []struct {
		err  error
		want int
	}{
		{coded(exitTargetEnded, errors.New("ended")), exitTargetEnded}, {&recorder.LaunchError{Err: exec.ErrNotFound}, exitNotFound},
		{fmt.Errorf("x: %w", recorder.ErrEndedEarly), exitTargetEnded}, {fmt.Errorf("x: %w", recorder.ErrInterrupted), exitInterrupted},
		{fmt.Errorf("x: %w", recorder.ErrNoProcess), exitNothing}, {fmt.Errorf("output out: %w", unix.EACCES), exitError},
	} {
		require.Equal(t, c.want, exit.Code(explain(c.err)), c.err)
	}
}

// TestPermissionHelpNamesCapability runs ourselves with fewer capabilities.
func TestPermissionHelpNamesCapability(t *testing.T) {
	const child = "GPUTRACE_TEST_PERMISSION_HELP"
	if os.Getenv(child) != "" {
		fmt.Println(permissionHelp(42))
		return
	}
	if os.Geteuid() != 0 {
		t.Fatal("root is needed to drop capabilities")
	}
	for drop, want := range map[string][]string{
		"-sys_admin,-bpf":            {"missing CAP_BPF", "sudo gputrace -p 42"},
		"-sys_admin,-perfmon":        {"missing CAP_PERFMON"},
		"-sys_admin,-sys_ptrace":     {"missing CAP_SYS_PTRACE"},
		"-all":                       {"missing CAP_BPF", "missing CAP_PERFMON", "missing CAP_SYS_PTRACE"},
		"-bpf,-perfmon":              {"the capabilities are there", "gputrace doctor -p 42"}, // CAP_SYS_ADMIN stands for them
		"-bpf,-perfmon,-sys_ptrace ": {"missing CAP_SYS_PTRACE", "--cap-add SYS_PTRACE", `"SYS_PTRACE"]`},
	} {
		cmd := exec.Command("setpriv", "--bounding-set", strings.TrimSpace(drop), "--inh-caps", strings.TrimSpace(drop), os.Args[0], "-test.run", "^TestPermissionHelpNamesCapability$")
		cmd.Env = append(os.Environ(), child+"=1")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		for _, w := range want {
			require.Contains(t, string(out), w, drop)
		}
		if !strings.Contains(drop, "all") {
			require.LessOrEqual(t, strings.Count(string(out), "missing"), 1, drop)
		}
	}
}

func TestNoCUDAHelp(t *testing.T) {
	require.Contains(t, noCUDAHelp(os.Getpid()), fmt.Sprintf("sudo gputrace -p %d --wait", os.Getpid()))
	require.Empty(t, noCUDAHelp(1<<30), "no such process: nothing to add")
}

func TestCount(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999_999: "999999", 1_000_000: "1.0 M", 4_859_565: "4.9 M"} {
		require.Equal(t, want, count(n))
	}
}

func TestKernelRelease(t *testing.T) {
	out, err := exec.Command("uname", "-r").Output()
	require.NoError(t, err)
	require.Equal(t, strings.TrimSpace(string(out)), recorder.KernelRelease())
}

// TestLibraryLines: a library that is mapped but defines nothing to trace is not said to be missing.
func TestLibraryLines(t *testing.T) {
	found := &recorder.Found{Empty: []string{"/app/torch/lib/libc10.so"}}
	lines := libraryLines(found, hook.Torch)
	require.Len(t, lines, 1)
	require.Contains(t, lines[0], "libc10.so")
	require.Contains(t, lines[0], "has none of the functions: reportMemoryUsageToProfiler reportOutOfMemoryToProfiler")
	lines = libraryLines(found, hook.Driver)
	require.Len(t, lines, 1)
	require.Contains(t, lines[0], "not found: no libcuda.so*")
	require.Empty(t, libraryLines(found, hook.HIP), "another maker's library is not expected")

	found = &recorder.Found{Hooks: []recorder.Hook{{Library: hook.HIP, File: "/opt/libamdhip64.so.6", Functions: 2}}}
	lines = libraryLines(found, hook.HIP)
	require.Len(t, lines, 1)
	require.Regexp(t, `^HIP +libamdhip64.so.6 +2 functions$`, lines[0])
	require.Empty(t, libraryLines(found, hook.Driver), "nor are CUDA's where theirs are")
	require.Len(t, libraryLines(found, hook.Torch), 1)
}
