// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// TestRowsAddUp: rows and rest are all that is in use, to the byte, whatever the events are.
func TestRowsAddUp(t *testing.T) {
	for seed := range uint64(20) {
		s := eventtest.Random(seed, 2000)
		trace, err := view.NewTrace(s, nil)
		require.NoError(t, err)
		for name, read := range map[string]*view.Read{"nothing was read": nil,
			"a line was": readOf(map[string]string{"train.py:30 f3.<locals>.g;0": "kept[0..9]"})} {
			a := New(&Input{View: trace.End(), Now: trace.End(), Read: read})
			var sum int64
			for _, r := range a.Rows {
				sum += r.Bytes
			}
			for _, r := range a.Rest {
				sum += r.Bytes
			}
			require.Equal(t, int64(trace.End().Total()), sum, "%d, %s", seed, name)
			require.Equal(t, sum, a.Total)
			require.LessOrEqual(t, len(a.Rows), maxRows)
			require.GreaterOrEqual(t, a.Peak, a.Now)
		}
	}
}

// TestGrowingRows: what a finding is of is in its row, also what is newer than the reading of holders; what another variable holds is not.
func TestGrowingRows(t *testing.T) {
	f := leaks.Finding{Layer: event.LayerAllocator, File: "a.py", Line: 3, Function: "f", Holder: "kept[0..9]", Stacks: []event.StackID{7},
		Bytes: 1000, First: 2, Last: 9}
	in := &Input{
		View: view.New(&heap.Snapshot{}, nil, nil), Now: view.New(&heap.Snapshot{}, nil, nil),
		Leaks: &leaks.Report{Verdict: leaks.Growing, Findings: []leaks.Finding{f}, Steps: leaks.Steps{Period: 5e8}},
		Begin: func(step int) (uint64, bool) { return uint64(100 * step), true },
	}
	g := newGrouping(in)
	for _, e := range []view.Row{
		{Name: "a.py:3", Func: "f", File: "a.py", Line: 3, StackID: 8, Holder: view.NoHolder, Bytes: 7000,
			Blocks: 1}, // the same line, by another way
		{Name: "a.py:3", Func: "f", File: "a.py", Line: 3, StackID: 7, Holder: "kept[0..4]", Bytes: 500, Blocks: 5},
		{Name: "a.py:3", Func: "f", File: "a.py", Line: 3, StackID: 7, Holder: view.NoHolder, Bytes: 200, Blocks: 2},
		{Name: "a.py:3", Func: "f", File: "a.py", Line: 3, StackID: 7, Holder: "other", Bytes: 50, Blocks: 1},
		{Name: "a.py:9", Func: "f", File: "a.py", Line: 9, Holder: view.NoHolder, Category: "parameters", Bytes: 4000, Blocks: 1},
		{Name: stacks.BackwardOf + " a.py:3", Func: "f", File: "a.py", Line: 3, StackID: 9, Holder: view.NoHolder, Bytes: 60, Blocks: 1},
		{Name: stacks.BeforeAttach, Layer: "torch", Holder: "kept[0..2]", Bytes: 300, Blocks: 3},
		{Name: stacks.BeforeAttach, Layer: "torch", Holder: "kept[0].weight", Bytes: 30, Blocks: 1},
		{Name: stacks.BeforeAttach, Layer: "torch", Holder: "kept[0..2]", Category: "parameters", Bytes: 3, Blocks: 1},
	} {
		g.add(&e, false)
	}
	rows, rest, total := g.rows()
	require.EqualValues(t, 12143, total)
	require.Len(t, rows, 1)
	require.EqualValues(t, 1033, rows[0].Bytes, "whatever it is for, and however old")
	require.EqualValues(t, 200, rows[0].Inferred)
	require.InDelta(t, 2000, rows[0].Rate, 1e-9)
	require.Equal(t, []Sum{{"other", 7110}, {"parameters", 4000}}, rest)
	a := New(in)
	require.EqualValues(t, 200, a.Since)
	require.InDelta(t, 2000, a.Rate, 1e-9)
}

