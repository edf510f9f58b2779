// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// known is a job whose figures are known: 21 MiB in three blocks, and at times one of 1 MiB more.
type known struct {
	*target
	dir string // where gputrace runs
}

const (
	knownHeld = 21 << 20
	knownPeak = 22 << 20
)

func startKnown(t *testing.T) *known {
	t.Helper()
	p := startPython(t, `
import os, time, torch
keep = [torch.empty(7 << 20, dtype=torch.uint8, device="cuda") for _ in range(3)]
print("READY", flush=True)
for n in range(1 << 40):
    x = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    del x
    time.sleep(0.002)
    if n % 50 == 0:
        open("DIR/loops", "w").close()
`)
	p.await(t, "READY")
	return &known{p, t.TempDir()}
}

// outcome is how a gputrace ended.
type outcome struct {
	code        int
	said, shown string
}

// trace runs gputrace on the job after a shell command that makes the situation.
func (k *known) trace(t *testing.T, situation string, args ...string) outcome {
	t.Helper()
	words := append([]string{env.binary, "-p", itoa(k.pid), "-d", "300ms", "--cache-dir", env.cache}, args...)
	return k.in(t, situation, words...)
}

// in runs a command after a shell command that makes the situation.
func (k *known) in(t *testing.T, situation string, words ...string) outcome {
	t.Helper()
	if situation == "" {
		situation = "true"
	}
	cmd := exec.Command("bash", append([]string{"-c", situation + ` && exec "$@"`, "bash"}, words...)...)
	cmd.Dir = k.dir
	var said, shown bytes.Buffer
	cmd.Stderr, cmd.Stdout = &said, &shown
	err := cmd.Run()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		require.NoError(t, err)
	}
	return outcome{cmd.ProcessState.ExitCode(), said.String(), shown.String()}
}

// requireWhole reads a recording of the job: its figures are those of the job, and nothing was lost.
func (k *known) requireWhole(t *testing.T, o outcome, folder string) {
	t.Helper()
	require.Equal(t, 0, o.code, o.said)
	require.Contains(t, o.shown, "0 events lost")
	account := exportJSON(t, filepath.Join(k.dir, folder, "trace.gputrace")).Accounts[0]
	require.EqualValues(t, knownPeak, account.Peak)
	require.Contains(t, []uint64{knownHeld, knownPeak}, account.Allocated)
	require.FileExists(t, filepath.Join(k.dir, folder, "inuse.pb.gz"))
}

// requireOne checks the error: one of these exit codes, a text, and nothing of Go's.
func requireOne(t *testing.T, o outcome, code int, text string) {
	t.Helper()
	require.Equal(t, code, o.code, o.said)
	require.Regexp(t, text, o.said)
	require.NotContains(t, o.said, "goroutine")
	require.NotContains(t, o.said, "please report")
	require.Less(t, strings.Count(o.said, "\n"), 8, o.said)
}

// requireUntouched: the job goes on, no probe is left in it, and in the folder there is what is named.
func (k *known) requireUntouched(t *testing.T, left ...string) {
	t.Helper()
	_ = os.Remove(filepath.Join(k.target.dir, "loops"))
	eventually(t, "the job to go on", func() bool { return exists(filepath.Join(k.target.dir, "loops")) })
	all := functions(t, k.target, "libc10.so", "_ZN3c1027reportMemoryUsageToProfilerE")
	requireUnchanged(t, k.target, all)
	entries, err := os.ReadDir(k.dir)
	require.NoError(t, err)
	have := []string{}
	for _, e := range entries {
		have = append(have, e.Name())
	}
	require.ElementsMatch(t, left, have)
}

