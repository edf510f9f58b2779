// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/recording"
)

// ranNode is one run of a node, as backward.py saw it from inside.
type ranNode struct {
	Node, Begin, End uint64
	Line             int // that made it
	Thread           uint32
}

func readNodes(t *testing.T, path string) map[uint32][]ranNode {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	out := map[uint32][]ranNode{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var n ranNode
		require.NoError(t, json.Unmarshal(lines.Bytes(), &n))
		out[n.Thread] = append(out[n.Thread], n)
	}
	for _, runs := range out {
		slices.SortFunc(runs, func(a, b ranNode) int { return cmp.Compare(a.Begin, b.Begin) })
	}
	return out
}

// runningAt is the node that ran on a thread at a time, the innermost one; nil: none that is known.
func runningAt(runs []ranNode, time uint64) (found *ranNode) {
	for i := range runs {
		if runs[i].Begin <= time && time <= runs[i].End {
			found = &runs[i]
		}
	}
	return found
}

// backwardNames counts how the allocations of the backward pass are named.
type backwardNames struct {
	certain, between, unknown int
	marks                     map[string]int // of those by two, how often
	wrong                     []string
}

// take compares the name of an allocation with the line that made the node which ran.
func (n *backwardNames) take(st *event.Stack, line int) {
	own := stacks.OwnFrame(st.Frames, nil)
	switch f := &st.Frames[own]; {
	case stacks.IsBackward(st.Frames, own):
		n.certain++
		if f.Line != line {
			n.wrong = append(n.wrong, fmt.Sprintf("%s: it was made at line %d, and runs in\n%s", stacks.Name(st.Frames, own), line, stacks.Text(st)))
		}
	case stacks.IsMark(f):
		n.between++
		n.marks[f.Func+" for "+stacks.NodeName(st.Frames)]++
	case f.Kind == event.FramePython: // a backward function of the program's own, or a segment that is computed again
	default:
		n.unknown++
	}
}

// TestBackwardLines compares the lines of forward by which allocations of the backward pass are named with what the process itself
// knows of its nodes: none is wrong, and few are not sure.
func TestBackwardLines(t *testing.T) {
	p := startTraining(t, "backward.py", "--truth", "DIR/truth", "--steps", "6").ready(t)
	c := startCommand(t, p)
	p.release(t)
	p.done(t)
	c.interrupt(t)
	truth := readNodes(t, filepath.Join(p.dir, "truth"))
	r, err := recording.Open(filepath.Join(c.out(), traceFile))
	require.NoError(t, err)
	defer r.Close()
	require.Empty(t, r.Info().Backward)
	names := backwardNames{marks: map[string]int{}}
	require.NoError(t, heap.New().Walk(r, heap.Walker{After: func(e *event.Event) {
		n := runningAt(truth[e.TID], e.Time)
		if n == nil || e.Kind != event.KindAlloc || e.Layer != event.LayerAllocator {
			return
		}
		st := r.Stack(e.Stack)
		require.NotNil(t, st)
		names.take(st, n.Line)
	}}))
	require.Empty(t, names.wrong, "%d others are right:\n%s", names.certain-len(names.wrong), strings.Join(names.wrong, "\n"))
	t.Logf("%d named by a line, %d by two, %d by none; by two: %v", names.certain, names.between, names.unknown, names.marks)
	require.Greater(t, names.certain, 2*names.between)
	require.Zero(t, names.unknown)
}
