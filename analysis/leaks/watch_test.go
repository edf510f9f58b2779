// SPDX-License-Identifier: Apache-2.0

package leaks_test

import (
	"iter"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// watch feeds a watch the events of a job, and calls each after every step that begins.
func (j *job) watch(each func(w *leaks.Watch, step int)) *leaks.Watch {
	h := heap.New()
	w := leaks.NewWatch(nil, j.Stream.Stack)
	h.Follow(w)
	for i := range j.Events {
		w.See(&j.Events[i], h.Blocks)
		h.Apply(&j.Events[i])
		if _, begins := w.Begins(); begins != nil && each != nil {
			each(w, begins[len(begins)-1].Step)
		}
	}
	return w
}

// TestWatch: while a program runs, the verdict is the one that its recording has at the end.
func TestWatch(t *testing.T) {
	for name, leak := range map[string]func(j *job, i int){
		"one":       func(j *job, _ int) { j.Alloc(kept, 1000) },
		"an output": func(j *job, _ int) { j.Alloc(forward, 1000) },
		"a graph":   func(j *job, _ int) { j.Alloc(second, 1000); j.Alloc(second, 9000) },
		"host":      func(j *job, _ int) { j.Obtain(3, driver, 700) },
		"none":      func(*job, int) {},
	} {
		t.Run(name, func(t *testing.T) {
			j := train(leak)
			want, got := j.find(t, nil), j.watch(nil).Report(nil)
			require.Equal(t, want.Verdict, got.Verdict)
			require.Equal(t, want.Steps.Count, got.Steps.Count)
			require.Len(t, got.Findings, len(want.Findings))
			for i := range want.Findings {
				w, g := &want.Findings[i], &got.Findings[i]
				require.Equal(t, w.Name(), g.Name())
				require.Equal(t, [3]float64{w.Requested, w.Bytes, w.Blocks}, [3]float64{g.Requested, g.Bytes, g.Blocks})
				require.Equal(t, [4]int{w.Period, w.First, w.Last, int(w.LiveBlocks)}, [4]int{g.Period, g.First, g.Last, int(g.LiveBlocks)})
			}
		})
	}
}

// TestWatchSince: since when it grows is the same while it runs as in the recording, though steps are recognised only after some of them.
func TestWatchSince(t *testing.T) {
	for _, from := range []int{1, 2, 4, 6, 30} {
		j := newJob()
		for range 3 {
			j.Alloc(input, 4000) // what is there before the first step
		}
		for i := 1; i <= 60; i++ {
			j.Pass(input, forward, backward, adam)
			if i >= from {
				j.Alloc(kept, 1000)
			}
		}
		want, got := j.find(t, nil), j.watch(nil).Report(nil)
		require.Len(t, want.Findings, 1)
		require.Len(t, got.Findings, 1)
		require.Equal(t, want.Findings[0].First, got.Findings[0].First, from)
		require.InDelta(t, from, got.Findings[0].First, 1)
	}
}

// TestWatchIsQuick: a leak of each step, from step 11 on, is found when its fifth block has survived a step, and nothing is found before.
func TestWatchIsQuick(t *testing.T) {
	found := 0
	train(func(j *job, _ int) { j.Alloc(kept, 1000) }).watch(func(w *leaks.Watch, step int) {
		if r := w.Report(nil); found == 0 && r.Verdict == leaks.Growing {
			found = step - 1
			require.Equal(t, leaks.Low, r.Findings[0].Confidence)
			require.EqualValues(t, 1000, r.Findings[0].Requested)
		}
	})
	require.Equal(t, 16, found)
}

// TestWatchFromTheMiddle: what grew before the first event is found by what it does afterwards.
func TestWatchFromTheMiddle(t *testing.T) {
	j := newJob()
	for range 400 {
		j.Pass(input, forward, backward, adam)
		j.Alloc(kept, 1000)
	}
	j.Events = j.Events[len(j.Events)*3/4:]
	r := j.watch(nil).Report(nil)
	require.Equal(t, leaks.Growing, r.Verdict)
	require.Equal(t, "train.py:30 main", r.Findings[0].Name())
	require.EqualValues(t, 1000, r.Findings[0].Requested)
}

// TestWatchLoading: a model that is loaded layer by layer recurs, and stays, and is no leak.
func TestWatchLoading(t *testing.T) {
	j := newJob()
	for range 200 {
		j.Alloc(input, 1000)
		j.Alloc(kept, 4000)
	}
	for _, r := range []*leaks.Report{j.watch(nil).Report(nil), j.find(t, nil)} {
		require.Empty(t, r.Findings)
		require.Equal(t, leaks.Unclear, r.Verdict)
	}
}

// TestWatchKeepsAll: where all that is allocated stays, for longer than a model is loaded, it grows.
func TestWatchKeepsAll(t *testing.T) {
	j := newJob()
	for range 3000 { // six seconds
		j.Alloc(input, 1000)
		j.Alloc(kept, 4000)
	}
	for _, r := range []*leaks.Report{j.watch(nil).Report(nil), j.find(t, nil)} {
		require.Equal(t, leaks.Growing, r.Verdict)
		require.EqualValues(t, 4000, r.Findings[0].Requested)
		require.EqualValues(t, 1000, r.Findings[1].Requested)
	}
}

// TestWatchChangesItsMind: what was freed after all is not called a leak any more.
func TestWatchChangesItsMind(t *testing.T) {
	j := newJob()
	var kind []uint64
	grew := map[bool]int{}
	for i := range 120 {
		j.Pass(input, forward, backward, adam)
		kind = append(kind, j.Alloc(kept, 1000))
		if i == 70 {
			for _, a := range kind {
				j.Free(a)
			}
			kind = nil
		}
	}
	j.watch(func(w *leaks.Watch, step int) {
		if r := w.Report(nil); r.Verdict == leaks.Growing {
			grew[step > 72]++
		}
	})
	require.Greater(t, grew[false], 50)
	require.Zero(t, grew[true], "it fell by more than it has risen since")
}

func BenchmarkWatch(b *testing.B) {
	j := newJob()
	for range 10_000 {
		j.Pass(input, forward, forward, forward, forward, backward, adam)
		j.Alloc(kept, 1000)
	}
	for _, watched := range []bool{false, true} {
		b.Run(map[bool]string{false: "heap", true: "watched"}[watched], func(b *testing.B) {
			for b.Loop() {
				h := heap.New()
				w := leaks.NewWatch(nil, j.Stream.Stack)
				if watched {
					h.Follow(w)
				}
				for i := range j.Events {
					if watched {
						w.See(&j.Events[i], h.Blocks)
					}
					h.Apply(&j.Events[i])
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(j.Events)), "ns/event")
		})
	}
}

// soak is a watch after steps of gigabytes that are allocated and freed, and 512 bytes that stay of each. There is no live set, which
// would grow.
func soak(steps int) *leaks.Watch {
	j := newJob()
	stacks := []event.StackID{j.ID(input), j.ID(forward), j.ID(backward), j.ID(adam)}
	leak := j.ID(kept)
	w := leaks.NewWatch(nil, j.Stream.Stack)
	none := func() iter.Seq[heap.Block] { return func(func(heap.Block) bool) {} }
	now := uint64(0)
	alloc := func(id event.StackID, requested, size uint64) heap.Block {
		now += 1e6
		w.See(&event.Event{Time: now, Kind: event.KindAlloc, Layer: event.LayerAllocator, Requested: requested, Size: size, Stack: id}, none)
		b := heap.Block{Layer: event.LayerAllocator, Size: size, Requested: requested, Stack: id, Time: now, Addr: now}
		w.Allocated(&b)
		return b
	}
	for range steps {
		for _, id := range stacks {
			b := alloc(id, 1<<30, 1<<30)
			w.Freed(&b, now)
		}
		alloc(leak, 4, 512)
		w.Begins()
	}
	return w
}

// TestWatchIsBounded: a stream of a million steps takes the memory that ten thousand take, and the leak in it is exact.
func TestWatchIsBounded(t *testing.T) {
	size := func(steps int) (*leaks.Watch, int64) {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&before)
		w := soak(steps)
		runtime.GC()
		runtime.ReadMemStats(&after)
		return w, int64(after.HeapAlloc) - int64(before.HeapAlloc)
	}
	_, small := size(10_000)
	long, large := size(1_000_000)
	require.Less(t, large, small+64<<10)
	r := long.Report(nil)
	require.Len(t, r.Findings, 1)
	f := &r.Findings[0]
	require.Equal(t, "train.py:30 main", f.Name())
	require.Equal(t, []float64{1, 4, 512}, []float64{f.Blocks, f.Requested, f.Bytes})
	require.Equal(t, 999_999, r.Steps.Count)
}
