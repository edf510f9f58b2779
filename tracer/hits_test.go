// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package tracer

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/bpf"
)

// TestOutcomesAreNamed: law 1 needs every outcome in one, and only one, of the two tables.
func TestOutcomesAreNamed(t *testing.T) {
	for o := range bpf.TraceOutcomeOUTCOME_COUNT {
		quiet, dropped := quietOutcomes[o], droppedOutcomes[o]
		if o == bpf.TraceOutcomeOUT_EMITTED {
			require.Empty(t, quiet+dropped)
			continue
		}
		require.NotEmpty(t, quiet+dropped, "outcome %d has no name", o)
		require.True(t, quiet == "" || dropped == "", "outcome %d has two names", o)
	}
	require.Len(t, quietOutcomes, int(bpf.TraceOutcomeOUTCOME_COUNT)-1-len(droppedOutcomes), "a name without an outcome")
	names := map[string]bool{}
	for _, table := range []map[bpf.TraceOutcome]string{quietOutcomes, droppedOutcomes} {
		for _, name := range table {
			require.False(t, names[name], "%q names two outcomes", name)
			names[name] = true
		}
	}
}

// TestHitsAddUp sets a different count for each outcome and expects to find all of them.
func TestHitsAddUp(t *testing.T) {
	var stats bpf.TraceHookStats
	var runs uint64
	for o := range bpf.TraceOutcomeOUTCOME_COUNT {
		stats.Outcome[o] = 1 << o
		runs += 1 << o
	}
	stats.Hits = runs
	h := hitsOf("probe", &stats, 0)
	sum := h.Emitted + h.Lost()
	for _, n := range h.Quiet {
		sum += n
	}
	require.Equal(t, runs, sum)
	require.Equal(t, runs, h.Hits)
	require.EqualValues(t, 1<<bpf.TraceOutcomeDROP_RING_FULL, h.Dropped["ring full"])
}
