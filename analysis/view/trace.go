// SPDX-License-Identifier: Apache-2.0

package view

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/gputrace/gputrace/analysis/refusals"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
)

// Input is events that can be replayed as often as wanted.
type Input interface {
	event.Replayable
	// Rewind makes the first event the next to be read.
	Rewind() error
}

// seeker is an input that has checkpoints.
type seeker interface {
	// SeekTime makes the last checkpoint at or before a time, CLOCK_BOOTTIME nanoseconds, the next to be read.
	SeekTime(time uint64) error
}

// Trace is an input that is looked at from all sides: at any moment, over any range, event by event. Not safe for concurrent
// use.
type Trace struct {
	// Damage says why the input ends early; nil: it is whole. What comes before is in the trace.
	Damage error

	input   Input
	options *Options
	end     *View
	stacks  map[event.StackID]*event.Stack
	names   map[event.StackID]SiteCall
	phases  *classifier
	held    map[heap.BlockKey]HeldBlock // at the end; nil: not known
	stepAt  func(time uint64) int       // nil: not known
	refused refusals.Log
	noted   noted
	exit    uint64    // as SetExit
	read    *Read     // likewise
	also    []Watcher // of the next replay of all events
}

// Watcher looks at the events of a replay that is made for something else.
type Watcher interface {
	// See is called with each event, before it is applied. It is valid during the call only.
	See(e *event.Event)
	// Seen is called when all events were seen.
	Seen()
}

// noted is what was found out while the input was made.
type noted struct {
	steps      *event.Steps // of the last numbering, put together; nil: none
	numberings int
	held       []event.Held
	readings   []figures.Reading
}

// keptHeld is how many readings of holders are kept.
const keptHeld = 1000

// take takes an annotation.
func (n *noted) take(m *event.Annotation) {
	switch m.Kind {
	case event.AnnotationSteps:
		if n.steps == nil || n.steps.Numbering != m.Steps.Numbering {
			n.numberings++
			n.steps = &event.Steps{Numbering: m.Steps.Numbering, Source: m.Steps.Source, On: m.Steps.On, Chosen: m.Steps.Chosen,
				First: m.Steps.First}
		}
		n.steps.Begins = append(n.steps.Begins, m.Steps.Begins...)
	case event.AnnotationHeld:
		n.held = append(n.held[max(0, len(n.held)-keptHeld+1):], *m.Held)
	case event.AnnotationReading:
		n.read(m.Reading)
	}
}

// read takes a reading, as JSON. One that is not understood is left out.
func (n *noted) read(text []byte) {
	var r figures.Reading
	if json.Unmarshal(text, &r) == nil {
		n.readings = append(n.readings[max(0, len(n.readings)-keptHeld+1):], r)
	}
}

// NewTrace replays an input once. Where it is damaged, the trace is what is whole; see Trace.Damage. o as in New.
func NewTrace(in Input, o *Options) (*Trace, error) {
	t := &Trace{input: in, options: o, stacks: map[event.StackID]*event.Stack{}, names: map[event.StackID]SiteCall{}}
	h := heap.New()
	t.Damage = h.Walk(in, heap.Walker{Annotated: t.noted.take, After: t.refused.See})
	if s := h.Totals(); t.Damage != nil && s.Events == 0 && len(s.Accounts)+len(s.Drivers) == 0 {
		return nil, t.Damage
	}
	t.end = t.view(h.Snapshot())
	return t, nil
}

// SetOptions changes how sites are named from now on, and makes the view of the end anew: what an input says of that is known
// once it was read. nil: as in New.
func (t *Trace) SetOptions(o *Options) {
	t.options = o
	clear(t.names)
	t.phases = nil
	t.end = t.view(t.end.Snapshot)
}

// ViewOf puts names to a snapshot that was made during a replay of the trace.
func (t *Trace) ViewOf(s *heap.Snapshot) *View { return t.view(s) }

func (t *Trace) view(s *heap.Snapshot) *View {
	v := New(s, t.Stack, t.options)
	v.classifier = t.classifier
	return v
}

// Stack resolves an id, as event.Source's Stack.
func (t *Trace) Stack(id event.StackID) *event.Stack {
	s, ok := t.stacks[id]
	if !ok {
		s = t.input.Stack(id)
		t.stacks[id] = s
	}
	return s
}

// Site is the site of a block, with its name and stack, and no counts.
func (t *Trace) Site(b *heap.Block) Site { return t.end.site(blockSite(b), t.Stack) }

