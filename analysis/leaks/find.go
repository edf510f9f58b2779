// SPDX-License-Identifier: Apache-2.0

// Package leaks finds out whether memory grows from step to step, and which lines of the program are responsible: it
// turns the replay of a recording into a verdict with findings. The rules and thresholds are in docs/decisions/leaks.md.
package leaks

import (
	"fmt"
	"iter"
	"slices"

	"github.com/gputrace/gputrace/analysis/advice"
	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/varpath"
)

// Options of Find. nil is the zero value.
type Options struct {
	// Library has path prefixes of Python files that do not belong to the program itself, as in recordings.
	Library []string
	// Free is the memory of each device that is unused at the end of the recording, bytes. nil or missing: not known.
	Free map[event.Device]uint64
	// Size is the total memory of each device, bytes. nil or missing: not known.
	Size map[event.Device]uint64
	// Ended means that the program has ended, so that no device will become full.
	Ended bool
	// Holders are the holders of the blocks of sites at the end; nil: not known. They are used where HolderOf is not known.
	Holders []Holder
	// HolderOf returns the holder of a single block; nil: not known. Live is the current blocks, which only a Watch needs.
	HolderOf HolderOf
	Live     iter.Seq[heap.Block]
	// Until is the time of the last event that counts, CLOCK_BOOTTIME nanoseconds: that of the failed request that
	// ended the program, because everything is freed after it. 0: all events count.
	Until uint64
	// From is the time after which a loop begins anew, as when an earlier request failed, CLOCK_BOOTTIME nanoseconds; 0: none.
	From uint64
	// Earlier is Holders from scans while the program ran, in order. It is used where Holders names nothing.
	Earlier [][]Holder
	// Facts are facts that scans found beside the names of holders, by name; nil: none.
	Facts map[string]advice.Facts
	// Garbage maps a line to the holder of its garbage, if scans found that most of its blocks are garbage; nil: none.
	Garbage map[string]string
	// Optimizer means that scans found optimizer state: the process trains.
	Optimizer bool
}

// scans returns the holders of all scans, the last one at the end.
func (o *Options) scans() [][]Holder { return append(slices.Clip(o.Earlier), o.Holders) }

// Holder counts blocks of a line that have one holder.
type Holder struct {
	Site   string // as stacks.FrameName
	Name   string
	Bytes  uint64
	Blocks uint64 // 0: not known
}

// Holders returns the holders of a scan that was joined with the live blocks; nil: no scan.
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

// Facts returns the facts about holders of a scan; nil: no scan.
func Facts(j *view.Joined) map[string]advice.Facts {
	if j == nil {
		return nil
	}
	return j.Facts
}

// Earlier returns the holder scans that were made while a trace was recorded.
func Earlier(t *view.Trace) [][]Holder {
	var out [][]Holder
	for _, h := range t.Held() {
		out = append(out, EarlierRows(h.Rows))
	}
	return out
}

// EarlierRows returns one such scan.
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
	Steady      Verdict = "steady"        // there are none, in at least MinSteps steps
	OutOfMemory Verdict = "out_of_memory" // a request was refused, and there are no findings
	Unclear     Verdict = "unknown"       // no steps, fewer than MinSteps, Steps.Loads, Suspects, or an unexplained Steps.Rise
)

// Doubt is a reason for which growth may have ended before a request failed.
type Doubt string

// The doubts.
const (
	MayBeOver Doubt = "loop_may_be_over" // the request was made outside the loop, as far as its stack shows
	FewRises  Doubt = "few_rises"        // a pool that fills looks the same
)

// MinSteps is the number of steps needed to conclude that nothing grows.
const MinSteps = 20

// Report is the verdict on a recording.
type Report struct {
	Verdict Verdict
	Steps   Steps
	// Findings are what grows, the most bytes per step first.
	Findings []Finding
	// Notes are growth that is too slow to matter, the most bytes first. They do not change the verdict.
	Notes []Finding
	// Filling is growth that ends when a container is full, which then fits on its device. It does not change the verdict. See Bound.
	Filling []Finding
	// Longer are batches that are longer each time. They do not change the verdict.
	Longer []Finding
	// Past is growth in a loop that has ended, if another one is running now.
	Past []Finding
	// Stopped is growth that has stopped in the running loop, such as a cache that is full: by Grown bytes, until step Last.
	Stopped []Finding
	// Suspects are possible growth, if there are no findings: lines that rise at a period of which too few were seen,
	// the most bytes first.
	Suspects []Finding
	// Interim means that Suspects grew in an evaluation, or another part of a job that trains, whose end was not seen.
	Interim bool
	// Doubt is why the growth that preceded a failed request may have ended; empty: nothing says so.
	Doubt Doubt
	// Risers are the lines that contribute to Steps.Rise, as far as known, the most bytes first.
	Risers []Riser
}

// Steps describes how steps were found.
type Steps struct {
	Count  int          // number of complete ones
	Last   int          // number of the last complete one
	Source steps.Source // empty: no steps were found
	On     string       // the line or function that a step begins with; for SourcePeriod, the line that recurs
	Period float64      // mean length, nanoseconds; 0: not known
	Loads  bool         // almost nothing is freed, and steps are few: this may be the loading of a model, which is not judged
	Rise   uint64       // bytes by which the memory in use between steps rose in the later half; 0: no more than steady memory does
	Fell   uint64       // with Rise, the most bytes by which the memory in use between steps was ever less than before
	Slopes *Slopes      // for a recording of MPS; nil: none, or too few steps

	base int // number of steps before those that the detector has seen
}

