// SPDX-License-Identifier: Apache-2.0

package pprof

import (
	"bytes"
	"testing"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// TestMoreProcesses: the profile of several has the samples of each, with labels that say whose they are.
func TestMoreProcesses(t *testing.T) {
	var parts []Part
	want := map[string]int64{}
	for seed, rank := range []string{"rank 0", "rank 1", ""} {
		trace, err := view.NewTrace(eventtest.Random(uint64(seed+1), 2000), nil)
		require.NoError(t, err)
		v, err := trace.Select(view.Selection{})
		require.NoError(t, err)
		part := Part{View: v, Rank: rank}
		if rank == "rank 1" {
			part.Labels = map[string]string{"pod": "trainer-1", "pid": "not its own"}
		}
		parts = append(parts, part)
		if rank == "" {
			rank = NoRank
		}
		for portion := range v.Samples(view.InUse, nil) {
			want[rank] += portion.Bytes
		}
	}
	var b bytes.Buffer
	require.NoError(t, Write(&b, Input{View: parts[0].View, Rank: parts[0].Rank, More: parts[1:]}))
	p, err := profile.ParseData(b.Bytes())
	require.NoError(t, err)
	got := map[string]int64{}
	for _, s := range p.Sample {
		require.Len(t, s.Label["rank"], 1)
		pod := noValue
		if s.Label["rank"][0] == "rank 1" {
			pod = "trainer-1"
		}
		require.Equal(t, []string{pod}, s.Label["pod"])
		require.NotEqual(t, []string{"not its own"}, s.Label["pid"], "a label of ours")
		got[s.Label["rank"][0]] += s.Value[inuseSpace]
	}
	require.Equal(t, want, got)

	b.Reset()
	require.NoError(t, Write(&b, Input{View: parts[2].View}))
	alone, err := profile.ParseData(b.Bytes())
	require.NoError(t, err)
	require.NotContains(t, alone.Sample[0].Label, "rank", "where no process has a rank")
}
