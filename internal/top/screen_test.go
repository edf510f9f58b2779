// SPDX-License-Identifier: Apache-2.0

package top

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/eventtest"
)

func viewOf(t *testing.T, seed uint64) *view.View {
	t.Helper()
	trace, err := view.NewTrace(eventtest.Random(seed, 3000), nil)
	require.NoError(t, err)
	return trace.End()
}

func partOf(v *view.View) Part { return Part{View: v, Totals: &v.Snapshot.Totals} }

// Each table adds up to what is in use, by line, phase and module, also where the rows are too many for a screen.
func TestTablesAddUp(t *testing.T) {
	for seed := range uint64(5) {
		v := viewOf(t, seed)
		var s Screen
		s.Add([]Part{partOf(v), partOf(v)})
		for _, by := range []By{ByLine, ByPhase, ByModule} {
			var sum int64
			for _, r := range s.Tables[by] {
				sum += r.Bytes
			}
			require.EqualValues(t, 2*v.Total(), sum, by)
		}
	}
	var many []Row
	for i := range 3 * maxRows {
		many = append(many, Row{Name: fmt.Sprint(i), Bytes: int64(1000 - i), Blocks: 2})
	}
	short := shorten(many)
	require.Len(t, short, maxRows)
	var sum, all int64
	var blocks uint64
	for i := range short {
		sum, blocks = sum+short[i].Bytes, blocks+short[i].Blocks
	}
	for i := range many {
		all += many[i].Bytes
	}
	require.Equal(t, all, sum)
	require.EqualValues(t, 2*len(many), blocks)
	require.True(t, short[maxRows-1].Rest)
}

// What the driver counts is the sum of the parts; what is not known of one process is not known of all.
func TestMemoryAddsUp(t *testing.T) {
	account := heap.Account{Allocated: 100, Reserved: 160, Peak: 130}
	totals := &heap.Totals{
		Accounts: []heap.Account{account},
		Drivers:  []heap.DriverAccount{{Layer: event.LayerDevice, Live: heap.Count{Bytes: 200}, Segments: heap.Count{Bytes: 160}}},
	}
	driver := []figures.DriverUse{{UUID: "a", Used: 250, Total: 1000}}
	m := memoryOf([]Part{{Totals: totals, Driver: driver}})
	require.EqualValues(t, 100, *m.Allocated)
	require.EqualValues(t, 60, *m.Cached)
	require.EqualValues(t, 40, m.Other)
	require.EqualValues(t, 250, *m.Used)
	require.EqualValues(t, 50, *m.Unexplained)
	require.EqualValues(t, 1000, *m.Capacity)
	require.EqualValues(t, 130, *m.Peak)

	m = memoryOf([]Part{{Totals: totals, Driver: driver}, {Totals: totals, Driver: driver}})
	require.EqualValues(t, 1000, *m.Capacity, "two processes on one device")
	require.EqualValues(t, 500, *m.Used)
	require.Nil(t, m.Peak, "peaks of different moments")

	unknown := &heap.Totals{Accounts: []heap.Account{{Allocated: event.Unknown, Reserved: 160, Peak: event.Unknown}}}
	m = memoryOf([]Part{{Totals: totals, Driver: driver}, {Totals: unknown}})
	require.Nil(t, m.Allocated)
	require.Nil(t, m.Cached)
	require.Nil(t, m.Used)
	require.Nil(t, m.Unexplained)
	require.Nil(t, memoryOf([]Part{{Totals: &heap.Totals{}}}).Allocated, "without an allocator")
}

// A recording's screens come in the order of time, and the last one is its end.
func TestRecorded(t *testing.T) {
	trace, err := view.NewTrace(eventtest.Random(1, 3000), nil)
	require.NoError(t, err)
	feed, err := NewRecorded(&RecordedInput{Trace: trace, Process: Process{PID: 7}})
	require.NoError(t, err)
	var last *Screen
	n := 0
	for {
		s, err := feed.Next(context.Background())
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		if last != nil {
			require.Greater(t, s.Elapsed, last.Elapsed)
		}
		last, n = s, n+1
	}
	require.Greater(t, n, 100)
	require.InDelta(t, float64(trace.Last()-trace.First())/1e9, last.Elapsed, 1e-9)
	var sum int64
	for _, r := range last.Tables[ByLine] {
		sum += r.Bytes
	}
	require.EqualValues(t, trace.End().Total(), sum)

	// As in the summary, times are since the attach.
	began := time.Unix(1_700_000_000, 0)
	feed, err = NewRecorded(&RecordedInput{Trace: trace, Attached: trace.First() / 2, Began: began})
	require.NoError(t, err)
	s, err := feed.Next(context.Background())
	require.NoError(t, err)
	require.Positive(t, trace.First())
	require.GreaterOrEqual(t, s.Elapsed, float64(trace.First()-trace.First()/2)/1e9)
	require.InDelta(t, s.Elapsed, s.Time.Sub(began).Seconds(), 1e-6)
}

