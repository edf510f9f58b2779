// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package darwin

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/recorder"
	"github.com/gputrace/gputrace/recorder/folder"
)

// lateProgram is testdata/mac/late.py, which has allocated and waits.
type lateProgram struct {
	fake           *fake
	cmd            *exec.Cmd
	python         string
	sums, go_, end string // files
}

// ofDebian is the Python of a version that Debian has: 3.14, the first with sys.remote_exec, or 3.15.
func ofDebian(t *testing.T, version string) string {
	t.Helper()
	out, err := exec.Command("../testdata/debian-python.sh", version).Output()
	require.NoError(t, err, "testdata/debian-python.sh")
	return filepath.Join(strings.TrimSpace(string(out)), "bin", "python"+version)
}

func startLate(t *testing.T, python string) *lateProgram {
	t.Helper()
	dir := t.TempDir()
	p := &lateProgram{fake: buildFake(t), python: python, sums: filepath.Join(dir, "sums"), go_: filepath.Join(dir, "go"),
		end: filepath.Join(dir, "end")}
	p.cmd = exec.Command(python, "testdata/mac/late.py", p.sums, p.go_, p.end)
	p.cmd.Env = append(os.Environ(), "LD_PRELOAD="+p.fake.dyld, "GPUTRACE_FAKE_TORCH="+p.fake.torch, "LD_LIBRARY_PATH=")
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it may have ended
		_ = p.cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ready\n", line)
	return p
}

