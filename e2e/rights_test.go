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
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// openHome runs a command in a mount namespace of its own in which every user may look into root's home, where the Python of
// the tests can lie: it shows through an overlay, as the files of a container do.
const openHome = `mount -t tmpfs -o mode=755 none "$0" && mkdir -m 755 "$0/up" "$0/work" &&
mount -t overlay none -o "lowerdir=$HOME,upperdir=$0/up,workdir=$0/work" "$HOME" && exec "$@"`

// as prepares gputrace as a user, with capabilities when they are named; OUT in the arguments is the folder of results.
func as(t *testing.T, uid int, rights string, args ...string) *command {
	t.Helper()
	dir, err := os.MkdirTemp("", "gputrace-e2e-rights-") // below t.TempDir another user may not even look
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chown(dir, uid, uid))
	c := &command{dir: dir, exited: make(chan struct{})}
	words := append(withRights(rights), env.binary, "--cache-dir", "", "--ready-file", c.readyFile(), "-o", c.out())
	words = append(words, args...)
	c.cmd = exec.Command(words[0], words[1:]...)
	c.cmd.Dir = dir
	c.cmd.Stdout, c.cmd.Stderr = &c.stdout, &c.stderr
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	return c
}

// rightsOf reads what the threads of a process may do, which must be the same for all.
func rightsOf(t *testing.T, pid int) (effective, permitted uint64, noNewPrivs string) {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	require.NoError(t, err)
	require.Greater(t, len(threads), 2)
	var first []string
	for _, path := range threads {
		b, err := os.ReadFile(path)
		if os.IsNotExist(err) {
			continue // the thread has ended
		}
		require.NoError(t, err)
		var lines []string
		for line := range strings.Lines(string(b)) {
			if name, value, _ := strings.Cut(line, ":"); name == "CapEff" || name == "CapPrm" || name == "NoNewPrivs" {
				lines = append(lines, strings.TrimSpace(value))
			}
		}
		if first == nil {
			first = lines
		}
		require.Equal(t, first, lines, path)
	}
	require.Len(t, first, 3)
	permitted, err = strconv.ParseUint(first[0], 16, 64)
	require.NoError(t, err)
	effective, err = strconv.ParseUint(first[1], 16, 64)
	require.NoError(t, err)
	return effective, permitted, first[2]
}

// keeping allocates in a function of its own, at a signal.
const keeping = `
import os, time, torch
def wait(name):
    while not os.path.exists('DIR/' + name):
        time.sleep(0.005)
def keep():
    kept = []
    for n in range(1000, 2000000, 10000):
        kept.append(torch.empty(n, device='cuda'))
    return kept
torch.cuda.init()
print('READY', os.getpid(), flush=True)
wait('go')
kept = keep()
del kept[::3]
print('DONE', torch.cuda.memory_allocated(), flush=True)
wait('hold')
`

// TestFewestRights traces PyTorch, of root, in another mount namespace and on an overlay, as a user who has just three
// capabilities: all of it, to the byte.
func TestFewestRights(t *testing.T) {
	dir := t.TempDir()
	code := strings.ReplaceAll(keeping, "DIR", dir)
	p := startIn(t, dir, nil, "unshare", "--mount", "sh", "-c", openHome, t.TempDir(), filepath.Join(env.testdata, "run"), "-c", code).ready(t)
	c := as(t, nobody, allRights, "-p", itoa(p.pid)).start(t).ready(t)
	effective, permitted, noNewPrivs := rightsOf(t, c.cmd.Process.Pid)
	require.EqualValues(t, 1<<unix.CAP_BPF|1<<unix.CAP_SYS_PTRACE, effective)
	require.Equal(t, effective, permitted)
	require.Equal(t, "1", noNewPrivs)
	p.release(t)
	line := p.await(t, "DONE")
	c.interrupt(t)
	inuse, _ := readProfiles(t, c.out(), "trace.gputrace", "report.html")
	checkAllocated(t, inuse, line)
	bytes, _ := leaf(inuse, "<string>:9 keep")
	require.Equal(t, sum(t, inuse, "inuse_space", "torch"), bytes, "Python's frames")
	require.Contains(t, c.stdout.String(), " 0 events lost")
	require.NotContains(t, c.stderr.String(), "stacks stop")
	require.Contains(t, c.stderr.String(), "CAP_DAC_READ_SEARCH", "what the names of holders take is said")
}

