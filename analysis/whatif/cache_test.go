// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

const mib = 1 << 20

// Sizes of blocks and segments, by hand from the rules.
func TestSizes(t *testing.T) {
	tests := []struct{ request, divisions, block, segment uint64 }{
		{1, 0, 512, 2 * mib},
		{512, 0, 512, 2 * mib},
		{513, 0, 1024, 2 * mib},
		{mib, 0, mib, 2 * mib},
		{mib + 1, 0, mib + 512, 20 * mib},
		{10*mib - 512, 0, 10*mib - 512, 20 * mib},
		{10 * mib, 0, 10 * mib, 10 * mib},
		{10*mib + 1, 0, 10*mib + 512, 12 * mib},
		{1200, 4, 1536, 2 * mib},                // not above 512 x 4: to 512 bytes only
		{2100, 4, 2560, 2 * mib},                // steps of 512 between 2048 and 4096
		{5 * mib, 4, 5 * mib, 20 * mib},         // a step
		{5*mib + 1, 4, 6 * mib, 20 * mib},       // steps of 1 MiB between 4 and 8
		{70 * mib, 2, 96 * mib, 96 * mib},       // steps of 32 MiB between 64 and 128
		{64 * mib, 2, 64 * mib, 64 * mib},       // a power of two
		{5000, 1, 5120, 2 * mib},                // one division: none
		{2*mib - 1, 8, 2 * mib, 20 * mib},       // the next power of two
		{100*mib + 7, 16, 104 * mib, 104 * mib}, // steps of 4 MiB
	}
	for _, tt := range tests {
		s := Settings{Divisions: tt.divisions}
		require.Equal(t, tt.block, s.round(tt.request), "%+v", tt)
		require.Equal(t, tt.segment, segment(s.round(tt.request)), "%+v", tt)
	}
}

// What is reserved, step by step.
func TestReserved(t *testing.T) {
	c := newCache(&Settings{Device: 100 * mib}, Rules{}, false, nil)
	small := c.malloc(1, 0)
	require.EqualValues(t, 2*mib, c.used)
	large := c.malloc(5*mib, 0)
	require.EqualValues(t, 22*mib, c.used)
	require.EqualValues(t, 22*mib, c.used)
	require.NotNil(t, c.malloc(15*mib, 0), "it fits what is left of the 20 MiB exactly")
	require.EqualValues(t, 22*mib, c.used)
	other := c.malloc(5*mib, 1)
	require.EqualValues(t, 42*mib, c.used, "another stream has segments of its own")
	require.Nil(t, c.malloc(70*mib, 0), "58 MiB are left")
	require.Equal(t, 1, c.retries)
	c.free(other)
	require.NotNil(t, c.malloc(70*mib, 0), "the other stream's segment is returned for it")
	require.EqualValues(t, 92*mib, c.used)
	c.free(small)
	c.free(large)
	c.releaseAll()
	require.EqualValues(t, 90*mib, c.used, "the small segment is free as a whole, the large one is not")
}

// Blocks of max_split_size or more are not split, and not given to small requests; they are returned before all others.
func TestMaxSplit(t *testing.T) {
	c := newCache(&Settings{Device: 140 * mib, MaxSplit: 32 * mib}, Rules{}, true, nil)
	b := c.malloc(60*mib, 0)
	c.free(b)
	require.NotNil(t, c.malloc(30*mib, 0))
	require.EqualValues(t, 90*mib, c.used, "not from the 60 MiB")
	kept := c.malloc(12*mib, 0)
	c.free(kept)
	again := c.malloc(50*mib, 0)
	require.EqualValues(t, 60*mib, again.size, "whole, as it is less than 20 MiB too large")
	c.free(again)
	require.NotNil(t, c.malloc(40*mib, 0), "60 MiB are 20 too large")
	require.EqualValues(t, 30*mib+12*mib+40*mib, c.used, "the oversize segment is returned, the one of 12 MiB is not")
}

