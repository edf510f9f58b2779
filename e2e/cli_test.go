// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"
)

// command is gputrace as a process of its own. It is killed when the test ends.
type command struct {
	cmd            *exec.Cmd
	dir            string // the folder of its output
	stdout, stderr lockedBuffer
	exited         chan struct{}
}

// newCommand prepares gputrace with arguments; OUT in them is the folder of results.
func newCommand(t *testing.T, args ...string) *command {
	t.Helper()
	c := &command{dir: t.TempDir(), exited: make(chan struct{})}
	args = append([]string{"--cache-dir", env.cache, "--ready-file", c.readyFile()}, verbosely(args)...)
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

// verbosely has a recording print all tables: figures are compared that its first screen has no room for.
func verbosely(args []string) []string {
	switch {
	case len(args) == 0, slices.Contains(args, "-v"):
	case args[0] == "run":
		return append([]string{"run", "-v"}, args[1:]...)
	case strings.HasPrefix(args[0], "-"):
		return append([]string{"-v"}, args...)
	}
	return args
}

func (c *command) out() string       { return filepath.Join(c.dir, "out") }
func (c *command) readyFile() string { return filepath.Join(c.dir, "ready") }

func (c *command) start(t *testing.T) *command {
	t.Helper()
	require.NoError(t, c.cmd.Start())
	go func() {
		_ = c.cmd.Wait() // the tests look at the exit code
		close(c.exited)
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL)
		<-c.exited
	})
	return c
}

// startCommand traces a target and returns when the probes are live.
func startCommand(t *testing.T, p *target, args ...string) *command {
	t.Helper()
	return newCommand(t, append([]string{"-p", fmt.Sprint(p.pid), "-o", "OUT"}, args...)...).start(t).ready(t)
}

func (c *command) ready(t *testing.T) *command {
	t.Helper()
	eventually(t, "the ready file", func() bool {
		select {
		case <-c.exited:
			require.FailNow(t, "gputrace ended before it was ready:\n"+c.stderr.String())
		default:
		}
		return exists(c.readyFile())
	})
	return c
}

func (c *command) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	require.NoError(t, c.cmd.Process.Signal(s))
}

// code waits for the end and gives the exit code.
func (c *command) code(t *testing.T) int {
	t.Helper()
	select {
	case <-c.exited:
	case <-time.After(timeout):
		require.FailNow(t, "gputrace does not end:\n"+c.stderr.String())
	}
	return c.cmd.ProcessState.ExitCode()
}

// interrupt is Ctrl-C; the recording must end well.
func (c *command) interrupt(t *testing.T) {
	t.Helper()
	c.signal(t, syscall.SIGINT)
	c.succeeds(t)
}

func (c *command) succeeds(t *testing.T) {
	t.Helper()
	require.Equal(t, 0, c.code(t), c.stderr.String())
}

// profiles reads two of the profiles of a result; nothing but the recording is with them, and nothing is left beside the folder.
func (c *command) profiles(t *testing.T) (inuse, alloc *profile.Profile) {
	t.Helper()
	requireNoLeftovers(t, c.dir)
	return readProfiles(t, c.out(), "trace.gputrace", "report.html")
}

// readProfiles reads the two profiles of a folder, in which there is nothing else but what is named.
func readProfiles(t *testing.T, dir string, others ...string) (inuse, alloc *profile.Profile) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	require.ElementsMatch(t, append(others, "inuse.pb.gz", "peak.pb.gz", "alloc.pb.gz"), names)
	return readProfile(t, filepath.Join(dir, "inuse.pb.gz")), readProfile(t, filepath.Join(dir, "alloc.pb.gz"))
}

func requireNoLeftovers(t *testing.T, dir string) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(dir, ".*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

func readProfile(t *testing.T, path string) *profile.Profile {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	p, err := profile.Parse(bytes.NewReader(b))
	require.NoError(t, err)
	require.NoError(t, p.CheckValid())
	for _, s := range p.Sample {
		require.Contains(t, []string{"torch", "device"}, strings.Join(s.Label["layer"], ","), "a sample without its layer")
	}
	return p
}

// sum adds up a value of a profile over the samples of one layer.
func sum(t *testing.T, p *profile.Profile, value, layer string) int64 {
	t.Helper()
	at := -1
	for i, v := range p.SampleType {
		if v.Type == value {
			at = i
		}
	}
	require.GreaterOrEqual(t, at, 0, "no %s in the profile", value)
	n := int64(0)
	for _, s := range p.Sample {
		if s.Label["layer"][0] == layer {
			n += s.Value[at]
		}
	}
	return n
}

// leaf adds up the in-use bytes of samples whose leaf has a name, and tells how many there are.
func leaf(p *profile.Profile, name string) (bytes int64, samples int) {
	for _, s := range p.Sample {
		if s.Location[0].Line[0].Function.Name == name {
			bytes += s.Value[len(s.Value)-1]
			samples++
		}
	}
	return bytes, samples
}

// pprofTop runs go tool pprof, which must not complain, and gives the rows below its header.
func pprofTop(t *testing.T, file string, flags ...string) (rows []string, all string) {
	t.Helper()
	var stderr bytes.Buffer
	cmd := exec.Command("go", append(append([]string{"tool", "pprof", "-top"}, flags...), file)...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	require.Empty(t, stderr.String(), "pprof warns")
	_, table, ok := strings.Cut(string(out), "flat%")
	require.True(t, ok, string(out))
	_, table, _ = strings.Cut(table, "\n")
	return strings.Split(strings.TrimSpace(table), "\n"), string(out)
}

func (c *command) freeze(t *testing.T) { t.Helper(); c.signal(t, syscall.SIGSTOP) }
func (c *command) thaw(t *testing.T)   { t.Helper(); c.signal(t, syscall.SIGCONT) }

func itoa(n int) string { return strconv.Itoa(n) }

// checkAllocated compares a profile's torch samples with what the target printed: "DONE <memory_allocated()>".
func checkAllocated(t *testing.T, p *profile.Profile, line string) {
	t.Helper()
	require.EqualValues(t, allocated(t, line), sum(t, p, "inuse_space", "torch"))
}

// allocated is the number of bytes that a job says, "DONE 4096".
func allocated(t *testing.T, line string) uint64 {
	t.Helper()
	bytes, err := strconv.ParseUint(strings.TrimPrefix(line, "DONE "), 10, 64)
	require.NoError(t, err)
	return bytes
}