// TestOwnProcess: two capabilities are enough for a process of the same user.
func TestOwnProcess(t *testing.T) {
	dir := t.TempDir()
	p := startIn(t, dir, nil, "setpriv", fmt.Sprint("--reuid=", nobody), fmt.Sprint("--regid=", nobody), "--clear-groups",
		env.programs+"/hotloop", "--go", dir+"/go")
	p.await(t, "READY")
	examine(t, 0, withRights("bpf,perfmon"), "-p", itoa(p.pid)).works(t)
	c := as(t, nobody, "bpf,perfmon", "-p", itoa(p.pid)).start(t).ready(t)
	effective, _, _ := rightsOf(t, c.cmd.Process.Pid)
	require.EqualValues(t, 1<<unix.CAP_BPF, effective)
}

// TestRootDrops: root keeps what tracing goes on to need and what the results take.
func TestRootDrops(t *testing.T) {
	dir := t.TempDir()
	p := startIn(t, dir, nil, env.programs+"/hotloop", "--go", dir+"/go")
	p.await(t, "READY")
	c := startCommand(t, p)
	effective, permitted, _ := rightsOf(t, c.cmd.Process.Pid)
	require.EqualValues(t, 1<<unix.CAP_BPF|1<<unix.CAP_SYS_PTRACE|1<<unix.CAP_CHECKPOINT_RESTORE|1<<unix.CAP_DAC_READ_SEARCH|
		1<<unix.CAP_DAC_OVERRIDE|1<<unix.CAP_CHOWN|1<<unix.CAP_FOWNER, effective)
	require.Equal(t, effective, permitted)
}

// TestAdminStays: who has CAP_SYS_ADMIN in place of CAP_BPF keeps it, for libraries that are loaded later.
func TestAdminStays(t *testing.T) {
	dir := t.TempDir()
	p := startIn(t, dir, nil, env.programs+"/hotloop", "--go", dir+"/go")
	p.await(t, "READY")
	c := as(t, nobody, "sys_admin,sys_ptrace,net_admin", "-p", itoa(p.pid)).start(t).ready(t)
	effective, permitted, _ := rightsOf(t, c.cmd.Process.Pid)
	require.EqualValues(t, 1<<unix.CAP_SYS_ADMIN|1<<unix.CAP_SYS_PTRACE, effective)
	require.Equal(t, effective, permitted)
}

// TestMissingRight: each capability that is missing is named, with the lines that give it.
func TestMissingRight(t *testing.T) {
	dir := t.TempDir()
	p := startIn(t, dir, nil, env.programs+"/hotloop", "--go", dir+"/go")
	p.await(t, "READY")
	for missing, rest := range map[string]string{
		"CAP_BPF": "perfmon,sys_ptrace", "CAP_PERFMON": "bpf,sys_ptrace", "CAP_SYS_PTRACE": "bpf,perfmon",
	} {
		c := as(t, nobody, rest, "-p", itoa(p.pid)).start(t)
		require.Equal(t, 6, c.code(t), c.stderr.String())
		said := c.stderr.String()
		require.Contains(t, said, "missing "+missing+" (")
		require.Equal(t, 1, strings.Count(said, "missing "), said)
		require.Contains(t, said, "setcap cap_bpf,cap_perfmon,cap_sys_ptrace+ep "+env.binary)
		require.Contains(t, said, "--cap-add "+strings.TrimPrefix(missing, "CAP_"))
		require.Contains(t, said, "securityContext:")
	}
}
