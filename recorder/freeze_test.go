// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"context"
	"iter"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// TestRecordingEndsAtOneMoment: what happens while holders are read is not in the results, and what was freed meanwhile has no holder.
func TestRecordingEndsAtOneMoment(t *testing.T) {
	begun, reading, goOn := make(chan struct{}), make(chan struct{}, 1), make(chan struct{})
	var joined map[uint64]uint64 // times of blocks, by address
	target := &madeTarget{pid: 7}
	target.scan = func(ctx context.Context) (*Scan, error) {
		reading <- struct{}{}
		select {
		case <-goOn:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		return &Scan{Join: func(_ *view.View, blocks iter.Seq[heap.Block]) *view.Joined {
			joined = map[uint64]uint64{}
			for b := range blocks {
				joined[b.Addr] = b.Time
			}
			return &view.Joined{}
		}}, nil
	}
	s := &madeSource{start: []Target{target}, hang: true, clock: 10 * second}
	s.batches = []madeBatch{{events: []event.Event{alloc(7, second, 0x1000, 512, 512), alloc(7, 2*second, 0x2000, 512, 1024)},
		then: func() { close(begun) }}}
	r, _, _ := newMade(t, s, nil)
	go func() {
		<-begun // an interrupt during the attach records nothing
		r.Interrupt(os.Interrupt)
		<-reading
		time.Sleep(2 * finalCheck)
		late := func(e event.Event) event.Event { e.Time += 1000 * second; return e }
		free := alloc(7, 3*second, 0x2000, 512, 512)
		free.Kind = event.KindFree
		s.mu.Lock()
		s.batches = append(s.batches, madeBatch{events: []event.Event{late(free), late(alloc(7, 4*second, 0x2000, 512, 1024))}, then: func() {
			target.lost, s.lost = 3, 3
			close(goOn)
		}})
		s.mu.Unlock()
	}()
	results, err := r.Run(t.Context())
	require.NoError(t, err)
	p := results.Processes()[0]
	require.EqualValues(t, 2, p.Final().Events)
	require.EqualValues(t, 2, p.frozen.after)
	require.EqualValues(t, 3, p.frozen.lost)
	require.Zero(t, p.Final().View.Snapshot.LossIntervalCount, "of the recording nothing is missing")
	require.EqualValues(t, 1024, p.Final().View.Snapshot.Accounts[0].Allocated)
	require.Less(t, p.end.Sub(p.start), 2*time.Second)
	require.Len(t, joined, 2)
	require.EqualValues(t, second, joined[0x1000])
	require.Greater(t, joined[0x2000], uint64(1000*second), "another block can have its place")
}

// TestInterruptedAttach: an attach that does not listen is left to itself, and nothing is recorded.
func TestInterruptedAttach(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	for name, startBy := range map[string]func(context.Context) error{
		"that does not listen": func(context.Context) error { <-release; return nil },
		"that ends":            func(ctx context.Context) error { <-ctx.Done(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			s := &madeSource{start: []Target{&madeTarget{pid: 7}}, startBy: startBy}
			r, _, _ := newMade(t, s, nil)
			start := time.Now()
			go r.Interrupt(os.Interrupt)
			_, err := r.Run(t.Context())
			require.ErrorIs(t, err, ErrInterrupted)
			require.Less(t, time.Since(start), 100*time.Millisecond+attachTimeout)
		})
	}
}

// TestFrozenInBatch: of a batch in which the end lies, what comes before it is of the recording, and nothing of later ones.
func TestFrozenInBatch(t *testing.T) {
	p := &Process{heap: newRecordedHeap(nil)}
	p.frozen.until, p.frozen.gone = 100, map[goneKey]bool{}
	at := func(times ...uint64) (out []event.Event) {
		for _, time := range times {
			out = append(out, event.Event{Time: time})
		}
		return out
	}
	require.Equal(t, 1, p.recorded(at(50)))
	require.Equal(t, 2, p.recorded(at(60, 100, 101)))
	require.Zero(t, p.recorded(at(70)))
	require.EqualValues(t, 2, p.frozen.after)
}