// TestOutputs: what is in the way of the results is said before the attach, and a recording that was cut off is kept and opens.
func TestOutputs(t *testing.T) {
	k := startKnown(t)
	c := exec.Command(env.binary, "-p", itoa(k.pid), "-o", "again", "--ready-file", "ready")
	c.Dir = k.dir
	require.NoError(t, c.Start())
	eventually(t, "the ready file", func() bool { return exists(filepath.Join(k.dir, "ready")) })

	requireOne(t, k.trace(t, "", "-o", "again"), 2, "^gputrace: output again: another gputrace is recording there: give another with -o\n$")
	requireOne(t, k.trace(t, "", "-o", "again", "--force"), 2, "another gputrace is recording there")
	require.NoError(t, c.Process.Kill())
	require.Error(t, c.Wait())

	requireOne(t, k.trace(t, "", "-o", "again"), 2,
		"^gputrace: output again holds a recording that was cut off, which gputrace report again opens: give another with -o, or --force")
	shown := k.in(t, "", env.binary, "report", "again")
	require.Equal(t, 0, shown.code, shown.said)
	require.Contains(t, shown.shown, "cut off")
	k.requireWhole(t, k.trace(t, "", "-o", "again", "--force"), "again")
	requireOne(t, k.trace(t, "", "-o", "again"), 2, "again exists already: give another with -o, or --force to replace it")
	require.NoError(t, os.WriteFile(filepath.Join(k.dir, "file"), nil, 0o600))
	requireOne(t, k.trace(t, "", "-o", "file"), 2, "file exists already")
	requireOne(t, k.trace(t, "", "-o", "file", "--force"), 2, "file exists already and is not a folder")
	requireOne(t, k.trace(t, "", "-o", "no/x"), 2, "its folder no is not there: make it")
	requireOne(t, k.trace(t, "", "-o", "x", "--ready-file", "no/ready"), 2, "its folder no is not there")
	for _, at := range []string{"ro", "full"} {
		require.NoError(t, os.Mkdir(filepath.Join(k.dir, at), 0o755))
	}
	mount := "unshare --mount bash -c 'mount -t tmpfs -o size=4k tmpfs full && mount -t tmpfs -o ro tmpfs ro && exec \"$@\"' bash"

	words := []string{"-p", itoa(k.pid), "-d", "300ms", "--cache-dir", env.cache, "-o"}
	in := func(path string) outcome {
		return k.in(t, "", append([]string{"bash", "-c", mount + ` "$@"`, "bash", env.binary}, append(words, path)...)...)
	}
	requireOne(t, in("ro/x"), 2, "output ro/x: nothing can be made in ro: read-only file system\n  give another folder with -o")
	requireOne(t, in("full/x"), 2, "output full/x: the first 256 KiB of a recording cannot be written: no space left on device\n  make room")
	k.requireUntouched(t, "again", "file", "full", "ready", "ro")
}

// TestSameSecond: recordings that begin together, without -o, each have a folder.
func TestSameSecond(t *testing.T) {
	k := startKnown(t)
	var all []*exec.Cmd
	for range 3 {
		c := exec.Command(env.binary, "-p", itoa(k.pid), "-d", "300ms", "--cache-dir", env.cache)
		c.Dir = k.dir
		c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		require.NoError(t, c.Start())
		all = append(all, c)
	}
	for _, c := range all {
		require.NoError(t, c.Wait())
	}
	whole, err := filepath.Glob(filepath.Join(k.dir, "gputrace."+itoa(k.pid)+".*", "inuse.pb.gz"))
	require.NoError(t, err)
	require.Len(t, whole, 3)
}

