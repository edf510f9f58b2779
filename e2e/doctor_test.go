// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// diagnosis is what gputrace doctor --json writes, as far as the tests look at it.
type diagnosis struct {
	Checks []struct {
		Group, Name, State, Says string
		Needed                   bool
		Fixes                    []struct{ Where, Line string }
		File                     struct {
			BuildID   string `json:"build_id"`
			Functions []string
		}
	}
	Works   bool
	Verdict string

	code int
}

// examine runs gputrace doctor, behind the words of a wrapper, as a user.
func examine(t *testing.T, uid uint32, wrapper []string, args ...string) *diagnosis {
	t.Helper()
	cache := ""
	if uid == 0 && wrapper == nil {
		cache = env.cache
	}
	words := append(append(wrapper, env.binary, "doctor", "--json", "--cache-dir", cache), args...)
	cmd := exec.Command(words[0], words[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	return diagnose(t, cmd)
}

func diagnose(t *testing.T, cmd *exec.Cmd) *diagnosis {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.Dir = &stdout, &stderr, "/"
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	d := &diagnosis{code: cmd.ProcessState.ExitCode()}
	require.NoError(t, json.Unmarshal(stdout.Bytes(), d), "%s%s", stdout.String(), stderr.String())
	require.Empty(t, stderr.String())
	return d
}

// works requires the verdict that tracing will work.
func (d *diagnosis) works(t *testing.T) {
	t.Helper()
	require.True(t, d.Works, d.Verdict)
	require.Zero(t, d.code)
	require.True(t, strings.HasPrefix(d.Verdict, "tracing will work"), d.Verdict)
}

// fails requires the verdict that it will not, because of a check, and gives the line that mends it at a place.
func (d *diagnosis) fails(t *testing.T, name, where string) string {
	t.Helper()
	require.False(t, d.Works)
	require.Equal(t, 1, d.code)
	require.True(t, strings.HasPrefix(d.Verdict, "tracing will not work: "+name+": "), d.Verdict)
	for _, c := range d.Checks {
		if c.Name != name || c.State != "failed" {
			continue
		}
		for _, f := range c.Fixes {
			if f.Where == where {
				return f.Line
			}
		}
	}
	require.FailNow(t, "no fix", "%s at %s: %+v", name, where, d.Checks)
	return ""
}

func (d *diagnosis) says(t *testing.T, name string) (state, says string) {
	t.Helper()
	for _, c := range d.Checks {
		if c.Name == name {
			return c.State, c.Says
		}
	}
	require.FailNow(t, "no check "+name)
	return "", ""
}

// apply runs a fix that is a command, without its comment.
func apply(t *testing.T, line string) {
	t.Helper()
	line, _, _ = strings.Cut(line, "#")
	_, err := output("sh", "-c", strings.TrimPrefix(line, "sudo "))
	require.NoError(t, err)
}

const allRights = "bpf,perfmon,sys_ptrace"

// withRights runs a command as nobody with just these capabilities.
func withRights(names string) []string {
	caps := "+" + strings.ReplaceAll(names, ",", ",+")
	return []string{"setpriv", fmt.Sprint("--reuid=", nobody), fmt.Sprint("--regid=", nobody), "--clear-groups", "--inh-caps",
		"-all," + caps, "--ambient-caps", "-all," + caps}
}

// TestDoctorRights takes each capability away, and gives it back by the line that doctor prints.
func TestDoctorRights(t *testing.T) {
	examine(t, 0, withRights(allRights)).works(t)
	for missing, rest := range map[string]string{"CAP_BPF": "perfmon,sys_ptrace", "CAP_PERFMON": "bpf,sys_ptrace"} {
		d := examine(t, 0, withRights(rest))
		require.Contains(t, d.fails(t, missing, "docker"), "--cap-add "+strings.TrimPrefix(missing, "CAP_"))
		d.fails(t, missing, "kubernetes")
	}
	own := examine(t, 0, withRights("bpf,perfmon")) // reads processes of its own user, where Yama does not forbid that
	own.works(t)
	require.Contains(t, own.Verdict, "for processes of the user that runs gputrace")
	state, says := own.says(t, "CAP_SYS_PTRACE")
	require.Equal(t, "failed", state)
	require.Contains(t, says, "to read another user's process")
	dir, err := os.MkdirTemp("", "gputrace-e2e-doctor-") // below t.TempDir another user may not even look
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	copied := filepath.Join(dir, "gputrace")
	_, err = output("cp", env.binary, copied)
	require.NoError(t, err)
	run := func() *diagnosis {
		cmd := exec.Command(copied, "doctor", "--json")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		return diagnose(t, cmd)
	}
	apply(t, run().fails(t, "CAP_BPF", "host"))
	run().works(t)
}

// TestDoctorUserNamespace: root of another user namespace has all capabilities, and they do not count.
func TestDoctorUserNamespace(t *testing.T) {
	d := examine(t, 0, []string{"unshare", "--user", "--map-root-user"})
	d.fails(t, "user namespace", "kubernetes")
	state, _ := d.says(t, "CAP_BPF")
	require.Equal(t, "ok", state)
}

// TestDoctorBTF hides the kernel's types as a container can, and shows them again as the fix for docker does.
func TestDoctorBTF(t *testing.T) {
	hide := `mkdir -p "$0/keep" && mount --bind /sys/kernel/btf "$0/keep" && mount -t tmpfs none /sys/kernel/btf && `
	inside := func(script string) []string {
		return []string{"unshare", "--mount", "sh", "-c", hide + script + `exec "$@"`, t.TempDir()}
	}
	line := examine(t, 0, inside("")).fails(t, "BTF of the kernel", "docker")
	require.Contains(t, line, "-v /sys/kernel/btf:/sys/kernel/btf:ro")
	examine(t, 0, inside(`mount --bind -o ro "$0/keep" /sys/kernel/btf && `)).works(t)
}

// TestDoctorFilter forbids bpf(2) by seccomp.
func TestDoctorFilter(t *testing.T) {
	d := examine(t, 0, []string{filepath.Join(env.programs, "forbid"), "bpf"})
	require.Contains(t, d.fails(t, "system calls", "docker"), "seccomp=unconfined")
	_, says := d.says(t, "system calls")
	require.Contains(t, says, "bpf (operation not permitted)")
	require.NotContains(t, says, "perf_event_open")
	require.Contains(t, says, "seccomp filter")
}

// TestDoctorTarget looks at PyTorch on the stand-in while it trains.
func TestDoctorTarget(t *testing.T) {
	p := startTraining(t, "gpt.py", "--steps", "100000", "--counters", "DIR/counters").ready(t)
	p.release(t)
	p.awaitSteps(t, 2)
	d := examine(t, 0, nil, "-p", itoa(p.pid), "-d", "2s")
	d.works(t)
	require.Equal(t, "tracing will work: gputrace -p "+itoa(p.pid), d.Verdict)
	_, says := d.says(t, "probes on the process")
	var functions, calls, events int
	_, err := fmt.Sscanf(says, "%d functions hooked, %d calls and %d events in 2s", &functions, &calls, &events)
	require.NoError(t, err, says)
	require.Greater(t, functions, 20)
	require.Greater(t, calls, 100)
	require.Greater(t, events, 100)
	require.NotContains(t, says, ";", "a warning")
	for _, c := range d.Checks {
		if c.Name != "torch allocator" {
			continue
		}
		require.Equal(t, []string{"reportMemoryUsageToProfiler", "reportOutOfMemoryToProfiler"}, c.File.Functions)
		require.Contains(t, c.Says, "libc10.so: 2 of 2 functions")
	}
	for name, want := range map[string]string{
		"PyTorch": "2.15.0", "Python": "its frames can be walked", "allocator": "native", "reading it": "memory",
	} {
		state, says := d.says(t, name)
		require.Equal(t, "ok", state, says)
		require.Contains(t, says, want)
	}
}

// TestDoctorWithoutCUDA names the child that has it, and the fix leads there.
func TestDoctorWithoutCUDA(t *testing.T) {
	plain := startIn(t, t.TempDir(), nil, "sleep", "1000")
	line := examine(t, 0, nil, "-p", itoa(plain.pid)).fails(t, "functions to trace", "host")
	require.Contains(t, line, "gputrace -p "+itoa(plain.pid)+" --wait")

	dir := t.TempDir()
	parent := startIn(t, dir, nil, "bash", "-c", env.programs+"/hotloop --go "+dir+"/go & wait")
	child := strings.TrimPrefix(parent.await(t, "READY"), "READY ")
	line = examine(t, 0, nil, "-p", itoa(parent.pid)).fails(t, "functions to trace", "host")
	require.Contains(t, line, "gputrace doctor -p "+child+" ")
	examine(t, 0, nil, "-p", child).works(t)
}

// TestDoctorOtherNumber is asked for a number that a process has in its own PID namespace only.
func TestDoctorOtherNumber(t *testing.T) {
	inner := 30000
	for exists(fmt.Sprint("/proc/", inner)) {
		inner--
	}
	dir := t.TempDir()
	script := fmt.Sprintf("echo %d > /proc/sys/kernel/ns_last_pid; %s/hotloop --go %s/go & wait", inner-1, env.programs, dir)
	p := startIn(t, dir, nil, "unshare", "--pid", "--mount-proc", "--fork", "sh", "-c", script)
	require.Equal(t, fmt.Sprint("READY ", inner), p.await(t, "READY"))
	line := examine(t, 0, nil, "-p", itoa(inner)).fails(t, "process", "host")
	outer, ok := strings.CutPrefix(line, "gputrace doctor -p ")
	require.True(t, ok, line)
	d := examine(t, 0, nil, "-p", outer)
	d.works(t)
	_, says := d.says(t, "namespaces")
	require.Contains(t, says, "pid:[")
	require.Contains(t, says, fmt.Sprintf("it is process %d in there", inner))
}

// TestDoctorStripped looks at a library of the right name that names no function.
func TestDoctorStripped(t *testing.T) {
	dir := t.TempDir()
	library := filepath.Join(dir, "libc10.so")
	source := filepath.Join(dir, "none.c")
	require.NoError(t, os.WriteFile(source, []byte("static int f(int n) { return n * 7; }\n__attribute__((used)) static int "+
		"(*keep)(int) = f;\n"), 0o644))
	_, err := output("gcc", "-shared", "-fPIC", "-nostdlib", "-s", "-o", library, source)
	require.NoError(t, err)
	p := startIn(t, dir, nil, "python3", "-c", fmt.Sprintf("import ctypes, time; ctypes.CDLL(%q); print('READY', flush=True); "+
		"time.sleep(1000)", library))
	p.await(t, "READY")
	d := examine(t, 0, nil, "-p", itoa(p.pid))
	require.False(t, d.Works)
	state, says := d.says(t, "torch allocator")
	require.Equal(t, "failed", state)
	require.Contains(t, says, library+" names no function: it is stripped")
	require.Contains(t, d.Verdict, "functions to trace")
}

// TestDoctorStatic looks at a program that has the CUDA runtime linked into itself, and does not use it yet.
func TestDoctorStatic(t *testing.T) {
	dir := t.TempDir()
	source, program := filepath.Join(dir, "static.c"), filepath.Join(dir, "static")
	require.NoError(t, os.WriteFile(source, []byte(`#include <stdio.h>
#include <unistd.h>
int cudaMalloc(void **p, size_t n) { return p && n ? 2 : 1; }
int main(void) { puts("READY"); fflush(stdout); pause(); return cudaMalloc(0, 0); }
`), 0o644))
	_, err := output("gcc", "-o", program, source)
	require.NoError(t, err)
	p := startIn(t, dir, nil, program)
	p.await(t, "READY")
	d := examine(t, 0, nil, "-p", itoa(p.pid))
	require.Contains(t, d.fails(t, "functions to trace", "host"), "--wait")
	state, says := d.says(t, "runtime")
	require.Equal(t, "unknown", state)
	require.Contains(t, says, "linked statically into "+program+"; the driver's functions see the same memory")
}

// TestDoctorText is what a person sees; the name of the process is not obeyed by the terminal.
func TestDoctorText(t *testing.T) {
	p := startIn(t, t.TempDir(), nil, "python3", "-c", `
import ctypes, time
ctypes.CDLL(None).prctl(15, b"a\x1b[2Jb\nok c")
print("READY", flush=True)
time.sleep(1000)`)
	p.await(t, "READY")
	out, err := exec.Command(env.binary, "doctor", "-v", "-p", itoa(p.pid)).Output()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 1, exit.ExitCode())
	require.Empty(t, exit.Stderr)
	text := string(out)
	require.NotContains(t, text, "\x1b")
	require.NotContains(t, text, "\nok c")
	require.Regexp(t, `(?m)^  ok       CAP_BPF +to load programs$`, text)
	require.Regexp(t, `(?m)^           host: +gputrace -p \d+ --wait`, text)
	require.Regexp(t, `\ntracing will not work: functions to trace: .*(\n  .*)*\n$`, text)
}
