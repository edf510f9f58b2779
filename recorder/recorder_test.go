// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"context"
	"errors"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/recorder/reconcile"
	"github.com/gputrace/gputrace/recording"
)

// second is a time in events' clocks.
const second = uint64(time.Second)

// TestOne: a process that is alone has a recording whose replay is its live set.
func TestOne(t *testing.T) {
	target := &madeTarget{pid: 7, about: process.About{Name: "python", Cmdline: []string{"python", "train.py"}}}
	s := &madeSource{start: []Target{target}, batches: []madeBatch{
		{events: []event.Event{alloc(7, second, 0x1000, 512, 512), alloc(7, 2*second, 0x2000, 1024, 1536)}},
		{events: []event.Event{free(7, 3*second, 0x1000, 512, 1024)}},
	}}
	r, n, o := newMade(t, s, nil)
	results, err := r.Run(t.Context())
	require.NoError(t, err)
	require.NoError(t, results.Err())
	require.Equal(t, []int{7}, n.attached)
	require.Equal(t, []int{7}, n.ended)
	require.Equal(t, 1, n.ready)
	require.Empty(t, n.warnings)
	p := results.Processes()[0]
	require.EqualValues(t, 1024, p.Final().View.Total())
	require.EqualValues(t, 3, p.Final().Events)

	file, err := recording.Open(fileOf(p))
	require.NoError(t, err)
	defer file.Close()
	require.NoError(t, heap.New().Replay(file))
	require.Nil(t, file.End().Lost, "what was lost is in the hits, which are its own")
	require.NoError(t, r.Close())
	require.True(t, s.closed)
	require.True(t, o.Keeper.(*madeKeeper).closed)
}

// TestJob: each process has its own events and place, by rank; one that used no memory is left out.
func TestJob(t *testing.T) {
	rank := func(pid int, n string) *madeTarget {
		return &madeTarget{pid: pid, about: process.About{Name: "python", Environ: []string{"RANK=" + n, "WORLD_SIZE=2"}}}
	}
	late := rank(9, "0")
	s := &madeSource{start: []Target{&madeTarget{pid: 6, about: process.About{Name: "torchrun"}}, rank(8, "1")}, batches: []madeBatch{
		{events: []event.Event{alloc(8, second, 0x1000, 512, 512)}},
		{arrive: []Target{late}, events: []event.Event{alloc(9, 2*second, 0x1000, 2048, 2048)}},
		{events: []event.Event{alloc(8, 3*second, 0x3000, 512, 1024)}, then: func() { late.end, late.ended = Exited, true }},
		{events: []event.Event{alloc(8, 4*second, 0x4000, 512, 1536)}},
	}}
	r, n, o := newMade(t, s, func(o *Options) { o.PIDs = []int{6, 8}; o.Children = true })
	results, err := r.Run(t.Context())
	require.NoError(t, err)
	require.Equal(t, []int{6, 8, 9}, n.attached)
	require.Equal(t, []int{9, 6, 8}, n.ended, "one that ends is ended at once")
	require.Contains(t, n.notices, "unused: pid 6")
	all := results.Processes()
	require.Len(t, all, 2)
	require.Equal(t, "rank 0, pid 9", all[0].Who())
	require.Equal(t, "rank 1, pid 8", all[1].Who())
	require.Equal(t, []*Process{all[1], all[0]}, results.Found())
	require.EqualValues(t, 4, results.Received)
	require.Equal(t, []int{6}, o.Keeper.(*madeKeeper).dropped)
}

// TestNothing: how a recording without data ended is the error.
func TestNothing(t *testing.T) {
	for name, tt := range map[string]struct {
		source func(s *madeSource, target *madeTarget)
		many   bool
		cut    bool
		want   error
	}{
		"one ended":   {source: func(_ *madeSource, m *madeTarget) { m.end = Exited }, want: ErrEndedEarly},
		"one execed":  {source: func(_ *madeSource, m *madeTarget) { m.end = Execed }, want: ErrEndedEarly},
		"all ended":   {source: func(s *madeSource, _ *madeTarget) { s.ended = true }, many: true, want: ErrEndedEarly},
		"interrupted": {source: func(s *madeSource, _ *madeTarget) { s.hang = true }, cut: true, want: ErrInterrupted},
		"job cut":     {source: func(s *madeSource, _ *madeTarget) { s.hang = true }, many: true, cut: true, want: ErrInterrupted},
		"time over":   {source: func(*madeSource, *madeTarget) {}},
	} {
		t.Run(name, func(t *testing.T) {
			target := &madeTarget{pid: 7}
			s := &madeSource{start: []Target{target}}
			tt.source(s, target)
			r, n, _ := newMade(t, s, func(o *Options) { o.Children, o.NoHolders = tt.many, true })
			if tt.cut {
				n.onReady = func() { r.Interrupt(os.Interrupt) }
			}
			results, err := r.Run(t.Context())
			require.NoError(t, err)
			if tt.want == nil {
				require.NoError(t, results.Err())
			} else {
				require.ErrorIs(t, results.Err(), tt.want)
			}
			require.NotNil(t, results.Processes()[0].Final())
		})
	}
}