// TestUnsafeVariables: with file capabilities, variables that the dynamic linker removes make no difference.
func TestUnsafeVariables(t *testing.T) {
	dir, err := os.MkdirTemp("/var/tmp", "gputrace-e2e-") // another user runs it
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	program := filepath.Join(dir, "gputrace")
	_, err = output("cp", env.binary, program)
	require.NoError(t, err)
	_, err = output("setcap", "cap_bpf,cap_perfmon,cap_sys_ptrace+ep", program)
	require.NoError(t, err)
	for _, variables := range [][]string{{}, {"LD_LIBRARY_PATH=/usr/local/cuda/lib64"},
		{"LD_PRELOAD=libjemalloc.so.2", "TMPDIR=/tmp", "GLIBC_TUNABLES=x"}} {
		cmd := exec.Command(program, "doctor")
		cmd.Dir, cmd.Env = "/", append([]string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent"}, variables...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.Output()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "tracing will work on this machine")
	}
}

// TestSurroundings: what is in the way around gputrace is named by itself, never the kernel, and what is not in the way is not.
func TestSurroundings(t *testing.T) {
	k := startKnown(t)
	forbid := filepath.Join(env.programs, "forbid")
	const sandbox = `f=$(mktemp) && echo "Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016" >$f &&
		mount --bind $f /proc/version && rm $f`
	hidden := func(path string) string { return "mount -t tmpfs none " + path }
	for name, tt := range map[string]struct {
		situation string
		wrapper   []string
		code      int
		says      string
	}{
		"open files": {"ulimit -n 64", nil, 6, `(?m)^gputrace: the limit on open files \(RLIMIT_NOFILE\) is 64, gputrace needs 320: ` +
			`[^\n]*\n  host: +ulimit -n 4096\n`},
		"address space": {"ulimit -v 2097152", nil, 6, `the limit on address space \(RLIMIT_AS\) is 2 GiB, gputrace needs 4 GiB`},
		"CPU time":      {"ulimit -t 1", nil, 6, `the limit on CPU time \(RLIMIT_CPU\) is 1 s, gputrace needs 10 s`},
		"size of files": {"ulimit -f 64", nil, 2, `output x: the first 256 KiB of a recording cannot be written: file too large\n  the limit ` +
			`on the size of files is too low \(RLIMIT_FSIZE\)`},
		"/sys": {"", []string{"unshare", "--mount", "sh", "-c", hidden("/sys") + ` && exec "$@"`, "sh"}, 7,
			`(?m)^gputrace: /sys is not mounted where gputrace runs`},
		"/proc": {"", []string{"unshare", "--mount", "sh", "-c", hidden("/proc") + ` && exec "$@"`, "sh"}, 7,
			`(?m)^gputrace: /proc is not mounted where gputrace runs`},
		"gVisor": {
			"", []string{"unshare", "--mount", "sh", "-c", sandbox + ` && exec "$@"`, "sh", forbid, "bpf"}, 7,
			`(?m)^gputrace: gputrace runs in a gVisor sandbox, whose kernel has no BPF`,
		},
		"types": {"", []string{"unshare", "--mount", "sh", "-c", hidden("/sys/kernel/btf") + ` && exec "$@"`, "sh"}, 7,
			`(?m)^gputrace: the types of the kernel \(BTF\) are missing: /sys/kernel/btf/vmlinux is hidden in this container`},
		"bpf": {"", []string{forbid, "bpf"}, 6, `(?m)^gputrace: the system call bpf is refused to gputrace \(operation not permitted\): by a ` +
			`seccomp filter\n  docker: +docker run --security-opt seccomp=unconfined`},
	} {
		t.Run(name, func(t *testing.T) {
			words := append(tt.wrapper, env.binary, "-p", itoa(k.pid), "-d", "300ms", "--cache-dir", "", "-o", "x")
			requireOne(t, k.in(t, tt.situation, words...), tt.code, tt.says)
		})
	}
	for name, situation := range map[string]string{
		"soft limits": "ulimit -S -n 64 && ulimit -S -f 64 && ulimit -S -t 1", "locked memory": "ulimit -l 0", "stack": "ulimit -s 64",
		"processes": "ulimit -u 1",
	} {
		t.Run(name, func(t *testing.T) {
			o := k.trace(t, situation, "-o", "x", "--force")
			k.requireWhole(t, o, "x")
		})
	}
	t.Run("reading", func(t *testing.T) {
		const tries = 3 // on a busy machine the program runs on while its holders are read
		var o outcome
		for try := 0; try < tries && !strings.Contains(o.shown, "keep[0..2]"); try++ {
			o = k.in(t, "", forbid, "process_vm_readv", env.binary, "-p", itoa(k.pid), "-d", "300ms", "--cache-dir", env.cache, "-o", "x", "--force")
			k.requireWhole(t, o, "x")
			require.NotContains(t, o.said, "refused")
		}
		require.Contains(t, o.shown, "keep[0..2]", "a holder")
		o = k.in(t, "", forbid, "process_vm_readv", env.binary, "who", "-p", itoa(k.pid))
		require.Equal(t, 0, o.code, o.said)
		require.Regexp(t, `keep\[0\.\.2\] +\[7340032\] uint8 +21\.0 MiB +3 `, o.shown)
	})
	k.requireUntouched(t, "x")
}

// TestOriginalLimits: a program that run starts has the limits that gputrace was started with.
func TestOriginalLimits(t *testing.T) {
	k := &known{dir: t.TempDir()}
	limits := "ulimit -S -n; ulimit -S -f; ulimit -S -t"
	o := k.in(t, "ulimit -S -n 200 && ulimit -S -f 999999 && ulimit -S -t 50", env.binary, "run", "-o", "x", "--", "bash", "-c", limits)
	require.Equal(t, "200\n999999\n50\n", o.shown, o.said)
}
