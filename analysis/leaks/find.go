// SPDX-License-Identifier: Apache-2.0

// Package leaks says of a recording whether memory grows from step to step, and by which lines of the program: a replay goes in,
// a verdict with findings comes out. The rules and thresholds are in docs/leaks.md.
package leaks

import (
	"fmt"
	"iter"

	"github.com/gputrace/gputrace/analysis/advice"
	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// Options of Find. nil is the zero value.
type Options struct {
	// Library has prefixes of Python files that are not the program's own, as recordings have them.
	Library []string
	// Free is what of each device is not in use by anybody at the end of the recording, bytes. nil or missing: not known.
	Free map[event.Device]uint64
	// Size is all memory of each device, bytes. nil or missing: not known.
	Size map[event.Device]uint64
	// Ended reports that the program has ended: no device will be full.
	Ended bool
	// Holders names what holds the blocks of sites at the end; nil: not known. It counts where HolderOf names nothing.
	Holders []Holder
	// HolderOf says the same of single blocks; nil: not known. Live is the blocks of now, which only a Watch needs.
	HolderOf HolderOf
	Live     iter.Seq[heap.Block]
	// Until is the time of the last event that counts, CLOCK_BOOTTIME nanoseconds: that of the request whose failure ended the program, which
	// frees everything afterwards. 0: all events count.
	Until uint64
	// Earlier is the same of readings while the program ran, in order. It counts where Holders names nothing.
	Earlier [][]Holder
	// Facts are what readings found beside the names of holders, by name; nil: nothing.
	Facts map[string]advice.Facts
	// Garbage names what most blocks of a line are garbage of, by line, if readings found that they are; nil: of none.
	Garbage map[string]string
}

// Holder is blocks of a line that one thing holds.
type Holder struct {
	Site   string // as stacks.FrameName
	Name   string
	Bytes  uint64
	Blocks uint64 // 0: not known
}

// Holders is a reading of holders that was brought together with the live blocks; nil: there was none.
func Holders(j *view.Joined) []Holder {
	if j == nil {
		return nil
	}
	var out []Holder
	for i := range j.Rows {
		r := &j.Rows[i]
		out = append(out, Holder{Site: r.Site, Name: r.Name, Bytes: r.Bytes, Blocks: r.Blocks})
	}
	return out
}

// Facts are what a reading of holders found beside their names; nil: there was none.
func Facts(j *view.Joined) map[string]advice.Facts {
	if j == nil {
		return nil
	}
	return j.Facts
}

// Earlier is what was read of holders while a trace was recorded.
func Earlier(t *view.Trace) [][]Holder {
	var out [][]Holder
	for _, h := range t.Held() {
		out = append(out, EarlierRows(h.Rows))
	}
	return out
}

// EarlierRows is one such reading.
func EarlierRows(rows []event.HeldRow) []Holder {
	var out []Holder
	for _, r := range rows {
		out = append(out, Holder{Site: r.Site, Name: r.Holder, Bytes: r.Bytes, Blocks: r.Blocks})
	}
	return out
}

// Verdict is the answer in a word.
type Verdict string

// The verdicts.
const (
	Growing     Verdict = "growing"       // there are findings
	Steady      Verdict = "steady"        // there are none, in MinSteps steps or more
	OutOfMemory Verdict = "out_of_memory" // a request was refused, without findings
	Unclear     Verdict = "unknown"       // no steps were found, fewer than MinSteps, Steps.Loads, Suspects, or Steps.Rise by no rule
)

// MinSteps is how many steps it takes to say that nothing grows.
const MinSteps = 20

// Report is the verdict on a recording.
type Report struct {
	Verdict Verdict
	Steps   Steps
	// Findings are what grows, the most bytes each step first.
	Findings []Finding
	// Notes are what grows so slowly that it will never matter, the most bytes first. They do not change the verdict.
	Notes []Finding
	// Past are what grew in a loop that has ended, where another one runs now.
	Past []Finding
	// Stopped are what grew in the loop that runs and has stopped, such as a cache that is full: by Grown bytes, until step Last.
	Stopped []Finding
	// Suspects are what may grow, where there are no findings: lines that rise at one period of which too few were seen, the most bytes first.
	Suspects []Finding
	// Risers are the lines of which Steps.Rise is, as far as lines are known, the most bytes first.
	Risers []Riser
}

// Steps says how steps were found.
type Steps struct {
	Count  int          // complete ones
	Last   int          // number of the last complete one
	Source steps.Source // empty: none were found
	On     string       // the line or function that a step begins with; of SourcePeriod, the line that recurs
	Period float64      // mean length, nanoseconds; 0: not known
	Loads  bool         // next to nothing is freed, and steps are few: it may be a model that is loaded, and is not judged
	Rise   uint64       // bytes by which what is in use between steps rose in their later half; 0: by no more than steady memory does
	Slopes *Slopes      // of a recording of MPS; nil: there is none, or too few steps

	base int // steps before those that the detector has seen
}

// Find judges a trace by its steps. It is replayed once.
func Find(t *view.Trace, table *steps.Table, o *Options) (*Report, error) {
	f := NewFinder(t, table, o)
	if f.detector == nil {
		return f.Report(), nil
	}
	if err := t.Replay(f.Visitor()); err != nil {
		return nil, fmt.Errorf("follow the steps: %w", err)
	}
	return f.Report(), nil
}

// Finder is Find for a replay that others share.
type Finder struct {
	trace    *view.Trace
	table    *steps.Table
	options  *Options
	steps    Steps
	detector *detector // nil: there are no steps
	over     bool      // all that counts was seen: Options.Until
	past     []Finding // of loops that have ended
}

// NewFinder is a finder that has seen nothing. o may be nil.
func NewFinder(t *view.Trace, table *steps.Table, o *Options) *Finder {
	if o == nil {
		o = &Options{}
	}
	f := &Finder{trace: t, table: table, options: o}
	f.steps = Steps{
		Count: max(0, table.Last()-table.Loop()), Last: max(0, table.Last()-1), Source: table.Source, On: table.On, Period: table.Period(),
		base: max(0, table.First()-1),
	}
	if step := table.At(o.Until); o.Until > 0 && step > 0 {
		f.steps.Last, f.steps.Count = step-1, max(0, step-table.Loop())
	}
	if table.Source != "" {
		f.detector = f.newDetector()
	}
	return f
}

func (f *Finder) newDetector() *detector {
	d := newDetector(f.options.Library, f.trace.Stack)
	d.classifier = f.trace.Classifier()
	d.ends = phases.NewEnds[*site](d.classifier)
	return d
}

// begin judges the loops that have ended, and begins to follow the one that runs at the end with what is in use then.
func (f *Finder) begin(live iter.Seq[heap.Block]) {
	first, loop := f.table.First(), f.table.Loop()
	from, _, _ := f.table.Span(first)
	to, _, _ := f.table.Span(loop)
	before := Steps{Count: loop - first, Last: loop - 1, Source: f.table.Before, Period: float64(to-from) / float64(loop-first), base: f.steps.base}
	f.past = judge(f.detector, before, &Options{Library: f.options.Library}, false).Findings
	d := f.newDetector()
	*d.level = *f.detector.level
	d.level.restart()
	for b := range live {
		d.allocated(&b)
	}
	d.forgetChurn()
	f.detector, f.steps.base = d, loop-1
}

// Visitor is what the replay calls.
func (f *Finder) Visitor() *view.Visitor {
	if f.detector == nil {
		return &view.Visitor{}
	}
	return &view.Visitor{
		Before: f.before,
		Allocated: func(b *heap.Block, _ *event.Event) {
			if !f.over {
				f.detector.allocated(b)
			}
		},
		Freed: func(b *heap.Block, e *event.Event, time uint64) {
			if f.over {
				return
			}
			d := f.detector
			d.ended(b, e)
			d.turnover.freed(b, time, d)
			d.freed(b)
		},
		Moved: func(from, to *heap.Block) {
			if !f.over {
				f.detector.moved(from, to)
			}
		},
		Done: func(h *heap.Heap) {
			f.detector.turnover.settle(f.detector)
			if f.options.HolderOf != nil && !f.over {
				f.detector.hold(h.Blocks(), f.options.HolderOf)
			}
		},
	}
}

// before takes the next event before it is applied.
func (f *Finder) before(e *event.Event, h *heap.Heap) {
	if f.over = f.over || f.options.Until > 0 && e.Time > f.options.Until; f.over {
		return
	}
	at := f.table.At(e.Time)
	if loop := f.table.Loop(); at >= loop && f.steps.base < loop-1 {
		f.begin(h.Blocks())
	}
	d := f.detector
	if step := max(0, at-f.steps.base); step != d.step {
		d.goTo(step, e.Time)
	}
	d.ends.See(e)
	d.level.see(e, d.step)
	d.slopes.see(e, d.step)
	d.turnover.see(e, d)
}

// Report is the verdict, when all was replayed.
func (f *Finder) Report() *Report {
	r := judge(f.detector, f.steps, f.options, len(f.trace.OutOfMemory()) > 0)
	r.Past = f.past
	return r
}

// judge is the verdict on what a detector has seen, which goes on afterwards. nil: there were no steps.
func judge(d *detector, s Steps, o *Options, refused bool) *Report {
	r := &Report{Verdict: Unclear, Steps: s}
	r.Steps.Loads = d != nil && s.Source == steps.SourcePeriod && !d.churns() && !s.outlastLoading()
	if d != nil && !r.Steps.Loads {
		d.end(s.Last - s.base)
		r.Findings, r.Notes = weigh(d.findings(&r.Steps, o), &r.Steps, o)
		fill(r.Findings, &r.Steps, o)
		fill(r.Notes, &r.Steps, o)
		if len(r.Findings) == 0 {
			r.suspect(d.suspects(&r.Steps, o), o)
		}
		r.rise(d, o)
		r.Stopped = d.hasStopped(r.Findings, &r.Steps, o)
		r.Steps.Slopes = d.slopes.result()
	}
	r.Verdict = verdictOf(r, refused)
	return r
}

// A model that is loaded layer by layer recurs, and what is loaded stays. What goes on for longer than this is judged as what grows.
const (
	loadSteps = 100
	loadTime  = 5e9 // nanoseconds
)

// outlastLoading reports whether there are more steps than a model that is loaded would have.
func (s *Steps) outlastLoading() bool {
	return s.Count >= loadSteps && float64(s.Count)*s.Period >= loadTime
}

// Settled reports whether steps can be announced while they go on. What recurs can be a layer of a pass whose end was not seen yet; a pass
// takes less time than this.
func (s *Steps) Settled() bool {
	return s.Source != steps.SourcePeriod || float64(s.Count)*s.Period >= loadTime
}

func verdictOf(r *Report, refused bool) Verdict {
	switch {
	case len(r.Findings) > 0:
		return Growing
	case refused:
		return OutOfMemory
	case r.Steps.Count >= MinSteps && !r.Steps.Loads && r.Steps.Rise == 0 && len(r.Suspects) == 0:
		return Steady
	}
	return Unclear
}