// TestCourse: what is freed because the program ends is not what a step frees.
func TestCourse(t *testing.T) {
	f := &Follower{table: &steps.Table{}}
	total := uint64(0)
	see := func(time uint64, by int64) {
		kind := event.KindAlloc
		if by < 0 {
			kind = event.KindFree
		}
		total += uint64(by)
		f.See(&event.Event{Kind: kind, Layer: event.LayerAllocator, Time: time, Allocated: total})
	}
	see(1, 100)
	see(2, 50)
	see(3, -50)
	require.Zero(t, f.exit(100), "everything stayed")
	see(4, -60)
	see(5, -40)
	require.EqualValues(t, 3, f.exit(100), "what there is between steps goes on from there")
	require.EqualValues(t, 2, f.exit(0), "without steps the last allocation")
	require.EqualValues(t, 2, f.exit(1000))
	f.levels = []level{{low: 50}, {low: 150}}
	require.EqualValues(t, 2, f.exit(100), "of what grows, all that the last step left")
	f.levels[1].low = 30
	require.EqualValues(t, 4, f.exit(20), "of what shrinks too")
	f.levels[1].low = 200
	require.EqualValues(t, 3, f.exit(100), "less than that came back")
}

// TestExitHalf: the program has freed everything when less than half of it stayed.
func TestExitHalf(t *testing.T) {
	for left, want := range map[uint64]uint64{49: 1, 50: 0} {
		f := NewFollower(&steps.Table{}, 0, 0)
		f.See(&event.Event{Kind: event.KindAlloc, Layer: event.LayerAllocator, Time: 1, Allocated: 100})
		f.See(&event.Event{Kind: event.KindFree, Layer: event.LayerAllocator, Time: 2, Allocated: left})
		require.Equal(t, want, f.Course(true).Exit, "%d of 100 stayed", left)
		require.Zero(t, f.Course(false).Exit, "the program goes on")
	}
}

// TestExitAfterFailure: what the program freed before a failed request was not freed because it ended.
func TestExitAfterFailure(t *testing.T) {
	f := NewFollower(&steps.Table{}, 0, 0)
	f.See(&event.Event{Kind: event.KindAlloc, Layer: event.LayerAllocator, Time: 1, Allocated: 100})
	f.See(&event.Event{Kind: event.KindFree, Layer: event.LayerAllocator, Time: 2, Allocated: 30})
	f.See(&event.Event{Kind: event.KindOutOfMemory, Layer: event.LayerAllocator, Time: 3, Size: 200, Allocated: event.Unknown})
	f.See(&event.Event{Kind: event.KindFree, Layer: event.LayerAllocator, Time: 4, Allocated: 0})
	require.EqualValues(t, 3, f.Course(true).Exit)
	require.EqualValues(t, 30, f.Course(true).Last)
}

// TestCourseOfOneStep: the later half of an odd number of steps has the middle one.
func TestCourseOfOneStep(t *testing.T) {
	f := &Follower{levels: []level{{5, 90}, {4, 10}, {3, 8}, {2, 6}}}
	require.Equal(t, &Course{Between: 3, High: 8}, f.Course(false))
	f.levels = []level{{9, 90}, {4, 10}, {3, 8}}
	require.Equal(t, &Course{Between: 4, High: 10}, f.Course(false))
	f.levels = f.levels[:1]
	require.Equal(t, &Course{Between: 9, High: 90}, f.Course(false))
}

