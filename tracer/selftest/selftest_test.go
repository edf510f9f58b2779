// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package selftest

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/tracer"
	"github.com/gputrace/gputrace/tracer/directmap"
	"github.com/gputrace/gputrace/tracer/internal/program"
	"github.com/gputrace/gputrace/tracer/returnprobe"
)

// TestSelf: every call of the programs of our own is counted, both ways of attaching, and every stack is right.
func TestSelf(t *testing.T) {
	for _, perf := range []bool{false, true} {
		r, err := Run(&tracer.Options{PerfUprobes: perf})
		require.NoError(t, err)
		require.NoError(t, r.Native)
		require.NoError(t, r.Python)
		require.NoError(t, r.NoPython)
		require.NotEmpty(t, r.Interpreter)
		require.True(t, r.Driver)
		require.NotZero(t, r.Calls)
		require.Equal(t, r.Calls, r.Hits)
		require.Equal(t, 2*len(selfFrames)+len(selfPython), r.Stacks)
		require.Equal(t, !perf, r.Multi)
	}
}

// TestSelfWithoutStacks takes the unwind tables away, as good as a kernel on which no stack can be taken: the test says so.
func TestSelfWithoutStacks(t *testing.T) {
	f, err := elf.NewFile(bytes.NewReader(program.Image))
	require.NoError(t, err)
	image := slices.Clone(program.Image)
	tables := f.Section(".eh_frame")
	clear(image[tables.Offset : tables.Offset+tables.Size])
	r, err := run(nil, image)
	require.NoError(t, err)
	require.Equal(t, r.Calls, r.Hits)
	require.ErrorIs(t, r.Native, errNoStacks)
	require.ErrorIs(t, r.Python, errNoStacks)
	require.Zero(t, r.Stacks)
}

// TestSelfUnsafeReturns: where return probes are not placed, the rest is tested.
func TestSelfUnsafeReturns(t *testing.T) {
	r, err := Run(&tracer.Options{ReturnTrial: returnprobe.Killed})
	require.NoError(t, err)
	require.NoError(t, r.Native)
	require.False(t, r.Driver)
	require.Equal(t, r.Calls, r.Hits)
	require.Equal(t, len(selfFrames)+len(selfPython), r.Stacks)
}

// TestSelfWithoutPython: without an interpreter there is a reason, and no fault.
func TestSelfWithoutPython(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := exec.LookPath("python3")
	require.Error(t, err)
	r, err := Run(nil)
	require.NoError(t, err)
	require.NoError(t, r.Native)
	require.NoError(t, r.Python)
	require.ErrorContains(t, r.NoPython, "no python3 here")
}

func TestCompareStack(t *testing.T) {
	want := []uint64{0x10, 0x20, 0x30}
	native := func(offsets ...uint64) (out []event.Frame) {
		for _, at := range offsets {
			out = append(out, event.Frame{Kind: event.FrameNative, Offset: at})
		}
		return out
	}
	for name, c := range map[string]struct {
		stack *event.Stack
		whole bool
		says  string
	}{
		"right":             {&event.Stack{Frames: native(0x10, 0x20, 0x30)}, true, ""},
		"right, and more":   {&event.Stack{Frames: native(0x10, 0x20, 0x30, 0x40)}, false, ""},
		"unwound from copy": {&event.Stack{Frames: native(0x10, 0x20, 0x30), Status: event.StatusUnwound}, true, ""},
		"none":              {nil, true, "a trace would be without stacks: a stack of 3 frames was not recorded"},
		"empty":             {&event.Stack{Status: event.StatusNoScratch}, true, "of 3 frames 0 are there: no scratch"},
		"ends early": {&event.Stack{Frames: native(0x10, 0x20), Status: event.StatusNoRow}, true,
			"of 3 frames 2 are there: no unwind row"},
		"too few":      {&event.Stack{Frames: native(0x10)}, true, "1 frames, and not 3"},
		"another":      {&event.Stack{Frames: native(0x10, 0x21, 0x30)}, true, "frame 1 of 3 is 0x0 at 0x21, and not at 0x20"},
		"one too many": {&event.Stack{Frames: native(0x10, 0x20, 0x30, 0x40)}, true, "4 frames, and not 3"},
		"not complete": {&event.Stack{Frames: native(0x10, 0x20, 0x30, 0x40), Status: event.StatusUnreadable}, false,
			"of 3 frames 3 are there: unreadable"},
		"Python": {&event.Stack{Frames: []event.Frame{{Kind: event.FramePython, Offset: 0x10}}}, true, "frame 0 of 3"},
	} {
		err := compareStack(c.stack, 0, want, c.whole)
		if c.says == "" {
			require.NoError(t, err, name)
		} else {
			require.ErrorContains(t, err, c.says, name)
		}
	}
}

