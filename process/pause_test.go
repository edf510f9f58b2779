// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// leaderless has the test program run on without its main thread.
const leaderless = "GPUTRACE_TEST_LEADERLESS"

func init() { // of the main thread, which the runtime keeps for it
	if os.Getenv(leaderless) == "" {
		return
	}
	go func() {
		for { // until the main thread has ended
			if state, _, err := readStat("/proc/self/task/" + fmt.Sprint(os.Getpid())); err == nil && hasEnded(state) {
				break
			}
			time.Sleep(time.Millisecond)
		}
		fmt.Println("READY")
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	_, _, _ = syscall.RawSyscall(unix.SYS_EXIT, 0, 0, 0)
}

// startLeaderless starts a process whose main thread has ended. It ends with its input.
func startLeaderless(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), leaderless+"=1")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "READY\n", line)
	return cmd
}

// TestLeaderless: what is read of a process does not depend on its main thread.
func TestLeaderless(t *testing.T) {
	pid := startLeaderless(t).Process.Pid
	state, _, err := readStat("/proc/" + fmt.Sprint(pid))
	require.NoError(t, err)
	require.Equal(t, "Z", string(state))

	p, err := Open(pid)
	require.NoError(t, err)
	require.True(t, p.Alive())
	require.True(t, p.Leaderless())
	require.NotEqual(t, pid, p.Thread())
	exe, err := p.Exe()
	require.NoError(t, err)
	own, err := os.Executable()
	require.NoError(t, err)
	require.Equal(t, own, exe)
	require.Equal(t, os.Args[:1], p.Cmdline(10))
	cwd, err := os.Getwd()
	require.NoError(t, err)
	require.Equal(t, cwd, p.Cwd())
	require.NotZero(t, p.CodePages())
	environ, err := p.Environ()
	require.NoError(t, err)
	require.Contains(t, environ, leaderless+"=1")
	theirs, err := p.Namespace("mnt")
	require.NoError(t, err)
	ours, err := self(t).Namespace("mnt")
	require.NoError(t, err)
	require.Equal(t, ours, theirs)
	require.True(t, p.Exists("/proc"))
	require.Equal(t, self(t).Cgroups(), p.Cgroups())
	require.Equal(t, Pause{}, p.Paused())

	maps, err := p.Maps()
	require.NoError(t, err)
	require.NotEmpty(t, maps)
	head := make([]byte, 4)
	_, err = p.ReadAt(head, maps[0].Start)
	require.NoError(t, err)
	require.Equal(t, "\x7fELF", string(head))
	f, err := p.OpenFile(&maps[0])
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

// TestZombie: a process that has ended is not one that can be looked at, although it has a number.
func TestZombie(t *testing.T) {
	cmd := exec.Command("/bin/true")
	require.NoError(t, cmd.Start())
	defer func() { _ = cmd.Wait() }()
	require.Eventually(t, func() bool {
		state, _, err := readStat("/proc/" + fmt.Sprint(cmd.Process.Pid))
		return err == nil && hasEnded(state)
	}, time.Minute, time.Millisecond)
	_, err := Open(cmd.Process.Pid)
	require.ErrorIs(t, err, ErrNotExist)
	var ended *EndedError
	require.True(t, errors.As(err, &ended))
	require.Equal(t, EndedError{PID: cmd.Process.Pid, Name: "true", Parent: os.Getpid()}, *ended)
}

// TestPausedBySignal: from SIGSTOP to SIGCONT.
func TestPausedBySignal(t *testing.T) {
	cmd, _ := child(t, "echo ready; read line")
	p, err := Open(cmd.Process.Pid)
	require.NoError(t, err)
	require.Equal(t, Running, p.Paused().Kind)
	require.NoError(t, cmd.Process.Signal(unix.SIGSTOP))
	require.Eventually(t, func() bool { return p.Paused() == Pause{Kind: Signal, PID: p.PID} }, time.Minute, time.Millisecond)
	require.True(t, p.Alive())
	require.NoError(t, cmd.Process.Signal(unix.SIGCONT))
	require.Eventually(t, func() bool { return p.Paused().Kind == Running }, time.Minute, time.Millisecond)
}

// TestPausedByFreezer: both kinds of control groups, as far as this machine has them.
func TestPausedByFreezer(t *testing.T) {
	for _, tt := range []struct{ folder, file, freeze, thaw string }{
		{"/sys/fs/cgroup", "cgroup.freeze", "1", "0"},
		{"/sys/fs/cgroup/unified", "cgroup.freeze", "1", "0"},
		{"/sys/fs/cgroup/freezer", "freezer.state", "FROZEN", "THAWED"},
	} {
		t.Run(tt.folder, func(t *testing.T) {
			group := filepath.Join(tt.folder, "gputrace-test-"+strconv.Itoa(os.Getpid()))
			if err := os.Mkdir(group, 0o755); err != nil {
				t.Skip("no control group can be made: ", err)
			}
			defer os.Remove(group)
			freeze := filepath.Join(group, tt.file)
			if _, err := os.Stat(freeze); err != nil {
				t.Skip("it cannot be frozen: ", err)
			}
			cmd, _ := child(t, "echo ready; read line")
			require.NoError(t, os.WriteFile(filepath.Join(group, "cgroup.procs"), fmt.Append(nil, cmd.Process.Pid), 0o644))
			p, err := Open(cmd.Process.Pid)
			require.NoError(t, err)
			require.Equal(t, Running, p.Paused().Kind)
			require.NoError(t, os.WriteFile(freeze, []byte(tt.freeze), 0o644))
			require.Eventually(t, func() bool { return p.Paused().Kind == Freezer }, time.Minute, time.Millisecond)
			require.Equal(t, "/"+filepath.Base(group), p.Paused().Group)
			require.NoError(t, os.WriteFile(freeze, []byte(tt.thaw), 0o644))
			require.Eventually(t, func() bool { return p.Paused().Kind == Running }, time.Minute, time.Millisecond)
			require.NoError(t, cmd.Process.Kill())
			_ = cmd.Wait()
		})
	}
}

// TestPausedByDebugger: the process that holds it is named.
func TestPausedByDebugger(t *testing.T) {
	cmd, _ := child(t, "echo ready; read line")
	p, err := Open(cmd.Process.Pid)
	require.NoError(t, err)
	attached, release := make(chan error), make(chan bool)
	go func() { // what traces is a thread
		runtime.LockOSThread()
		err := unix.PtraceSeize(p.PID)
		if err == nil {
			err = unix.PtraceInterrupt(p.PID)
		}
		attached <- err
		<-release
	}()
	require.NoError(t, <-attached)
	defer close(release)
	require.Eventually(t, func() bool { return p.Paused().Kind == Debugger }, time.Minute, time.Millisecond)
	require.Equal(t, Pause{Kind: Debugger, PID: p.PID, Debugger: os.Getpid(), Name: self(t).Name()}, p.Paused())
	require.True(t, strings.HasPrefix(p.Paused().String(), "held by a debugger ("))
}
