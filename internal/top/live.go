// SPDX-License-Identifier: Apache-2.0

package top

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

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
	next     time.Time
	ages     ages
	peaks    map[int]*Peak

	driverRead time.Time
	driver     map[int][]figures.DriverUse

	mu      sync.Mutex
	reading bool
	joined  map[int]*view.Joined
	held    *HeldAt
}

// NewLive is a feed of a recorder whose Run is called elsewhere.
func NewLive(r *recorder.Recorder) *Live {
	return &Live{recorder: r, driver: map[int][]figures.DriverUse{}, joined: map[int]*view.Joined{}, peaks: map[int]*Peak{}}
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
		l.began = state.Time
	}
	s := &Screen{Time: state.Time, Elapsed: state.Time.Sub(l.began).Seconds(), Rate: state.Rate(), Lost: state.Lost}
	l.readDriver(ctx, state)
	var parts []Part
	l.mu.Lock()
	joined, held := l.joined, l.held
	l.mu.Unlock()
	for i := range state.Processes {
		p := &state.Processes[i]
		v, err := l.recorder.View(ctx, p.Process.PID())
		if err != nil {
			continue // it has just ended
		}
		pid := p.Process.PID()
		if l.peaks[pid] == nil {
			l.peaks[pid] = &Peak{}
		}
		parts = append(parts, Part{
			Peak:    l.peaks[pid],
			Process: Process{PID: p.Process.PID(), Name: p.Process.Script()}, View: v, Totals: &v.Snapshot.Totals, Leaks: p.Leaks,
			Joined: joined[p.Process.PID()], Driver: l.driver[p.Process.PID()],
		})
	}
	s.Held = held
	s.Add(parts)
	l.ages.add(s)
	return s
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
