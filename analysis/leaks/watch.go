// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"cmp"
	"iter"
	"slices"

	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/sorts"
)

// Watch judges a process while its events arrive. It is the heap.Follower of the process's live set, and See must be called before
// each event is applied. Its memory depends on the number of sites, not on the number of steps. It is not safe for concurrent use.
type Watch struct {
	tracker   *steps.Tracker
	resolve   func(event.StackID) *event.Stack
	library   []string
	detector  *detector // nil: no steps are known yet
	level     level     // of the steps that the detector counts
	turnover  turnover  // of the steps that the detector counts
	numbering int
	base      int // number of steps of this numbering before the first that the detector knows
	refused   bool
	since     steps.Begin   // the first step of the numbering whose beginning was seen
	last      steps.Begin   // the last one
	begins    []steps.Begin // not returned by Begins yet
	source    steps.Source  // source of the numbering
	past      []Finding     // findings of the previous loop
}

// NewWatch returns a watch of a process without events. resolve is the same as event.Source's Stack.
func NewWatch(r *steps.Rules, resolve func(event.StackID) *event.Stack) *Watch {
	w := &Watch{tracker: steps.NewTracker(r, resolve), resolve: resolve}
	if r != nil {
		w.library = r.Library
	}
	return w
}

// SetLibrary sets Options.Library from now on.
func (w *Watch) SetLibrary(prefixes []string) {
	w.library = prefixes
	w.tracker.SetLibrary(prefixes)
	if w.detector != nil {
		w.detector.library = prefixes
	}
}

// See handles the next event, before it is applied; live yields the current blocks.
func (w *Watch) See(e *event.Event, live func() iter.Seq[heap.Block]) {
	w.refused = w.refused || e.Kind == event.KindOutOfMemory && e.Layer == event.LayerAllocator
	had := len(w.begins)
	w.begins = w.tracker.See(e, w.begins)
	w.step(had, live)
	w.level.see(e, w.stepNow())
	w.turnover.see(e, w.detector)
}

// stepNow returns the current step, as the detector counts.
func (w *Watch) stepNow() int {
	if w.detector == nil {
		return 0
	}
	return w.detector.step
}

// Complete handles what still waits for the names of its stacks; live yields the current blocks. Call it before the last Report.
func (w *Watch) Complete(live func() iter.Seq[heap.Block]) {
	had := len(w.begins)
	w.begins = w.tracker.Complete(w.begins)
	w.step(had, live)
}

// step advances to the step that has begun last; had is the index of the first new begin.
func (w *Watch) step(had int, live func() iter.Seq[heap.Block]) {
	if len(w.begins) == had {
		return
	}
	if n := w.tracker.Numbering(); n != w.numbering {
		w.begins = w.begins[had:]
		w.past = w.before(w.begins[0].Step)
		w.numbering, w.base, w.since = n, w.begins[0].Step-1, w.begins[0]
		w.source = w.tracker.Source()
		w.restart(live())
	}
	w.last = w.begins[len(w.begins)-1]
	w.detector.goTo(w.last.Step-w.base, w.last.Time)
}

// before returns the findings of the loop that has ended, if the next loop begins with a step.
func (w *Watch) before(step int) []Finding {
	if step == 1 || w.detector == nil {
		return nil
	}
	s := w.steps()
	s.Source = w.source
	return judge(w.detector, s, &Options{Library: w.library}, false).Findings
}

// restart begins to count again. It counts each block in use in the step of its allocation, so that the result is the
// same as if steps had been recognised from the first event on.
func (w *Watch) restart(live iter.Seq[heap.Block]) {
	before := cleared{}
	if w.detector != nil && w.base > 0 {
		before = w.detector.clearedBefore()
	}
	w.detector = newDetector(w.library, w.resolve)
	w.detector.cleared = before
	w.level.restart()
	w.detector.level, w.detector.turnover = &w.level, &w.turnover
	blocks := slices.Collect(live)
	sorts.Func(blocks, func(a, b heap.Block) int { return cmp.Compare(a.Time, b.Time) })
	left := w.turnover.recent
	stepAt := w.ascending()
	for i := range blocks {
		for len(left) > 0 && left[0].time < blocks[i].Time {
			w.detector.goTo(stepAt(left[0].time), left[0].time)
			w.detector.departed(left[0])
			left = left[1:]
		}
		w.detector.goTo(stepAt(blocks[i].Time), blocks[i].Time)
		w.detector.allocated(&blocks[i])
	}
	for i := range left {
		w.detector.departed(left[i])
	}
	if w.base > 0 { // of another loop
		w.detector.forgetChurn()
	}
}

// ascending returns a function that maps ascending times to steps, as the detector counts; 0 before the first.
func (w *Watch) ascending() func(time uint64) int {
	step, begun := 0, 0
	return func(time uint64) int {
		for begun < len(w.begins) && w.begins[begun].Time <= time {
			step = w.begins[begun].Step - w.base
			begun++
		}
		return step
	}
}

// Allocated implements heap.Follower.
func (w *Watch) Allocated(b *heap.Block) {
	if w.detector != nil {
		w.detector.allocated(b)
	}
}

// Freed implements heap.Follower.
func (w *Watch) Freed(b *heap.Block, time uint64) {
	w.turnover.freed(b, time, w.detector)
	if w.detector != nil {
		w.detector.freed(b)
	}
}

// Moved implements heap.Follower.
func (w *Watch) Moved(from, to *heap.Block) {
	w.turnover.freed(from, 0, w.detector)
	if w.detector != nil {
		w.detector.moved(from, to)
	}
}

// Begins returns the steps that have begun since the last call, excluding steps of an earlier numbering; nil if there are none.
func (w *Watch) Begins() (numbering int, begins []steps.Begin) {
	begins, w.begins = w.begins, nil
	return w.numbering, begins
}

// Judged returns the number of complete steps on which a verdict would be based now.
func (w *Watch) Judged() int { return max(0, w.last.Step-w.base-1) }

// Source returns how steps were found, and what a step begins with, for people; empty: there are no steps yet.
func (w *Watch) Source() (source steps.Source, on string) { return w.tracker.Source(), w.tracker.On() }

// Report returns the current verdict. Its cost grows with the number of sites.
func (w *Watch) Report(o *Options) *Report {
	if o == nil {
		o = &Options{}
	}
	if w.detector != nil && o.HolderOf != nil && o.Live != nil {
		w.detector.hold(o.Live, o.HolderOf)
	}
	if w.tracker.Source() == "" { // the counted steps were wrong, or are no longer steps
		return judge(nil, Steps{}, o, w.refused)
	}
	r := judge(w.detector, w.steps(), o, w.refused)
	r.Past = w.past
	return r
}

// steps describes the steps seen so far.
func (w *Watch) steps() Steps {
	s := Steps{Count: max(0, w.last.Step-w.since.Step), Last: max(0, w.last.Step-1), Source: w.tracker.Source(), On: w.tracker.On(),
		base: w.base}
	if s.Count > 0 {
		s.Period = float64(w.last.Time-w.since.Time) / float64(s.Count)
	}
	return s
}
