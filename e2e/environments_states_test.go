// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

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

// knownJob is a program with known figures: 64 MiB that stay, and from each of its rounds 1 MiB more. It writes the
// allocator's own total and the number of rounds to DIR/known, and does a round for each file DIR/round.N from 0
// on; without one it waits.
const knownJob = `
import ctypes, json, os, threading, time, torch
def say(text):
    print(text, flush=True)
def known(rounds):
    with open('DIR/known.part', 'w') as f:
        json.dump({'allocated': torch.cuda.memory_allocated(), 'rounds': rounds}, f)
    os.rename('DIR/known.part', 'DIR/known')
kept = []
def grow():
    kept.append(torch.empty(1 << 20, dtype=torch.uint8, device='cuda'))
def work():
    weights = torch.empty(64 << 20, dtype=torch.uint8, device='cuda')
    known(0)
    say('READY %d' % os.getpid())
    rounds = 0
    while not os.path.exists('DIR/end'):
        if os.path.exists('DIR/round.%d' % rounds):
            grow()
            rounds += 1
            known(rounds)
            say('ROUND %d' % rounds)
        time.sleep(0.005)
    os._exit(0)
`

// round has the job do its next rounds, up to a number.
func (p *target) rounds(t *testing.T, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		p.touch(t, fmt.Sprintf("round.%d", i))
	}
	p.await(t, fmt.Sprintf("ROUND %d", to))
}

// newBareCommand prepares gputrace with no arguments but these; OUT in them is the folder of results. Its temporary
// files have a folder of their own.
func newBareCommand(t *testing.T, args ...string) *command {
	t.Helper()
	c := &command{dir: t.TempDir(), exited: make(chan struct{})}
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "OUT", c.out())
	}
	c.cmd = exec.Command(env.binary, args...)
	c.cmd.Dir = c.dir
	c.cmd.Stdout, c.cmd.Stderr = &c.stdout, &c.stderr
	c.cmd.Env = append(os.Environ(), "TMPDIR="+t.TempDir())
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	return c
}

// temporary is the folder of a command's temporary files.
func (c *command) temporary(t *testing.T) string {
	t.Helper()
	last := c.cmd.Env[len(c.cmd.Env)-1]
	folder, ok := strings.CutPrefix(last, "TMPDIR=")
	require.True(t, ok, last)
	return folder
}

// runs runs gputrace to its end.
func runs(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	c := newBareCommand(t, args...).start(t)
	code = c.code(t)
	return c.stdout.String(), c.stderr.String(), code
}

// flat is a text without the line breaks and the room that a narrow screen made.
func flat(text string) string { return strings.Join(strings.Fields(text), " ") }