// SiteName is what the blocks of a stack are named after, as in Site.Name.
func (t *Trace) SiteName(b *heap.Block) string { return t.nameOf(b).Site }

// nameOf is what the blocks of a stack are named after.
func (t *Trace) nameOf(b *heap.Block) SiteCall {
	if b.Stack == 0 || b.Origin != heap.OriginEvent {
		s := t.Site(b)
		return SiteCall{Site: s.Name}
	}
	name, ok := t.names[b.Stack]
	if !ok {
		s := t.Site(b)
		name = SiteCall{s.Name, t.end.Call(&s)}
		t.names[b.Stack] = name
	}
	return name
}

// blockSite is the site of a block, with no counts.
func blockSite(b *heap.Block) *heap.Site {
	return &heap.Site{
		Layer: b.Layer, Device: b.Device, PID: b.PID, Stack: b.Stack, Call: b.Call, Segment: b.Segment, Origin: b.Origin,
	}
}

// First is the time of the first event, CLOCK_BOOTTIME nanoseconds, also of those that a bounded recording no longer has.
// 0: there is none.
func (t *Trace) First() uint64 { return t.end.Snapshot.First }

// IsCut reports whether the input no longer has its first events. An input that cannot say so has what it says.
func (t *Trace) IsCut() bool {
	in, ok := t.input.(interface{ IsCut() bool })
	return !ok || in.IsCut()
}

// Files is Options.Files.
func (t *Trace) Files() func(path string) io.Reader {
	if t.options == nil {
		return nil
	}
	return t.options.Files
}

// Last is the time of the last event, CLOCK_BOOTTIME nanoseconds. 0: there is none.
func (t *Trace) Last() uint64 { return t.end.Snapshot.Time }

// Steps are those that were recognised while the input was made; nil: none. whole is false when it was decided anew meanwhile what a
// step begins with, and steps of before have no number any more.
func (t *Trace) Steps() (steps *event.Steps, whole bool) {
	return t.noted.steps, t.noted.numberings == 1
}

// Held is what was read of holders while the input was made, in order.
func (t *Trace) Held() []event.Held { return t.noted.held }

// Readings are what the driver and the process's memory said while the input was made, in order.
func (t *Trace) Readings() []figures.Reading { return t.noted.readings }

// End is the view of the end.
func (t *Trace) End() *View { return t.end }

// Peak is View.AtPeak of the end.
func (t *Trace) Peak() *View { return t.end.AtPeak() }

// At is the view of a moment, CLOCK_BOOTTIME nanoseconds: before the first event that is later.
func (t *Trace) At(time uint64) (*View, error) {
	h, err := t.replayTo(time)
	if err != nil {
		return nil, err
	}
	return t.view(h.Snapshot()), nil
}

// replayTo is the live set of a moment.
func (t *Trace) replayTo(time uint64) (*heap.Heap, error) {
	if err := t.seek(time); err != nil {
		return nil, err
	}
	h := heap.New()
	err := h.Walk(t.input, heap.Walker{Before: func(e *event.Event) bool { return e.Time <= time }})
	return h, t.expected(err)
}

func (t *Trace) seek(time uint64) error {
	rewind := t.input.Rewind
	if s, ok := t.input.(seeker); ok {
		rewind = func() error { return s.SeekTime(time) }
	}
	if err := rewind(); err != nil {
		return fmt.Errorf("read the recording again: %w", err)
	}
	return nil
}

// expected is nil for the damage that is known.
func (t *Trace) expected(err error) error {
	if t.Damage != nil {
		return nil
	}
	return err
}

// Visitor's functions are called during a replay. Each may be nil; what is pointed to is valid during the call only.
type Visitor struct {
	// Before: the event is applied next; all annotations before it were replayed.
	Before func(e *event.Event, h *heap.Heap)
	// Event was applied.
	Event func(e *event.Event, h *heap.Heap)
	// Allocated: the block is live, because of e. e nil: it is from a checkpoint or from the allocator state. A block comes again
	// when its free failed: it has the same key, heap.Block's PID, Layer, Object, Addr and Time.
	Allocated func(b *heap.Block, e *event.Event)
	// Freed: the block is no longer live, because of e. e nil: the allocator state does not have it. time is that of the free,
	// CLOCK_BOOTTIME nanoseconds.
	Freed func(b *heap.Block, e *event.Event, time uint64)
	// Moved: what was reported of from is that of to: device memory turned out to be a segment. nil: Freed and Allocated are
	// called, with the event that showed it.
	Moved func(from, to *heap.Block)
	// Done is called at the end, with all that is live then.
	Done func(h *heap.Heap)
}

