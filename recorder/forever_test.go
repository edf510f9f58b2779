// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/process"
)

// ender is an Observer that asks for something of each process that ends, and remembers when there is nothing left of it.
type ender struct {
	noted
	bytes     []uint64
	labels    []map[string]string
	collected chan struct{}
}

func (e *ender) Ended(p *Process) {
	e.bytes, e.labels = append(e.bytes, p.View().Total()), append(e.labels, p.Labels())
	runtime.AddCleanup(p, func(done chan struct{}) { done <- struct{}{} }, e.collected)
}

// comeAndGo is a source with a number of processes, each of which allocates once and ends before the next one begins.
func comeAndGo(processes int) *madeSource {
	s := &madeSource{hang: true}
	for i := range processes {
		t := &madeTarget{pid: 100 + i}
		t.about.Environ = []string{"RANK=3"}
		at := uint64(i+1) * 1e6
		s.batches = append(s.batches,
			madeBatch{arrive: []Target{t}, events: []event.Event{alloc(t.pid, at, 0x1000, 512, 512)}},
			madeBatch{then: func() { t.end = Exited }})
	}
	return s
}

// TestForever: a thousand processes come and go. Each is handed out once, with its live set and labels; none stays in memory,
// and the recorder ends when it is interrupted, not when none is left.
func TestForever(t *testing.T) {
	const processes = 1000
	s, e := comeAndGo(processes), &ender{collected: make(chan struct{}, processes)}
	r, _, _ := newMade(t, s, func(o *Options) {
		o.PIDs, o.All, o.Keeper, o.Forever, o.Observer, o.NoHolders = nil, true, nil, true, e, true
		o.Labels = func(pid int, about *process.About) map[string]string {
			return map[string]string{"env": about.Environ[0]}
		}
	})
	done := make(chan error, 1)
	go func() {
		results, err := r.Run(t.Context())
		if results != nil {
			t.Error("there are results")
		}
		done <- err
	}()
	require.Eventually(t, func() bool { return s.more(nil) == 0 }, 20*time.Second, time.Millisecond)
	state, err := r.State(t.Context())
	require.NoError(t, err)
	require.Empty(t, state.Processes)
	require.Eventually(t, func() bool {
		runtime.GC()
		return len(e.collected) >= processes-1 // the goroutine of Run may still refer to the last one
	}, 20*time.Second, 10*time.Millisecond, "a process that has ended is still in memory")
	r.Interrupt(nil)
	require.NoError(t, <-done)
	require.Len(t, e.bytes, processes)
	for i := range e.bytes {
		require.EqualValues(t, 512, e.bytes[i])
		require.Equal(t, map[string]string{"env": "RANK=3"}, e.labels[i])
	}
}

// TestForeverWritesNothing: a folder would grow without end.
func TestForeverWritesNothing(t *testing.T) {
	r, _, _ := newMade(t, &madeSource{}, func(o *Options) { o.Forever = true })
	_, err := r.Run(t.Context())
	require.ErrorContains(t, err, "writes no folder")
}

// TestMoment: another goroutine makes a view and an answer of a moment, which do not change while the recording continues.
func TestMoment(t *testing.T) {
	target := &madeTarget{pid: 7}
	s := &madeSource{start: []Target{target}, hang: true, batches: []madeBatch{{events: []event.Event{alloc(7, second, 0x1000, 512, 512)}}}}
	e := &noted{}
	ready := make(chan struct{})
	e.onReady = func() { close(ready) }
	r, _, _ := newMade(t, s, func(o *Options) { o.Keeper, o.Forever, o.Observer = nil, true, e })
	go func() { _, _ = r.Run(t.Context()) }()
	<-ready
	state, err := r.State(t.Context())
	require.NoError(t, err)
	p := state.Processes[0].Process
	m, err := r.Moment(t.Context(), p)
	require.NoError(t, err)
	s.more([]madeBatch{{events: []event.Event{alloc(7, 2*second, 0x2000, 1024, 1536)}}})
	require.Eventually(t, func() bool {
		later, err := r.Moment(t.Context(), p)
		return err == nil && later.View().Total() == 1536
	}, 10*time.Second, time.Millisecond)
	require.EqualValues(t, 512, m.View().Total())
	require.EqualValues(t, 512, m.Totals().Accounts[0].Allocated)
	require.Equal(t, "train.py:1", m.View().ByPython(1).Rows[0].Name)
	require.EqualValues(t, 512, m.Answer().Now)
	p.SetLabels(map[string]string{"pod": "a"})
	require.Equal(t, "a", p.Labels()["pod"])
	s.more([]madeBatch{{then: func() { target.end = Exited }}})
	require.Eventually(t, func() bool {
		_, err := r.Moment(t.Context(), p)
		return err != nil
	}, 10*time.Second, time.Millisecond)
	r.Interrupt(nil)
}
