// SPDX-License-Identifier: Apache-2.0

package view

import (
	"sync"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/heap/values"
)

// classifier says of stacks in which phase they allocate. Safe for concurrent use.
type classifier struct {
	mu sync.Mutex
	c  *phases.Classifier
}

// newClassifier learns from the stacks of a snapshot.
func newClassifier(s *heap.Snapshot, resolve event.Resolve, o *Options) *classifier {
	c := phases.New(o.Rules, o.Library, resolve)
	for i := range s.Sites {
		c.Learn(s.Sites[i].Stack)
	}
	return &classifier{c: c}
}

func (c *classifier) of(id event.StackID) phases.Phase {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.c.Of(id).Phase
}

func (c *classifier) shown(id event.StackID) phases.Phase {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.c.Shown(id)
}

// PhaseMemory is what was found of the stacks of a process: a phase follows from all of them, so it holds as long as they are the same.
// The zero value has seen nothing. Safe for concurrent use.
type PhaseMemory struct {
	mu     sync.Mutex
	stacks map[event.StackID]*event.Stack
	found  *classifier
}

// of is the last classifier, or another one where a site has a stack that it has not seen, or not as it is now. nil remembers nothing.
func (m *PhaseMemory) of(sites []Site, find func() *classifier) *classifier {
	if m == nil {
		return find()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	same := m.found != nil
	for i := range sites {
		known, ok := m.stacks[sites[i].Site.Stack]
		same = same && ok && known == sites[i].Stack
	}
	if same {
		return m.found
	}
	m.stacks, m.found = map[event.StackID]*event.Stack{}, find()
	for i := range sites {
		m.stacks[sites[i].Site.Stack] = sites[i].Stack
	}
	return m.found
}

// stacksOf resolves stacks as sites have them, and asks nobody: the table that they came from changes while a process is recorded.
func stacksOf(sites []Site) event.Resolve {
	out := make(map[event.StackID]*event.Stack, len(sites))
	for i := range sites {
		out[sites[i].Site.Stack] = sites[i].Stack
	}
	return func(id event.StackID) *event.Stack { return out[id] }
}

// Phase returns the part of a step in which the allocations of a site are made, by the program's name where it has one.
func (v *View) Phase(s *Site) phases.Phase { return v.PhaseOf(s.Site.Stack) }

// PhaseOf returns the same for the allocations of a stack; phases.Unknown if no site has the stack.
func (v *View) PhaseOf(id event.StackID) phases.Phase { return v.classifier().shown(id) }

// classifier is of all stacks of the trace.
func (t *Trace) classifier() *classifier {
	if t.phases == nil {
		o := Options{}
		if t.options != nil {
			o = *t.options
		}
		t.phases = newClassifier(t.end.Snapshot, t.Stack, &o)
	}
	return t.phases
}

// Phase is the part of a step in which the allocations of a stack are made, by the rules alone: conclusions are drawn from it.
func (t *Trace) Phase(id event.StackID) phases.Phase { return t.classifier().of(id) }

// Classifier says of all stacks of the trace in which phase they allocate. It is shared, and not safe for concurrent use.
func (t *Trace) Classifier() *phases.Classifier { return t.classifier().c }

// SetHeld says what holds blocks at the end.
func (t *Trace) SetHeld(blocks map[heap.BlockKey]HeldBlock) { t.held = blocks }

// Holder is what is known of what holds a block at the end. ok is false when that is not known.
func (t *Trace) Holder(b *heap.Block) (held HeldBlock, ok bool) {
	held, ok = t.held[b.Key()]
	return held, ok
}

// SetSteps says in which step something is that happens at a time, CLOCK_BOOTTIME nanoseconds; 0: before the first one. With
// Selection.Steps, without AllSteps, it is called only after the replay that selects: the steps can be found in that.
func (t *Trace) SetSteps(at func(time uint64) int) { t.stepAt = at }

// follower follows allocations through one replay of a trace, and says what they were for.
type follower struct {
	t      *Trace
	follow *phases.Lifetimes
	starts values.PerBlock[life]
}

// life is an allocation that is in use.
type life struct {
	phases.Start
	made bool // by an event that was seen
}

func (t *Trace) newFollower() *follower {
	return &follower{t: t, follow: t.classifier().c.Follow()}
}

func (l *follower) allocated(b *heap.Block, e *event.Event) {
	made := e != nil && e.Kind == event.KindAlloc && e.Time == b.Time
	tid := uint32(0)
	if made {
		tid = e.TID
	}
	l.starts.Set(b, life{l.follow.Start(b, tid, made), made})
}

func (l *follower) freed(b *heap.Block, e *event.Event) phases.Category {
	s := l.starts.At(b)
	if s == nil {
		return phases.NoCategory
	}
	tid := uint32(0)
	if e != nil {
		tid = e.TID
	}
	var out phases.Category
	if exit := l.t.exit; exit != 0 && e != nil && e.Time > exit { // the program ended, and frees everything
		out = l.follow.InUse(&s.Start)
	} else {
		out = l.follow.Freed(&s.Start, tid)
	}
	l.starts.Delete(b)
	return out
}

// moved makes what was noted of one block that of another.
func (l *follower) moved(from, to *heap.Block) {
	if s := l.starts.At(from); s != nil {
		was := *s
		l.starts.Delete(from)
		l.starts.Set(to, was)
	}
}

// inUse is what a block at the end of the trace is for, and what is known of what holds it.
func (l *follower) inUse(b *heap.Block) (phases.Category, HeldBlock) {
	held := l.t.held[b.Key()]
	if held.Category != "" && held.Category != phases.NoCategory {
		return held.Category, held
	}
	if s := l.starts.At(b); s != nil {
		return phases.Beside(l.follow.InUse(&s.Start), held.Holder), held
	}
	return phases.NoCategory, held
}

// Purposes follows allocations through one replay of a trace, and says what they were for: its methods are called by those of a Visitor.
// Not safe for concurrent use.
type Purposes struct{ follow *follower }

// Purposes begins to follow the next replay.
func (t *Trace) Purposes() *Purposes { return &Purposes{t.newFollower()} }

// Before takes an event before it is applied.
func (p *Purposes) Before(e *event.Event) { p.follow.follow.See(e) }

// Allocated takes an allocation, as Visitor.Allocated.
func (p *Purposes) Allocated(b *heap.Block, e *event.Event) { p.follow.allocated(b, e) }

// Freed is what a block was for that is freed, as Visitor.Freed.
func (p *Purposes) Freed(b *heap.Block, e *event.Event) phases.Category { return p.follow.freed(b, e) }

// Moved transfers the notes on one block to another, as Visitor.Moved.
func (p *Purposes) Moved(from, to *heap.Block) { p.follow.moved(from, to) }

// InUse is what a block is for that is in use at the end of the trace, and what is known of what holds it.
func (p *Purposes) InUse(b *heap.Block) (phases.Category, HeldBlock) { return p.follow.inUse(b) }

// StepAt is the step at a time; 0: before the first one, or not known.
func (t *Trace) StepAt(time uint64) int {
	if t.stepAt == nil || time == 0 {
		return 0
	}
	return t.stepAt(time)
}
