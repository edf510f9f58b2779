// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/process"
)

// container runs a program of testdata/programs in a container of podman and runc, under its default seccomp profile, which is
// Docker's: the program and the stand-in's libraries lie in the container's own file system, the C library is the machine's.
type container struct {
	*target
	podman []string // the command, with where it keeps things
	name   string
}

// startContainer waits until the program waits for its start signal. dir is there under its own name.
func startContainer(t *testing.T, dir string, program string, args ...string) *container {
	t.Helper()
	home, err := os.MkdirTemp("", "gputrace-ctr-") // below t.TempDir paths are too long for its sockets
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(home)) })
	c := &container{name: filepath.Base(home), podman: []string{
		"podman", "--root", filepath.Join(home, "storage"), "--runroot", filepath.Join(home, "run"), "--cgroup-manager=cgroupfs",
		"--events-backend=file", "--runtime=runc", "--storage-driver=vfs",
	}}
	t.Cleanup(func() {
		out, err := c.command("rm", "--force", "--ignore", "--time=0", c.name).CombinedOutput()
		require.NoError(t, err, "%s", out)
	})
	pidfile := filepath.Join(home, "pid")
	words := append([]string{}, c.podman[1:]...)
	words = append(words, "run", "--name", c.name, "--network=none", "--ulimit=nofile=1024:4096", "--ulimit=nproc=4096:4096", "--pidfile",
		pidfile,
		"--volume=/usr:/usr:ro", "--volume=/lib:/lib:ro", "--volume=/lib64:/lib64:ro", "--volume="+dir+":"+dir,
		"--env=LD_LIBRARY_PATH=/app/lib", "--env=STANDIN_LEDGER="+filepath.Join(dir, "ledger"),
		"--env=STANDIN_LEDGER_SYNC=1", "--rootfs", rootOf(t, home, program), "/app/"+program)
	c.target = startIn(t, dir, nil, c.podman[0], append(words, args...)...)
	c.await(t, "READY")
	b, err := os.ReadFile(pidfile)
	require.NoError(t, err)
	c.pid, err = strconv.Atoi(strings.TrimSpace(string(b)))
	require.NoError(t, err)
	return c
}

func (c *container) command(args ...string) *exec.Cmd {
	return exec.Command(c.podman[0], append(append([]string{}, c.podman[1:]...), args...)...)
}

// rootOf makes the container's file system.
func rootOf(t *testing.T, home, program string) string {
	t.Helper()
	root := filepath.Join(home, "root")
	for _, folder := range []string{"app/lib", "usr", "lib", "lib64", "proc", "sys", "dev", "etc", "run", "tmp"} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, folder), 0o755))
	}
	standin, err := output(filepath.Join(env.testdata, "setup.sh"), "--print", "standin")
	require.NoError(t, err)
	_, err = output("cp", filepath.Join(env.programs, program), filepath.Join(root, "app"))
	require.NoError(t, err)
	_, err = output("cp", filepath.Join(standin, "libcuda.so.1"), filepath.Join(standin, "libcudart.so.13"), filepath.Join(root, "app/lib"))
	require.NoError(t, err)
	return root
}

// TestPodman traces a program in a container with the default seccomp profile, from its first call of the driver on. It survives, and
// every call is seen that the driver has in its ledger.
func TestPodman(t *testing.T) {
	dir := t.TempDir()
	ledger := filepath.Join(dir, "ledger")
	require.NoError(t, os.WriteFile(ledger, nil, 0o644))
	c := startContainer(t, dir, "cudacalls", "--threads", "1", "--rounds", "200", "--log", filepath.Join(dir, "log"), "--go",
		filepath.Join(dir, "go"),
		"--hold", filepath.Join(dir, "hold"))
	p, err := process.Open(c.pid)
	require.NoError(t, err)
	filtered, err := p.Filtered()
	require.NoError(t, err)
	require.True(t, filtered, "no seccomp profile holds: the test is empty")
	require.Empty(t, readCalls(t, ledger), "calls before the attach")
	tr := attach(t, c.pid, options(), nil)
	c.release(t)
	c.done(t)
	tr.finishWhole(t)
	calls := readCalls(t, ledger)
	require.NotEmpty(t, calls)
	requireActs(t, oneThread(calls).acts(), actsOf(asOneThread(tr.events)))

	d := examine(t, 0, nil, "-p", itoa(c.pid), "-d", "100ms")
	d.works(t)
	state, says := d.says(t, "return probes")
	require.Equal(t, "ok", state)
	require.Contains(t, says, "it has a seccomp filter; a process of our own with one was probed, and survived")

	c.touch(t, "hold")
	c.wait(t)
	out, err := c.command("inspect", "--format={{.State.ExitCode}}", c.name).Output()
	require.NoError(t, err)
	require.Equal(t, "0", strings.TrimSpace(string(out)), "the program did not survive")
}

// oneThread takes a program of one thread for thread 0: inside the container it has another number than for us.
func oneThread(calls ledgerCalls) ledgerCalls {
	for i := range calls {
		calls[i].tid = 0
	}
	return calls
}

func asOneThread(events []event.Event) []event.Event {
	for i := range events {
		events[i].TID = 0
	}
	return events
}
