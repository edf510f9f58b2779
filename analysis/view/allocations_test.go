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

func listed(t *testing.T, trace *view.Trace, s view.Selection) []view.Allocation {
	t.Helper()
	var out []view.Allocation
	require.NoError(t, trace.Allocations(s, func(a *view.Allocation) error {
		out = append(out, *a)
		return nil
	}))
	return out
}

// Those that were allocated and not freed are, at any moment, the live set.
func TestAllocations(t *testing.T) {
	for seed := range uint64(5) {
		s := eventtest.Random(seed, 2000)
		trace, err := view.NewTrace(s, nil)
		require.NoError(t, err)
		all := listed(t, trace, view.Selection{})
		ids := map[uint64]bool{}
		for i := range all {
			require.False(t, ids[all[i].ID])
			ids[all[i].ID] = true
		}
		require.True(t, ids[1] && ids[uint64(len(all))] && !ids[0])
		for _, n := range []int{1, 100, 1000, 2000} {
			at := s.Events[n-1].Time
			want, got := map[heap.Block]int{}, map[heap.Block]int{}
			for b := range applied(s, n).Blocks() {
				b.Segment = false // may have been found out later
				want[b]++
			}
			for i := range all {
				if a := &all[i]; a.Block.Time <= at && (a.Freed == 0 || a.Freed > at) {
					b := a.Block
					b.Segment = false
					got[b]++
				}
			}
			require.Equal(t, want, got, "seed %d after %d events", seed, n)
		}
	}
}

// A selection leaves out what is small, or was allocated outside of the range.
func TestAllocationsSelected(t *testing.T) {
	s := eventtest.Random(1, 2000)
	trace, err := view.NewTrace(s, nil)
	require.NoError(t, err)
	from, to := s.Events[500].Time, s.Events[1500].Time
	var want []view.Allocation
	for _, a := range listed(t, trace, view.Selection{}) {
		if a.Block.Time > from && a.Block.Time <= to && a.Block.Size >= 1024 {
			if a.Freed > to {
				a.Freed = 0
			}
			want = append(want, a)
		}
	}
	got := listed(t, trace, view.Selection{From: from, To: to, MinSize: 1024})
	for _, list := range [][]view.Allocation{want, got} {
		for i := range list {
			list[i].Block.Segment = false
		}
	}
	require.NotEmpty(t, want)
	require.ElementsMatch(t, want, got)
}

// What the driver did not take back after all is one allocation, not two.
func TestAllocationOfAFailedFree(t *testing.T) {
	e := event.Event{
		Time: 10, PID: 1, TID: 7, Kind: event.KindAlloc, Layer: event.LayerDevice, Addr: 4096, Size: 512, Handle: event.Unknown,
		Context: event.Unknown, Requested: event.Unknown, Stream: event.Unknown, Allocated: event.Unknown, Reserved: event.Unknown,
	}
	free := e
	free.Kind, free.Time, free.Size = event.KindFree, 20, event.Unknown
	failed := free
	failed.Kind, failed.Time = event.KindFreeFailed, 21
	last := free
	last.Time = 30
	trace, err := view.NewTrace(&eventtest.Stream{Events: []event.Event{e, free, failed}}, nil)
	require.NoError(t, err)
	got := listed(t, trace, view.Selection{})
	require.Len(t, got, 1)
	require.Zero(t, got[0].Freed)
	require.EqualValues(t, 7, got[0].TID)
	trace, err = view.NewTrace(&eventtest.Stream{Events: []event.Event{e, free, failed, last}}, nil)
	require.NoError(t, err)
	got = listed(t, trace, view.Selection{})
	require.Len(t, got, 1)
	require.EqualValues(t, 30, got[0].Freed)
}

func TestAllocationsError(t *testing.T) {
	trace, err := view.NewTrace(eventtest.Random(1, 500), nil)
	require.NoError(t, err)
	full, calls := errors.New("full"), 0
	require.ErrorIs(t, trace.Allocations(view.Selection{}, func(*view.Allocation) error {
		calls++
		return full
	}), full)
	require.Equal(t, 1, calls)
}

// The sums of a view add up to its total, whatever it is added up by.
func TestSumsAddUp(t *testing.T) {
	trace, err := view.NewTrace(eventtest.Random(3, 2000), nil)
	require.NoError(t, err)
	for _, v := range []*view.View{trace.End(), trace.Peak()} {
		want := int64(0)
		for p := range v.Samples(view.Allocated, nil) {
			want += p.Bytes
		}
		for by := range view.RowKindNames {
			total, alloc := int64(0), int64(0)
			for _, s := range v.SumBy(view.RowKind(by)) {
				total, alloc = total+s.Bytes, alloc+s.AllocBytes
				require.NotEmpty(t, s.Name)
			}
			require.EqualValues(t, v.Total(), total, view.RowKindNames[by])
			require.Equal(t, want, alloc, view.RowKindNames[by])
		}
	}
}