// A recording's screens have together each phase of it once, from its first to its last allocation, and at each moment the steps of then.
func TestRecordedPhases(t *testing.T) {
	j := eventtest.NewJob()
	var want []PhaseSpan
	pass := func(phase, stack string, allocations int) {
		from := len(j.Events)
		for range allocations {
			j.Alloc(stack, 512)
		}
		want = append(want, PhaseSpan{phase, float64(from) / 1e3, float64(len(j.Events)-1) / 1e3})
	}
	for range 6 {
		pass("forward", eventtest.Forward, 150)
		j.Alloc(eventtest.Kept, 512) // of no phase
		pass("backward", eventtest.Backward, 300)
		pass("optimizer", eventtest.Adam, 50)
		for _, addr := range slices.Sorted(maps.Keys(j.Live)) {
			j.Free(addr)
		}
	}
	trace, err := view.NewTrace(j, nil)
	require.NoError(t, err)
	found, err := steps.NewSearch(trace, &steps.Rules{}).Table()
	require.NoError(t, err)
	require.Equal(t, 5, found.Count())
	feed, err := NewRecorded(&RecordedInput{Trace: trace, Steps: found})
	require.NoError(t, err)
	m := NewModel(context.Background(), feed)
	for m.Init(); !m.ended; {
		m.Update(m.wait()())
	}
	for i, s := range m.spans() {
		require.Equal(t, want[i].Phase, s.Phase)
		require.InDelta(t, want[i].From, s.From, 1e-6)
		require.InDelta(t, want[i].To, s.To, 1e-6)
	}
	require.Len(t, m.spans(), len(want))
	for i, s := range m.history {
		require.Equal(t, max(0, found.At(trace.First()+uint64(s.Elapsed*1e9+0.5))-1), s.StepCount, i)
	}
	require.Contains(t, phaseRow(m, 120), "┃f━┃bwd━━")
}

// The phases of several processes are those of the one of which the steps are; before there are steps, of the first that has some.
func TestPhasesOfSeveral(t *testing.T) {
	v := viewOf(t, 1)
	part := func(verdict leaks.Verdict, phase string) Part {
		out := partOf(v)
		if verdict != "" {
			out.Leaks = &leaks.Report{Verdict: verdict, Findings: []leaks.Finding{{}}}
		}
		if phase != "" {
			out.Phases = []PhaseSpan{{phase, 1, 2}}
		}
		return out
	}
	of := func(parts ...Part) string {
		var s Screen
		if s.Add(parts); s.Phases == nil {
			return ""
		}
		return s.Phases[0].Phase
	}
	require.Empty(t, of(part("", "")))
	require.Equal(t, "setup", of(part("", ""), part("", "setup"), part("", "forward")))
	require.Equal(t, "forward", of(part("", "setup"), part(leaks.Steady, "forward"), part(leaks.Steady, "backward")))
	require.Equal(t, "backward", of(part(leaks.Steady, "forward"), part(leaks.Growing, "backward")))
	require.Empty(t, of(part(leaks.Steady, "forward"), part(leaks.Growing, "")), "it allocates nothing now")
}

// What a holder keeps of several lines grows by the sum of them, and each line by its own.
func TestGrowthOfHolder(t *testing.T) {
	finding := func(line int, holder string, bytes float64) leaks.Finding {
		return leaks.Finding{File: "/home/a/train.py", Line: line, Function: "main", Holder: holder, Bytes: bytes}
	}
	got := growthOf([]Part{{Leaks: &leaks.Report{Findings: []leaks.Finding{
		finding(17, "losses[*].grad_fn", 5), finding(15, "losses[*].grad_fn", 1), finding(21, "", 2),
	}}}})
	require.Equal(t, &rowGrowth{6, "losses[*].grad_fn"}, got[growthKey{ByHolder, "losses[].grad_fn"}])
	require.Equal(t, &rowGrowth{1, "losses[*].grad_fn"}, got[growthKey{ByLine, "train.py:15"}])
	require.Equal(t, &rowGrowth{2, ""}, got[growthKey{ByLine, "train.py:21"}])
	require.NotContains(t, got, growthKey{ByHolder, ""})
}
