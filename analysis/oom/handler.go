// SPDX-License-Identifier: Apache-2.0

package oom

import (
	"slices"
	"strings"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// failedCall is the call in which a request was refused and that was left because of it, root first: the frames of what called it, and its
// own, of which the line can be any.
type failedCall []*event.Frame

// failedCallOf returns the call of one refused request that was left when the same thread made the next one, from another line of the
// function that called it; nil: no call was left.
func failedCallOf(refused, next *event.Stack) (call failedCall, line int) {
	if refused == nil || next == nil {
		return nil, 0
	}
	x, y := pythonPath(refused), pythonPath(next)
	i, same := divergence(x, y)
	if !same || i+1 == len(x) || strings.Contains(x[i+1].File, "/torch/") {
		return nil, 0
	}
	return x[:i+2], y[i].Line
}

// made reports whether a stack is one of the call.
func (f failedCall) made(s *event.Stack) bool {
	if s == nil {
		return false
	}
	i, same := divergence(f, pythonPath(s))
	return i == len(f) || i == len(f)-1 && same
}

// setHandler finds what is still in use of a call that was left because a request was refused, and whose except block makes the next
// request, by the program's source: the last blocks before the refusal that the call made. It has returned nothing, and the exception,
// which is being handled, keeps its variables.
func (f *follower) setHandler(c *Case, h *heap.Heap) {
	if c.Attempt.Bytes > 0 || f.done == 0 {
		return
	}
	p := &f.cases[f.done-1]
	if p.PID != c.PID || p.TID != c.TID || p.Device != c.Device || !p.Reported {
		return
	}
	call, line := failedCallOf(p.Stack, c.Stack)
	if call == nil {
		return
	}
	if by := call[len(call)-2]; !stacks.InHandler(f.in.Trace.Files(), by.File, by.Line, line) {
		return
	}
	var left []heap.Block
	for _, b := range slices.Backward(f.blocksSince(c, h, 0)) {
		switch made := call.made(f.in.Trace.Stack(b.Stack)); {
		case b.Time > p.Time && made: // it went on
			return
		case b.Time > p.Time:
			continue
		case made:
			left = append(left, b.Block)
			continue
		}
		break
	}
	c.Attempt = Attempt{Time: p.Time, Requested: p.Requested}
	f.sumUp(&c.Attempt.Leftover, left)
	c.Attempt.Call = call[len(call)-1].Func
	c.nameLeftover(&c.Attempt.Leftover)
}