// TestHitsUnread: where the counters of the probes cannot be read, that is said, and the rest is recorded.
func TestHitsUnread(t *testing.T) {
	unread := errors.New("no counters")
	s := &madeSource{start: []Target{&madeTarget{pid: 7}}, batches: []madeBatch{{events: []event.Event{alloc(7, second, 0x1000, 512, 512)}}},
		noHits: unread}
	r, n, _ := newMade(t, s, nil)
	results, err := r.Run(t.Context())
	require.NoError(t, err)
	require.NoError(t, results.Err())
	require.Len(t, n.warnings, 2, "of the process, and of all")
	for _, w := range n.warnings {
		require.ErrorContains(t, errors.New(w), "no counters")
	}
}

// TestNobodyCame: without a process there are no results.
func TestNobodyCame(t *testing.T) {
	r, _, _ := newMade(t, &madeSource{}, func(o *Options) { o.All = true })
	_, err := r.Run(t.Context())
	require.ErrorIs(t, err, ErrEndedEarly)
}

// TestStartInterrupted: waiting for a process ends with the first signal.
func TestStartInterrupted(t *testing.T) {
	waiting := make(chan struct{})
	s := &madeSource{startBy: func(ctx context.Context) error {
		close(waiting)
		<-ctx.Done()
		return &Outcome{ErrInterrupted, "interrupted before there was anything to trace"}
	}}
	r, _, _ := newMade(t, s, nil)
	go func() {
		<-waiting
		r.Interrupt(os.Interrupt)
	}()
	_, err := r.Run(t.Context())
	require.ErrorIs(t, err, ErrInterrupted)
}

// TestReadyFails: a script that cannot be notified is an error, of one process as of many.
func TestReadyFails(t *testing.T) {
	for _, many := range []bool{false, true} {
		broken := errors.New("read-only")
		s := &madeSource{start: []Target{&madeTarget{pid: 7}}, hang: true}
		r, n, _ := newMade(t, s, func(o *Options) { o.Children = many })
		n.readyErr = broken
		_, err := r.Run(t.Context())
		require.ErrorIs(t, err, broken)
	}
}

// hanging is a reading that ends with its context only.
func hanging[T any](begun chan<- struct{}) func(ctx context.Context) (T, error) {
	return func(ctx context.Context) (T, error) {
		begun <- struct{}{}
		<-ctx.Done()
		var zero T
		return zero, ctx.Err()
	}
}

// TestSecondInterrupt: the first signal waits for the last comparison and scan, the second cancels them.
func TestSecondInterrupt(t *testing.T) {
	begun := make(chan struct{}, 10)
	target := &madeTarget{pid: 7, state: hanging[*reconcile.State](begun), scan: hanging[*Scan](begun)}
	s := &madeSource{start: []Target{target}, hang: true}
	s.batches = []madeBatch{{events: []event.Event{alloc(7, second, 0x1000, 512, 512)}}}
	r, n, _ := newMade(t, s, nil)
	go func() {
		<-begun // the first comparison
		r.Interrupt(os.Interrupt)
		<-begun // the last scan
		r.Interrupt(os.Interrupt)
	}()
	start := time.Now()
	results, err := r.Run(t.Context())
	require.NoError(t, err)
	require.Less(t, time.Since(start), lastCheck, "nothing was waited for")
	require.NoError(t, results.Err())
	require.True(t, s.finished)
	require.Empty(t, n.warnings, "who cancels a scan knows that")
}