// TestWithoutMainThread: the work goes on in a thread when the main one has ended, before the attach or while the job is traced. Every
// command finds the job, and its figures are those of any other.
func TestWithoutMainThread(t *testing.T) {
	const leave = "\nctypes.CDLL(None).syscall(60, 0)\n" // exit of this thread alone
	for _, tt := range []struct {
		name, end string
		before    bool // the main thread has ended before the attach
	}{
		{"ended before", leave, true},
		{"ends while traced", "\nwhile not os.path.exists('DIR/leave'):\n    time.sleep(0.005)" + leave, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := startPython(t, knownJob+"threading.Thread(target=work, name='trainer').start()"+tt.end).ready(t)
			stat := func() string {
				b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid))
				require.NoError(t, err)
				_, rest, _ := strings.Cut(string(b), ") ")
				return rest[:1]
			}
			ended := func() bool { return stat() == "Z" }
			if tt.before {
				eventually(t, "the end of the main thread", ended)
			}
			p.rounds(t, 0, 3)
			c := startCommand(t, p)
			p.rounds(t, 3, 10)
			if !tt.before {
				require.False(t, ended())
				p.touch(t, "leave")
				eventually(t, "the end of the main thread", ended)
			}
			p.rounds(t, 10, 20)

			listed, _, code := runs(t)
			require.Zero(t, code)
			require.Contains(t, listed, fmt.Sprint(p.pid, "  root  cuda:0   84.0 MiB"), listed)
			mapped, said, code := runs(t, "dump", "-p", itoa(p.pid))
			require.Zero(t, code, said)
			require.Contains(t, flat(mapped), "allocated 84.0 MiB 88,080,384 B in 21 blocks")
			held, said, code := runs(t, "who", "-p", itoa(p.pid))
			require.Zero(t, code, said)
			require.Contains(t, flat(held), "kept[0..19] [1048576] uint8 20.0 MiB 20 24 %")
			require.Regexp(t, `weights <string>:\d+ work\(\) \[67108864\] uint8 64.0 MiB 1 76 %`, flat(held))
			checked, _, code := runs(t, "doctor", "-p", itoa(p.pid), "-d", "100ms", "--cache-dir", env.cache)
			require.Zero(t, code, checked)

			p.touch(t, "end")
			c.succeeds(t)
			inuse, _ := c.profiles(t)
			require.EqualValues(t, 84<<20, sum(t, inuse, "inuse_space", "torch"), "the job is ended without a free")
			bytes, _ := leaf(inuse, "<string>:11 grow")
			require.EqualValues(t, 17<<20, bytes)
			require.Contains(t, c.stderr.String(), "ended")
		})
	}
}

// TestZombie: a process that has ended is called that, by every command.
func TestZombie(t *testing.T) {
	dead := exec.Command("/bin/true")
	require.NoError(t, dead.Start())
	t.Cleanup(func() { _ = dead.Wait() })
	pid := dead.Process.Pid
	eventually(t, "the end of a process", func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err == nil && strings.Contains(string(b), ") Z ")
	})
	want := fmt.Sprintf("pid %d (true) has ended: it is a zombie, which its parent %d has not waited for", pid, os.Getpid())
	for _, args := range [][]string{{"-p"}, {"dump", "-p"}, {"who", "-p"}, {"top", "--once", "-p"}, {"leaks", "-p"}, {"summary", "-p"}} {
		stdout, stderr, code := runs(t, append(args, itoa(pid))...)
		require.Equal(t, 7, code, args)
		require.Contains(t, stderr, want, args)
		require.Empty(t, stdout)
	}
	stdout, _, code := runs(t, "doctor", "-p", itoa(pid))
	require.Equal(t, 1, code)
	require.Contains(t, flat(stdout), want)
}

// waysToPause are the ways to keep a target from running. PID in want stands for its number.
var waysToPause = []struct {
	name, want string
	pause      func(t *testing.T, p *target) (run func())
}{
	{"stopped", "stopped by a signal (kill -CONT PID continues it)", func(t *testing.T, p *target) func() {
		p.signal(t, syscall.SIGSTOP)
		return func() { p.thaw(t) }
	}},
	{"held by gdb", "held by a debugger (gdb, pid ", func(t *testing.T, p *target) func() {
		path, err := exec.LookPath("gdb")
		if err != nil {
			t.Skip("there is no gdb")
		}
		gdb := exec.Command(path, "-nx", "-batch", "-p", itoa(p.pid), "-ex", "python import time; open('"+filepath.Join(p.dir, "held")+
			"', 'w'); time.sleep(1000)")
		gdb.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		require.NoError(t, gdb.Start())
		end := func() { _ = gdb.Process.Kill(); _ = gdb.Wait() }
		t.Cleanup(end)
		eventually(t, "gdb to hold the process", func() bool { return exists(filepath.Join(p.dir, "held")) })
		return end
	}},
	{"frozen", "frozen by its control group /gputrace-e2e-PID", freezer("/sys/fs/cgroup", "cgroup.freeze", "1", "0")},
	{"frozen, unified beside the old ones", "frozen by its control group /gputrace-e2e-PID",
		freezer("/sys/fs/cgroup/unified", "cgroup.freeze", "1", "0")},
	{"frozen, old control groups", "frozen by its control group /gputrace-e2e-PID",
		freezer("/sys/fs/cgroup/freezer", "freezer.state", "FROZEN", "THAWED")},
}

