// SPDX-License-Identifier: Apache-2.0

package view_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// watched is what a visit of a timeline reported.
type watched struct {
	totals  map[uint64]view.Totals // the last of a time
	count   uint64                 // of totals and allocations
	allocs  []uint64               // sizes
	refused int
	moments map[uint64]*view.View
}

func watch(t *testing.T, tl *view.Timeline) *watched {
	t.Helper()
	w := &watched{totals: map[uint64]view.Totals{}, moments: map[uint64]*view.View{}}
	last := uint64(0)
	at := func(time uint64) {
		require.LessOrEqual(t, max(last, tl.From), time)
		require.LessOrEqual(t, time, tl.To)
		last = time
	}
	require.NoError(t, tl.Visit(&view.TimelineVisitor{
		Totals: func(time uint64, x *view.Totals) {
			at(time)
			w.count++
			w.totals[time] = *x
		},
		Alloc: func(time uint64, b *heap.Block, e *event.Event) {
			at(time)
			require.Equal(t, e.Size, b.Size)
			w.count++
			w.allocs = append(w.allocs, b.Size)
		},
		OutOfMemory: func(time uint64, _ *event.Event) {
			at(time)
			w.refused++
		},
		Moment: func(time uint64, v *view.View) {
			at(time)
			w.moments[time] = v
		},
	}))
	return w
}

func newTimeline(t *testing.T, s *eventtest.Stream, o *view.TimelineOptions) (*view.Trace, *view.Timeline) {
	t.Helper()
	require.NoError(t, s.Rewind())
	trace, err := view.NewTrace(s, nil)
	require.NoError(t, err)
	tl, err := trace.Timeline(o)
	require.NoError(t, err)
	return trace, tl
}

// TestTimeline: everything that happened is reported, and the moments are those of Trace.At.
func TestTimeline(t *testing.T) {
	for seed := range uint64(5) {
		s := eventtest.Random(seed, 2000)
		trace, tl := newTimeline(t, s, &view.TimelineOptions{Moments: 7})
		w := watch(t, tl)
		var sizes []uint64
		ooms := 0
		for i := range s.Events {
			switch e := &s.Events[i]; e.Kind {
			case event.KindAlloc:
				sizes = append(sizes, e.Size)
			case event.KindOutOfMemory:
				ooms++
			}
			if e := &s.Events[i]; e.Layer == event.LayerAllocator && e.Kind != event.KindOutOfMemory {
				require.Equal(t, e.Allocated, w.totals[e.Time].Allocated)
				require.Equal(t, e.Reserved, w.totals[e.Time].Reserved)
			}
		}
		require.Equal(t, sizes, w.allocs)
		require.Equal(t, ooms, w.refused)
		require.EqualValues(t, len(sizes), tl.Shown.Objects)
		require.Equal(t, heap.Count{}, tl.Left)
		require.Equal(t, trace.Last(), tl.Until)
		require.GreaterOrEqual(t, len(w.moments), 8)
		for time, v := range w.moments {
			at, err := trace.At(time)
			require.NoError(t, err)
			require.Equal(t, at.Snapshot, v.Snapshot)
		}
		for i := range trace.End().Snapshot.Accounts {
			require.Contains(t, w.moments, trace.End().Snapshot.Accounts[i].PeakTime)
		}
	}
}

// TestTimelineMinSize: small allocations are left out, and the totals are never further off than that.
func TestTimelineMinSize(t *testing.T) {
	const size = 1 << 16
	s := eventtest.Random(2, 4000)
	trace, tl := newTimeline(t, s, &view.TimelineOptions{MinSize: size})
	w := watch(t, tl)
	require.GreaterOrEqual(t, slices.Min(w.allocs), uint64(size))
	shown := map[event.Device]uint64{}
	peaks := map[event.Device]uint64{}
	for i := range s.Events {
		e := &s.Events[i]
		if x, ok := w.totals[e.Time]; ok && x.Allocated != event.Unknown {
			shown[x.Device] = x.Allocated
			peaks[x.Device] = max(peaks[x.Device], x.Allocated)
		}
		if e.Layer == event.LayerAllocator {
			require.Less(t, max(shown[e.Device], e.Allocated)-min(shown[e.Device], e.Allocated), uint64(size))
		}
	}
	for _, a := range trace.End().Snapshot.Accounts {
		require.Equal(t, a.Peak, peaks[a.Device], "the peak is shown")
	}
	require.Less(t, w.count, uint64(3000))
	require.NotZero(t, tl.Left.Bytes)
}

