// SPDX-License-Identifier: Apache-2.0

package steps

import "github.com/gputrace/gputrace/event"

// clock counts steps by a mark.
type clock struct {
	marker
	resolve func(event.StackID) *event.Stack
	mark    mark
	begins  map[event.StackID]bool
	within  map[uint32]bool
	step    int // that runs; 0: before the first
}

func newClock(m marker, resolve func(event.StackID) *event.Stack, on mark) *clock {
	return &clock{marker: m, resolve: resolve, mark: on, begins: map[event.StackID]bool{}, within: map[uint32]bool{}}
}

// see takes the next event. It reports whether a step begins with it.
func (c *clock) see(e *event.Event) bool {
	if e.Kind != event.KindAlloc || e.Stack == 0 {
		return false
	}
	in, ok := c.begins[e.Stack]
	if !ok {
		in = c.isBegin(e.Stack)
		c.begins[e.Stack] = in
	}
	begin := in && (c.mark.source == SourcePeriod || !c.within[e.TID])
	if begin {
		c.step++
	}
	if in || c.within[e.TID] {
		c.within[e.TID] = in
	}
	return begin
}

func (c *clock) isBegin(id event.StackID) bool {
	if c.mark.source == SourcePeriod {
		return id == c.mark.stack
	}
	m, ok := c.of(c.resolve(id))
	return ok && m == c.mark
}
