// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"cmp"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/tracer"
	"github.com/gputrace/gputrace/tracer/hook"
)

// madeCall is one call that a program made, from its log (testdata/programs/calls.c).
type madeCall struct {
	tid        uint32
	begin, end uint64 // CLOCK_BOOTTIME, ns
	function   string
	left       bool // by longjmp, an exception or the end of the thread
}

func readMade(t *testing.T, path string) []madeCall {
	t.Helper()
	var out []madeCall
	eachLine(t, path, func(line []byte) {
		f := strings.Fields(string(line))
		require.Len(t, f, 5, "%s", line)
		out = append(out, madeCall{uint32(number(t, f[0])), number(t, f[1]), number(t, f[2]), f[3], f[4] == "left"})
	})
	slices.SortFunc(out, func(a, b madeCall) int { return cmp.Compare(a.begin, b.begin) })
	return out
}

// callRun is a program that was traced from its first call on.
type callRun struct {
	*trace
	calls ledgerCalls
	made  []madeCall // by their begin
	pid   uint32
	lines []string // of the program's output
}

// runCalls runs cudacalls or one of its sisters under the tracer.
func runCalls(t *testing.T, program string, o *tracer.Options, environment []string, args ...string) *callRun {
	t.Helper()
	dir := t.TempDir()
	ledger := filepath.Join(dir, "ledger")
	require.NoError(t, os.WriteFile(ledger, nil, 0o644))
	environment = append(environment, "RUN_PROGRAM="+filepath.Join(env.programs, program), "STANDIN_LEDGER="+ledger, "STANDIN_LEDGER_SYNC=1")
	args = append(args, "--log", filepath.Join(dir, "log"), "--go", filepath.Join(dir, "go"), "--hold", filepath.Join(dir, "hold"))
	p := startIn(t, dir, environment, filepath.Join(env.testdata, "run"), args...).ready(t)
	require.Empty(t, readCalls(t, ledger), "calls before the attach")
	tr := attach(t, p.pid, o, nil)
	p.release(t)
	p.done(t)
	tr.finishWhole(t)
	return &callRun{trace: tr, calls: readCalls(t, ledger), made: readMade(t, filepath.Join(dir, "log")), pid: uint32(p.pid),
		lines: p.output()}
}

// pauses are moments at which no call was under way.
func pauses(made []madeCall) []uint64 {
	var out []uint64
	end := uint64(0)
	for i := range made {
		if i > 0 && made[i].begin > end {
			out = append(out, made[i].begin)
		}
		end = max(end, made[i].end)
	}
	return append(out, math.MaxUint64) // threads end after their last call
}

// undone finds, for each failed free, the event that it undoes: both by their index in events. Of a call that was left, the
// failure is only known when its thread makes its next call, or ends.
func undone(t *testing.T, events []event.Event) map[int]int {
	t.Helper()
	type place struct {
		tid    uint32
		object event.Object
		addr   uint64
	}
	last, out := map[place]int{}, map[int]int{}
	for i := range events {
		e := &events[i]
		at := place{e.TID, e.Object, e.Addr}
		switch {
		case e.Layer == event.LayerAllocator:
		case e.Kind == event.KindFreeFailed:
			of, ok := last[at]
			require.True(t, ok, "nothing to undo: %+v", e)
			out[i] = of
			delete(last, at)
		case retires(e.Kind):
			last[at] = i
		}
	}
	return out
}

// requireLive compares the live set at every pause, and returns the heap of the end. Pauses in which a call that was left is still
// taken for a free are passed over.
func (r *callRun) requireLive(t *testing.T) *heap.Heap {
	t.Helper()
	h, a := heap.New(), newAccount()
	h.FromStart(r.pid)
	events, calls, moments := r.events, r.calls, pauses(r.made)
	compared, passed, doubts := 0, 0, r.doubts(t)
	for _, moment := range moments {
		var now []event.Event
		var counted ledgerCalls
		now, events = eventsUntil(events, moment)
		counted, calls = calls.until(moment)
		for i := range now {
			h.Apply(&now[i])
		}
		a.apply(t, counted)
		if slices.ContainsFunc(doubts, func(d doubt) bool { return d.from < moment && moment < d.to }) {
			passed++
			continue
		}
		want := a.live()
		requireHoldings(t, want, holdingsOf(h), itoa(compared))
		compared += len(want)
	}
	require.Empty(t, events)
	require.Empty(t, calls)
	require.NotZero(t, compared, "nothing ever lived")
	require.Less(t, passed, len(moments)) // the end is compared in any case
	t.Logf("%d calls of the program, %d of the ledger, %d events; %d pauses and %d passed over, %d holdings compared", len(r.made),
		len(r.calls), len(r.events), len(moments), passed, compared)
	return h
}

type doubt struct{ from, to uint64 }

// doubts are the times between a free and its failure.
func (r *callRun) doubts(t *testing.T) []doubt {
	t.Helper()
	var out []doubt
	for failure, free := range undone(t, r.events) {
		out = append(out, doubt{r.events[free].Time, r.events[failure].Time})
	}
	return out
}

