// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// target is a program to trace. It is killed, with its children, when the test ends.
type target struct {
	pid    int
	dir    string // its side files
	exited chan struct{}
	stderr lockedBuffer

	mu    sync.Mutex
	lines []string
	news  chan struct{} // closed and replaced at each line
}

// lockedBuffer may be read while a command writes to it.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// startTraining starts a training script on the stand-in, which waits for release and, at its end, for letGo.
func startTraining(t *testing.T, script string, args ...string) *target {
	t.Helper()
	return startTrainingIn(t, nil, script, args...)
}

func startTrainingIn(t *testing.T, environment []string, script string, args ...string) *target {
	t.Helper()
	dir := t.TempDir()
	args = append([]string{workload(script), "--wait", "--go", filepath.Join(dir, "go"), "--hold", filepath.Join(dir, "hold")}, args...)
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "DIR", dir)
	}
	return startIn(t, dir, environment, filepath.Join(env.testdata, "run"), args...)
}

// startPython runs Python code with PyTorch on the stand-in. DIR in it stands for the folder of its side files.
func startPython(t *testing.T, code string) *target {
	t.Helper()
	return startPythonIn(t, nil, code)
}

func startPythonIn(t *testing.T, environment []string, code string) *target {
	t.Helper()
	dir := t.TempDir()
	return startIn(t, dir, environment, filepath.Join(env.testdata, "run"), "-c", strings.ReplaceAll(code, "DIR", dir))
}

func startIn(t *testing.T, dir string, environment []string, name string, args ...string) *target {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(append(os.Environ(), "OMP_NUM_THREADS=1"), environment...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p := &target{dir: dir, exited: make(chan struct{}), news: make(chan struct{})}
	cmd.Stderr = &p.stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	p.pid = cmd.Process.Pid
	go func() {
		p.collect(out)
		_ = cmd.Wait() // how it ends is the tests' business
		close(p.exited)
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-p.pid, syscall.SIGKILL)
		<-p.exited
	})
	return p
}

func (p *target) collect(out io.Reader) {
	for s := bufio.NewScanner(out); s.Scan(); {
		p.mu.Lock()
		p.lines = append(p.lines, s.Text())
		close(p.news)
		p.news = make(chan struct{})
		p.mu.Unlock()
	}
}

// find returns the first line of output with a prefix, and what announces the next line.
func (p *target) find(prefix string) (line string, found bool, news <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.lines {
		if strings.HasPrefix(l, prefix) {
			return l, true, p.news
		}
	}
	return "", false, p.news
}

// output is what the target has printed so far.
func (p *target) output() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.lines)
}

// await waits for a line of output.
func (p *target) await(t *testing.T, prefix string) string {
	t.Helper()
	expired := time.After(timeout)
	for {
		line, ok, news := p.find(prefix)
		if ok {
			return line
		}
		select {
		case <-news:
		case <-p.exited:
			if line, ok, _ := p.find(prefix); ok {
				return line
			}
			require.FailNow(t, fmt.Sprintf("target ended before it printed %q:\n%s", prefix, p.stderr.String()))
		case <-expired:
			require.FailNow(t, fmt.Sprintf("target did not print %q:\n%s", prefix, p.stderr.String()))
		}
	}
}

// ready waits until the target waits for its start signal.
func (p *target) ready(t *testing.T) *target {
	t.Helper()
	require.Equal(t, fmt.Sprint("READY ", p.pid), p.await(t, "READY"), "the launcher must not stay in between")
	return p
}

func (p *target) touch(t *testing.T, name string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(p.dir, name), nil, 0o644))
}

// release sends the start signal.
func (p *target) release(t *testing.T) { t.Helper(); p.touch(t, "go") }

// done waits until the target has done its work and holds still.
func (p *target) done(t *testing.T) { t.Helper(); p.await(t, "DONE") }

// letGo lets a held target end, and waits for it.

func (p *target) wait(t *testing.T) {
	t.Helper()
	select {
	case <-p.exited:
	case <-time.After(timeout):
		require.FailNow(t, "target does not end")
	}
}

func (p *target) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	require.NoError(t, syscall.Kill(p.pid, s))
}

// freeze stops the target when it has made a number of steps, so that what follows does not race with it.
func (p *target) freeze(t *testing.T, steps int) {
	t.Helper()
	p.awaitSteps(t, steps)
	p.signal(t, syscall.SIGSTOP)
}

func (p *target) thaw(t *testing.T) { t.Helper(); p.signal(t, syscall.SIGCONT) }

// awaitSteps waits until --counters DIR/counters shows a number of steps.
func (p *target) awaitSteps(t *testing.T, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d training steps", n), func() bool { return p.steps() >= n })
}

func (p *target) steps() int {
	b, _ := os.ReadFile(filepath.Join(p.dir, "counters"))
	return bytes.Count(b, []byte("\n"))
}
