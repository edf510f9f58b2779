// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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

// TestDumpNames: the map says what holds its blocks, unless that is not wanted.
func TestDumpNames(t *testing.T) {
	p := startPython(t, `
import os, time, torch
held = [torch.empty(1 << 20, dtype=torch.uint8, device="cuda") for i in range(8)]
del held[::2]
print("READY", os.getpid(), flush=True)
time.sleep(600)
`).ready(t)
	type named struct {
		Devices []struct {
			Segments []struct {
				Blocks []struct{ State, Category, Holder string }
			}
		}
	}
	holdersOf := func(args ...string) (out []string) {
		stdout, stderr, code := dump(t, p.pid, append(args, "-f", "json")...)
		require.Zero(t, code, stderr)
		var d named
		require.NoError(t, json.Unmarshal([]byte(stdout), &d))
		for _, s := range d.Devices[0].Segments {
			for _, b := range s.Blocks {
				if b.State == "inactive" {
					require.Empty(t, b.Holder, "of a free block")
				} else {
					out = append(out, b.Holder)
				}
			}
		}
		slices.Sort(out)
		return out
	}
	require.Equal(t, []string{"held[0]", "held[1]", "held[2]", "held[3]"}, holdersOf())
	require.Equal(t, []string{"", "", "", ""}, holdersOf("--no-holders"))
	text, stderr, code := dump(t, p.pid)
	require.Zero(t, code, stderr)
	require.Regexp(t, `by    0x[0-9a-f]+ held\[0\]`, text)
	file := filepath.Join(t.TempDir(), "map.pickle")
	_, stderr, code = dump(t, p.pid, "-f", "snapshot", "-o", file)
	require.Zero(t, code, stderr)
	out, err := output("python3", "-c", `
import pickle, sys
blocks = [b for s in pickle.load(open(sys.argv[1], "rb"))["segments"] for b in s["blocks"]]
print(sorted(b["frames"][0]["name"] for b in blocks if b["frames"]))`, file)
	require.NoError(t, err)
	require.Equal(t, "['held[0] [1048576] uint8', 'held[1] [1048576] uint8', 'held[2] [1048576] uint8', 'held[3] [1048576] uint8']", out)
}
