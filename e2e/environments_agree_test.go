// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// agreement is a situation, and what is in the way there.
type agreement struct {
	name      string
	situation string   // shell command before gputrace
	wrapper   []string // words before gputrace
	pid       int      // 0: the job
	reason    string   // matches both doctor's verdict and record's error; empty: nothing is in the way
	machine   bool     // the reason is not the process's, so that doctor without -p knows it too
}

// requireAgreed runs doctor and record in a situation. Doctor says that tracing will not work if and only if record fails, for the same
// reason.
func requireAgreed(t *testing.T, job int, dir string, a *agreement) {
	t.Helper()
	if a.pid == 0 {
		a.pid = job
	}
	k := &known{dir: dir}
	out := filepath.Join(dir, "out")
	do := func(words ...string) outcome {
		return k.in(t, a.situation, append(append(append([]string{}, a.wrapper...), env.binary), words...)...)
	}
	doctor := do("doctor", "-p", itoa(a.pid), "-d", "100ms", "--cache-dir", "")
	record := do("-p", itoa(a.pid), "-d", "100ms", "--cache-dir", "", "-f", "none", "-o", out)
	require.NoError(t, os.RemoveAll(out))
	all := fmt.Sprintf("doctor:\n%s%s\nrecord:\n%s%s", doctor.said, doctor.shown, record.said, record.shown)
	require.NotContains(t, doctor.said, "goroutine", all)
	verdict := flat(doctor.shown[strings.LastIndex(doctor.shown, "tracing will"):])
	if a.reason == "" {
		require.Zero(t, record.code, all)
		require.Zero(t, doctor.code, all)
		require.Contains(t, verdict, "tracing will work: gputrace -p ", all)
		return
	}
	require.Contains(t, []int{6, 7}, record.code, all)
	require.Equal(t, 1, doctor.code, all)
	require.Contains(t, verdict, "tracing will not work: ", all)
	require.Regexp(t, a.reason, verdict, all)
	require.Regexp(t, a.reason, flat(record.said), all)
	alone := do("doctor", "--cache-dir", "")
	require.Equal(t, a.machine, alone.code == 1, alone.shown)
	if a.machine {
		require.Regexp(t, a.reason, flat(alone.shown[strings.LastIndex(alone.shown, "tracing will"):]))
	}
}

// sharedFolder makes a folder in which every user may write.
func sharedFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "gputrace-e2e-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o777))
	return dir
}

// hiding runs a command where a folder is empty.
func hiding(folder string) []string {
	return []string{"unshare", "--mount", "sh", "-c", "mount -t tmpfs none " + folder + ` && exec "$@"`, "sh"}
}

// startStill starts a program that has PyTorch's library, and does nothing. The words come before it.
func startStill(t *testing.T, words ...string) *target {
	t.Helper()
	words = append(words, filepath.Join(env.programs, "hotloop"), "--go", "/nowhere")
	p := startIn(t, t.TempDir(), nil, words[0], words[1:]...)
	p.await(t, "READY")
	return p
}

// TestDoctorAgrees: what is in the way of gputrace's own process.
func TestDoctorAgrees(t *testing.T) {
	p, dir := startStill(t), sharedFolder(t)
	forbid := filepath.Join(env.programs, "forbid")
	joining := func(mib int) string { return "echo $$ >" + memoryGroup(t, mib) + "/cgroup.procs" }
	all := []agreement{
		{name: "nothing"},
		{name: "/sys", wrapper: hiding("/sys"), reason: "/sys is not mounted where gputrace runs", machine: true},
		{name: "/proc", wrapper: hiding("/proc"), reason: "/proc is not mounted where gputrace runs", machine: true},
		{
			name: "types", wrapper: hiding("/sys/kernel/btf"),
			reason: `the types of the kernel \(BTF\) are missing: /sys/kernel/btf/vmlinux is hidden`, machine: true,
		},
		{
			name: "open files", situation: "ulimit -n 64",
			reason: `the limit on open files \(RLIMIT_NOFILE\) is 64, gputrace needs 320`, machine: true,
		},
		{
			name: "address space", situation: "ulimit -v 2097152",
			reason: `the limit on address space \(RLIMIT_AS\) is 2 GiB, gputrace needs 4 GiB`, machine: true,
		},
		{name: "CPU time", situation: "ulimit -t 1", reason: `the limit on CPU time \(RLIMIT_CPU\) is 1 s`, machine: true},
		{name: "locked memory", situation: "ulimit -l 0"},
		{
			name: "32 MiB", situation: joining(32),
			reason: `gputrace's control group has \d+ MiB of memory left, and a trace without holders needs`, machine: true,
		},
		{
			name: "150 MiB", situation: joining(150),
			reason: `gputrace's control group has 1[0-4]\d MiB of memory left, and a trace without holders needs`, machine: true,
		},
		{name: "200 MiB", situation: joining(200)},
		{name: "bpf", wrapper: []string{forbid, "bpf"}, reason: `bpf .*\(operation not permitted\): by a seccomp filter`, machine: true},
		{
			name: "pidfd_open", wrapper: []string{forbid, "pidfd_open"},
			reason: `pidfd_open .*\(operation not permitted\): by a seccomp filter`, machine: true,
		},
		{name: "process_vm_readv", wrapper: []string{forbid, "process_vm_readv"}},
		{name: "openat2", wrapper: []string{forbid, "openat2"}},
		{name: "perf_event_open", wrapper: []string{forbid, "perf_event_open"}},
		{name: "no rights", wrapper: withRights("chown"), reason: "CAP_BPF", machine: true},
		{name: "no CAP_BPF", wrapper: withRights("perfmon,sys_ptrace"), reason: "CAP_BPF", machine: true},
		{name: "no CAP_PERFMON", wrapper: withRights("bpf,sys_ptrace"), reason: "CAP_PERFMON", machine: true},
		{name: "no CAP_SYS_PTRACE", wrapper: withRights("bpf,perfmon"), reason: "not permitted"},
		{name: "rights enough", wrapper: withRights(allRights)},
		{name: "CAP_SYS_ADMIN", wrapper: withRights("sys_admin,sys_ptrace")},
		{name: "user namespace", wrapper: []string{"unshare", "--user", "--map-root-user"}, reason: "user namespace", machine: true},
		{
			name:    "read-only root",
			wrapper: []string{"unshare", "--mount", "sh", "-c", `mount -t tmpfs none "$0" && mount -o remount,ro,bind / && exec "$@"`, dir},
		},
		{name: "no /tmp", situation: "export TMPDIR=/nowhere"},
		{
			name:    "noexec /tmp",
			wrapper: []string{"unshare", "--mount", "sh", "-c", `mount -t tmpfs -o noexec none "$0" && TMPDIR="$0" exec "$@"`, t.TempDir()},
		},
	}
	for i := range all {
		t.Run(all[i].name, func(t *testing.T) { requireAgreed(t, p.pid, dir, &all[i]) })
	}
}

