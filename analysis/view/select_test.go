// SPDX-License-Identifier: Apache-2.0

package view_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/moment"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// counted adds up a view's memory as pprof shows it: allocated and in use.
func counted(v *view.View) (alloc, inuse heap.Count) {
	for i := range v.Sites {
		if s := &v.Sites[i]; s.Counted() {
			alloc, inuse = plus(alloc, s.Alloc), plus(inuse, s.Inuse)
		}
	}
	return alloc, inuse
}

func plus(x, y heap.Count) heap.Count {
	return heap.Count{
		Objects: x.Objects + y.Objects, Bytes: x.Bytes + y.Bytes, Unsized: x.Unsized + y.Unsized,
		Requested: x.Requested + y.Requested, RequestedObjects: x.RequestedObjects + y.RequestedObjects,
	}
}

// whole asserts that each site is the sum of its parts, and that nothing else was changed.
func whole(t *testing.T, want, got *view.View) {
	t.Helper()
	require.Equal(t, want.Snapshot, got.Snapshot)
	require.Len(t, got.Sites, len(want.Sites))
	for i := range got.Sites {
		s := got.Sites[i]
		var alloc, inuse heap.Count
		for _, p := range s.Parts {
			alloc, inuse = plus(alloc, p.Alloc), plus(inuse, p.Inuse)
		}
		require.Equal(t, s.Alloc, alloc)
		require.Equal(t, s.Inuse, inuse)
		s.Parts = nil
		require.Equal(t, want.Sites[i], s)
	}
}

// unlabelled counts the parts that live and of which the size is not known.
func unlabelled(v *view.View) (n int) {
	for i := range v.Sites {
		for _, p := range v.Sites[i].Parts {
			if p.Inuse.Objects > 0 && (p.Size == event.Unknown || p.TID == 0 || p.Age == event.Unknown) {
				n++
			}
		}
	}
	return n
}

// Selecting everything changes nothing, and has the thread, the size and the age of all that is live, at any moment.
func TestSelectParts(t *testing.T) {
	for seed := range uint64(10) {
		s := eventtest.Random(seed, 3000)
		trace, err := view.NewTrace(s, nil)
		require.NoError(t, err)
		at := s.Events[1500].Time
		then, err := trace.At(at)
		require.NoError(t, err)
		for name, c := range map[string]struct {
			want *view.View
			s    view.Selection
		}{
			"end": {trace.End(), view.Selection{}}, "peak": {trace.Peak(), view.Selection{Moment: moment.Moment{Kind: moment.Peak}}},
			"moment": {then, view.Selection{Moment: moment.Moment{Kind: moment.SinceStart, Time: at}}},
		} {
			got, err := trace.Select(c.s)
			require.NoError(t, err, name)
			whole(t, c.want, got)
			require.Zero(t, unlabelled(got), "%s: seed %d", name, seed)
		}
	}
}

// truth is what a selection must come to, counted from the events alone, of those that are meant.
func truth(s *eventtest.Stream, from, to, least uint64, meant func(*event.Event) bool) (alloc, inuse heap.Count) {
	type key struct {
		layer event.Layer
		addr  uint64
	}
	live := map[key]heap.Count{}
	for i := range s.Events {
		e := &s.Events[i]
		if e.Time > to || e.Kind == event.KindOutOfMemory || !meant(e) {
			continue
		}
		k := key{e.Layer, e.Addr}
		if e.Kind == event.KindFree {
			delete(live, k)
			continue
		}
		if e.Size < least || e.Time <= from || e.Call == "cudaMalloc" { // that is a segment
			continue
		}
		c := heap.Count{Objects: 1, Bytes: e.Size}
		if e.Requested != event.Unknown {
			c.Requested, c.RequestedObjects = e.Requested, 1
		}
		alloc = plus(alloc, c)
		live[k] = c
	}
	for _, c := range live {
		inuse = plus(inuse, c)
	}
	return alloc, inuse
}

// A range has what was allocated in it, and of that what is live at its end; a minimum size leaves out what is smaller.
func TestSelectRangeAndSize(t *testing.T) {
	for seed := range uint64(10) {
		s := eventtest.Random(seed, 3000)
		trace, err := view.NewTrace(s, nil)
		require.NoError(t, err)
		first, middle, last := s.Events[0].Time, s.Events[1500].Time, s.Events[2999].Time
		for _, c := range []struct {
			s        view.Selection
			from, to uint64
			before   uint64
		}{
			{view.Selection{From: middle, To: last}, middle, last, 0},
			{view.Selection{From: first, To: middle}, first, middle, 0},
			{view.Selection{From: middle, To: last, MinSize: 1 << 16}, middle, last, 0},
			{view.Selection{MinSize: 1 << 16}, 0, last, 1 << 20},
			{view.Selection{Moment: moment.Moment{Kind: moment.SinceStart, Time: middle}, MinSize: 1 << 16}, 0, middle, 1 << 20},
		} {
			v, err := trace.Select(c.s)
			require.NoError(t, err)
			wantAlloc, wantInuse := truth(s, c.from, c.to, c.s.MinSize, func(*event.Event) bool { return true })
			alloc, inuse := counted(v)
			require.Equal(t, wantAlloc, alloc, "seed %d, %+v", seed, c.s)
			require.Equal(t, wantInuse, inuse, "seed %d, %+v", seed, c.s)
			require.Equal(t, inuse.Bytes+c.before, v.Total(), "seed %d, %+v", seed, c.s)
		}
	}
}

// At the peak of each device, only its large blocks are left.
func TestSelectPeakAndSize(t *testing.T) {
	s := eventtest.Random(1, 3000)
	trace, err := view.NewTrace(s, nil)
	require.NoError(t, err)
	v, err := trace.Select(view.Selection{Moment: moment.Moment{Kind: moment.Peak}, MinSize: 1 << 16})
	require.NoError(t, err)
	for i := range trace.End().Snapshot.Accounts {
		a := &trace.End().Snapshot.Accounts[i]
		_, want := truth(s, 0, a.PeakTime, 1<<16, func(e *event.Event) bool {
			return e.Device == a.Device && e.Layer == event.LayerAllocator
		})
		only := &view.View{}
		for _, site := range v.Sites {
			if site.Layer == event.LayerAllocator && site.Device == a.Device {
				only.Sites = append(only.Sites, site)
			}
		}
		_, got := counted(only)
		require.Equal(t, want, got)
		require.Less(t, got.Bytes, a.Peak)
		require.Equal(t, got.Bytes+a.Baseline, v.Snapshot.Accounts[i].Allocated)
	}
}
