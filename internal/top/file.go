// SPDX-License-Identifier: Apache-2.0

package top

import (
	"context"
	"io"
	"time"

	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// moments is how many screens a recording has at most.
const moments = 300

// Recorded has the screens of a recording, evenly spaced.
type Recorded struct {
	screens []*Screen
}

// RecordedInput is what Recorded is made of.
type RecordedInput struct {
	Trace    *view.Trace
	Process  Process
	Attached uint64        // when the recording began, on the clock of the events; 0: with Trace.First
	Began    time.Time     // the same by the clock on the wall; the zero value: not known
	Leaks    *leaks.Report // of the whole; nil: not known
	Steps    *steps.Table  // nil: not known; the screens have then as many as Leaks
	Joined   *view.Joined  // the holders at the end; nil: not known
}

// NewRecorded replays a recording once.
func NewRecorded(in *RecordedInput) (*Recorded, error) {
	tl, err := in.Trace.Timeline(&view.TimelineOptions{Moments: moments})
	if err != nil {
		return nil, err
	}
	out, seen, spans := &Recorded{}, &ages{}, &phases.Spans{}
	first, allocs, before := in.Trace.First(), uint64(0), uint64(0)
	if in.Attached != 0 {
		first = min(first, in.Attached)
	}
	err = tl.Visit(&view.TimelineVisitor{
		Totals: func(uint64, *view.Totals) {}, OutOfMemory: func(uint64, *event.Event) {},
		Alloc: func(_ uint64, _ *heap.Block, e *event.Event) {
			if e.Layer == event.LayerAllocator {
				spans.See(e.Time, e.TID, in.Trace.Classifier().Shown(e.Stack))
			}
		},
		Moment: func(at uint64, v *view.View) {
			s := &Screen{Time: in.Began.Add(time.Duration(at - first)), Elapsed: float64(at-first) / 1e9}
			part := Part{Process: in.Process, View: v, Totals: &v.Snapshot.Totals, Leaks: in.Leaks, Phases: takePhases(spans, first)}
			if at >= in.Trace.Last() && in.Joined != nil {
				part.Joined, s.Held = in.Joined, &HeldAt{Time: s.Time, Bytes: in.Joined.Bytes}
			}
			s.Add([]Part{part})
			if in.Steps != nil {
				s.StepCount = max(0, in.Steps.At(at)-in.Steps.First())
			}
			seen.add(s)
			allocs = 0
			for i := range part.Totals.Accounts {
				allocs += part.Totals.Accounts[i].Allocs
			}
			if n := len(out.screens); n > 0 && s.Elapsed > out.screens[n-1].Elapsed {
				s.Rate = float64(allocs-before) / (s.Elapsed - out.screens[n-1].Elapsed)
			}
			before = allocs
			out.screens = append(out.screens, s)
		},
	})
	return out, err
}

// Next implements Feed.
func (r *Recorded) Next(context.Context) (*Screen, error) {
	if len(r.screens) == 0 {
		return nil, io.EOF
	}
	s := r.screens[0]
	r.screens = r.screens[1:]
	return s, nil
}

// ReadHolders implements Feed: those that the recording has are in its last screen.
func (r *Recorded) ReadHolders() {}

// One is a feed of a single screen.
func One(s *Screen) Feed { return &Recorded{[]*Screen{s}} }