// Watch has a watcher see the events of the next replay that goes through the whole input, so that it takes no replay of its own. Where
// a replay ends early, the watcher is left out of all.
func (t *Trace) Watch(w Watcher) {
	if !slices.Contains(t.also, w) {
		t.also = append(t.also, w)
	}
}

// watchers are those of this replay.
func (t *Trace) watchers() watchers {
	out := t.also
	t.also = nil
	return out
}

type watchers []Watcher

func (ws watchers) see(e *event.Event) {
	for _, w := range ws {
		w.See(e)
	}
}

func (ws watchers) seen() {
	for _, w := range ws {
		w.Seen()
	}
}

// eventBatch is how many events are read at once.
const eventBatch = 8192

// Replay goes through the whole input once more, for all visitors together: each is called as if it were alone.
func (t *Trace) Replay(all ...*Visitor) error {
	also := t.watchers()
	_, err := t.ReplayWhile(func(e *event.Event) bool { also.see(e); return true }, all...)
	if err == nil {
		also.seen()
	}
	return err
}

// ReplayWhile replays the input as long as the next event is wanted, and returns the heap of then.
func (t *Trace) ReplayWhile(wanted func(e *event.Event) bool, all ...*Visitor) (*heap.Heap, error) {
	if err := t.input.Rewind(); err != nil {
		return nil, fmt.Errorf("read the recording again: %w", err)
	}
	h := heap.New()
	w := newVisit(all)
	if len(w.following) > 0 {
		h.Follow(w)
	}
	err := t.expected(h.Walk(t.input, heap.Walker{
		Before: func(e *event.Event) bool {
			if !wanted(e) {
				return false
			}
			for _, before := range w.before {
				before(e, h)
			}
			w.event = e
			return true
		},
		After: func(e *event.Event) {
			w.event = nil
			for _, seen := range w.seen {
				seen(e, h)
			}
		},
	}))
	if err != nil {
		return nil, err
	}
	for _, v := range all {
		if v.Done != nil {
			v.Done(h)
		}
	}
	return h, nil
}

// Events goes through the input's events once more, without what applying them to a heap takes.
func (t *Trace) Events(see func(e *event.Event)) error {
	if err := t.input.Rewind(); err != nil {
		return fmt.Errorf("read the recording again: %w", err)
	}
	also := t.watchers()
	buf := make([]event.Event, 0, eventBatch)
	for {
		var err error
		buf, err = t.input.Read(buf[:0])
		for i := range buf {
			also.see(&buf[i])
			see(&buf[i])
		}
		t.input.Annotations() // not needed here, and kept until they are taken
		if errors.Is(err, io.EOF) {
			err = nil
		} else if err == nil {
			continue
		}
		if err = t.expected(err); err == nil {
			also.seen()
		}
		return err
	}
}

// visit is the heap's follower of visitors, which it calls in their order.
type visit struct {
	before, seen []func(e *event.Event, h *heap.Heap) // Visitor.Before and Event
	following    []*Visitor                           // those that follow blocks
	event        *event.Event                         // that is being applied; nil: none
}

func newVisit(all []*Visitor) *visit {
	w := &visit{}
	for _, v := range all {
		if v.Before != nil {
			w.before = append(w.before, v.Before)
		}
		if v.Event != nil {
			w.seen = append(w.seen, v.Event)
		}
		if v.Allocated != nil || v.Freed != nil || v.Moved != nil {
			w.following = append(w.following, v)
		}
	}
	return w
}

// Allocated implements heap.Follower.
func (w *visit) Allocated(b *heap.Block) {
	for _, v := range w.following {
		if v.Allocated != nil {
			v.Allocated(b, w.event)
		}
	}
}

// Freed implements heap.Follower.
func (w *visit) Freed(b *heap.Block, time uint64) {
	for _, v := range w.following {
		if v.Freed != nil {
			v.Freed(b, w.event, time)
		}
	}
}

// Moved implements heap.Follower.
func (w *visit) Moved(from, to *heap.Block) {
	time := from.Time
	if w.event != nil {
		time = w.event.Time
	}
	for _, v := range w.following {
		if v.Moved != nil {
			v.Moved(from, to)
			continue
		}
		alone := visit{following: []*Visitor{v}, event: w.event}
		alone.Freed(from, time)
		alone.Allocated(to)
	}
}
