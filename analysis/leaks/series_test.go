// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/leaks/internal/floors"
)

// TestSeries compares windows and latest steps with all floors, kept one by one.
func TestSeries(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		s, all := &series{}, []floor{}
		live, low := floor{}, floor{}
		steps := 1 + r.IntN(1000)
		for step := range steps {
			low = live
			for range r.IntN(4) {
				f := floor{Blocks: 1, Requested: 1 + r.Int64N(100), Bytes: 512}
				if r.IntN(2) == 0 {
					s.add(step, f)
					live = live.Plus(f)
				} else if live.Blocks > 0 {
					f = floor{Blocks: 1, Requested: live.Requested / live.Blocks, Bytes: 512}
					s.remove(step, f)
					live = live.Minus(f)
					low = floors.Least(low, live)
				}
			}
			all = append(all, low)
		}
		s.advance(steps)
		if s.windows == nil {
			for _, f := range all {
				require.Zero(t, f)
			}
			continue
		}
		require.LessOrEqual(t, len(s.windows), maxWindows)
		require.Equal(t, (steps-1)/s.width+1, len(s.windows), "seed %d, %d steps", seed, steps)
		for i, w := range s.windows {
			want := all[i*s.width]
			for _, f := range all[i*s.width : min(steps, (i+1)*s.width)] {
				want = floors.Least(want, f)
			}
			require.Equal(t, want, w, "seed %d, window %d", seed, i)
		}
		require.Equal(t, all[max(0, steps-keptSteps):], s.latest())
	}
}

func TestSeriesWithoutSurvivors(t *testing.T) {
	s := &series{}
	for step := range 10_000 {
		s.add(step, floor{Blocks: 1, Requested: 4, Bytes: 512})
		s.remove(step, floor{Blocks: 1, Requested: 4, Bytes: 512})
	}
	s.advance(10_000)
	require.Nil(t, s.windows, "what dies in its step costs nothing")
}