// TestCourseOfSteps: between steps there is the middle of the least of each step in the later half, and the most is that of all of them. A
// recording that ends with the program has the moment at which it began to free everything.
func TestCourseOfSteps(t *testing.T) {
	j := eventtest.NewJob()
	kept := j.Alloc(eventtest.Kept, 3<<20)
	for range 20 {
		j.Pass(eventtest.Input, eventtest.Forward, eventtest.Backward, eventtest.Adam)
	}
	more := j.Alloc(eventtest.Kept, 5<<20) // of the step that runs
	end := j.Events[len(j.Events)-1].Time
	j.Free(more)
	freed := j.Events[len(j.Events)-1].Time
	j.Free(kept)
	trace, err := view.NewTrace(&j.Stream, nil)
	require.NoError(t, err)
	table, err := steps.Find(trace, nil)
	require.NoError(t, err)
	f := NewFollower(table, freed, freed)
	for i := range j.Events {
		f.See(&j.Events[i])
	}
	require.Less(t, end, freed)
	require.Equal(t, &Course{Between: 3 << 20, High: 7 << 20, First: 3 << 20, Last: 8 << 20, Late: 8 << 20, Streams: 1}, f.Course(false))
	require.Equal(t, &Course{Between: 3 << 20, High: 7 << 20, First: 3 << 20, Last: 8 << 20, Late: 8 << 20, Exit: freed, Streams: 1},
		f.Course(true))
	require.Equal(t, []level{{3 << 20, 7 << 20}, {3 << 20, 7 << 20}}, f.levels[:2], "each step begins where the last one ended")
	require.Len(t, f.levels, table.Count(), "what comes before the first step is none")
	quiet := NewFollower(table, freed-1, freed+3e9)
	for i := range j.Events {
		quiet.See(&j.Events[i])
	}
	last := j.Events[len(j.Events)-1].Time
	require.Equal(t, freed+3e9-last, quiet.Course(false).Quiet, "since the last event")
	none := NewFollower(&steps.Table{}, 0, 0)
	require.Equal(t, &Course{}, none.Course(false), "without steps and events nothing is known")
}

// TestTotals: reserved is the sum of the devices, unknown where that of one is; the time of the peak is that of the
// device with the highest.
func TestTotals(t *testing.T) {
	of := func(accounts ...heap.Account) *Answer {
		now := view.New(&heap.Snapshot{Totals: heap.Totals{Accounts: accounts}}, nil, nil)
		return New(&Input{View: now, Now: now})
	}
	none := of()
	require.False(t, none.Torch)
	require.EqualValues(t, event.Unknown, none.Reserved)
	require.Zero(t, none.PeakTime)

	a := of(heap.Account{Reserved: 10, Peak: 5, PeakTime: 3}, heap.Account{Reserved: 20, Peak: 9, PeakTime: 4},
		heap.Account{Reserved: 30, Peak: 7, PeakTime: 8})
	require.True(t, a.Torch)
	require.EqualValues(t, 60, a.Reserved)
	require.EqualValues(t, 4, a.PeakTime)
	require.EqualValues(t, 3, of(heap.Account{Peak: 5, PeakTime: 3}, heap.Account{Peak: 5, PeakTime: 4}).PeakTime,
		"of two equal ones the first")

	for _, accounts := range [][]heap.Account{{{Reserved: event.Unknown}, {Reserved: 20}}, {{Reserved: 20}, {Reserved: event.Unknown}}} {
		require.EqualValues(t, event.Unknown, of(accounts...).Reserved)
	}
}

// TestPeaks: the peaks of steps have a course where each sixth of the steps has a higher one, in the median, by enough in all.
func TestPeaks(t *testing.T) {
	levelsOf := func(n int, high func(i int) uint64) (out []level) {
		for i := range n {
			out = append(out, level{high: high(i)})
		}
		return out
	}
	rises := func(i int) uint64 { return 1000 + uint64(i)*10 }
	require.Equal(t, Peaks{1050, 1550}, peaksOf(levelsOf(60, rises)))
	require.Equal(t, Peaks{1060, 1560}, peaksOf(levelsOf(61, rises)), "the first is left out")
	require.Equal(t, Peaks{}, peaksOf(levelsOf(29, rises)), "too few")
	require.Equal(t, Peaks{}, peaksOf(levelsOf(60, func(i int) uint64 { return 10000 + uint64(i)*10 })), "too little")
	require.Equal(t, Peaks{}, peaksOf(levelsOf(60, func(i int) uint64 { return 1000 + uint64(min(i, 45))*10 })), "it has stopped")
	require.Equal(t, Peaks{}, peaksOf(levelsOf(600, func(i int) uint64 { return 1000 + uint64(i*7919%600) })), "any order")
}