// Find judges a trace by its steps. It replays the trace once.
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

// Finder is Find for a replay that is shared with others.
type Finder struct {
	trace    *view.Trace
	table    *steps.Table
	options  *Options
	steps    Steps
	detector *detector // nil: there are no steps
	loop     int       // step with which the loop begins that is judged
	over     bool      // all that counts was seen: Options.Until
	past     []Finding // findings of loops that have ended
}

// NewFinder returns a finder that has seen nothing. o may be nil.
func NewFinder(t *view.Trace, table *steps.Table, o *Options) *Finder {
	if o == nil {
		o = &Options{}
	}
	f := &Finder{trace: t, table: table, options: o, loop: table.Loop()}
	if o.From > 0 {
		f.loop = max(f.loop, table.At(o.From)+1)
	}
	f.steps = Steps{
		Count: max(0, table.Last()-f.loop), Last: max(0, table.Last()-1), Source: table.Source, On: table.On, Period: table.Period(),
		base: max(0, table.First()-1),
	}
	if step := table.At(o.Until); o.Until > 0 && step > 0 {
		f.steps.Last, f.steps.Count = step-1, max(0, step-f.loop)
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

// begin judges the loops that have ended, and starts to follow the last loop with the memory in use at its beginning.
func (f *Finder) begin(live iter.Seq[heap.Block]) {
	first, loop := f.table.First(), f.loop
	from, _, _ := f.table.Span(first)
	to, _, _ := f.table.Span(loop)
	before := Steps{Count: loop - first, Last: loop - 1, Source: f.table.Before, Period: float64(to-from) / float64(loop-first),
		base: f.steps.base}
	f.past = judge(f.detector, before, &Options{Library: f.options.Library}, false).Findings
	d := f.newDetector()
	if f.options.From == 0 {
		d.cleared = f.detector.clearedBefore()
	}
	*d.level = *f.detector.level
	d.level.restart()
	for b := range live {
		d.allocated(&b)
	}
	d.forgetChurn()
	f.detector, f.steps.base = d, loop-1
}

// Visitor returns the functions for the replay.
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

// before handles an event before it is applied.
func (f *Finder) before(e *event.Event, h *heap.Heap) {
	if f.over = f.over || f.options.Until > 0 && e.Time > f.options.Until; f.over {
		return
	}
	at := f.table.At(e.Time)
	if at >= f.loop && f.steps.base < f.loop-1 {
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

// Report returns the verdict, after the replay.
func (f *Finder) Report() *Report {
	f.roomAtFailure()
	r := judge(f.detector, f.steps, f.options, len(f.trace.OutOfMemory()) > 0)
	if r.Past = f.past; r.Doubt == "" && len(r.Findings) > 0 && f.isOutside() {
		r.Doubt = MayBeOver
	}
	return r
}

// judge returns the verdict on what a detector has seen so far. d is nil if there are no steps.
func judge(d *detector, s Steps, o *Options, refused bool) *Report {
	r := &Report{Verdict: Unclear, Steps: s}
	r.Steps.Loads = d != nil && s.Source == steps.SourcePeriod && !d.churns() && !s.outlastLoading() && !keepsGraphs(o.Holders)
	if d != nil && !r.Steps.Loads {
		d.end(s.Last - s.base)
		r.Findings, r.Notes = weigh(r.longer(r.filling(d.findings(&r.Steps, o), o)), &r.Steps, o)
		fill(r.Findings, &r.Steps, o)
		fill(r.Notes, &r.Steps, o)
		r.interim(d, o)
		if len(r.Findings) == 0 && !r.Interim {
			r.suspect(r.longer(r.filling(d.suspects(&r.Steps, o), o)), o)
			r.fails(d, o)
		}
		r.rise(d, o)
		r.Stopped = d.hasStopped(r.Findings, &r.Steps, o)
		r.Steps.Slopes = d.slopes.result()
	}
	r.Verdict = verdictOf(r, refused)
	return r
}

// Loading a model layer by layer recurs, and the loaded memory stays. Only a loop longer than this is judged.
const (
	loadSteps = 100
	loadTime  = 5e9 // nanoseconds
)

// keepsGraphs reports whether graphs of autograd hold most of what was allocated since the attach. No model is loaded like that.
func keepsGraphs(all []Holder) bool {
	var sum, graphs uint64
	for i := range all {
		h := &all[i]
		if h.Site == stacks.BeforeAttach {
			continue
		}
		if sum += h.Bytes; varpath.IsGraph(h.Name) || varpath.HoldsGraph(h.Name) {
			graphs += h.Bytes
		}
	}
	return graphs > 0 && 2*graphs >= sum
}

// outlastLoading reports whether there are more steps than loading a model would take.
func (s *Steps) outlastLoading() bool {
	return s.Count >= loadSteps && float64(s.Count)*s.Period >= loadTime
}

// Settled reports whether steps can be announced during the recording. What recurs can be a layer of a pass whose end
// was not seen yet, but a pass takes less time than this.
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