// TestDoctorAgreesOnTargets: what is in the way of the process that is to be traced.
func TestDoctorAgreesOnTargets(t *testing.T) {
	dir := sharedFolder(t)
	for _, file := range []string{"hotloop", "libc10.so"} {
		_, err := output("cp", filepath.Join(env.programs, file), dir)
		require.NoError(t, err)
	}
	dead := exec.Command("/bin/true")
	require.NoError(t, dead.Run())
	zombie := exec.Command("/bin/true")
	require.NoError(t, zombie.Start())
	t.Cleanup(func() { _ = zombie.Wait() })
	eventually(t, "a zombie", func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", zombie.Process.Pid))
		return err == nil && strings.Contains(string(b), ") Z ")
	})
	script := env.programs + "/hotloop --go /nowhere & wait"
	inside := startIn(t, t.TempDir(), nil, "unshare", "--pid", "--mount-proc", "--fork", "sh", "-c", script)
	inside.await(t, "READY")
	deepest, err := output("pgrep", "-P", strconv.Itoa(childOf(t, inside.pid)))
	require.NoError(t, err)
	hotloop, err := strconv.Atoi(deepest)
	require.NoError(t, err)
	plain := startIn(t, t.TempDir(), nil, "sleep", "1000")
	as := append(withRights("bpf,perfmon"), filepath.Join(dir, "hotloop"), "--go", "/nowhere")
	own := startIn(t, dir, []string{"LD_LIBRARY_PATH=" + dir}, as[0], as[1:]...)
	own.await(t, "READY")
	locked := filepath.Join(t.TempDir(), "locked")
	require.NoError(t, os.Mkdir(locked, 0o700))
	_, err = output("cp", filepath.Join(dir, "libc10.so"), locked)
	require.NoError(t, err)
	private := startIn(t, dir, []string{"LD_LIBRARY_PATH=" + locked}, filepath.Join(dir, "hotloop"), "--go", "/nowhere")
	private.await(t, "READY")
	all := []agreement{
		{name: "dead", pid: dead.Process.Pid, reason: fmt.Sprint("no process ", dead.Process.Pid)},
		{name: "zombie", pid: zombie.Process.Pid, reason: fmt.Sprintf(`pid %d \(true\) has ended: it is a zombie`, zombie.Process.Pid)},
		{name: "kernel thread", pid: 2, reason: `pid 2 \(kthreadd\) is a thread of the kernel`},
		{name: "no CUDA", pid: plain.pid, reason: "sleep.* uses no CUDA: no libcuda.so, libcudart or libc10"},
		{name: "in a container", pid: hotloop},
		{name: "own process", pid: own.pid, wrapper: withRights("bpf,perfmon")},
		{
			name: "private library", pid: private.pid, wrapper: withRights(allRights),
			reason: `locked/libc10.so of pid \d+: not permitted: permission denied: CAP_DAC_READ_SEARCH or root may read it`,
		},
		{name: "library readable", pid: private.pid, wrapper: withRights(allRights + ",dac_read_search")},
	}
	for i := range all {
		t.Run(all[i].name, func(t *testing.T) { requireAgreed(t, 0, dir, &all[i]) })
	}
}

// childOf returns the only child of a process.
func childOf(t *testing.T, pid int) int {
	t.Helper()
	text, err := output("pgrep", "-P", itoa(pid))
	require.NoError(t, err)
	child, err := strconv.Atoi(text)
	require.NoError(t, err)
	return child
}

// TestWithoutPtrace: root of a container without CAP_SYS_PTRACE records programs that have the same rights.
func TestWithoutPtrace(t *testing.T) {
	const program = `
import torch
keep = [torch.empty(7 << 20, dtype=torch.uint8, device="cuda") for _ in range(3)]
import time
time.sleep(1)
`
	k := &known{dir: t.TempDir()}
	const dropped = "-sys_ptrace,-sys_admin"
	words := []string{"setpriv", "--bounding-set", dropped, "--inh-caps", dropped, env.binary, "run", "-o", "x", "-f", "none", "--"}
	o := k.in(t, "", append(words, filepath.Join(env.testdata, "run"), "-c", program)...)
	require.Equal(t, 0, o.code, o.said)
	require.Contains(t, flat(o.said), "in use before its end, +")
	require.Contains(t, flat(o.said), "<string>:3 <listcomp> 21.0 MiB 100 %")
}
