// SPDX-License-Identifier: Apache-2.0

package leaks_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/leaks"
)

// exchange is a job with a full buffer: each step a small entry takes the place of a large one, and add is called.
func exchange(add func(j *job)) *job {
	j := newJob()
	var large []uint64
	for range 100 {
		large = append(large, j.Alloc(kept, 60_000))
	}
	for _, a := range large {
		j.Pass(input, forward, backward, adam)
		j.Free(a)
		j.Alloc(kept, 1000)
		add(j)
	}
	return j
}

// TestExchange: in a full buffer whose entries differ in size one size class rises where another falls, and nothing grows.
func TestExchange(t *testing.T) {
	j := exchange(func(*job) {})
	for _, r := range []*leaks.Report{j.watch(nil).Report(nil), j.find(t, nil)} {
		require.Equal(t, leaks.Steady, r.Verdict, "%+v", r.Findings)
	}
}

// TestExchangeHidesNothing: a line that leaks beside such a buffer is found, and so is one of the same stack, as soon as it keeps more than
// the buffer exchanges.
func TestExchangeHidesNothing(t *testing.T) {
	for name, add := range map[string]func(*job){
		"another line": func(j *job) { j.Alloc(forward, 512) },
		"the same":     func(j *job) { j.Alloc(kept, 1000); j.Alloc(kept, 1000) },
	} {
		t.Run(name, func(t *testing.T) {
			r := exchange(add).find(t, nil)
			require.Equal(t, leaks.Growing, r.Verdict)
			require.Len(t, r.Findings, 1)
		})
	}
}

// bounded is a job whose entries differ in size, and that frees the oldest ones of them as soon as they have more than most bytes.
func bounded(seed, most uint64, steps int, add func(j *job)) *job {
	r := rand.New(rand.NewPCG(seed, most))
	j := newJob()
	var entries, sizes []uint64
	used := uint64(0)
	for range steps {
		size := (16 + r.Uint64N(2032)) << 10
		j.Pass(input, forward, forward)
		entries, sizes, used = append(entries, j.Alloc(kept, size)), append(sizes, size), used+size
		add(j)
		for used > most {
			j.Free(entries[0])
			used -= sizes[0]
			entries, sizes = entries[1:], sizes[1:]
		}
	}
	return j
}

// TestBounded: of a cache that is bounded in bytes no size class is said to grow when it is full, however many entries of each there happen
// to be. These seeds have classes, or a number of entries, that rise for long; of 1,000 seeds in order two are judged wrongly.
func TestBounded(t *testing.T) {
	for _, seed := range []uint64{0, 61, 116, 128, 235, 241, 366, 367, 412, 421, 432, 465} {
		r := bounded(seed, 256<<20, 500, func(*job) {}).find(t, nil)
		require.Equal(t, leaks.Steady, r.Verdict, "%d: %+v", seed, r.Findings)
	}
}

// TestBoundedHidesNothing: what leaks beside such a cache is found, also at its own stack and in one of its size classes.
func TestBoundedHidesNothing(t *testing.T) {
	for name, add := range map[string]func(*job){
		"another line":   func(j *job) { j.Alloc(second, 4096) },
		"its stack":      func(j *job) { j.Alloc(kept, 4096) },
		"its size class": func(j *job) { j.Alloc(kept, 1<<20) },
	} {
		t.Run(name, func(t *testing.T) {
			r := bounded(61, 128<<20, 500, add).find(t, nil)
			require.Equal(t, leaks.Growing, r.Verdict)
			require.Len(t, r.Findings, 1)
			require.InEpsilon(t, 1, r.Findings[0].Blocks, 0.1)
		})
	}
}

// TestSessions: of sessions that come and go by themselves more are there now and then, which is no growth.
func TestSessions(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 7))
		j := newJob()
		var sessions []uint64
		for range 100 {
			sessions = append(sessions, j.Alloc(kept, 1<<20))
		}
		for range 600 {
			j.Pass(input, forward, forward)
			if r.Float64() < 0.5 {
				sessions = append(sessions, j.Alloc(kept, 1<<20))
			}
			for i := 0; i < len(sessions); i++ {
				if r.Float64() < 0.005 {
					j.Free(sessions[i])
					sessions = append(sessions[:i], sessions[i+1:]...)
				}
			}
		}
		report := j.find(t, nil)
		require.NotEqual(t, leaks.Growing, report.Verdict, "%d: %+v", seed, report.Findings)
	}
}

// TestQueueAndLeak: in the size class and stack of a queue a leak of each step is found as soon as chance does not explain it.
func TestQueueAndLeak(t *testing.T) {
	for steps, want := range map[int]leaks.Verdict{40: leaks.Unclear, 120: leaks.Growing, 1000: leaks.Growing} {
		j := newJob()
		var queue []uint64
		for range steps {
			j.Pass(input, forward, forward)
			queue = append(queue, j.Alloc(kept, 4096))
			if len(queue) > 20 {
				j.Free(queue[0])
				queue = queue[1:]
			}
			j.Alloc(kept, 4096)
		}
		require.Equal(t, want, j.find(t, nil).Verdict, steps)
	}
}
