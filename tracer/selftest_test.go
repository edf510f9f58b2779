// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

package tracer

import (
	"bytes"
	"debug/elf"
	"os/exec"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

// TestSelf: every call of the programs of our own is counted, both ways of attaching, and every stack is right.
func TestSelf(t *testing.T) {
	for _, perf := range []bool{false, true} {
		r, err := TestAttach(&Options{PerfUprobes: perf})
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
	whole := ownImage
	t.Cleanup(func() { ownImage = whole })
	f, err := elf.NewFile(bytes.NewReader(whole))
	require.NoError(t, err)
	ownImage = slices.Clone(whole)
	tables := f.Section(".eh_frame")
	clear(ownImage[tables.Offset : tables.Offset+tables.Size])
	r, err := TestAttach(nil)
	require.NoError(t, err)
	require.Equal(t, r.Calls, r.Hits)
	require.ErrorIs(t, r.Native, errNoStacks)
	require.ErrorIs(t, r.Python, errNoStacks)
	require.Zero(t, r.Stacks)
}

// TestSelfUnsafeReturns: where return probes are not placed, the rest is tested.
func TestSelfUnsafeReturns(t *testing.T) {
	pretend(t, trialKilled)
	r, err := TestAttach(nil)
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
	r, err := TestAttach(nil)
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
		"ends early":        {&event.Stack{Frames: native(0x10, 0x20), Status: event.StatusNoRow}, true, "of 3 frames 2 are there: no unwind row"},
		"too few":           {&event.Stack{Frames: native(0x10)}, true, "1 frames, and not 3"},
		"another":           {&event.Stack{Frames: native(0x10, 0x21, 0x30)}, true, "frame 1 of 3 is 0x0 at 0x21, and not at 0x20"},
		"one too many":      {&event.Stack{Frames: native(0x10, 0x20, 0x30, 0x40)}, true, "4 frames, and not 3"},
		"not complete":      {&event.Stack{Frames: native(0x10, 0x20, 0x30, 0x40), Status: event.StatusUnreadable}, false, "of 3 frames 3 are there: unreadable"},
		"Python":            {&event.Stack{Frames: []event.Frame{{Kind: event.FramePython, Offset: 0x10}}}, true, "frame 0 of 3"},
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
	s := newSession(nil)
	defer s.Close()
	tr := &Tracer{Session: s, stacks: newStackTable(DefaultStacks)}
	s.watchStacks(&event.Event{Kind: event.KindAlloc}, event.StatusNoScratch)
	err := tr.compareStack(0, []uint64{1, 2}, true)
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
