// SPDX-License-Identifier: Apache-2.0

package view

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// TestPhaseMemory: phases are found once for the same stacks, and anew where a stack is new or has got other frames. They are those that a
// view without a memory finds.
func TestPhaseMemory(t *testing.T) {
	inFile := func(file string) *event.Stack {
		return &event.Stack{Frames: []event.Frame{{Kind: event.FramePython, File: file, Func: "step", Line: 7}}}
	}
	const adam = "/v/lib/python3.11/site-packages/torch/optim/adam.py"
	known := map[event.StackID]*event.Stack{1: inFile("/a/train.py"), 2: inFile(adam)}
	named := false // the table of stacks is another goroutine's from then on
	resolve := func(id event.StackID) *event.Stack {
		require.False(t, named, "a view asks for stacks while it is made only")
		return known[id]
	}
	memory := &PhaseMemory{}
	phasesOf := func(memory *PhaseMemory, ids ...event.StackID) (out []phases.Phase) {
		s := &heap.Snapshot{}
		for _, id := range ids {
			s.Sites = append(s.Sites, heap.Site{Stack: id})
		}
		v := New(s, resolve, &Options{Phases: memory})
		named = true
		defer func() { named = false }()
		for i := range v.Sites {
			out = append(out, v.Phase(&v.Sites[i]))
		}
		return out
	}
	anew := func(ids ...event.StackID) bool {
		want, before := phasesOf(nil, ids...), memory.found
		require.Equal(t, want, phasesOf(memory, ids...))
		return memory.found != before
	}
	require.True(t, anew(1))
	require.False(t, anew(1))
	require.True(t, anew(1, 2), "a stack is new")
	require.False(t, anew(1, 2))
	require.False(t, anew(2, 1))
	require.False(t, anew(2), "what else was seen does not matter")
	known[2] = inFile("/a/train.py")
	require.True(t, anew(1, 2), "a stack has other frames")
	require.False(t, anew(1, 2))
}
