// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/tracer/hook"
)

// TestLedger compares everything with the driver's own ledger, call for call, also where frees fail, and the numbers of calls
// with those that the program counted.
func TestLedger(t *testing.T) {
	tests := []struct {
		name    string
		threads string
		env     []string
		perf    bool // attach by perf events, as older kernels need it
		frees   bool // have stacks too
	}{
		{name: "one thread", threads: "1"},
		{name: "perf uprobes", threads: "2", perf: true},
		{name: "threads", threads: "8"},
		{name: "failing frees", threads: "1", env: []string{"STANDIN_FAIL_FREE=3"}},
		{name: "failing frees in threads", threads: "8", env: []string{"STANDIN_FAIL_FREE=7"}},
		{name: "stacks of frees", threads: "2", env: []string{"STANDIN_FAIL_FREE=7"}, frees: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := options()
			o.PerfUprobes, o.FreeStacks = tt.perf, tt.frees
			r := runCalls(t, "cudacalls", o, tt.env, "--threads", tt.threads, "--rounds", "500")
			requireActs(t, r.calls.acts(), actsOf(r.events))
			require.NotEmpty(t, holdingsOf(r.requireLive(t)))
			r.requireCounts(t)
			r.requireStacks(t, tt.frees)
		})
	}
}

// requireStacks: each allocation has a stack, each free if it was asked for, and all of them are whole.
func (r *callRun) requireStacks(t *testing.T, frees bool) {
	t.Helper()
	with := map[event.Kind]int{}
	for i := range r.events {
		e := &r.events[i]
		switch e.Kind {
		case event.KindAlloc, event.KindOutOfMemory:
			require.NotZero(t, e.Stack, "%+v", e)
		case event.KindFree, event.KindFreeFailed:
			require.Equal(t, frees, e.Stack != 0, "%+v", e)
		}
		if e.Stack != 0 {
			stack := r.target.Stack(e.Stack)
			require.NotNil(t, stack, "%+v", e)
			require.Equal(t, event.StatusOK, stack.Status, "%+v", e)
			with[e.Kind]++
		}
	}
	require.NotZero(t, with[event.KindAlloc])
	require.Equal(t, frees, with[event.KindFree] > 0)
}

// requireCounts compares the names of the calls with what the program counted: the function that it called, once.
func (r *callRun) requireCounts(t *testing.T) {
	t.Helper()
	ours, failures := r.counts(), 0
	rows := map[string]*hook.Row{}
	for i := range hook.Rows {
		rows[hook.Rows[i].Symbol] = &hook.Rows[i]
	}
	want := map[string]int{}
	for _, line := range r.lines {
		var name string
		var ok, failed int
		n, _ := fmt.Sscanf(line, "CALL %s ok %d failed %d", &name, &ok, &failed)
		if n != 3 || rows[name] == nil || rows[name].Program != hook.Call {
			continue
		}
		want[rows[name].Name()+" ok"] += ok
		if rows[name].Retires() && failed > 0 {
			want[rows[name].Name()+" failed"] += failed
			failures += failed
		}
	}
	for what, n := range want {
		require.Equal(t, n, ours[what], what)
	}
	for what, n := range ours {
		require.Equal(t, want[what], n, what)
	}
	require.NotZero(t, failures, "no failed free: the test is empty") // cudacalls always frees something twice
	require.NotZero(t, ours["cudaMalloc ok"])
	require.NotZero(t, ours["cuMemAlloc ok"])
	require.NotZero(t, ours["cudaMallocAsync ok"])
	require.NotZero(t, ours["cudaMallocManaged ok"])
}

// counts counts the events by name and result, as far as they are about calls that the program counts.
func (r *callRun) counts() map[string]int {
	made := byThread(r.made)
	out := map[string]int{}
	for i := range r.events {
		e := &r.events[i]
		switch {
		case during(made[e.TID], e.Time) == nil || e.Kind == event.KindOutOfMemory:
		case e.Kind == event.KindFreeFailed:
			out[e.Call+" ok"]--
			out[e.Call+" failed"]++
		default:
			out[e.Call+" ok"]++
		}
	}
	return out
}

// TestHitsPerProbe checks the two sides of the ring against each other for every probe, where calls nest.
func TestHitsPerProbe(t *testing.T) {
	r := runCalls(t, "cudacalls", options(), nil, "--threads", "2", "--rounds", "100")
	for _, h := range r.hits(t) {
		require.Equal(t, h.Emitted, h.Received, "%+v", h)
	}
}
