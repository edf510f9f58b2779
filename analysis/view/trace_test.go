// SPDX-License-Identifier: Apache-2.0

package view_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// applied is the live set after the first n events, without a trace.
func applied(s *eventtest.Stream, n int) *heap.Heap {
	h := heap.New()
	for i := range s.Events[:n] {
		e := s.Events[i]
		h.Apply(&e)
	}
	return h
}

// The view of any moment is what the events up to it come to.
func TestTraceAt(t *testing.T) {
	for seed := range uint64(10) {
		s := eventtest.Random(seed, 2000)
		trace, err := view.NewTrace(s, nil)
		require.NoError(t, err)
		require.NoError(t, trace.Damage)
		require.Equal(t, applied(s, len(s.Events)).Snapshot(), trace.End().Snapshot)
		require.Equal(t, s.Events[0].Time, trace.First())
		require.Equal(t, s.Events[len(s.Events)-1].Time, trace.Last())
		for _, n := range []int{1, 2, 777, 1999, 2000} {
			for _, later := range []uint64{0, s.Events[min(n, 1999)].Time - s.Events[n-1].Time} {
				v, err := trace.At(s.Events[n-1].Time + later - min(later, 1))
				require.NoError(t, err)
				require.Equal(t, applied(s, n).Snapshot(), v.Snapshot, "seed %d after %d events", seed, n)
			}
		}
		v, err := trace.At(s.Events[0].Time - 1)
		require.NoError(t, err)
		require.Zero(t, v.Total())
	}
}

// A visitor gets every event, and blocks that add up to what is live at the end.
func TestTraceReplay(t *testing.T) {
	s := eventtest.Random(3, 3000)
	trace, err := view.NewTrace(s, nil)
	require.NoError(t, err)
	events, done, segments, live := 0, 0, 0, map[heap.BlockKey]uint64{}
	require.NoError(t, trace.Replay(&view.Visitor{
		Event: func(e *event.Event, h *heap.Heap) {
			require.Equal(t, s.Events[events], *e)
			events++
			if e.Layer == event.LayerAllocator {
				a, ok := h.Account(e.PID, e.Device)
				require.True(t, ok)
				require.Equal(t, e.Allocated, a.Allocated)
			}
		},
		Allocated: func(b *heap.Block, e *event.Event) {
			require.Equal(t, e.Time, b.Time)
			live[b.Key()] = b.Size
		},
		Freed: func(b *heap.Block, e *event.Event, time uint64) {
			require.Equal(t, e.Time, time)
			require.Contains(t, live, b.Key())
			delete(live, b.Key())
		},
		Moved: func(from, to *heap.Block) {
			require.True(t, !from.Segment && to.Segment)
			require.Equal(t, from.Key(), to.Key())
			segments++
		},
		Done: func(h *heap.Heap) {
			done++
			n := 0
			for b := range h.Blocks() {
				require.Equal(t, b.Size, live[b.Key()])
				n++
			}
			require.Len(t, live, n)
		},
	}))
	require.Equal(t, []int{3000, 1, 2}, []int{events, done, segments})
}

// What comes before the damage is in the trace, and every view of it is as far as that.
func TestTraceDamage(t *testing.T) {
	s := eventtest.Random(4, 500)
	s.Err = errors.New("cut off")
	trace, err := view.NewTrace(s, nil)
	require.NoError(t, err)
	require.ErrorIs(t, trace.Damage, s.Err)
	require.Equal(t, applied(s, 500).Snapshot(), trace.End().Snapshot)
	v, err := trace.At(trace.Last())
	require.NoError(t, err)
	require.Equal(t, trace.End().Snapshot, v.Snapshot)
	require.NoError(t, trace.Replay(&view.Visitor{}))

	_, err = view.NewTrace(&eventtest.Stream{Err: s.Err}, nil)
	require.ErrorIs(t, err, s.Err)
}

// A block is called as its site is.
func TestTraceSiteName(t *testing.T) {
	trace, err := view.NewTrace(eventtest.Random(5, 3000), nil)
	require.NoError(t, err)
	names := map[event.StackID]string{}
	for i := range trace.End().Sites {
		s := &trace.End().Sites[i]
		names[s.Site.Stack] = s.Name
	}
	blocks := 0
	require.NoError(t, trace.Replay(&view.Visitor{Allocated: func(b *heap.Block, _ *event.Event) {
		blocks++
		require.Equal(t, names[b.Stack], trace.SiteName(b))
	}}))
	require.NotZero(t, blocks)
}