// freezer pauses a target by a control group of its own, in a folder of such.
func freezer(folder, file, freeze, thaw string) func(t *testing.T, p *target) (run func()) {
	return func(t *testing.T, p *target) func() {
		group := filepath.Join(folder, fmt.Sprintf("gputrace-e2e-%d", p.pid))
		if err := os.Mkdir(group, 0o755); err != nil {
			t.Skip("no control group can be made: ", err)
		}
		if !exists(filepath.Join(group, file)) {
			require.NoError(t, os.Remove(group))
			t.Skip("it cannot be frozen")
		}
		run := func() { _ = os.WriteFile(filepath.Join(group, file), []byte(thaw), 0o644) }
		t.Cleanup(func() {
			run() // what is frozen cannot be killed
			_ = syscall.Kill(-p.pid, syscall.SIGKILL)
			eventually(t, "an empty control group", func() bool { return os.Remove(group) == nil })
		})
		require.NoError(t, os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(itoa(p.pid)), 0o644))
		require.NoError(t, os.WriteFile(filepath.Join(group, file), []byte(freeze), 0o644))
		return run
	}
}

// TestPaused: a process that does not run is read like any other, and the first line says that it does not run and why.
func TestPaused(t *testing.T) {
	for _, tt := range waysToPause {
		t.Run(tt.name, func(t *testing.T) {
			p := startPython(t, knownJob+"work()").ready(t)
			p.rounds(t, 0, 20)
			run := tt.pause(t, p)
			want := strings.ReplaceAll(tt.want, "PID", itoa(p.pid))
			first := func(text string) string { f, _, _ := strings.Cut(text, "·"); return flat(f) }

			mapped, said, code := runs(t, "dump", "-p", itoa(p.pid))
			require.Zero(t, code, said)
			require.Contains(t, first(mapped), want)
			require.Contains(t, flat(mapped), "allocated 84.0 MiB 88,080,384 B in 21 blocks")
			held, said, code := runs(t, "who", "-p", itoa(p.pid))
			require.Zero(t, code, said)
			require.Contains(t, first(held), want)
			require.Contains(t, flat(held), "kept[0..19] [1048576] uint8 20.0 MiB 20 24 %")
			require.Contains(t, flat(held), "holders all found, as the reference counts prove: 21 blocks")
			checked, _, code := runs(t, "doctor", "-p", itoa(p.pid), "-d", "100ms", "--cache-dir", env.cache)
			require.Zero(t, code, checked)
			require.Contains(t, flat(checked), "tracing will work, once pid "+itoa(p.pid)+" runs: it is "+want)
			seen, said, code := runs(t, "top", "--once", "-p", itoa(p.pid), "--cache-dir", env.cache)
			require.Zero(t, code, said)
			short, _, _ := strings.Cut(want, " (")
			require.Contains(t, seen, "pid "+itoa(p.pid)+" is "+short[:min(len(short), 20)])
			listed, _, _ := runs(t)
			require.Contains(t, flat(listed), "pid "+itoa(p.pid)+" is "+want)

			c := startCommand(t, p, "-d", "500ms", "-f", "none")
			require.Equal(t, 0, c.code(t), c.stderr.String())
			require.Contains(t, c.stderr.String(), want)
			report, _, _ := runs(t, "report", c.out())
			require.Contains(t, flat(report), "UNKNOWN no allocation or free was seen in")
			require.Contains(t, flat(report), ": the process was "+want)

			c = startCommand(t, p)
			run()
			p.rounds(t, 20, 25)
			c.interrupt(t)
			inuse, _ := c.profiles(t)
			require.EqualValues(t, 89<<20, sum(t, inuse, "inuse_space", "torch"))
			p.touch(t, "end")
			p.wait(t)
		})
	}
}