// TestTimelineMaxEvents: the largest allocations are shown as far as the limit goes; what is left out is counted.
func TestTimelineMaxEvents(t *testing.T) {
	s := eventtest.Random(3, 4000)
	_, all := newTimeline(t, s, nil)
	watch(t, all)
	for _, limit := range []uint64{1, 2, 50, 500, 2000, 100_000} {
		_, tl := newTimeline(t, s, &view.TimelineOptions{MaxEvents: limit})
		w := watch(t, tl)
		require.LessOrEqual(t, w.count, limit)
		require.Equal(t, all.Shown.Objects, tl.Shown.Objects+tl.Left.Objects)
		require.Equal(t, all.Shown.Bytes, tl.Shown.Bytes+tl.Left.Bytes)
		require.EqualValues(t, len(w.allocs), tl.Shown.Objects)
		for _, n := range w.allocs {
			require.GreaterOrEqual(t, n, tl.MinSize)
		}
		if limit == 100_000 {
			require.Zero(t, tl.MinSize)
			require.Zero(t, tl.Left.Objects)
		}
		if limit == 2000 {
			require.Equal(t, tl.To, tl.Until, "the size suffices")
			require.Greater(t, w.count, limit/4, "no more is left out than need be")
		}
	}

	one := &eventtest.Stream{} // all of one size: no size helps
	for i := range uint64(100) {
		one.Events = append(one.Events, event.Event{Time: 1 + i, PID: 1, Kind: event.KindAlloc, Layer: event.LayerAllocator, Addr: 1<<20 + i<<10,
			Size:      512,
			Requested: event.Unknown, Allocated: 512 * (1 + i), Reserved: 1 << 20})
	}
	_, tl := newTimeline(t, one, &view.TimelineOptions{MaxEvents: 40})
	w := watch(t, tl)
	require.EqualValues(t, 40, w.count)
	require.Equal(t, []uint64{21, 20, 80}, []uint64{tl.Until, tl.Shown.Objects, tl.Left.Objects})
}

// TestTimelineRange: a range has what happened in it, and begins with the totals of its begin.
func TestTimelineRange(t *testing.T) {
	s := eventtest.Random(4, 3000)
	from, to := s.Events[1000].Time, s.Events[2000].Time
	trace, tl := newTimeline(t, s, &view.TimelineOptions{From: from, To: to, Lifetimes: 1 << 20})
	w := watch(t, tl)
	n := 0
	for i := 1000; i <= 2000; i++ {
		if s.Events[i].Kind == event.KindAlloc {
			n++
		}
	}
	require.Len(t, w.allocs, n)
	// The lifetimes are all blocks that were live at some time in it.
	v, err := trace.At(s.Events[999].Time)
	require.NoError(t, err)
	for i := range v.Sites {
		n += int(v.Sites[i].Inuse.Objects)
	}
	require.Len(t, tl.Lifetimes, n)
	for _, l := range tl.Lifetimes {
		require.True(t, l.End == 0 || l.End >= from && l.End <= to)
		require.LessOrEqual(t, l.Block.Time, to)
		require.Equal(t, l.Block.Time >= from, l.TID != 0)
	}

	_, err = trace.Timeline(&view.TimelineOptions{From: trace.Last() + 1})
	require.ErrorIs(t, err, view.ErrEmptyRange)
}
