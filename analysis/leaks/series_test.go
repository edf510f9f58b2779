// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
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
				f := floor{1, 1 + r.Int64N(100), 512}
				if r.IntN(2) == 0 {
					s.add(step, f)
					live = live.plus(f)
				} else if live.blocks > 0 {
					f = floor{1, live.requested / live.blocks, 512}
					s.remove(step, f)
					live = live.minus(f)
					low = least(low, live)
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
				want = least(want, f)
			}
			require.Equal(t, want, w, "seed %d, window %d", seed, i)
		}
		require.Equal(t, all[max(0, steps-keptSteps):], s.latest())
	}
}

func TestSeriesWithoutSurvivors(t *testing.T) {
	s := &series{}
	for step := range 10_000 {
		s.add(step, floor{1, 4, 512})
		s.remove(step, floor{1, 4, 512})
	}
	s.advance(10_000)
	require.Nil(t, s.windows, "what dies in its step costs nothing")
}
