// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/leaks/internal/floors"
)

// follow makes a series of what is live behind each step: blocks of 100 bytes.
func follow(steps int, live func(step int) int64) *series {
	s := &series{}
	for step := 1; step <= steps; step++ {
		for s.live.Blocks < live(step) {
			s.add(step, floor{Blocks: 1, Requested: 100, Bytes: 512})
		}
		for s.live.Blocks > live(step) {
			s.remove(step, floor{Blocks: 1, Requested: 100, Bytes: 512})
		}
		s.add(step, floor{Blocks: 7, Requested: 700, Bytes: 7 * 512}) // what every step has and frees
		s.remove(step, floor{Blocks: 7, Requested: 700, Bytes: 7 * 512})
	}
	s.advance(steps + 1)
	return s
}

func every(period, blocks, from int) func(int) int64 {
	return func(step int) int64 { return int64(max(0, step-from+period) / period * blocks) }
}

func TestTrendLeaks(t *testing.T) {
	tests := map[string]struct {
		steps  int
		live   func(int) int64
		first  int
		period int
		blocks float64 // each step
	}{
		"from the first step":    {60, every(1, 1, 1), 1, 1, 1},
		"after a warm-up":        {60, every(1, 1, 11), 11, 1, 1},
		"fifth period":           {16, every(1, 1, 11), 11, 1, 1},
		"late":                   {60, every(1, 3, 50), 50, 1, 3},
		"every third step":       {60, every(3, 62, 13), 13, 3, 62. / 3},
		"every tenth":            {62, every(10, 2, 10), 10, 10, .2},
		"of a long run":          {100_000, every(1, 1, 1), 1, 1, 1},
		"every tenth of many":    {5000, every(10, 5, 1), 1, 10, .5},
		"every epoch of 100":     {5000, every(100, 4, 100), 64, 100, .04},
		"upon what was there":    {60, func(step int) int64 { return 1000 + every(1, 2, 20)(step) }, 20, 1, 2},
		"with a larger first":    {60, func(step int) int64 { return 62 + int64(step) }, 1, 1, 1},
		"late in a long run":     {10_000, every(1, 1, 8001), 7936, 1, 1},
		"every step, ten of two": {2000, every(2, 10, 1), 1, 2, 5},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := follow(tt.steps, tt.live)
			got, ok := s.trend(floors.BlocksOf, false)
			require.True(t, ok)
			require.True(t, got.linear)
			require.InDelta(t, tt.period, got.period, float64(tt.period)/keptSteps) // exact where the latest 64 steps show it
			near := 1e-9
			if tt.period > keptSteps/3 {
				near = 0.02
			}
			require.InEpsilon(t, tt.blocks, got.step.blocks, near)
			require.InEpsilon(t, 100*tt.blocks, got.step.requested, near)
			require.InDelta(t, tt.first, got.first, float64(s.width))
		})
	}
}

func TestTrendHealthy(t *testing.T) {
	random := func(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 2)) }
	noise, seen, masks := random(1), map[int]bool{}, random(2)
	tests := map[string]func(int) int64{
		"flat":              func(int) int64 { return 62 },
		"warm-up":           func(step int) int64 { return int64(min(step, 5)) },
		"a step up":         func(step int) int64 { return int64(step/30) * 62 },
		"queue of 12":       func(step int) int64 { return int64(min(step, 12)) },
		"queue of 40":       func(step int) int64 { return int64(min(step, 40)) },
		"collector":         func(step int) int64 { return int64(step % 9) },
		"collector of 25":   func(step int) int64 { return int64(step % 25) },
		"collector, slow":   func(step int) int64 { return int64(step%45) * 3 },
		"each epoch":        func(step int) int64 { return map[bool]int64{true: 5}[step%10 == 0] },
		"noise":             func(int) int64 { return noise.Int64N(20) },
		"cache, fewer new":  func(int) int64 { seen[masks.IntN(16)] = true; return int64(len(seen)) },
		"cache, slows down": func(step int) int64 { return 100 - 100*20/int64(20+step*3) },
		"falls":             func(step int) int64 { return int64(2000 - step) },
		"four rises":        func(step int) int64 { return int64(min(4, max(0, step-56))) },
	}
	for name, live := range tests {
		t.Run(name, func(t *testing.T) {
			s := follow(60, live)
			got, ok := s.trend(floors.BlocksOf, false)
			require.False(t, ok, "%+v", got)
			got, ok = lineTrend(s)
			require.False(t, ok, "%+v", got)
		})
	}
}

// TestRandomWalk: what goes up and down without end is no leak. Some walks climb for as long as they are looked at.
func TestRandomWalk(t *testing.T) {
	found := 0
	for seed := range uint64(200) {
		r, at := rand.New(rand.NewPCG(seed, 3)), int64(50)
		s := follow(2000, func(int) int64 {
			at = max(0, at+r.Int64N(3)-1)
			return at
		})
		if _, ok := lineTrend(s); ok {
			found++
		}
	}
	require.LessOrEqual(t, found, 4, "of 200")
}

func TestGrowth(t *testing.T) {
	r, size := rand.New(rand.NewPCG(1, 4)), int64(0)
	s := &series{}
	for step := 1; step <= 80; step++ { // a tensor that is made anew, a little larger, before the old one goes
		larger := size + 1 + r.Int64N(1000)
		s.add(step, floor{Blocks: 1, Requested: larger, Bytes: larger})
		if size > 0 {
			s.remove(step, floor{Blocks: 1, Requested: size, Bytes: size})
		}
		size = larger
	}
	s.advance(81)
	_, ok := s.trend(floors.BlocksOf, false)
	require.False(t, ok, "there is one block all the time")
	got, ok := lineTrend(s)
	require.True(t, ok)
	require.False(t, got.linear)
	require.InDelta(t, 500, got.step.requested, 100)
	require.Zero(t, got.step.blocks)
}

// TestSawtoothAtEnd: of a cache that is copied layer by layer as it grows, the recording ends while old and new
// copies are both there: what it grows by is what is kept of all steps, not the last copies.
func TestSawtoothAtEnd(t *testing.T) {
	const layers, tokens = 8, 400
	s, step := &series{}, 0
	old := floor{}
	for token := range tokens {
		size := int64(100 * (token + 1))
		copied := floor{Blocks: 1, Requested: size, Bytes: size}
		for layer := range layers {
			step++
			s.add(step, copied)
			if token == tokens-1 && layer == layers-1 {
				break // it ends here
			}
		}
		if token < tokens-1 {
			for range layers {
				s.remove(step, old)
			}
			old = copied
		}
	}
	s.advance(step + 1)
	got, ok := lineTrend(s)
	require.True(t, ok)
	require.GreaterOrEqual(t, got.step.requested, 99.0, "eight layers grow by 100 bytes each in eight steps")
	require.Less(t, got.step.requested, 250.0, "and the last window has the last copies too; one copy is of 40,000")
}
