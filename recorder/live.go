// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
)

// State is a snapshot of a running recording.
type State struct {
	Time      time.Time
	Clock     uint64         // the same moment on the clock of the events, CLOCK_BOOTTIME nanoseconds
	Processes []ProcessState // processes that have not ended, by rank, then in the order in which they were found
	Lost      uint64         // lost events of all processes
	Over      bool           // the recordings are over, and the figures no longer change: holders may still be read
}

// ProcessState is one process of a State.
type ProcessState struct {
	Process *Process
	Totals  heap.Totals
	Lost    uint64  // number of the process's events that were lost
	Rate    float64 // blocks allocated per second, recently
	Curve   []Sample
	Paused  string        // as Target.Paused, set for a process that allocated nothing recently
	Cost    *figures.Cost // what tracing has cost; nil: not measured
	Leaks   *leaks.Report // the last leak report; nil: none yet, or steps are turned off
}

// Sample is a process's memory at a moment.
type Sample struct {
	Time      time.Time
	Allocated uint64 // bytes on all devices, as far as known
	Reserved  uint64 // bytes on all devices, as far as known
	Allocs    uint64 // number since the attach
}

// maxCurve is the number of samples that are kept: ten minutes.
const maxCurve = 600

// sampleEvery is the interval at which a sample is taken and the state is shown.
const sampleEvery = time.Second

// samples are the last samples of a process, a second apart.
type samples struct {
	curve []Sample
	rate  float64
}

// take adds a sample.
func (s *samples) take(now time.Time, h *recordedHeap) {
	totals := h.Totals()
	n := Sample{Time: now, Allocated: h.allocated()}
	for i := range totals.Accounts {
		n.Reserved += totals.Accounts[i].Reserved
		n.Allocs += totals.Accounts[i].Allocs
	}
	if len(s.curve) > 0 {
		last := &s.curve[len(s.curve)-1]
		s.rate = float64(n.Allocs-last.Allocs) / now.Sub(last.Time).Seconds()
	}
	if len(s.curve) == maxCurve {
		s.curve = append(s.curve[:0], s.curve[1:]...)
	}
	s.curve = append(s.curve, n)
}

// Totals returns the totals of all processes, as if they were one.
func (s *State) Totals() heap.Totals {
	var out heap.Totals
	for i := range s.Processes {
		t := &s.Processes[i].Totals
		out.Accounts = append(out.Accounts, t.Accounts...)
		out.Drivers = append(out.Drivers, t.Drivers...)
	}
	return out
}

// Torch reports whether a process is known to have PyTorch's allocator.
func (s *State) Torch() bool {
	return slices.ContainsFunc(s.Processes, func(p ProcessState) bool {
		f := p.Process.Found()
		return f.PyTorch != "" || f.HooksTorch()
	})
}

// Rate returns the sum over all processes.
func (s *State) Rate() float64 {
	sum := 0.0
	for i := range s.Processes {
		sum += s.Processes[i].Rate
	}
	return sum
}

// show takes a sample of each process and shows the state, once a second.
func (r *Recorder) show() {
	now := time.Now()
	if now.Sub(r.shown) < sampleEvery || len(r.now) == 0 {
		return
	}
	r.shown = now
	for _, p := range r.now {
		p.samples.take(now, p.heap)
	}
	if !r.options.Forever { // its user asks for the state when it is wanted
		r.observer.Live(r.state())
	}
}

func (r *Recorder) state() *State {
	out := &State{Time: time.Now(), Clock: r.source.Now(), Lost: r.source.Lost(), Over: r.over}
	for _, p := range ordered(r.all) {
		if p.done == nil {
			state := ProcessState{
				Process: p, Totals: p.heap.Totals(), Lost: p.target.Lost(), Rate: p.samples.rate, Curve: append([]Sample(nil), p.samples.curve...),
				Leaks: p.Leaks(), Cost: p.cost(),
			}
			if state.Rate == 0 {
				state.Paused = p.target.Paused()
			}
			out.Processes = append(out.Processes, state)
		}
	}
	return out
}

// serve runs the requests of other goroutines.
func (r *Recorder) serve() {
	for {
		select {
		case f := <-r.requests:
			f()
		default:
			return
		}
	}
}

// do calls f in the goroutine of Run. The error is ErrOver or the context's.
func (r *Recorder) do(ctx context.Context, f func()) error {
	done := make(chan struct{})
	request := func() {
		defer close(done)
		f()
	}
	select {
	case r.requests <- request:
		<-done
		return nil
	case <-r.running:
		return ErrOver
	case <-ctx.Done():
		return ctx.Err()
	}
}

// State returns the current state. State, View and Holders may be called from any goroutine while Run runs. They wait
// until the current events are applied, at most about 40 ms while the source is quiet.
func (r *Recorder) State(ctx context.Context) (*State, error) {
	var out *State
	err := r.do(ctx, func() { out = r.state() })
	return out, err
}

// Hits returns the outcomes of the runs of every probe, for all processes.
func (r *Recorder) Hits(ctx context.Context) (out []figures.Hits, err error) {
	done := r.do(ctx, func() { out, err = r.source.Hits() })
	return out, cmp.Or(done, err)
}

// View returns a copy of the live set of a process.
func (r *Recorder) View(ctx context.Context, pid int) (*view.View, error) {
	var out *view.View
	err := r.do(ctx, func() {
		if p := r.now[pid]; p != nil {
			out = p.View()
		}
	})
	if err == nil && out == nil {
		err = fmt.Errorf("pid %d: %w", pid, ErrOver)
	}
	return out, err
}

// Holders scans a process for the holders of its live blocks, which takes about a second, and returns the live set with
// them. With Options.NoHolders the error is ErrOver.
func (r *Recorder) Holders(ctx context.Context, pid int) (*view.Joined, error) {
	answers := make(chan holdersAnswer, 1)
	err := r.do(ctx, func() {
		if p := r.now[pid]; p != nil {
			p.scans.request(answers)
		} else {
			answers <- holdersAnswer{err: fmt.Errorf("pid %d: %w", pid, ErrOver)}
		}
	})
	if err != nil {
		return nil, err
	}
	select {
	case a := <-answers:
		return a.joined, a.err
	case <-r.running:
		return nil, ErrOver
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
