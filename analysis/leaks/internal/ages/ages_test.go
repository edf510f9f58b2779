// SPDX-License-Identifier: Apache-2.0

package ages

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

const step = 50_000_000 // nanoseconds

// pool is what a made-up program keeps.
type pool struct {
	Ages
	live []uint64 // times at which its blocks were allocated
	rand *rand.Rand
}

func (p *pool) push(at uint64) { p.live = append(p.live, at); p.count(Added, at) }

// pop frees block i, which counts as lost if it is old enough.
func (p *pool) pop(i int, now uint64) {
	at := p.live[i]
	p.live = append(p.live[:i], p.live[i+1:]...)
	p.count(Freed, at)
	if now-at >= 8*step {
		p.count(Lost, at)
	}
}

// TestTurnsOver: sessions that end by themselves turn over while their number rises; a leak beside them, queues that grow, and pools that
// grow in spite of what they lose do not, and neither does a leak that begins late.
func TestTurnsOver(t *testing.T) {
	const steps = 220
	always := func(run func(p *pool, i int, now uint64)) func() func(p *pool, i int, now uint64) {
		return func() func(p *pool, i int, now uint64) { return run }
	}
	leak := always(func(p *pool, _ int, now uint64) { p.push(now) })
	sessions := func(longest int) func() func(*pool, int, uint64) {
		return func() func(*pool, int, uint64) {
			ends := map[uint64]uint64{}
			return func(p *pool, _ int, now uint64) {
				p.push(now)
				ends[now] = now + uint64(p.rand.IntN(longest))*step
				for i := len(p.live) - 1; i >= 0; i-- {
					if ends[p.live[i]] < now {
						p.pop(i, now)
					}
				}
			}
		}
	}
	for name, c := range map[string]struct {
		run      func() func(p *pool, i int, now uint64)
		low, top int // recordings of a hundred in which it may be found
	}{
		"a leak":            {leak, 0, 0},
		"sessions, filling": {sessions(steps * 9 / 10), 60, 100},
		"a leak beside sessions": {func() func(p *pool, i int, now uint64) {
			inner := sessions(steps / 2)()
			return func(p *pool, i int, now uint64) {
				if inner(p, i, now); i%2 == 0 {
					p.count(Added, now)
				}
			}
		}, 0, 0},
		"a queue that grows": {always(func(p *pool, i int, now uint64) {
			p.push(now)
			if p.push(now); i%4 != 0 {
				p.pop(0, now)
			}
		}), 0, 0},
		"sessions of which each fourth stays": {always(func(p *pool, i int, now uint64) {
			if p.push(now); i%4 != 0 {
				p.pop(p.rand.IntN(len(p.live)), now)
			}
		}), 0, 10},
		"a leak that begins late": {always(func(p *pool, i int, now uint64) {
			if p.push(now); i < steps/3 {
				p.pop(0, now)
			}
		}), 0, 0},
	} {
		found := 0
		for seed := range uint64(100) {
			p := &pool{rand: rand.New(rand.NewPCG(seed, 1))}
			run, grew := c.run(), 0
			for i := range steps {
				if run(p, i, uint64(i)*step); i == steps/4 {
					grew = len(p.live)
				}
			}
			rate := float64(len(p.live)-grew) / (3 * steps / 4) / step
			if p.TurnsOver(steps*step, rate) {
				found++
			}
		}
		require.GreaterOrEqual(t, found, c.low, name)
		require.LessOrEqual(t, found, c.top, name)
	}
	require.False(t, (&Ages{}).TurnsOver(0, 1))
}

// TestChanges: changes count when the step ends, or when there are many.
func TestChanges(t *testing.T) {
	var a Ages
	var c Changes
	c.Note(&a, Added, 1)
	require.Zero(t, a)
	c.Apply()
	require.EqualValues(t, 1, a.alive[0])
	c.Apply()
	require.EqualValues(t, 1, a.alive[0], "once")
	for range maxKept {
		c.Note(&a, Freed, 1)
	}
	require.EqualValues(t, 1-maxKept, a.alive[0])
}
