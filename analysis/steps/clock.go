// SPDX-License-Identifier: Apache-2.0

package steps

import (
	"slices"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/event"
)

// clock counts steps by what recurs: a line with the calls that lead to it, or a stack.
type clock struct {
	resolve func(event.StackID) *event.Stack
	mark    mark
	sides   map[event.StackID]side
	within  map[uint32]bool
}

// side is where a stack is of what a step begins with.
type side int

const (
	outside side = iota
	inside
	anywhere // it does not say: it has no Python frame, and the line is one of Python
)

func newClock(resolve func(event.StackID) *event.Stack, on mark) *clock {
	return &clock{resolve: resolve, mark: on, sides: map[event.StackID]side{}, within: map[uint32]bool{}}
}

// see takes the next event. It reports whether a step begins with it.
func (c *clock) see(e *event.Event) bool {
	if e.Kind != event.KindAlloc || e.Stack == 0 || e.Stack.Placeholder() != nil {
		return false
	}
	is, ok := c.sides[e.Stack]
	if !ok {
		is = c.sideOf(e.Stack)
		c.sides[e.Stack] = is
	}
	begin := is == inside && (c.mark.stack != 0 || !c.within[e.TID])
	if is == inside || is == outside && c.within[e.TID] {
		c.within[e.TID] = is == inside
	}
	return begin
}

func (c *clock) sideOf(id event.StackID) side {
	st := c.resolve(id)
	python := st != nil && slices.ContainsFunc(stacks.Ran(st.Frames), func(f event.Frame) bool { return f.Kind == event.FramePython })
	switch {
	case c.mark.place == 0 && id == c.mark.stack, c.mark.place != 0 && python && passes(st, c.mark.place):
		return inside
	case c.mark.place != 0 && !python:
		return anywhere
	}
	return outside
}
