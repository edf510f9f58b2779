// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/leaks/internal/floors"
)

// TestLadder compares rungs with the survivors of all floors, kept one by one.
func TestLadder(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 4))
		s, all := &series{}, []floor{}
		steps := 1 + r.IntN(200)
		for step := range steps {
			f := floor{Blocks: r.Int64N(8), Requested: 10}
			s.climb(step, f)
			all = append(all, f)
		}
		var want []rung
		left := floors.Survivors(all)
		for i, f := range left {
			if i == 0 || f.Blocks > left[i-1].Blocks {
				want = append(want, rung{i, f})
			}
		}
		require.Equal(t, want, s.rungs, "seed %d", seed)
	}
}

// TestLadderIsBounded: the latest rises are kept.
func TestLadderIsBounded(t *testing.T) {
	s := &series{}
	for step := range int64(10_000) {
		s.climb(int(step), floor{Blocks: step, Requested: 4 * step})
		require.Less(t, len(s.rungs), 2*keptRungs)
	}
	require.GreaterOrEqual(t, len(s.rungs), keptRungs)
	require.Equal(t, rung{9999, floor{Blocks: 9999, Requested: 4 * 9999, Bytes: 0}}, s.rungs[len(s.rungs)-1])
}

// TestPeriodic: epochs whose length windows do not show.
func TestPeriodic(t *testing.T) {
	for _, period := range []int{7, 25, 33, 101} {
		for _, epochs := range []int{5, 6, 11, 30} {
			s := follow(epochs*period+3, every(period, 2, period))
			got, ok := s.blockTrend()
			require.True(t, ok, "%d epochs of %d", epochs, period)
			require.Equal(t, period, got.period)
			require.InEpsilon(t, 2/float64(period), got.step.blocks, 1e-9)
			require.InEpsilon(t, 200/float64(period), got.step.requested, 1e-9)
			require.EqualValues(t, 2*epochs, got.live.Blocks)
		}
	}
}

func TestPeriodicHealthy(t *testing.T) {
	tests := map[string]struct {
		steps int
		live  func(int) int64
	}{
		"four epochs":               {120, every(25, 2, 25)},
		"a queue of epochs":         {600, func(step int) int64 { return min(every(25, 2, 25)(step), 8) }},
		"predictions of each epoch": {330, func(step int) int64 { return int64(step % 100) }},
		"the collector":             {330, func(step int) int64 { return int64(step % 110 / 10) }},
		"late, for a few steps":     {1000, func(step int) int64 { return int64(max(0, step-980)) }},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, ok := follow(tt.steps, tt.live).periodic(floors.MinRises, spanShare)
			require.False(t, ok, "%+v", got)
		})
	}
}
