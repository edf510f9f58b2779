// SPDX-License-Identifier: Apache-2.0

package oom

import (
	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// course is the history of a caching allocator's memory. Sizes are bytes.
type course struct {
	points []point // at most one per second
	steps  []stepUse
	last   uint64 // allocated total after the last event
	made   heap.Count
	freed  heap.Count
	lines  map[string]*passes // by line that was refused something
	asks   requests
	climb  climb
}

type point struct{ time, allocated uint64 }

// stepUse is the memory of one step.
type stepUse struct {
	StepPeak
	floor uint64 // allocated at its beginning
	idle  uint64 // reserved and not allocated at Peak; event.Unknown
	other uint64 // outside PyTorch at its beginning; event.Unknown: not observed
	frees uint64
	// failed: a request of the step failed. after is the highest total that an allocation after it came to; 0: there was none.
	failed bool
	after  uint64
}

// passes are the allocations of one line, by their number within a step.
type passes struct {
	step int
	now  []pass   // in the current step
	most []uint64 // rise of the total after each allocation in the rest of its step; maximum over all ended steps
}

// pass is one allocation: the total after it, and the maximum until the line's next one.
type pass struct{ level, high uint64 }

// keptPasses limits the allocations of a line that are compared, per step.
const keptPasses = 4096

// end ends a step; step 0 means that there was none.
func (p *passes) end() {
	for i := len(p.now) - 1; i >= 0 && p.step > 0; i-- {
		x := &p.now[i]
		if i+1 < len(p.now) {
			x.high = max(x.high, p.now[i+1].high)
		}
		for len(p.most) <= i {
			p.most = append(p.most, event.Unknown)
		}
		if rise := x.high - x.level; p.most[i] == event.Unknown || rise > p.most[i] {
			p.most[i] = rise
		}
	}
	p.now = p.now[:0]
}

// see adds a new total. made means that an allocation of the line caused it.
func (p *passes) see(step int, total uint64, made bool) {
	if step != p.step {
		p.end()
		p.step = step
	}
	if made && len(p.now) < keptPasses {
		p.now = append(p.now, pass{total, total})
	}
	if n := len(p.now); n > 0 {
		p.now[n-1].high = max(p.now[n-1].high, total)
	}
}

// follows returns how much earlier steps needed after the next allocation of the line in this step; event.Unknown: none made it.
func (p *passes) follows(step int) uint64 {
	if p == nil {
		return event.Unknown
	}
	if step != p.step {
		p.end()
		p.step = step
	}
	if n := len(p.now); n < len(p.most) {
		return p.most[n]
	}
	return event.Unknown
}

// note follows the totals that the allocator reports.
func (f *follower) note(e *event.Event) {
	if e.Allocated != event.Unknown {
		f.noteTotal(accountKey{e.PID, e.Device}, e, e.Allocated, e.Reserved)
	}
}

func (f *follower) noteTotal(key accountKey, e *event.Event, allocated, reserved uint64) {
	c := f.totals[key]
	if c == nil {
		c = &course{lines: map[string]*passes{}}
		f.totals[key] = c
	}
	if n := len(c.points); n == 0 || e.Time-c.points[n-1].time >= 1e9 {
		c.points = append(c.points, point{e.Time, allocated})
	}
	step := f.stepAt(e.Time)
	if n := len(c.steps); n == 0 || c.steps[n-1].Step != step {
		c.steps = append(c.steps, stepUse{StepPeak: StepPeak{Step: step}, floor: c.last, idle: event.Unknown, other: f.other})
	}
	s := &c.steps[len(c.steps)-1]
	if allocated >= s.Peak {
		s.Peak, s.idle = allocated, event.Unknown
		if reserved != event.Unknown && reserved >= allocated {
			s.idle = reserved - allocated
		}
	}
	c.climb.see(e.Time, c.last, allocated, c.made)
	c.last = allocated
	s.see(e, allocated)
	switch e.Kind {
	case event.KindAlloc:
		c.made = c.made.Plus(heap.CountOf(e.Size, e.Size))
		c.asks.see(f.siteOf(e), requestBytes(e), step)
	case event.KindFree:
		c.freed = c.freed.Plus(heap.CountOf(e.Size, e.Size))
		s.frees++
	}
	line := f.lineOf(e)
	if line != "" {
		key := lineKey{e.PID, line}
		if s, ok := f.lines[key]; ok && s != e.Stream {
			f.lines[key] = event.Unknown
		} else {
			f.lines[key] = e.Stream
		}
	}
	c.seeLines(step, allocated, line)
}

// see follows what becomes of a step in which a request failed.
func (s *stepUse) see(e *event.Event, allocated uint64) {
	switch {
	case e.Kind == event.KindOutOfMemory:
		s.failed, s.after = true, 0
	case e.Kind == event.KindAlloc && s.failed:
		s.after = max(s.after, allocated)
	}
}

// seeLines passes a total to the lines that were refused something; line is the one that has allocated.
func (c *course) seeLines(step int, allocated uint64, line string) {
	if line != "" && c.lines[line] == nil {
		c.lines[line] = &passes{step: step}
	}
	for name, p := range c.lines {
		p.see(step, allocated, name == line)
	}
}

// lineOf returns the line of an allocation, if it is ever refused something.
func (f *follower) lineOf(e *event.Event) string {
	if e.Kind != event.KindAlloc {
		return ""
	}
	if name := f.siteOf(e); f.asked[name] {
		return name
	}
	return ""
}

// siteOf returns the line of an allocation.
func (f *follower) siteOf(e *event.Event) string {
	name, ok := f.sites[e.Stack]
	if !ok {
		name = f.in.Trace.SiteName(&heap.Block{PID: e.PID, Layer: e.Layer, Device: e.Device, Stack: e.Stack})
		f.sites[e.Stack] = name
	}
	return name
}

// begins records, when a step begins, the memory outside PyTorch, and the free memory in the segments of an allocator
// that will refuse a request in that step.
func (f *follower) begins(e *event.Event, h *heap.Heap) {
	step := f.stepAt(e.Time)
	if step == f.step {
		return
	}
	f.step = step
	clear(f.made)
	f.free, f.other = nil, event.Unknown
	if f.done == len(f.cases) {
		return
	}
	c := &f.cases[f.done]
	if d, ok := h.Driver(c.PID, event.LayerDevice, c.Device); ok {
		f.other = d.Live.Bytes - min(d.Live.Bytes, d.Segments.Bytes)
	}
	if step != c.Step || step == 0 {
		return
	}
	if m := f.segments(c, h); m != nil {
		f.free = map[uint64]uint64{}
		for i := range m.Segments {
			s := &m.Segments[i]
			f.free[s.Addr] = s.Size - s.Held()
		}
	}
}

// knowsSteps reports whether what recurs are steps. Recurrence alone is not enough: a loop that fills a container, or
// loads a model, also recurs. Each step frees nearly all that it allocates.
func (f *follower) knowsSteps(t *course) bool {
	if f.in.Steps.Source != steps.SourcePeriod {
		return f.in.Steps.Source != ""
	}
	if f.in.Leaks != nil && f.in.Leaks.Steps.Loads {
		return false
	}
	all, free := 0, 0
	for i := range t.steps {
		if s := &t.steps[i]; s.Step > 0 {
			all++
			if s.frees > 0 {
				free++
			}
		}
	}
	return t.freed.Objects >= t.made.Objects-t.made.Objects/4 && free >= all-all/4
}

// setCourse sets how the memory reached its size.
func (f *follower) setCourse(c *Case) {
	t := f.totals[accountKey{c.PID, c.Device}]
	if t == nil {
		return
	}
	for _, p := range t.points {
		if p.time+keptSeconds*1e9 <= c.Time {
			c.Before60 = p.allocated
		}
	}
	if !f.knowsSteps(t) {
		c.Step = 0
		return
	}
	before := t.steps
	c.floor = t.last
	if n := len(before); n > 0 && before[n-1].Step == c.Step {
		c.floor, before = before[n-1].floor, before[:n-1]
	}
	before = usualSteps(before)
	for i := range before {
		s := &before[i]
		c.Healthy, c.rise = most(c.Healthy, s.Peak), most(c.rise, s.Peak-min(s.Peak, s.floor))
		c.idle, c.usualOther = min(c.idle, s.idle), min(c.usualOther, s.other)
		if i >= len(before)-keptSteps {
			c.Steps = append(c.Steps, s.StepPeak)
		}
	}
	if c.Step > 0 {
		c.Follows = t.lines[c.Site].follows(c.Step)
	}
}

// usualSteps returns the steps before a case. Where a request failed in one, what it came to by then is no evidence that it fits: only what
// it allocated afterwards counts, or nothing.
func usualSteps(before []stepUse) []stepUse {
	var out []stepUse
	for _, s := range before {
		if s.failed {
			s.Peak, s.idle = s.after, event.Unknown
		}
		if s.Step > 0 && (!s.failed || s.after > 0) {
			out = append(out, s)
		}
	}
	return out
}

// most returns the larger of the known values.
func most(x, y uint64) uint64 {
	if x == event.Unknown || y == event.Unknown {
		return min(x, y)
	}
	return max(x, y)
}