// TestStackNotRecorded: it is said why.
func TestStackNotRecorded(t *testing.T) {
	err := compareStackOf(withoutStacks{}, 0, []uint64{1, 2}, true)
	require.ErrorIs(t, err, errNoStacks)
	require.ErrorContains(t, err, "one of 2 frames was not recorded: no scratch")
}

func TestComparePythonFrames(t *testing.T) {
	want := []pyFrame{{"leaf", 3}, {"<lambda>", 5}, {"<module>", 9}}
	for name, c := range map[string]struct {
		got  []pyFrame
		says string
	}{
		"right":     {[]pyFrame{{"leaf", 3}, {"through_c.<locals>.<lambda>", 5}, {"<module>", 9}}, ""},
		"none":      {nil, "a trace would be without stacks through Python: 0 of 3"},
		"fewer":     {want[:2], "2 of 3"},
		"more":      {append(slices.Clone(want), pyFrame{"x", 1}), "4, and not 3"},
		"name":      {[]pyFrame{{"leaf", 3}, {"other", 5}, {"<module>", 9}}, "1 of 3 is other:5, and not <lambda>:5"},
		"line":      {[]pyFrame{{"leaf", 4}, {"<lambda>", 5}, {"<module>", 9}}, "0 of 3 is leaf:4, and not leaf:3"},
		"out of it": {[]pyFrame{{"<lambda>", 5}, {"leaf", 3}, {"<module>", 9}}, "0 of 3"},
	} {
		err := comparePythonFrames(c.got, want)
		if c.says == "" {
			require.NoError(t, err, name)
		} else {
			require.ErrorContains(t, err, c.says, name)
		}
	}
}

// withoutStacks has none, for want of memory for walks.
type withoutStacks struct{}

func (withoutStacks) Stack(event.StackID) *event.Stack { return nil }

func (withoutStacks) Stackless() (event.StackStatus, bool) { return event.StatusNoScratch, true }

// TestSelfRights: which capabilities each way of attaching takes, as docs/use/privileges.md says. We run ourselves as nobody.
func TestSelfRights(t *testing.T) {
	if how := os.Getenv(childTest); how != "" {
		_, err := Run(&tracer.Options{PerfUprobes: how == "perf"})
		fmt.Println("attach:", err)
		return
	}
	for _, c := range []struct{ how, rights, want string }{
		{"multi", "+bpf,+perfmon", "attach: <nil>"},
		{"multi", "+bpf", "operation not permitted"},
		{"multi", "+perfmon", "operation not permitted"},
		{"perf", "+bpf,+perfmon", "permission denied"},
		{"perf", "+sys_admin", "attach: <nil>"},
	} {
		require.Contains(t, runAsNobody(t, t.Name(), c.how, c.rights), c.want, "%s with %s", c.how, c.rights)
	}
}

// childTest says to a test that it runs in a process of its own, and how.
const childTest = "GPUTRACE_TEST_CHILD"

// runAsNobody runs a test of ours in a process with these capabilities only, and gives what it prints.
func runAsNobody(t *testing.T, test, how, rights string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "gputrace-tracer-") // below t.TempDir another user may not even look
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	program := filepath.Join(dir, "test")
	require.NoError(t, exec.Command("cp", os.Args[0], program).Run())
	cmd := exec.Command("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all,"+rights,
		"--ambient-caps=-all,"+rights,
		program, "-test.run", "^"+test+"$")
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), childTest+"="+how)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

// TestMemoryRights: memory is read in place with no more rights than tracing takes.
func TestMemoryRights(t *testing.T) {
	if os.Getenv(childTest) != "" {
		r, err := Run(&tracer.Options{Memory: directmap.InPlace})
		require.NoError(t, err)
		fmt.Println("memory:", r.Memory.Source)
		return
	}
	require.Contains(t, runAsNobody(t, t.Name(), "yes", "+bpf,+perfmon"), "memory: a page fault of our own")
}
