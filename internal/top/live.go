// SPDX-License-Identifier: Apache-2.0

package top

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/recorder"
)

// every is how often a screen is made.
const every = time.Second

// driverEvery is how often the driver is asked what the processes use.
const driverEvery = 5 * time.Second

// Live makes screens of a recording in progress.
type Live struct {
	recorder *recorder.Recorder
	began    time.Time
	zero     uint64 // the same on the clock of the events
	next     time.Time
	ages     ages
	peaks    map[int]*Peak
	spans    map[int]*phases.Spans
	noted    []recorder.Noted // used again and again

	driverRead time.Time
	driver     map[int][]figures.DriverUse

	mu      sync.Mutex
	reading bool
	joined  map[int]*view.Joined
	held    *HeldAt
}

// NewLive is a feed of a recorder whose Run is called elsewhere.
func NewLive(r *recorder.Recorder) *Live {
	return &Live{recorder: r, driver: map[int][]figures.DriverUse{}, joined: map[int]*view.Joined{}, peaks: map[int]*Peak{},
		spans: map[int]*phases.Spans{}}
}

// Next implements Feed.
func (l *Live) Next(ctx context.Context) (*Screen, error) {
	for {
		if err := sleepUntil(ctx, l.next); err != nil {
			return nil, err
		}
		l.next = time.Now().Add(every)
		state, err := l.recorder.State(ctx)
		if errors.Is(err, recorder.ErrOver) {
			return nil, io.EOF
		}
		if err != nil {
			return nil, err
		}
		if len(state.Processes) > 0 {
			return l.screen(ctx, state), nil
		}
	}
}

func sleepUntil(ctx context.Context, t time.Time) error {
	timer := time.NewTimer(time.Until(t))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *Live) screen(ctx context.Context, state *recorder.State) *Screen {
	if l.began.IsZero() {
		l.began, l.zero = state.Time, state.Clock
	}
	s := &Screen{Time: state.Time, Elapsed: state.Time.Sub(l.began).Seconds(), Rate: state.Rate(), Lost: state.Lost}
	l.readDriver(ctx, state)
	var parts []Part
	l.mu.Lock()
	joined, held := l.joined, l.held
	l.mu.Unlock()
	for i := range state.Processes {
		p := &state.Processes[i]
		pid := p.Process.PID()
		v, spans, err := l.read(ctx, pid)
		if err != nil {
			continue // it has just ended
		}
		if l.peaks[pid] == nil {
			l.peaks[pid] = &Peak{}
		}
		parts = append(parts, Part{
			Peak:    l.peaks[pid],
			Process: Process{PID: pid, Name: p.Process.Script(), Paused: p.Paused}, View: v, Totals: &v.Snapshot.Totals, Leaks: p.Leaks,
			Joined: joined[pid], Driver: l.driver[pid], Phases: spans,
		})
	}
	s.Held = held
	s.Add(parts)
	l.ages.add(s)
	return s
}

// read is the view of a process, and what is new of its phases.
func (l *Live) read(ctx context.Context, pid int) (*view.View, []PhaseSpan, error) {
	var err error
	if l.noted, err = l.recorder.Allocations(ctx, pid, l.noted[:0]); err != nil {
		return nil, nil, err
	}
	v, err := l.recorder.View(ctx, pid)
	if err != nil {
		return nil, nil, err
	}
	if l.spans[pid] == nil {
		l.spans[pid] = &phases.Spans{}
	}
	for _, n := range l.noted {
		l.spans[pid].See(n.Time, n.TID, v.PhaseOf(n.Stack))
	}
	return v, takePhases(l.spans[pid], l.zero), nil
}

// readDriver asks the driver what the processes use, now and then.
func (l *Live) readDriver(ctx context.Context, state *recorder.State) {
	if state.Time.Sub(l.driverRead) < driverEvery {
		return
	}
	l.driverRead = state.Time
	for i := range state.Processes {
		p := state.Processes[i].Process
		if m := p.Memory(ctx); m.DriverErr == nil {
			l.driver[p.PID()] = m.Driver
		}
	}
}

// ReadHolders implements Feed.
func (l *Live) ReadHolders() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reading {
		return
	}
	l.reading = true
	go func() {
		joined, held := l.scan(context.Background())
		l.mu.Lock()
		defer l.mu.Unlock()
		l.reading = false
		if held != nil {
			l.joined, l.held = joined, held
		}
	}()
}

// scan reads the holders of all processes. nil: of none.
func (l *Live) scan(ctx context.Context) (map[int]*view.Joined, *HeldAt) {
	state, err := l.recorder.State(ctx)
	if err != nil {
		return nil, nil
	}
	joined, held := map[int]*view.Joined{}, &HeldAt{}
	for i := range state.Processes {
		pid := state.Processes[i].Process.PID()
		if j, err := l.recorder.Holders(ctx, pid); err == nil {
			joined[pid] = j
			held.Bytes += j.Bytes
		}
	}
	if len(joined) == 0 {
		return nil, nil
	}
	held.Time = time.Now()
	return joined, held
}
