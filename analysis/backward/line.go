// SPDX-License-Identifier: Apache-2.0

package backward

import (
	"fmt"
	"hash/fnv"
	"slices"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/event"
)

// maxJoins is how often a stack is joined to one that is joined itself, as of the second derivative and of checkpointed segments.
const maxJoins = 4

// about is what is known of a stack of the forward pass.
type about struct {
	stack  *event.Stack
	python []event.Frame // the frames of Python, outermost first
	own    int           // index in python of the program's own line; -1: it has none
	name   string        // what the stack is called
	origin origin
	makes  map[string]bool // by name of a node: what stacks.Makes says of the stack
}

// look returns what is known of a stack; nil: its frames are not known.
func (j *Joiner) look(id event.StackID) *about {
	a, ok := j.about[id]
	if !ok {
		if st := j.Stack(id); st != nil && len(st.Frames) > 0 {
			a = j.describe(st)
		}
		j.about[id] = a
	}
	return a
}

func (j *Joiner) describe(st *event.Stack) *about {
	a := &about{stack: st, own: -1}
	own := stacks.OwnFrame(st.Frames, j.library())
	a.name = stacks.FrameName(&st.Frames[own])
	for i := len(st.Frames) - 1; i >= 0; i-- {
		if st.Frames[i].Kind != event.FramePython {
			continue
		}
		if i == own {
			a.own = len(a.python)
		}
		a.python = append(a.python, st.Frames[i])
	}
	a.origin = newOrigin(stacks.Mark(), visible(st), false)
	return a
}

// visible is what of a stack of the forward pass is put behind one of the backward pass: from the innermost line of Python on, or
// all where there is none. Of too many joins the last one is kept, which has the line of forward.
func visible(st *event.Stack) []event.Frame {
	frames := stacks.VisibleFrames(st)
	from := slices.IndexFunc(frames, func(f event.Frame) bool { return f.Kind == event.FramePython || stacks.IsMark(&f) })
	frames = frames[max(0, from):]
	joins, last := 0, 0
	for i := range frames {
		if stacks.IsMark(&frames[i]) {
			joins, last = joins+1, i
		}
	}
	if joins >= maxJoins {
		return frames[last:]
	}
	return frames
}

// made says whether the stack is inside the operator that makes a node of this name.
func (a *about) made(node string) bool {
	made, ok := a.makes[node]
	if !ok {
		made = stacks.Makes(a.stack.Frames, node)
		if a.makes == nil {
			a.makes = map[string]bool{}
		}
		a.makes[node] = made
	}
	return made
}

func newOrigin(mark event.Frame, frames []event.Frame, between bool) origin {
	o := origin{frames: append([]event.Frame{mark}, frames...), between: between}
	h := fnv.New64a()
	for i := range o.frames {
		f := &o.frames[i]
		fmt.Fprintf(h, "%s\n%s\n%d %d\n", f.Func, f.File, f.Line, f.Addr)
	}
	o.id = h.Sum64()
	return o
}

// maxPairs bounds how many pairs of stacks are remembered with what is between them.
const maxPairs = 1 << 16

// between is where a node was made that is between two allocations; nil: one of them is not known.
func (j *Joiner) between(before, after *about) *origin {
	if before == nil || after == nil {
		return nil
	}
	pair := [2]*about{before, after}
	o := j.pairs[pair]
	if o == nil {
		if len(j.pairs) >= maxPairs {
			clear(j.pairs)
		}
		o = originBetween(before, after)
		j.pairs[pair] = o
	}
	return o
}

// originBetween is where a node was made that is between two allocations. When both are of one line, and the second is further in what
// that line calls, the program has not left the line meanwhile.
func originBetween(before, after *about) *origin {
	common := 0
	for common < min(len(before.python), len(after.python)) && before.python[common] == after.python[common] {
		common++
	}
	if before.own >= 0 && before.own == after.own && common > before.own && goesOn(before.python[common:], after.python[common:]) {
		return &after.origin
	}
	lines := []string{before.name}
	if after.name != before.name {
		lines = append(lines, after.name)
	}
	shared := slices.Clone(before.python[:common])
	slices.Reverse(shared)
	o := newOrigin(stacks.Mark(lines...), shared, true)
	return &o
}

// goesOn says whether the second of two stacks, of which the outer frames are the same, is further in the same call.
func goesOn(before, after []event.Frame) bool {
	if len(before) == 0 || len(after) == 0 {
		return false
	}
	x, y := &before[0], &after[0]
	return x.File == y.File && x.Func == y.Func && x.StartLine == y.StartLine && x.Line < y.Line
}