// requireNames compares the names of the events with the functions that the program called, call by call.
func (r *callRun) requireNames(t *testing.T) {
	t.Helper()
	made := byThread(r.made)
	rows := map[string][]*hook.Row{}
	for i := range hook.Rows {
		rows[hook.Rows[i].Symbol] = append(rows[hook.Rows[i].Symbol], &hook.Rows[i])
	}
	named, frees := 0, undone(t, r.events)
	for i := range r.events {
		e := &r.events[i]
		if free, ok := frees[i]; ok {
			require.Equal(t, r.events[free].Call, e.Call, "%+v", e)
			named++
			continue
		}
		m := during(made[e.TID], e.Time)
		if m == nil {
			continue
		}
		for _, row := range rows[m.function] {
			if doesThis(row, e) {
				require.Equal(t, row.Name(), e.Call, "%+v in %+v", e, m)
				named++
			}
		}
	}
	require.Greater(t, named, len(r.events)*9/10, "events in calls of the program, of %d", len(r.events))
}

func byThread(made []madeCall) map[uint32][]madeCall {
	out := map[uint32][]madeCall{}
	for _, m := range made {
		out[m.tid] = append(out[m.tid], m)
	}
	return out
}

// during finds the call that a thread was making.
func during(made []madeCall, time uint64) *madeCall {
	at, _ := slices.BinarySearchFunc(made, time, func(m madeCall, time uint64) int { return cmp.Compare(m.end, time) })
	if at < len(made) && made[at].begin <= time {
		return &made[at]
	}
	return nil
}

// doesThis reports whether an event is what a function is for, and not something that it did on the way.
func doesThis(row *hook.Row, e *event.Event) bool {
	switch {
	case row.Object != e.Object || row.Program != hook.Call:
		return false
	case e.Kind == event.KindOutOfMemory:
		return row.Kind == event.KindAlloc
	default:
		return row.Kind == e.Kind
	}
}

// rowsSeen collects the rows of a library that were driven, and those that gave an event its name.
type rowsSeen struct {
	driven, named map[string]bool
}

func (s *rowsSeen) add(t *testing.T, r *callRun) {
	t.Helper()
	for _, h := range r.hits(t) {
		if h.Hits > h.Quiet["not about memory"] {
			s.driven[strings.Fields(h.Probe)[1]] = true
		}
	}
	for i := range r.events {
		s.named[r.events[i].Call] = true
	}
}

// requireAll fails for rows that no run has driven.
func (s *rowsSeen) requireAll(t *testing.T, libraries ...*hook.Library) {
	t.Helper()
	var missing []string
	for i := range hook.Rows {
		r := &hook.Rows[i]
		if !slices.Contains(libraries, r.Library) {
			continue
		}
		if !s.driven[r.Symbol] {
			missing = append(missing, r.Symbol)
		} else if r.Program == hook.Call && !s.named[r.Name()] {
			missing = append(missing, r.Symbol+" (no event has its name)")
		}
	}
	require.Empty(t, missing, "rows of the hook table that no test drives")
}

// callPrograms are the programs that call every function of some libraries.
var callPrograms = []struct {
	name      string
	libraries []*hook.Library
	resets    int // rounds of --reset; 0: it has none
}{
	{"cudacalls", []*hook.Library{hook.Driver, hook.Runtime}, 2000},
	{"hipcalls", []*hook.Library{hook.HIP}, 50},
	{"zecalls", []*hook.Library{hook.LevelZero}, 0},
}

// failing makes calls of every sort fail now and then: each n-th of the process, so that all functions meet it.
var failing = []string{"STANDIN_FAIL_FREE=7", "STANDIN_FAIL_ALLOC=11"}

// TestCalls drives every row of the hook table from C and compares what is said of each call with the ledger: kind, address or
// handle, size, device, context, pool, and the name of the function that the program called. The live set is compared
// whenever no call is under way.
func TestCalls(t *testing.T) {
	for _, p := range callPrograms {
		seen := &rowsSeen{driven: map[string]bool{}, named: map[string]bool{}}
		for _, tt := range []struct {
			name   string
			args   []string
			env    []string
			resets bool
		}{
			{name: "one thread", args: []string{"--only", "all", "--threads", "1", "--rounds", "1000"}},
			{name: "failing", args: []string{"--only", "all", "--threads", "1", "--rounds", "1000"}, env: failing},
			{name: "threads, failing", args: []string{"--only", "all", "--threads", "6", "--rounds", "300"}, env: failing},
			{name: "reset", args: []string{"--reset", "--rounds", itoa(p.resets)}, env: []string{twoDevices}, resets: true},
			{name: "reset, failing", args: []string{"--reset", "--rounds", itoa(p.resets)}, env: append([]string{twoDevices}, failing...),
				resets: true},
		} {
			if tt.resets && p.resets == 0 {
				continue
			}
			t.Run(p.name+" "+tt.name, func(t *testing.T) {
				r := runCalls(t, p.name, options(), tt.env, tt.args...)
				requireActs(t, r.calls.acts(), actsOf(r.events))
				r.requireNames(t)
				for _, d := range r.requireLive(t).Totals().Drivers {
					require.Zero(t, d.LostFrees, "%+v", d)
					if tt.resets { // every call's context is known there
						require.Zero(t, d.Doubtful, "%+v", d)
					}
				}
				seen.add(t, r)
			})
		}
		t.Run(p.name+" all rows", func(t *testing.T) { seen.requireAll(t, p.libraries...) })
	}
}
