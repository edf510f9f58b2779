// SPDX-License-Identifier: Apache-2.0

package backward

import (
	"slices"
	"strings"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/event"
)

// autogradFile is the file in which the backward pass is called (torch/autograd/__init__.py): loss.backward() and torch.autograd.grad()
// allocate the gradient to begin with there.
const autogradFile = "/torch/autograd/__init__.py"

// maxCallers bounds the threads that are followed.
const maxCallers = 256

// callers follows which threads are in a call of the backward pass. The engine runs it on a thread of its own, while the caller waits.
type callers struct {
	stacks map[event.StackID]*origin // of a stack in such a call; nil: it is in none
	now    map[uint32]*origin        // by thread
}

// follow looks at an event that is not one of a node. Any allocation outside such a call ends the call.
func (j *Joiner) follow(e *event.Event) {
	at, known := j.callers.stacks[e.Stack]
	if !known {
		at = j.callOf(e.Stack)
		j.callers.stacks[e.Stack] = at
	}
	switch {
	case at == nil:
		delete(j.callers.now, e.TID)
	case len(j.callers.now) < maxCallers || j.callers.now[e.TID] != nil:
		j.callers.now[e.TID] = at
	}
}

// callOf is the caller of the backward pass in a stack; nil: there is none, or no line of the program leads to it.
func (j *Joiner) callOf(id event.StackID) *origin {
	st := j.resolve(id)
	if st == nil {
		return nil
	}
	call := -1
	for i := range st.Frames {
		if f := &st.Frames[i]; f.Kind == event.FramePython && strings.HasSuffix(f.File, autogradFile) {
			call = i
		}
	}
	if call < 0 {
		return nil
	}
	frames := stacks.VisibleFrames(&event.Stack{Frames: st.Frames[call:]})
	own := stacks.OwnFrame(frames, j.library())
	if own < 0 || frames[own].Kind != event.FramePython || stacks.IsLibrary(frames[own].File, j.library()) {
		return nil
	}
	o := newOrigin(stacks.CallMark(), slices.Clone(frames), false)
	return &o
}

// caller is the line that called the backward pass which runs; nil: it is not known, or there are several.
func (j *Joiner) caller() *origin {
	var only *origin
	for _, o := range j.callers.now {
		if only != nil && only.id != o.id {
			return nil
		}
		only = o
	}
	return only
}
