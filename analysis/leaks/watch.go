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

// Watch judges a process while its events come in. It is the heap.Follower of its live set, and See comes before each event is applied.
// Its memory depends on the number of sites, not on the number of steps. Not safe for concurrent use.
type Watch struct {
	tracker   *steps.Tracker
	resolve   func(event.StackID) *event.Stack
	library   []string
	detector  *detector // nil: no steps are known yet
	level     level     // of the detector
	turnover  turnover  // of the detector
	numbering int
	base      int // steps of this numbering before the first that the detector knows
	refused   bool
	since     steps.Begin   // the first step of the numbering that was seen to begin
	last      steps.Begin   // the last one
	begins    []steps.Begin // not fetched yet
	source    steps.Source  // of the numbering
	past      []Finding     // of the loop before
}

// NewWatch is a watch of a process without events. resolve is as event.Source's Stack.
func NewWatch(r *steps.Rules, resolve func(event.StackID) *event.Stack) *Watch {
	w := &Watch{tracker: steps.NewTracker(r, resolve), resolve: resolve}
	if r != nil {
		w.library = r.Library
	}
	return w
}

// SetLibrary is Options.Library from now on.
func (w *Watch) SetLibrary(prefixes []string) {
	w.library = prefixes
	w.tracker.SetLibrary(prefixes)
	if w.detector != nil {
		w.detector.library = prefixes
	}
}

// See takes the next event, before it is applied; live are the blocks of then.
func (w *Watch) See(e *event.Event, live func() iter.Seq[heap.Block]) {
	w.refused = w.refused || e.Kind == event.KindOutOfMemory && e.Layer == event.LayerTorch
	had := len(w.begins)
	w.begins = w.tracker.See(e, w.begins)
	w.step(had, live)
	w.level.see(e, w.stepNow())
	w.turnover.see(e, w.detector)
}

// stepNow is the step that runs, as the detector counts.
func (w *Watch) stepNow() int {
	if w.detector == nil {
		return 0
	}
	return w.detector.step
}

// Complete takes what still waits for the names of its stacks; live are the blocks of now. It comes before the last Report.
func (w *Watch) Complete(live func() iter.Seq[heap.Block]) {
	had := len(w.begins)
	w.begins = w.tracker.Complete(w.begins)
	w.step(had, live)
}

// step goes on to the step that has begun last, of begins from had on.
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

// before is what grew in the loop that has ended, where the next one begins with a step.
func (w *Watch) before(step int) []Finding {
	if step == 1 || w.detector == nil {
		return nil
	}
	s := w.steps()
	s.Source = w.source
	return judge(w.detector, s, &Options{Library: w.library}, false).Findings
}

// restart begins to count, with what is in use, each block in the step in which it was allocated: what has survived until now is then known
// as if steps had been recognised from the first event on.
func (w *Watch) restart(live iter.Seq[heap.Block]) {
	w.detector = newDetector(w.library, w.resolve)
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

// ascending tells the steps of times that ascend, as the detector counts; 0 before the first.
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

// Begins are the steps that have begun since the last call; steps of an earlier numbering are not in it. It is nil when there are none.
func (w *Watch) Begins() (numbering int, begins []steps.Begin) {
	begins, w.begins = w.begins, nil
	return w.numbering, begins
}

// Judged is how many complete steps a verdict of now is made from.
func (w *Watch) Judged() int { return max(0, w.last.Step-w.base-1) }

// Source and what a step begins with, for people; empty: there are no steps yet.
func (w *Watch) Source() (source steps.Source, on string) { return w.tracker.Source(), w.tracker.On() }

// Report is the verdict of now. Its cost grows with the number of sites.
func (w *Watch) Report(o *Options) *Report {
	if o == nil {
		o = &Options{}
	}
	if w.detector != nil && o.HolderOf != nil && o.Live != nil {
		w.detector.hold(o.Live, o.HolderOf)
	}
	if w.tracker.Source() == "" { // those that were counted were no steps, or are none any more
		return judge(nil, Steps{}, o, w.refused)
	}
	r := judge(w.detector, w.steps(), o, w.refused)
	r.Past = w.past
	return r
}

// steps are those that were seen.
func (w *Watch) steps() Steps {
	s := Steps{Count: max(0, w.last.Step-w.since.Step), Last: max(0, w.last.Step-1), Source: w.tracker.Source(), On: w.tracker.On(), base: w.base}
	if s.Count > 0 {
		s.Period = float64(w.last.Time-w.since.Time) / float64(s.Count)
	}
	return s
}
