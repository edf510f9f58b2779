// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package decode

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gputrace/gputrace/cpython"
	"github.com/gputrace/gputrace/event"
)

// evalLoop is the function that runs Python frames. If a frame of it has no Python frame, lines are missing.
const evalLoop = "_PyEval_EvalFrameDefault"

// settle corrects the status of a stack by its Python frames. Where lines are known to be missing, it adds a frame with
// the reason, so that no outer line is taken for them.
func (t *stackTable) settle(s *rawStack) {
	s.cutGreenlet()
	if s.status.Complete() || s.status == event.StatusPythonState {
		t.markMissing(s)
	}
}

// cutGreenlet ends the stack of a greenlet at the code of package greenlet that started it. The frames below belong to
// whichever greenlet uses that part of the C stack now; they cannot be unwound, or are unrelated. The interpreter's list of
// frames also ends there: a later Python frame would belong to a function that greenlet has called without a switch.
func (s *rawStack) cutGreenlet() {
	last := -1
	for i := range s.frames {
		if s.frames[i].python {
			last = i
		}
	}
	if last < 0 {
		return
	}
	for i := last + 1; i < len(s.frames); i++ {
		if !inGreenlet(&s.frames[i]) {
			continue
		}
		for i+1 < len(s.frames) && inGreenlet(&s.frames[i+1]) {
			i++
		}
		s.frames = s.frames[:i+1]
		switch s.status {
		case event.StatusNoMapping, event.StatusNoRow, event.StatusBadRule, event.StatusUnreadable, event.StatusOrder, event.StatusGuessed,
			event.StatusCopyEnds:
			s.status = event.StatusOK
		}
		return
	}
}

func inGreenlet(f *rawFrame) bool {
	if f.python || f.region == nil {
		return false
	}
	base := path.Base(f.region.Path)
	return strings.HasPrefix(base, "_greenlet.") || strings.HasPrefix(base, "greenlet.")
}

// markMissing inserts a frame after each eval loop that has none.
func (t *stackTable) markMissing(s *rawStack) {
	var out []rawFrame
	for i := range s.frames {
		f := &s.frames[i]
		if out != nil {
			out = append(out, *f)
		}
		if f.python || i+1 < len(s.frames) && s.frames[i+1].python || !t.isEvalLoop(f) {
			continue
		}
		if out == nil {
			out = append(make([]rawFrame, 0, len(s.frames)+1), s.frames[:i+1]...)
		}
		out = append(out, rawFrame{python: true, why: t.whyMissing(f)})
	}
	if out == nil {
		return
	}
	if py := t.python; py != nil && py.Descriptor.Entry == cpython.EntryCode {
		out = missingFirst(out)
	}
	s.frames, s.status = out, event.StatusPythonState
}

// missingFirst moves the marks of missing frames before all others. Up to Python 3.9 the frames of a thread are
// assigned to its eval loops in order; with fewer frames than loops, it is not known which loop each frame belongs to.
func missingFirst(frames []rawFrame) []rawFrame {
	first := slices.IndexFunc(frames, func(f rawFrame) bool { return f.python })
	lost := slices.IndexFunc(frames, func(f rawFrame) bool { return f.python && f.pc == 0 })
	if first == lost {
		return frames
	}
	return slices.Insert(frames, first, frames[lost])
}

func (t *stackTable) isEvalLoop(f *rawFrame) bool {
	if f.python || f.region == nil || f.region.File.Symbols == nil {
		return false
	}
	for _, n := range t.lookup(f.region.File, f.lookupPC()-f.region.Bias) {
		if n.Linkage == evalLoop || strings.HasPrefix(n.Linkage, evalLoop+".") {
			return true
		}
	}
	return false
}

// whyMissing returns the placeholder for the Python frames of an eval loop that were not found.
func (t *stackTable) whyMissing(loop *rawFrame) string {
	switch py := t.python; {
	case py == nil:
		return unreadUnknown
	case loop.region.Path != py.Module:
		return fmt.Sprintf(unreadOther, path.Base(loop.region.Path))
	case py.Interpreters(t.memory) > 1 && py.Version.Minor < cpython.FollowsSub:
		return unreadSub
	case py.Interpreters(t.memory) > 1:
		return unreadCaller
	}
	return unreadLost
}
