// SPDX-License-Identifier: Apache-2.0

package oom

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/heap"
)

// course of a test: totals that rise and fall.
type rises struct {
	climb
	time, total uint64
	made        heap.Count
}

func (r *rises) alloc(n uint64) {
	r.time++
	r.see(r.time, r.total, r.total+n, r.made)
	r.total += n
	r.made.Bytes += n
}

func (r *rises) free(n uint64) {
	r.time++
	r.see(r.time, r.total, r.total-n, r.made)
	r.total -= n
}

// steps allocates and frees as a training does.
func (r *rises) steps(n int, bytes uint64) {
	for range n {
		r.alloc(bytes)
		r.free(bytes)
	}
}

// TestRise: a loop that keeps what it allocates is found where it begins, whatever temporaries it frees.
func TestRise(t *testing.T) {
	r := &rises{}
	r.alloc(60 << 20)
	r.steps(50, 40<<20)
	begin := r.time
	for range 200 {
		r.alloc(3 << 20)
		r.alloc(14 << 20)
		r.free(3 << 20)
	}
	x, ok := r.began(r.total, r.made)
	require.True(t, ok)
	require.InDelta(t, 60<<20, x.total, 4<<20)
	require.InDelta(t, begin+1, x.time, 1, "the first allocations of the loop")
}

// TestNoRise: where nearly everything is freed again, no rise is found, and none that is a small part of the memory.
func TestNoRise(t *testing.T) {
	r := &rises{}
	r.alloc(60 << 20)
	for range 1000 { // a slow leak beside what steps free
		r.alloc(20 << 20)
		r.free(19 << 20)
	}
	_, ok := r.began(r.total, r.made)
	require.False(t, ok)
	r = &rises{}
	r.alloc(900 << 20)
	r.steps(50, 40<<20)
	for range 20 {
		r.alloc(10 << 20)
	}
	_, ok = r.began(r.total, r.made)
	require.False(t, ok, "200 of 1100 MiB")
}

// TestClimbAgainstHistory: each level has the last moment at which the total rose above it.
func TestClimbAgainstHistory(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		r := &rises{}
		var totals []uint64
		for range 300 {
			before := r.total
			if n := random.Uint64N(1 << random.Uint64N(40)); random.IntN(2) == 0 || n > r.total {
				r.alloc(n)
			} else {
				r.free(n)
			}
			totals = append(totals, before)
		}
		for k := 1; k <= levelOf(r.total); k++ {
			want := uint64(0)
			for i, before := range totals {
				after := r.total
				if i+1 < len(totals) {
					after = totals[i+1]
				}
				if levelOf(before) < k && levelOf(after) >= k {
					want = uint64(i + 1)
				}
			}
			require.Equal(t, want, r.crossed[k].time, "level %d", k)
		}
	}
	for _, x := range []uint64{0, 1, 7, 8, 15, 1 << 20, 1<<63 + 1<<62, 1<<64 - 1} {
		require.Less(t, levelOf(x), len(climb{}.crossed))
		require.GreaterOrEqual(t, levelOf(x), levelOf(x/2))
	}
}