// Garbage is collected above the threshold: segments that were not used for long.
func TestCollect(t *testing.T) {
	c := newCache(&Settings{Device: 100 * mib, Fraction: 1, GC: 0.7}, Rules{}, false, nil)
	old := c.malloc(30*mib, 0)
	young := c.malloc(40*mib, 0)
	side := c.malloc(2*mib, 1)
	c.free(old)
	for range 10 {
		c.free(side)
		side = c.malloc(2*mib, 1)
	}
	c.free(young)
	require.EqualValues(t, 90*mib, c.used)
	require.NotNil(t, c.malloc(22*mib, 1))
	require.EqualValues(t, 20*mib+40*mib+22*mib, c.used,
		"20 MiB above the threshold: the old segment is returned, the one that was freed last is not")
	require.Zero(t, c.retries)
}

// Segments that are expandable grow by pages of 20 MiB, and give back those that are free as a whole.
func TestExpandable(t *testing.T) {
	c := newCache(&Settings{Device: 200 * mib, Expandable: true}, Rules{OldestFirst: true}, false, nil)
	a, b, d := c.malloc(30*mib, 0), c.malloc(30*mib, 0), c.malloc(30*mib, 0)
	require.EqualValues(t, 100*mib, c.used)
	require.Equal(t, a.addr+30*mib, b.addr)
	c.free(b)
	require.NotNil(t, c.malloc(80*mib, 0), "10 MiB are mapped and free behind the last; 80 more pages")
	require.EqualValues(t, 180*mib, c.used)
	c.releaseAll()
	require.EqualValues(t, 160*mib, c.used, "of 30 to 60 MiB, the page at 40")
	c.free(a)
	c.free(d)
	require.Nil(t, c.malloc(130*mib, 0))
	require.EqualValues(t, 100*mib, c.used, "the last 10 MiB of the page at 80 are in use: 80 to 180 stay")
	require.NotNil(t, c.malloc(100*mib, 0))
	require.EqualValues(t, 200*mib, c.used)
}

// Whatever is asked for: blocks do not overlap, lie in what is reserved, and what is free is listed once.
func TestCacheIsWhole(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 5))
		s := Settings{Device: uint64(64+rng.IntN(400)) * mib, Expandable: seed%2 == 0}
		if rng.IntN(2) == 0 {
			s.MaxSplit = uint64(20+rng.IntN(50)) * mib
		}
		if rng.IntN(3) == 0 {
			s.Fraction, s.GC = 0.9, 0.5
		}
		if rng.IntN(3) == 0 {
			s.Divisions = 4
		}
		c := newCache(&s, Rules{OldestFirst: rng.IntN(2) == 0}, rng.IntN(2) == 0, nil)
		live := map[*block]bool{}
		for range 250 {
			if rng.IntN(3) > 0 {
				if b := c.malloc(1+rng.Uint64N(mib)<<rng.IntN(6), uint64(rng.IntN(2))); b != nil {
					live[b] = true
				}
			} else {
				for b := range live {
					delete(live, b)
					c.free(b)
					break
				}
			}
			requireWhole(t, c, live)
		}
		for b := range live {
			c.free(b)
		}
		c.releaseAll()
		require.Zero(t, c.used, "nothing is in use, nothing is reserved")
	}
}

// requireWhole walks all blocks from those in use and those listed.
func requireWhole(t *testing.T, c *cache, live map[*block]bool) {
	t.Helper()
	listed := map[*block]bool{}
	for _, p := range []*pool{c.smallPool, c.largePool} {
		for _, lists := range []map[uint64][]*block{p.free, p.unmapped} {
			for stream, list := range lists {
				for _, b := range list {
					require.False(t, listed[b] || b.held || b.stream != stream || b.pool != p)
					listed[b] = true
				}
			}
		}
	}
	mapped := uint64(0)
	for _, all := range []map[*block]bool{live, listed} {
		for b := range all {
			require.True(t, b.held == live[b])
			if !b.unmapped {
				mapped += b.size
			}
			if b.next != nil {
				require.True(t, b.next.prev == b && b.addr+b.size == b.next.addr && (live[b.next] || listed[b.next]))
				require.True(t, b.held || b.next.held || b.unmapped != b.next.unmapped, "two free blocks beside each other")
			}
		}
	}
	require.Equal(t, c.used, mapped)
	require.LessOrEqual(t, c.used, c.total)
}

