// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/internal/top"
)

// tmux is a terminal of so many columns and rows, in a server of its own.
type tmux struct {
	socket string
}

// openTmux runs a command in a new terminal.
func openTmux(t *testing.T, width, height int, command ...string) *tmux {
	t.Helper()
	m := &tmux{filepath.Join(t.TempDir(), "tmux")}
	m.run(t, append([]string{"new-session", "-d", "-x", itoa(width), "-y", itoa(height)}, command...)...)
	t.Cleanup(func() { _ = exec.Command("tmux", "-S", m.socket, "kill-server").Run() })
	return m
}

func (m *tmux) run(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command("tmux", append([]string{"-S", m.socket}, args...)...)
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

func (m *tmux) press(t *testing.T, keys ...string) {
	t.Helper()
	m.run(t, append([]string{"send-keys"}, keys...)...)
}

// shows waits for a text on the screen, and returns the screen.
func (m *tmux) shows(t *testing.T, text string) string {
	t.Helper()
	screen := ""
	defer func() {
		if t.Failed() {
			t.Log(screen)
		}
	}()
	eventually(t, text+" on the screen", func() bool {
		screen = m.run(t, "capture-pane", "-p")
		return strings.Contains(screen, text)
	})
	return screen
}

// screens are the lines of JSON of a command.
func screens(t *testing.T, args ...string) (all []*top.Screen) {
	t.Helper()
	var out, talk bytes.Buffer
	cmd := exec.Command(env.binary, append([]string{"--cache-dir", env.cache, "top"}, args...)...)
	cmd.Stdout, cmd.Stderr = &out, &talk
	require.NoError(t, cmd.Run(), talk.String())
	for line := range strings.Lines(out.String()) {
		s := &top.Screen{}
		require.NoError(t, json.Unmarshal([]byte(line), s))
		all = append(all, s)
	}
	require.NotEmpty(t, all)
	return all
}

// lastScreen is the last line of JSON of a command.
func lastScreen(t *testing.T, args ...string) *top.Screen {
	t.Helper()
	all := screens(t, args...)
	return all[len(all)-1]
}

// requireAddsUp: the rows by line are the allocator's blocks and the memory from elsewhere, to the byte.
func requireAddsUp(t *testing.T, s *top.Screen) {
	t.Helper()
	var sum int64
	for _, r := range s.Tables[top.ByLine] {
		sum += r.Bytes
	}
	require.NotNil(t, s.Memory.Allocated)
	require.EqualValues(t, *s.Memory.Allocated+s.Memory.Other, sum)
}

// TestTop: the screen of a job that leaks, in a real terminal: sums, filter, pause, time, holders; a connection
// that is lost and made again.
func TestTop(t *testing.T) {
	p := startTraining(t, "leak.py", "--batch", "4").ready(t)
	socket := filepath.Join(t.TempDir(), "job.sock")
	server := exec.Command(env.binary, "--cache-dir", env.cache, "top", "-p", itoa(p.pid), "--serve", socket)
	var talk lockedBuffer
	server.Stderr = &talk
	require.NoError(t, server.Start())
	t.Cleanup(func() { _ = server.Process.Kill() })
	eventually(t, "the socket", func() bool { return exists(socket) })
	p.release(t)

	first := openTmux(t, 80, 24, env.binary, "top", "--connect", socket)
	screen := first.shows(t, "leak.py:2")
	require.Contains(t, screen, "pid "+itoa(p.pid)+" leak.py")
	require.Contains(t, screen, "lost 0")
	first.shows(t, "GROWING  leak.py:")
	p.signal(t, syscall.SIGSTOP) // on a busy machine it outgrows the reading of its holders
	first.press(t, "2")
	first.shows(t, "trainer.model")
	p.signal(t, syscall.SIGCONT)
	first.press(t, "1", "/", "live>1t", "Enter")
	first.shows(t, "no match for live>1t")
	first.press(t, "Escape", "Left", "Left")
	first.shows(t, "end: now")
	first.run(t, "kill-server") // the connection is lost

	again := openTmux(t, 120, 40, env.binary, "top", "--connect", socket)
	again.shows(t, "GROWING  leak.py:")
	screen = again.shows(t, "BLOCKS") // a wide terminal has more columns; they are drawn last
	require.Contains(t, screen, "+0 s", "it has the time from before the connection")
	again.press(t, "q")
	requireAddsUp(t, lastScreen(t, "--connect", socket, "--once", "--json"))

	lost := openTmux(t, 60, 24, env.binary, "top", "--connect", socket)
	screen = lost.shows(t, "GROWING  leak.py:")
	require.NotContains(t, screen, "CHANGE", "a narrow terminal has fewer columns")
	require.NoError(t, server.Process.Kill()) // the recorder, not the job
	_ = server.Wait()
	lost.shows(t, "no connection to the recorder, trying again")
	server = exec.Command(env.binary, "--cache-dir", env.cache, "top", "-p", itoa(p.pid), "--serve", socket)
	server.Stderr = &talk
	require.NoError(t, server.Start())
	t.Cleanup(func() { _ = server.Process.Kill() })
	lost.shows(t, "? help")
	require.NotContains(t, lost.shows(t, "leak.py"), "no connection")
	lost.press(t, "q")

	require.NoError(t, server.Process.Signal(syscall.SIGINT))
	require.NoError(t, server.Wait(), talk.String())
	select {
	case <-p.exited:
		t.Fatal("the job has ended with the recorder")
	default:
	}
	requireAddsUp(t, lastScreen(t, "-p", itoa(p.pid), "--once", "--json"))
}

// slowStep is a job whose forward and backward pass take ten seconds each. It prints when they begin and end.
const slowStep = `
import os, time, torch
from torch import nn

class Late(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        time.sleep(2)
        return x.clone()
    @staticmethod
    def backward(ctx, grad):
        time.sleep(2)
        return grad.clone()

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)
    def forward(self, x):
        return Late.apply(self.linear(x))

net = nn.Sequential(*(Block() for _ in range(5))).cuda()
x = torch.randn(64, 64, device="cuda")
print("READY", os.getpid(), flush=True)
while not os.path.exists("DIR/go"):
    time.sleep(0.05)
times = [time.monotonic()]
loss = net(x).sum()
times.append(time.monotonic())
loss.backward()
times.append(time.monotonic())
print("DONE", *times, flush=True)
time.sleep(600)
`

// TestTopPhases: phases of a slow job are bands below the curve, live and in its recording, as long as the job itself says.
func TestTopPhases(t *testing.T) {
	p := startPython(t, slowStep).ready(t)
	out := filepath.Join(t.TempDir(), "out")
	terminal := openTmux(t, 80, 24, env.binary, "--cache-dir", env.cache, "top", "-p", itoa(p.pid), "-o", out)
	terminal.shows(t, "+0 s")
	p.release(t)
	require.Regexp(t, `phases .*┃f\S*\s?┃b`, terminal.shows(t, "┃b"))
	var times [3]float64
	_, err := fmt.Sscanf(p.await(t, "DONE"), "DONE %f %f %f", &times[0], &times[1], &times[2])
	require.NoError(t, err)
	terminal.press(t, "q")
	file := filepath.Join(out, traceFile)
	eventually(t, "the end of the recording", func() bool { return exec.Command("tmux", "-S", terminal.socket, "has-session").Run() != nil })

	length := map[string]float64{}
	for _, s := range screens(t, file, "--json") {
		for _, phase := range s.Phases {
			length[phase.Phase] = max(length[phase.Phase], phase.To-phase.From)
		}
	}
	require.InDelta(t, times[1]-times[0], length["forward"], 1)
	require.InDelta(t, times[2]-times[1], length["backward"], 1)
	text, err := exec.Command(env.binary, "top", file, "--once").Output()
	require.NoError(t, err)
	require.Regexp(t, `phases .*┃forward━+.?┃backward━+`, string(text))
}
