// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"fmt"
	"slices"
	"time"

	"github.com/gputrace/gputrace/analysis/answer"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/trailer"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
)

// concluded is the end of a process's recording.
type concluded struct {
	final  *Final
	answer *answer.Answer // nil: not made yet
}

// conclude ends the recording of a process. It reads the last figures, and must not wait long for them.
func (p *Process) conclude(hits []figures.Hits) {
	if p.frozen.until == 0 {
		p.end = time.Now()
	}
	p.failures.await()
	p.stop()
	p.scans.stop()
	now := p.memory
	snapshot := p.heap.Snapshot()
	view := p.viewOf(snapshot)
	joined := p.scans.joined(view)
	end := p.describeEnd(p.balance(now, view), hits)
	end.Memory.Stats = now.Stats
	p.scans.garbage.See(joined, view)
	if p.growth != nil {
		p.growth.conclude(joined, end)
	}
	held := p.scans.tables(joined)
	end.Holders, end.Before = trailer.Holders(held), trailer.Before(joined)
	end.Held = trailer.Held(joined)
	end.HolderFacts, end.NoHolders = leaks.Facts(joined), p.scans.noPython()
	if p.growth != nil {
		end.HolderFacts = p.growth.facts
	}
	end.Garbage = p.scans.garbage.Figures()
	p.endFile(end, view)
	p.failures.conclude()
	p.done = &concluded{final: &Final{
		Began: p.start, Ended: p.end, Events: snapshot.Events, View: view, Joined: joined, Held: held, Info: p.info, End: end,
	}}
	if n := end.StackRecordsLost; n > 0 {
		p.observer.Warning(fmt.Errorf("%s: %d stacks did not fit the ring: their events have none (--ring-size)", p.Who(), n))
	}
}

// Results is the outcome of a recording.
type Results struct {
	Began, Ended time.Time
	Hits         []figures.Hits // the outcomes of the runs of every probe, for all processes
	Received     uint64         // number of events, also of processes that are left out
	LostAfter    uint64         // number of events that were lost after the end

	all     []*Process // in the order in which they were found
	outcome error      // why nothing was recorded; nil: something was
}

// results collects what was recorded.
func (r *Recorder) results() (*Results, error) {
	r.warnUnseen()
	if len(r.all) == 0 {
		return nil, &Outcome{ErrEndedEarly, "no process was seen to use CUDA. One that ends within a moment of loading it is not seen"}
	}
	out := &Results{all: r.leaveOutIdle(), Began: r.begunAt}
	if !r.options.Many() {
		out.Began = out.all[0].start
	}
	for _, p := range out.all { // what is read after the end is not part of the recording
		if p.end.After(out.Ended) {
			out.Ended = p.end
		}
	}
	out.outcome = r.verdict(out.all)
	hits, err := r.source.Hits()
	if err != nil {
		r.observer.Warning(err)
	}
	out.Hits = hits
	for _, p := range r.all {
		out.Received += p.done.final.Events + p.frozen.after
		out.LostAfter += p.frozen.lost
	}
	return out, nil
}

// leaveOutIdle removes processes that used no GPU memory, such as launchers, unless there are no others. A process
// whose events were all lost is kept, because its use is not known.
func (r *Recorder) leaveOutIdle() []*Process {
	idle := func(p *Process) bool { return p.done.final.Events == 0 && p.lost == 0 }
	busy := slices.DeleteFunc(slices.Clone(r.all), idle)
	if len(busy) == 0 {
		return r.all
	}
	for _, p := range r.all {
		if idle(p) {
			r.observer.Event(&Unused{p})
			p.dropFile()
		}
	}
	return busy
}

// verdict returns why nothing was recorded; nil: something was.
func (r *Recorder) verdict(all []*Process) error {
	if slices.ContainsFunc(all, func(p *Process) bool { return p.done.final.Events > 0 }) {
		return nil
	}
	switch {
	case !r.options.Many() && (all[0].End() == Exited || all[0].End() == Execed):
		return &Outcome{ErrEndedEarly, "the target ended before any allocation"}
	case r.interrupted():
		return &Outcome{ErrInterrupted, "interrupted before any allocation"}
	case r.options.Many() && r.source.Ended():
		return &Outcome{ErrEndedEarly, "all processes ended before any allocation"}
	}
	return nil
}

// Err returns why nothing was recorded, as one of the errors of this package, or nil.
func (r *Results) Err() error { return r.outcome }

// Processes returns the processes that used GPU memory, by rank, then in the order in which they were found. There is at least one.
func (r *Results) Processes() []*Process { return ordered(r.all) }

// Found returns the same processes in the order in which they were found.
func (r *Results) Found() []*Process { return slices.Clone(r.all) }

// Answer returns the answer for the process from what is known at its end. It must be called after Run.
func (p *Process) Answer() *answer.Answer {
	if p.done.answer == nil {
		f := p.done.final
		v := f.View
		p.done.answer = answer.New(&answer.Input{
			View: v, Now: v, Start: v.Snapshot.First, End: v.Snapshot.Time, Duration: f.Ended.Sub(f.Began), Events: v.Snapshot.Events,
			Leaks: p.Leaks(), Free: trailer.FreeOf(trailer.Driver(f.End)), Paused: f.End.Paused, NoHolders: f.End.NoHolders,
			Garbage: f.End.Garbage,
		})
	}
	return p.done.answer
}

// Totals returns the totals of the live set. It must be called from the goroutine of Run, or after Run.
func (p *Process) Totals() heap.Totals { return p.heap.Totals() }