// record records the program until all of it that works has. It goes on afterwards.
func (p *lateProgram) record(t *testing.T, change func(*recorder.Options, *Config)) (*folder.Results, *noted, error) {
	t.Helper()
	library, err := os.ReadFile("shim/" + ShimName)
	require.NoError(t, err)
	n := &goer{path: p.go_}
	o := &recorder.Options{
		PIDs: []int{p.cmd.Process.Pid}, Inject: true, Observer: n, Version: "test", RingBytes: 1 << 20,
	}
	c := &Config{Library: library, Python: p.python}
	if change != nil {
		change(o, c)
	}
	files := keep(o, t.TempDir()+"/out")
	r := recorder.New(Open(o, c), o)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ended, stop := context.WithCancel(ctx)
	go func() { // once it has written its sums, all events are in the ring
		for ctx.Err() == nil {
			if st, err := os.Stat(p.sums); err == nil && st.Size() > 0 {
				time.Sleep(100 * time.Millisecond)
				stop()
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	defer stop()
	out, err := r.Run(ended)
	return files.Results(out), &n.noted, err
}

// again attaches once more, as long as that takes.
func (p *lateProgram) again(t *testing.T) error {
	t.Helper()
	library, err := os.ReadFile("shim/" + ShimName)
	require.NoError(t, err)
	o := &recorder.Options{PIDs: []int{p.cmd.Process.Pid}, Inject: true, Observer: &noted{}, RingBytes: 1 << 20}
	s := Open(o, &Config{Library: library, Python: p.python}).(*source)
	defer func() { require.NoError(t, s.Close()) }()
	return s.Start(t.Context())
}

// goer has the program go on once the recording is ready.
type goer struct {
	noted
	path string
}

func (g *goer) Ready() error { return os.WriteFile(g.path, nil, 0o644) }

// TestInject: a CPython 3.14 that runs already loads the library that ships, by its own sys.remote_exec. What it had allocated before is
// known to the byte, also what is left of it; everything after is as of a program that was started.
func TestInject(t *testing.T) {
	p := startLate(t, ofDebian(t, "3.14"))
	results, n, err := p.record(t, nil)
	require.NoError(t, err)
	require.NoError(t, results.Err())
	require.Contains(t, strings.Join(n.notices, "\n"), "a library of ours was loaded into the process, and stays there")
	require.Empty(t, n.warnings)
	dir, err := results.Write()
	require.NoError(t, err)
	in, err := export.Open(filepath.Join(dir, export.TraceName), nil)
	require.NoError(t, err)
	t.Cleanup(func() { in.Close() })
	var warned []string
	input, err := in.Input(nil, "test", func(err error) { warned = append(warned, err.Error()) })
	require.NoError(t, err)
	checkFormats(t, input)
	var sums struct{ Before, Left, Kept uint64 }
	text, err := os.ReadFile(p.sums)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &sums))
	v, err := input.View()
	require.NoError(t, err)
	require.Len(t, v.Snapshot.Accounts, 1)
	a := &v.Snapshot.Accounts[0]
	require.Equal(t, sums.Kept, a.Live.Bytes)
	require.Equal(t, sums.Before, a.Baseline)
	require.Equal(t, sums.Left, a.Before)
	require.Equal(t, sums.Left+sums.Kept, a.Allocated)
	require.Zero(t, a.Lost)
	require.Zero(t, a.Gaps)
	require.Contains(t, input.Info.Memory, "loaded into it late")
	require.Contains(t, input.Info.Python, "3.14")
	stack := v.Sites[0].Stack
	frame := stack.Frames[0]
	for i := range stack.Frames {
		if stack.Frames[i].File != "" {
			frame = stack.Frames[i]
			break
		}
	}
	require.True(t, strings.HasSuffix(frame.File, "late.py"), "%+v", frame)
	require.Contains(t, strings.Join(warned, "\n"), "bytes of the allocator's total are in no known block")

	require.ErrorContains(t, p.again(t), "another gputrace traces it") // the first is not closed yet
}

// TestInjectAgain: when gputrace has ended the library writes no more, and another gputrace can begin.
func TestInjectAgain(t *testing.T) {
	p := startLate(t, ofDebian(t, "3.14"))
	library, err := os.ReadFile("shim/" + ShimName)
	require.NoError(t, err)
	for range 3 {
		o := &recorder.Options{PIDs: []int{p.cmd.Process.Pid}, Inject: true, Observer: &noted{}, RingBytes: 1 << 20}
		s := Open(o, &Config{Library: library, Python: p.python}).(*source)
		require.NoError(t, s.Start(context.Background()))
		s.look(true)
		require.Len(t, s.targets, 1)
		s.readRings()
		require.Equal(t, "yes", s.targets[0].decoder.found("late"))
		require.Equal(t, "AGXG99XFamilyDevice", s.targets[0].decoder.found("device class"))
		require.Equal(t, "blocks are traced", s.targets[0].decoder.found("torch"))
		require.NoError(t, s.Close())
		require.NoDirExists(t, s.dir)
	}
}

// TestInjectRefused: what keeps the library out is said, with what to do.
func TestInjectRefused(t *testing.T) {
	p := startLate(t, python(t, "3.11"))
	_, _, err := p.record(t, nil)
	var attach *recorder.AttachError
	require.ErrorAs(t, err, &attach)
	require.ErrorContains(t, err, "Python 3.11 has no sys.remote_exec, which 3.14 has")

	_, _, err = p.record(t, func(_ *recorder.Options, c *Config) { c.Python = ofDebian(t, "3.14") })
	require.ErrorContains(t, err, "sys.remote_exec:", "of another version")
	_, _, err = p.record(t, func(_ *recorder.Options, c *Config) { c.Python = "/no/such/python" })
	require.ErrorContains(t, err, "find the program of the process")
	_, _, err = p.record(t, func(o *recorder.Options, _ *Config) { o.PIDs = append(o.PIDs, 1) })
	require.ErrorIs(t, err, ErrInject)
	_, _, err = p.record(t, func(o *recorder.Options, _ *Config) { o.Children = true })
	require.ErrorIs(t, err, ErrInject)

	foreign := filepath.Join(t.TempDir(), "python")
	require.NoError(t, os.WriteFile(foreign, []byte("#!/bin/sh\n"), 0o755))
	require.NoError(t, os.Chown(foreign, 1234, 1234))
	t.Setenv("SUDO_UID", "1000")
	require.ErrorContains(t, mayRun(foreign), "belongs to user 1234: root does not run other people's programs")
	t.Setenv("SUDO_UID", "1234")
	require.NoError(t, mayRun(foreign))
	require.Equal(t, `"a\\b\"c\n"`, pythonString("a\\b\"c\n"))
}
