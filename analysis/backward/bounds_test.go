// SPDX-License-Identifier: Apache-2.0

package backward

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// TestHistory: of allocations with one number eight are kept, the last of them in place of the one before; a stack
// that comes again at once adds nothing.
func TestHistory(t *testing.T) {
	h := &history{}
	h.add(mark{5, 1})
	h.add(mark{5, 1})
	require.Equal(t, []mark{{5, 1}}, h.marks)
	for i := range event.StackID(maxSame + 3) {
		h.add(mark{6, i + 1})
	}
	require.Len(t, h.marks, 1+maxSame)
	require.Equal(t, []mark{{6, 7}, {6, 11}}, h.marks[7:], "the last takes the place of the one before")
	h.add(mark{7, 11})
	require.Len(t, h.marks, 2+maxSame, "another number")
	for number, want := range map[uint64]int{0: 0, 5: 0, 6: 1, 7: 9, 8: 10} {
		require.Equal(t, want, h.first(number))
	}
}

// TestHistoryIsBounded: of a long history the older half is forgotten.
func TestHistoryIsBounded(t *testing.T) {
	h := &history{marks: make([]mark, 0, maxMarks)}
	for i := range uint64(maxMarks) {
		h.marks = append(h.marks, mark{i, 1})
	}
	h.add(mark{maxMarks, 2})
	require.Len(t, h.marks, maxMarks/2+1)
	require.Equal(t, mark{maxMarks / 2, 1}, h.marks[0])
	require.Equal(t, mark{maxMarks, 2}, h.marks[maxMarks/2])
}

// TestThreadsAreBounded: of 257 threads the one that was not asked for longest is forgotten.
func TestThreadsAreBounded(t *testing.T) {
	j := newScene(1).Joiner
	for i := range uint32(maxThreads) {
		j.of(i + 1)
	}
	require.Len(t, j.history, maxThreads)
	j.of(1)
	j.of(maxThreads + 1)
	require.Len(t, j.history, maxThreads)
	require.Contains(t, j.history, uint32(1))
	require.NotContains(t, j.history, uint32(2))
	require.Contains(t, j.history, uint32(3))
}

// TestVisible: of a stack of forward the frames from the innermost line of Python on are kept, and of four joins or more the last.
func TestVisible(t *testing.T) {
	text := func(st *event.Stack) string { return eventtest.Text(visible(st)) }
	require.Equal(t, "/home/a/net.py:1:f~~"+main, text(eventtest.Stack("a.so!g a.so!h /home/a/net.py:1:f "+main)))
	require.Equal(t, "/home/a/net.py:1:f~~"+main, text(eventtest.Stack("/home/a/net.py:1:f "+main)), "the leaf is Python")
	require.Equal(t, "a.so!g~~a.so!h", text(eventtest.Stack("a.so!g a.so!h")), "there is none")
	joined := func(n int) (*event.Stack, int) {
		st := &event.Stack{}
		last := 0
		for i := range n {
			last = len(st.Frames)
			st.Frames = append(st.Frames, stacks.Mark())
			st.Frames = append(st.Frames, eventtest.Stack(fmt.Sprintf("/home/a/net.py:%d:f", i+1)).Frames...)
		}
		return st, last
	}
	for n := 1; n <= 6; n++ {
		st, last := joined(n)
		want := st.Frames
		if n >= maxJoins {
			want = st.Frames[last:]
		}
		require.Equal(t, want, visible(st), "%d joins", n)
	}
}

// TestGoesOn: the second stack is further in the same call when it is on a later line of the same function.
func TestGoesOn(t *testing.T) {
	frame := func(file, function string, start, line int) []event.Frame {
		return []event.Frame{{Kind: event.FramePython, File: file, Func: function, StartLine: start, Line: line}}
	}
	x := frame("a", "f", 1, 5)
	require.True(t, goesOn(x, frame("a", "f", 1, 6)))
	for what, y := range map[string][]event.Frame{
		"the same line": frame("a", "f", 1, 5), "an earlier one": frame("a", "f", 1, 4), "another file": frame("b", "f", 1, 6),
		"another function": frame("a", "g", 1, 6), "another of that name": frame("a", "f", 2, 6), "nothing": nil,
	} {
		require.False(t, goesOn(x, y), what)
	}
	require.False(t, goesOn(nil, x))
}

