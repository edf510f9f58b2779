// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/recorder/reconcile"
)

// TestLive asks a recording in progress from other goroutines: live set, totals, curve, holders.
func TestLiveState(t *testing.T) {
	target := &madeTarget{pid: 7, scan: func(context.Context) (*Scan, error) { return madeScan(0), nil }}
	s := &madeSource{start: []Target{target}, hang: true, batches: []madeBatch{
		{events: []event.Event{alloc(7, second, 0x1000, 512, 512), alloc(7, 2*second, 0x2000, 1024, 1536)}},
	}}
	r, n, _ := newMade(t, s, nil)
	ready := make(chan struct{})
	n.onReady = func() { close(ready) }
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err := r.Run(t.Context())
		require.NoError(t, err)
	}()
	<-ready
	var askers sync.WaitGroup
	for range 4 {
		askers.Go(func() {
			state, err := r.State(t.Context())
			require.NoError(t, err)
			require.Len(t, state.Processes, 1)
			require.EqualValues(t, 1536, state.Totals().Accounts[0].Allocated)
			require.NotEmpty(t, state.Processes[0].Curve)
			v, err := r.View(t.Context(), 7)
			require.NoError(t, err)
			require.EqualValues(t, 1536, v.Total())
			require.Equal(t, "train.py:1", v.ByPython(1).Rows[0].Name)
			held, err := r.Holders(t.Context(), 7)
			require.NoError(t, err)
			require.EqualValues(t, 1536, held.Bytes)
		})
	}
	askers.Wait()
	_, err := r.View(t.Context(), 8)
	require.ErrorIs(t, err, ErrOver, "there is no such process")
	requireNoted(t, r, s)
	_, err = r.Holders(t.Context(), 8)
	require.ErrorIs(t, err, ErrOver)
	r.Look()
	require.Eventually(t, func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(n.shown) == 1
	}, 10*time.Second, time.Millisecond, "the user asked for the holders")
	r.Interrupt(nil)
	<-done
	_, err = r.State(t.Context())
	require.ErrorIs(t, err, ErrOver)
	_, err = r.Allocations(t.Context(), 7, nil)
	require.ErrorIs(t, err, ErrOver)
	_, err = r.Holders(t.Context(), 7)
	require.ErrorIs(t, err, ErrOver)
}

// requireNoted asks for the allocations of process 7, which makes one more.
func requireNoted(t *testing.T, r *Recorder, s *madeSource) {
	t.Helper()
	made, err := r.Allocations(t.Context(), 7, nil)
	require.NoError(t, err)
	require.Empty(t, made, "those of before are not noted")
	one := alloc(7, 3*second, 0x3000, 512, 2048)
	s.more([]madeBatch{{events: []event.Event{one}}})
	require.Eventually(t, func() bool {
		made, err = r.Allocations(t.Context(), 7, made)
		require.NoError(t, err)
		return len(made) > 0
	}, 10*time.Second, time.Millisecond)
	require.Equal(t, []Noted{{one.Time, one.Stack, one.TID}}, made)
	v, err := r.View(t.Context(), 7)
	require.NoError(t, err)
	require.NotEqual(t, phases.Unknown, v.PhaseOf(one.Stack))
	state, err := r.State(t.Context())
	require.NoError(t, err)
	require.GreaterOrEqual(t, state.Clock, one.Time)
	_, err = r.Allocations(t.Context(), 8, nil)
	require.ErrorIs(t, err, ErrOver, "there is no such process")
}

// TestLiveBefore: before Run, whoever asks waits no longer than asked.
func TestLiveBefore(t *testing.T) {
	r, _, _ := newMade(t, &madeSource{}, nil)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err := r.State(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// TestSamples: the rate is that of the last second, the curve has a bound.
func TestSamples(t *testing.T) {
	p := &Process{target: &madeTarget{pid: 7}}
	h := newRecordedHeap(nil)
	now := time.Now()
	p.samples.take(now, h)
	require.Zero(t, p.samples.rate)
	h.take([]event.Event{alloc(7, 1, 0x1000, 512, 512), alloc(7, 2, 0x2000, 512, 1024)})
	p.samples.take(now.Add(time.Second/2), h)
	require.EqualValues(t, 4, p.samples.rate)
	require.EqualValues(t, 1024, p.samples.curve[1].Allocated)
	for i := range 2 * maxCurve {
		p.samples.take(now.Add(time.Duration(i+1)*time.Second), h)
	}
	require.Len(t, p.samples.curve, maxCurve)
	require.Zero(t, p.samples.rate)
}

// TestScanRefused: whoever asks for holders gets an error when there are none to be had.
func TestScanRefused(t *testing.T) {
	s := &madeSource{start: []Target{&madeTarget{pid: 7}}, hang: true}
	r, n, _ := newMade(t, s, nil)
	errs := make(chan error, 1)
	n.onReady = func() {
		go func() {
			_, err := r.Holders(t.Context(), 7)
			errs <- err
			r.Interrupt(nil)
		}()
	}
	_, err := r.Run(t.Context())
	require.NoError(t, err)
	require.ErrorIs(t, <-errs, reconcile.ErrNoState)
}