// Versions, and settings as PyTorch reads them.
func TestRulesAndConf(t *testing.T) {
	for version, oldest := range map[string]bool{"2.6.0+cu124": false, "2.12.1": false, "2.13.0": true, "2.15.0+cu132": true, "3.0": true,
		"": true, "git": true} {
		require.Equal(t, oldest, RulesOf(version).OldestFirst, version)
	}
	conf := "expandable_segments:True,max_split_size_mb:128,garbage_collection_threshold:0.6,roundup_power2_divisions:8"
	s, err := ParseConf(conf + ",pinned_use_background_threads:True")
	require.NoError(t, err)
	require.Equal(t, Settings{Expandable: true, MaxSplit: 128 * mib, GC: 0.6, Divisions: 8}, s)
	require.Equal(t, conf, s.Conf())
	_, err = ParseConf("max_split_size_mb:big")
	require.ErrorContains(t, err, "max_split_size_mb:big")
	none, err := ParseConf("")
	require.NoError(t, err)
	require.Empty(t, none.Conf())
}

// The line through points that are on one; and one that is off.
func TestBatches(t *testing.T) {
	points := []Batch{{Size: 8, Need: 100 * mib}, {Size: 16, Need: 150 * mib}, {Size: 32, Need: 250 * mib}}
	b := NewBatches(points, 1000*mib)
	require.InDelta(t, 6.25*mib, b.Slope, 1)
	require.InDelta(t, 50*mib, b.Intercept, 1)
	require.InDelta(t, 0, b.Residual, 1)
	require.True(t, b.Known)
	require.InDelta(t, 152, b.Largest, 1)
	require.Nil(t, NewBatches(points[:1], 0))
	require.Nil(t, NewBatches([]Batch{{Size: 8, Need: 1}, {Size: 8, Need: 2}}, 0), "one size")
	require.False(t, NewBatches(points, 0).Known)
	points[1].Need += 30 * mib
	require.Positive(t, NewBatches(points, 0).Residual)
	s := Settings{Device: 1000 * mib, Fraction: 0.5}
	require.EqualValues(t, 500*mib, s.Room(100*mib, 0))
	require.EqualValues(t, 400*mib, s.Room(600*mib, 20*mib))
}

// Of two recordings whose requests differ in size only, a batch is replayed: with segments of 20 MiB, and a request
// that takes more than the others from some size on, which a line does not know.
func TestScaled(t *testing.T) {
	point := func(batch uint64, more ...op) Batch {
		s := &Stream{Rules: RulesOf("2.15.0"), ids: 8}
		ask := func(id uint32, size uint64) { s.ops = append(s.ops, op{kind: opAlloc, id: id, size: size}) }
		ask(0, 100*mib) // weights; a gradient of the same size, which is freed before the activations
		ask(1, 100*mib)
		s.ops = append(s.ops, op{kind: opFree, id: 1, size: event.Unknown})
		ask(2, batch*10*mib)
		s.ops = append(s.ops, more...)
		r := &Report{Stream: s, Rows: []Row{{Result: &Result{Settings: Settings{Device: 600 * mib}}}}}
		return Batch{Size: float64(batch), Need: r.Need(), Of: r}
	}
	b := NewBatches([]Batch{point(8), point(2), point(4)}, 600*mib)
	require.True(t, b.Replayed && b.Known)
	require.EqualValues(t, 50, b.Largest, "100 MiB and 50 x 10 MiB")
	require.EqualValues(t, 51, b.Fails)
	more := op{kind: opAlloc, id: 3, size: mib}
	require.False(t, NewBatches([]Batch{point(2), point(8, more)}, 600*mib).Replayed, "one has a request more")
	b = NewBatches([]Batch{point(2), point(4, more), point(8, more)}, 600*mib)
	require.True(t, b.Replayed, "the smallest may have other requests")
	require.EqualValues(t, 49, b.Largest, "the segment of the small one takes 2 MiB")
	off := point(4)
	off.Of.ops[3].size += 4 * mib
	b = NewBatches([]Batch{point(2), off, point(8)}, 600*mib)
	require.True(t, b.Replayed, "of those that are not on one line, the larger two")
	require.EqualValues(t, 54, b.Largest, "8 MiB and 54 x 9 MiB")
}