// TestEndSaysWhatItWaitsFor: where the holders are still being read, the end says so, and the signal that it names cancels that.
func TestEndSaysWhatItWaitsFor(t *testing.T) {
	begun := make(chan struct{}, 10)
	target := &madeTarget{pid: 7, scan: hanging[*Scan](begun)}
	s := &madeSource{start: []Target{target}, hang: true}
	s.batches = []madeBatch{{events: []event.Event{alloc(7, second, 0x1000, 512, 512)}}}
	r, n, _ := newMade(t, s, func(o *Options) { o.Duration = 20 * time.Millisecond })
	const text = "ending: 0.0 s true"
	said := func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return slices.Contains(n.notices, text)
	}
	go func() {
		<-begun
		for !said() {
			time.Sleep(time.Millisecond)
		}
		r.Interrupt(os.Interrupt)
	}()
	start := time.Now()
	results, err := r.Run(t.Context())
	require.NoError(t, err)
	require.NoError(t, results.Err())
	require.Less(t, time.Since(start), scanTimeout)
	require.Equal(t, 1, len(slices.DeleteFunc(slices.Clone(n.notices), func(s string) bool { return s != text })), "once")
}

// TestContextEnds: the end of the context ends it at once, with what was captured.
func TestContextEnds(t *testing.T) {
	begun := make(chan struct{}, 10)
	target := &madeTarget{pid: 7, state: hanging[*reconcile.State](begun)}
	s := &madeSource{start: []Target{target}, hang: true, batches: []madeBatch{{events: []event.Event{alloc(7, second, 0x1000, 512, 512)}}}}
	r, _, _ := newMade(t, s, nil)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-begun
		cancel()
	}()
	results, err := r.Run(ctx)
	require.NoError(t, err)
	require.NoError(t, results.Err())
	_, err = r.State(t.Context())
	require.ErrorIs(t, err, ErrOver)
}

// TestDuration ends it in time.
func TestDuration(t *testing.T) {
	s := &madeSource{start: []Target{&madeTarget{pid: 7}}, hang: true}
	r, _, _ := newMade(t, s, func(o *Options) { o.Duration = 20 * time.Millisecond })
	results, err := r.Run(t.Context())
	require.NoError(t, err)
	require.NoError(t, results.Err(), "that was what was asked for")
}

// TestProgramGetsSignals: the first signal is the program's alone, the next end the recording too.
func TestProgramGetsSignals(t *testing.T) {
	s := &madeSource{start: []Target{&madeTarget{pid: 7}}, hang: true, program: true, code: 3}
	r, n, _ := newMade(t, s, func(o *Options) { o.PIDs, o.Command = nil, []string{"train"} })
	n.onReady = func() {
		r.Interrupt(os.Interrupt)
		require.False(t, r.interrupted())
		r.Interrupt(syscall.SIGTERM)
		require.True(t, r.interrupted())
	}
	_, err := r.Run(t.Context())
	require.NoError(t, err)
	require.Equal(t, []os.Signal{os.Interrupt, syscall.SIGTERM}, s.passed)
	code, started := r.Wait()
	require.Equal(t, 3, code)
	require.True(t, started)
}

// TestLossOfOneProcess: what a process lost is noted in its live set and recording, with the time in which it was lost.
func TestLossOfOneProcess(t *testing.T) {
	x, y := &madeTarget{pid: 7}, &madeTarget{pid: 8}
	s := &madeSource{start: []Target{x, y}, batches: []madeBatch{
		{events: []event.Event{alloc(7, second, 0x1000, 512, 512), alloc(8, second, 0x1000, 512, 512)}},
		{lost: 5, then: func() { x.lost = 5 }},
		{events: []event.Event{alloc(7, 3*second, 0x2000, 512, 1024)}},
	}}
	r, _, _ := newMade(t, s, func(o *Options) { o.PIDs = []int{7, 8} })
	results, err := r.Run(t.Context())
	require.NoError(t, err)
	for _, p := range results.Processes() {
		require.Equal(t, p.PID() == 7, p.heap.Totals().LossIntervalCount > 0, "%d", p.PID())
	}
}

// TestTotalsOfIdleDevices: what was allocated on devices that nothing happened on is in the summary.
func TestTotalsOfIdleDevices(t *testing.T) {
	target := &madeTarget{pid: 7, before: []Totals{{Device: 0, Allocated: 512, Reserved: 1 << 20},
		{Device: 1, Allocated: 4096, Reserved: 1 << 21}}}
	s := &madeSource{start: []Target{target}, batches: []madeBatch{{events: []event.Event{alloc(7, second, 0x1000, 512, 1024)}}}}
	r, _, _ := newMade(t, s, nil)
	results, err := r.Run(t.Context())
	require.NoError(t, err)
	p := results.Processes()[0]
	accounts := p.heap.Totals().Accounts
	require.Len(t, accounts, 2)
	require.EqualValues(t, 4096, accounts[1].Allocated)
	before, err := p.Before(accounts)
	require.NoError(t, err)
	require.EqualValues(t, 512, before[0].Allocated)
}
