// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gputrace/gputrace/analysis/answer"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
)

// Moment is a process at one moment of a running recording: its live set and conclusions. The goroutine of Run only copies
// what they are made of, so that however long View and Answer take, no event waits for them. A Moment belongs to one goroutine.
type Moment struct {
	Process *Process
	// Time is the moment, and Began when the recording of the process began.
	Time, Began time.Time
	Lost        uint64        // number of the process's events that were lost
	Leaks       *leaks.Report // the last leak report; nil: none yet, or steps are turned off
	Judged      time.Time     // when Leaks was made
	Found       *Found        // what the attach found
	Cost        *figures.Cost // what tracing has cost; nil: not measured

	snapshot  *heap.Snapshot
	stacks    map[event.StackID]*event.Stack
	library   []string
	paused    string
	rooms     *rooms
	garbage   *figures.Garbage
	noHolders string
	view      *view.View // nil: not made yet
}

// Moment returns a process as it is now. It may be called from any goroutine, as State.
func (r *Recorder) Moment(ctx context.Context, p *Process) (*Moment, error) {
	all, err := r.Moments(ctx, []*Process{p})
	if err == nil && len(all) == 0 {
		return nil, fmt.Errorf("pid %d: %w", p.PID(), ErrOver)
	}
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// together is the number of processes of which Moments makes copies before events are read again.
const together = 16

// Moments returns several processes as they are now, without those that have ended. It may be called from any goroutine, as State.
func (r *Recorder) Moments(ctx context.Context, all []*Process) ([]*Moment, error) {
	var out []*Moment
	for part := range slices.Chunk(all, together) {
		err := r.do(ctx, func() {
			for _, p := range part {
				if r.now[p.PID()] == p && p.done == nil {
					out = append(out, p.moment())
				}
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// moment copies everything that a Moment needs. It runs in the goroutine that owns the heap.
func (p *Process) moment() *Moment {
	m := &Moment{
		Process: p, Time: time.Now(), Began: p.start, Lost: p.target.Lost(), Leaks: p.Leaks(), Found: p.target.Found(), Cost: p.cost(),
		snapshot: p.heap.Snapshot(), library: p.torchFolders(), paused: p.target.Paused(), garbage: p.scans.garbage.Figures(),
		noHolders: p.scans.noPython(),
	}
	if p.growth != nil {
		m.rooms, m.Judged = p.growth.rooms, p.growth.reported
	}
	m.stacks = make(map[event.StackID]*event.Stack, len(m.snapshot.Sites))
	for i := range m.snapshot.Sites {
		id := m.snapshot.Sites[i].Stack
		m.stacks[id] = p.joiner.Stack(id)
	}
	return m
}

// Totals returns the totals of the moment.
func (m *Moment) Totals() *heap.Totals { return &m.snapshot.Totals }

// View returns the live set of the moment. It has no lines of source.
func (m *Moment) View() *view.View {
	if m.view == nil {
		resolve := func(id event.StackID) *event.Stack { return m.stacks[id] }
		m.view = view.New(m.snapshot, resolve, &view.Options{Library: m.library, Phases: &m.Process.outside})
	}
	return m.view
}

// Answer returns the conclusions of the moment, by the same rules as at the end of a recording.
func (m *Moment) Answer() *answer.Answer {
	v := m.View()
	in := &answer.Input{
		View: v, Now: v, Start: v.Snapshot.First, End: v.Snapshot.Time, Duration: m.Time.Sub(m.Began), Events: v.Snapshot.Events,
		Leaks: m.Leaks, Paused: m.paused, NoHolders: m.noHolders, Garbage: m.garbage,
	}
	if m.rooms != nil {
		in.Free = m.rooms.free
	}
	return answer.New(in)
}
