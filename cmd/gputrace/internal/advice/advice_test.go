// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package advice

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

	"github.com/gputrace/gputrace/inspect"
	"github.com/gputrace/gputrace/inspect/bfc"
	"github.com/gputrace/gputrace/inspect/holders"
	"github.com/gputrace/gputrace/internal/exit"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/recorder"
	"github.com/gputrace/gputrace/tracer"
)

func TestExplain(t *testing.T) {
	loading := func(err error) error { return fmt.Errorf("%w: load: %w", tracer.ErrNotLoaded, err) }
	pid := os.Getpid()
	for name, c := range map[string]struct {
		err  error
		code int
		says string
	}{
		"gone":                 {fmt.Errorf("open pid 1: %w", process.ErrNotExist), exit.Nothing, fmt.Sprintf("no process %d", pid)},
		"not permitted":        {fmt.Errorf("read maps: %w", process.ErrPermission), exit.NotPermitted, "not permitted to trace"},
		"EPERM":                {fmt.Errorf("load: %w", unix.EPERM), exit.NotPermitted, "not permitted to trace"},
		"EACCES":               {fmt.Errorf("attach: %w", unix.EACCES), exit.NotPermitted, "not permitted to trace"},
		"no CUDA":              {fmt.Errorf("pid 1: %w", tracer.ErrNoCUDA), exit.Nothing, "--wait"},
		"no symbol":            {fmt.Errorf("pid 1: %w", tracer.ErrNoSymbol), exit.Nothing, "unknown build"},
		"verifier":             {fmt.Errorf("load: %w", &ebpf.VerifierError{Cause: unix.EINVAL}), exit.Error, "uname -r"},
		"not loaded, verifier": {loading(&ebpf.VerifierError{Cause: unix.EACCES}), exit.Nothing, "and refuses them"},
		"not loaded, feature":  {loading(unix.E2BIG), exit.Nothing, "nothing was attached"},
		"no BPF at all":        {loading(unix.ENOSYS), exit.Nothing, "gputrace doctor"},
		"not loaded, EPERM":    {loading(unix.EPERM), exit.NotPermitted, "not permitted to trace"},
		"not loaded, EACCES":   {loading(unix.EACCES), exit.NotPermitted, "not permitted to trace"},
		"unsafe returns":       {fmt.Errorf("pid 1: %w", tracer.ErrUnsafeReturns), exit.Nothing, "seccomp=unconfined"},
		"something else":       {errors.New("the ring broke"), exit.Error, "the ring broke"},
	} {
		t.Run(name, func(t *testing.T) {
			got := Recording(&recorder.AttachError{PID: pid, Err: c.err})
			require.ErrorIs(t, got, c.err, "the cause stays")
			require.ErrorContains(t, got, c.says)
			require.Equal(t, c.code, exit.Code(got))
		})
	}
}

// TestLookBFC: what to do if TensorFlow's and JAX's memory cannot be shown.
func TestLookBFC(t *testing.T) {
	for _, c := range []struct {
		err  error
		code int
		says string
	}{
		{bfc.ErrNoAllocator, exit.Nothing, "cuda_async and platform"},
		{bfc.ErrNotLoaded, exit.Nothing, "sudo gputrace -p 7"},
		{bfc.ErrUnproved, exit.Nothing, "sudo gputrace -p 7"},
		{bfc.ErrChanged, exit.Error, "try again"},
	} {
		got := Look("dump", fmt.Errorf("x: %w", c.err), 7)
		require.ErrorIs(t, got, c.err)
		require.ErrorContains(t, got, c.says)
		require.Equal(t, c.code, exit.Code(got))
	}
}

// TestExplainOutcome: how a recording without data ended is an exit code; an error of writing is none of attaching.
func TestExplainOutcome(t *testing.T) {
	for _, c := range []struct {
		err  error
		want int
	}{
		{exit.With(exit.TargetEnded, errors.New("ended")), exit.TargetEnded}, {&recorder.LaunchError{Err: exec.ErrNotFound}, exit.NotFound},
		{fmt.Errorf("x: %w", recorder.ErrEndedEarly), exit.TargetEnded}, {fmt.Errorf("x: %w", recorder.ErrInterrupted), exit.Interrupted},
		{fmt.Errorf("x: %w", recorder.ErrNoProcess), exit.Nothing}, {fmt.Errorf("output out: %w", unix.EACCES), exit.Error},
	} {
		require.Equal(t, c.want, exit.Code(Recording(c.err)), c.err)
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
		"-sys_admin,-bpf":            {"missing CAP_BPF", "--cap-add BPF"}, // sudo cannot give it: it is outside of the bounding set
		"-sys_admin,-perfmon":        {"missing CAP_PERFMON"},
		"-sys_admin,-sys_ptrace":     {"missing CAP_SYS_PTRACE"},
		"-all":                       {"missing CAP_BPF", "missing CAP_PERFMON", "missing CAP_SYS_PTRACE"},
		"-bpf,-perfmon":              {"no capability is missing"}, // CAP_SYS_ADMIN stands for them
		"-bpf,-perfmon,-sys_ptrace ": {"missing CAP_SYS_PTRACE", "--cap-add SYS_PTRACE", `"SYS_PTRACE"]`},
	} {
		cmd := exec.Command("setpriv", "--bounding-set", strings.TrimSpace(drop), "--inh-caps", strings.TrimSpace(drop), os.Args[0],
			"-test.run", "^TestPermissionHelpNamesCapability$")
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

func TestLookDump(t *testing.T) {
	other := errors.New("other")
	for _, tt := range []struct {
		err  error
		code int
		text string
	}{
		{process.ErrNotExist, exit.Nothing, "no process 42"},
		{process.ErrPermission, exit.NotPermitted, "not permitted to read pid 42"},
		{inspect.ErrNoAllocator, exit.Nothing, "no caching allocator"},
		{inspect.ErrOtherBackend, exit.Nothing, "sudo gputrace -p 42"},
		{inspect.ErrUnknownLayout, exit.Error, "unknown layout"},
		{other, exit.Error, "other"},
	} {
		err := Look("dump", fmt.Errorf("step: %w", tt.err), 42)
		require.ErrorIs(t, err, tt.err)
		require.ErrorContains(t, err, tt.text)
		require.Equal(t, tt.code, exit.Code(err), tt.err)
	}
}

func TestLookWho(t *testing.T) {
	for _, tt := range []struct {
		err  error
		code int
		text string
	}{
		{process.ErrNotExist, exit.Nothing, "no process 42"},
		{process.ErrPermission, exit.NotPermitted, "not permitted to read pid 42"},
		{inspect.ErrNoAllocator, exit.Nothing, "no caching allocator"},
		{holders.ErrFreeze, exit.Error, "without --freeze"},
	} {
		err := Look("who", fmt.Errorf("step: %w", tt.err), 42)
		require.ErrorIs(t, err, tt.err)
		require.ErrorContains(t, err, tt.text)
		require.NotContains(t, err.Error(), "gputrace dump")
		require.NotContains(t, err.Error(), "run it again")
		require.Equal(t, tt.code, exit.Code(err), tt.err)
	}
}
