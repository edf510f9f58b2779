//go:build linux && who

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// newWho prepares gputrace who as a process of its own.
func newWho(pid int, args ...string) *exec.Cmd {
	cmd := exec.Command(env.binary, append([]string{"who", "-p", itoa(pid)}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// TestWhoNothing: exit codes and advice where there is nothing to name.
func TestWhoNothing(t *testing.T) {
	_, stderr, code := who(t, 1<<22)
	require.Equal(t, 7, code, stderr)
	require.Contains(t, stderr, "no process")
	_, stderr, code = who(t, os.Getpid())
	require.Equal(t, 7, code, stderr)
	require.Contains(t, stderr, "no caching allocator")
	other := startPythonIn(t, []string{"PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync"}, storm).ready(t)
	_, stderr, code = who(t, other.pid)
	require.Equal(t, 7, code, stderr)
	require.Contains(t, stderr, "not the native allocator")
}

// TestWhoWithoutRoot: a user may look into a process of their own, as far as the kernel's setting allows, and not into another's.
func TestWhoWithoutRoot(t *testing.T) {
	own := startPython(t, `
import ctypes, os, time, torch
held = [torch.empty(1 << 20, device="cuda") for i in range(20)]
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
assert ctypes.CDLL(None).prctl(4, 1, 0, 0, 0) == 0  # PR_SET_DUMPABLE, as it is after a login
print("READY", os.getpid(), flush=True)
time.sleep(600)
`).ready(t)
	user := &syscall.Credential{Uid: nobody, Gid: nobody}
	stdout, stderr, code := whoAs(t, user, own.pid)
	scope, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	if err == nil && strings.TrimSpace(string(scope)) != "0" {
		require.Equal(t, 6, code, stderr)
		require.Contains(t, stderr, "ptrace_scope")
	} else {
		require.Zero(t, code, stderr)
		require.Contains(t, stdout, "held[0..19]")
	}
	other := startPython(t, storm).ready(t)
	_, stderr, code = whoAs(t, user, other.pid)
	require.Equal(t, 6, code, stderr)
	require.Contains(t, stderr, fmt.Sprint("sudo gputrace who -p ", other.pid))
}

// TestWhoFile: a file appears when it is complete, and one that is there is left alone.
func TestWhoFile(t *testing.T) {
	p := startPython(t, `
import os, time, torch
held = [torch.empty(1 << 20, device="cuda") for i in range(3)]
print("READY", os.getpid(), flush=True)
time.sleep(600)
`).ready(t)
	file := filepath.Join(t.TempDir(), "holders.json")
	stdout, stderr, code := who(t, p.pid, "--json", "-o", file)
	require.Zero(t, code, stderr)
	require.Empty(t, stdout)
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	r := parseWho(t, string(b))
	require.Equal(t, "held[0..2]", r.Rows[0].Name)
	require.EqualValues(t, 3, r.Rows[0].Blocks)
	_, stderr, code = who(t, p.pid, "-o", file)
	require.Equal(t, 2, code)
	require.Contains(t, stderr, "exists already")
	requireNoLeftovers(t, filepath.Dir(file))
}