// TestBetween: a node between two allocations is of both lines, unless the program has not left the line of the second meanwhile.
func TestBetween(t *testing.T) {
	of := func(before, after string) *origin {
		s := newScene(9)
		b, a := s.look(s.id(before)), s.look(s.id(after))
		o := s.between(b, a)
		require.Same(t, o, s.between(b, a), "it is found once")
		return o
	}
	line := func(n int) string { return fmt.Sprintf("/home/a/net.py:%d:f ", n) }
	lib := func(n int) string { return fmt.Sprintf("/v/lib/python3.11/site-packages/l.py:%d:g ", n) }
	require.False(t, of("a.so!f "+lib(3)+line(7)+main, "a.so!f "+lib(4)+line(7)+main).between, "further in what the line calls")
	for _, c := range [][2]string{
		{"a.so!f " + lib(4) + line(7) + main, "a.so!f " + lib(3) + line(7) + main}, // it was called again
		{"a.so!f " + lib(3) + line(7) + main, "a.so!f " + lib(4) + line(8) + main},
		{"a.so!f " + line(7) + main, "a.so!f " + line(8) + main},
		{"a.so!f " + lib(3), "a.so!f " + lib(4)}, // there is no line of the program's own
		{"a.so!f " + line(7) + main, "a.so!f " + main},
	} {
		o := of(c[0], c[1])
		require.True(t, o.between, c)
	}
	o := of("a.so!f "+line(7)+main, "a.so!f "+line(8)+main)
	require.Len(t, o.frames, 2, "the frames that both have")
	require.Equal(t, main, eventtest.Text(o.frames[1:]))
	require.Contains(t, o.frames[0].Func, "net.py:7 f")
	require.Contains(t, o.frames[0].Func, "net.py:8 f")
	o = of("a.so!f "+main, "b.so!f "+main)
	require.Equal(t, 1, strings.Count(o.frames[0].Func, "t.py:9 main"), "one line is named once")

	s := newScene(9)
	known := s.look(s.id("a.so!f " + main))
	require.Nil(t, s.between(nil, known))
	require.Nil(t, s.between(known, nil))
	s.known[77] = &event.Stack{}
	require.Nil(t, s.look(77), "a stack without frames")
	require.Nil(t, s.look(78))
}

// TestPairsAreBounded: when too many pairs were seen, all are forgotten, and found anew.
func TestPairsAreBounded(t *testing.T) {
	s := newScene(9)
	a, b := s.look(s.id("a.so!f "+main)), s.look(s.id("b.so!f "+main))
	for range maxPairs {
		s.pairs[[2]*about{new(about), nil}] = &origin{}
	}
	require.Len(t, s.pairs, maxPairs)
	require.NotNil(t, s.between(a, b))
	require.Len(t, s.pairs, 1)
}

// TestOrigins: origins of the same frames have one id, and those of other frames another.
func TestOrigins(t *testing.T) {
	frames := eventtest.Stack("a.so!f " + main).Frames
	x := newOrigin(stacks.Mark(), frames, false)
	require.Equal(t, x.id, newOrigin(stacks.Mark(), frames, true).id)
	require.NotZero(t, x.id)
	require.NotEqual(t, x.id, newOrigin(stacks.Mark(), frames[1:], false).id)
	require.NotEqual(t, x.id, newOrigin(stacks.Mark("a", "b"), frames, false).id)
}

// TestJoinedCounts: what became of the allocations of backward is counted; a request that failed is named, and counts for nothing.
func TestJoinedCounts(t *testing.T) {
	s := newScene(1)
	line := func(n string) string { return "/home/a/net.py:" + n + ":Net.forward" }
	s.forward(10, "rand", line("1"))
	s.forward(11, "addmm", line("1"))
	s.forward(12, "rand", line("2"))
	at := event.Autograd{Node: 10, NodeThread: 1, Class: "AddmmBackward0", Running: true}
	stack := s.id("a.so!at::empty" + engine)
	join := func(a event.Autograd, kind event.Kind, stack event.StackID) event.StackID {
		events := []event.Event{{Kind: kind, Stack: stack, Autograd: a}}
		s.Join(events)
		return events[0].Stack
	}
	failed := join(at, event.KindOutOfMemory, stack)
	require.NotEqual(t, stack, failed)
	require.Equal(t, Counts{}, s.Counts())
	still := at
	still.Running = false
	require.Equal(t, stack, join(still, event.KindOutOfMemory, stack))
	require.Equal(t, failed, join(at, event.KindAlloc, stack))
	require.Equal(t, Counts{Certain: 1}, s.Counts())
	require.Equal(t, stack, join(event.Autograd{Running: true, Node: event.Unknown}, event.KindAlloc, stack))
	other := at
	other.NodeThread = 9
	require.Equal(t, stack, join(other, event.KindAlloc, stack))
	require.Equal(t, Counts{Certain: 1, Unknown: 1, NoNode: 1}, s.Counts())
	again := s.id("b.so!at::empty" + engine)
	require.Equal(t, again, join(at, event.KindAlloc, again), "no more stacks are joined")
	require.Equal(t, Counts{Certain: 1, Unknown: 2, NoNode: 1}, s.Counts())
	for _, none := range []event.StackID{0, event.StackOverLimit} {
		require.Equal(t, none, join(at, event.KindAlloc, none))
	}
	require.Equal(t, stack, join(event.Autograd{}, event.KindAlloc, stack))
	require.Equal(t, Counts{Certain: 1, Unknown: 2, NoNode: 1}, s.Counts())
}
