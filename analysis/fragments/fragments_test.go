// SPDX-License-Identifier: Apache-2.0

package fragments_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/fragments"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/moment"
	"github.com/gputrace/gputrace/internal/eventtest"
)

const mib = 1 << 20

// segment makes a segment of blocks, one after the other: a size above 0 is in use, one below is free.
func segment(addr uint64, p fragments.Pool, expandable bool, sizes ...int64) fragments.Segment {
	s := fragments.Segment{Pool: p, Addr: addr, Expandable: expandable}
	for _, n := range sizes {
		b := fragments.Block{Addr: addr + s.Size, Size: uint64(max(n, -n)), Held: n > 0}
		s.Size += b.Size
		s.Blocks = append(s.Blocks, b)
	}
	return s
}

var (
	large   = fragments.Pool{}
	small   = fragments.Pool{Small: true}
	side    = fragments.Pool{Stream: 7}
	private = fragments.Pool{ID: [2]uint64{0, 1}}
)

// job has segments of four pools.
func job() *fragments.Map {
	return &fragments.Map{Segments: []fragments.Segment{
		segment(0x1000_0000, large, false, 4*mib, -16*mib),
		segment(0x2000_0000, large, false, -32*mib),
		segment(0x3000_0000, side, false, 2*mib, -30*mib),
		segment(0x4000_0000, small, false, 512, -1024, 512, -(2*mib - 2048)),
		segment(0x5000_0000, private, false, -6*mib, 2*mib, -12*mib),
		segment(0x6000_0000, large, true, -22*mib, 2*mib, -56*mib),
	}}
}

// What a request could not use, by its size and stream; the sums are computed by hand.
func TestReport(t *testing.T) {
	tests := []struct {
		name                                          string
		request                                       fragments.Request
		tooSmall, elsewhere, usable, largest, pinning uint64
	}{
		{"no request", fragments.Request{}, 16*mib + 30*mib + 2*mib - 1024 + 18*mib + 78*mib, 0, 0, 56 * mib, 0},
		{"20 MiB", fragments.Request{Bytes: 20 * mib}, 16 * mib, 30*mib + 2*mib - 1024 + 18*mib, 78 * mib, 56 * mib, 0},
		{"60 MiB", fragments.Request{Bytes: 60 * mib}, 16*mib + 78*mib, 30*mib + 2*mib - 1024 + 18*mib, 0, 56 * mib, 0},
		{"exactly as large", fragments.Request{Bytes: 56 * mib}, 16*mib + 22*mib, 30*mib + 2*mib - 1024 + 18*mib, 56 * mib, 56 * mib, 0},
		{"small", fragments.Request{Bytes: 2048}, 1024, 16*mib + 30*mib + 18*mib + 78*mib, 2*mib - 2048, 2*mib - 2048, 0},
		{"another stream", fragments.Request{Bytes: 31 * mib, Stream: 7}, 30 * mib, 16*mib + 2*mib - 1024 + 18*mib + 78*mib, 0, 30 * mib, 0},
		{"private", fragments.Request{Bytes: 12 * mib, Pool: private.ID}, 6 * mib, 16*mib + 30*mib + 2*mib - 1024 + 78*mib, 12 * mib, 12 * mib,
			0},
		{"any stream", fragments.Request{Bytes: 31 * mib, Stream: event.Unknown}, 16*mib + 30*mib + 22*mib, 2*mib - 1024 + 18*mib, 56 * mib,
			56 * mib, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := fragments.New(job(), tt.request)
			require.EqualValues(t, tt.tooSmall, r.TooSmall, "too small")
			require.EqualValues(t, tt.elsewhere, r.Elsewhere, "elsewhere")
			require.EqualValues(t, tt.usable, r.Usable, "usable")
			require.EqualValues(t, tt.largest, r.Largest, "largest")
			require.Equal(t, r.TooSmall+r.Elsewhere, r.Fragmented)
			require.Equal(t, r.Inactive, r.Usable+r.Fragmented)
			require.Equal(t, r.Reserved, r.Held+r.Inactive+r.Free)
			require.EqualValues(t, 32*mib+20*mib+40*mib, r.Returnable, "a free segment, and the pages 0 to 20 and 40 to 80 MiB")
			require.Len(t, r.Stranded, 5)
			require.EqualValues(t, 0x6000_0000, r.Stranded[0].Addr, "the most inactive bytes first")
		})
	}
}

// Sums are those of a plain walk over all blocks, for random maps and requests.
func TestReportAddsUp(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	pools := []fragments.Pool{large, small, side, private}
	for range 300 {
		m := &fragments.Map{}
		for i := range rng.IntN(12) {
			sizes := make([]int64, 1+rng.IntN(9))
			for k := range sizes {
				sizes[k] = (1 + rng.Int64N(40)) * 512 << rng.IntN(12)
				if rng.IntN(2) == 0 {
					sizes[k] = -sizes[k]
				}
			}
			m.Segments = append(m.Segments, segment(uint64(i+1)<<32, pools[rng.IntN(4)], rng.IntN(3) == 0, sizes...))
		}
		want := [3]uint64{} // held, free in used segments, free segments
		for _, s := range m.Segments {
			used := len(s.Pins()) > 0
			for _, b := range s.Blocks {
				switch {
				case b.Held:
					want[0] += b.Size
				case used:
					want[1] += b.Size
				default:
					want[2] += b.Size
				}
			}
		}
		r := fragments.New(m, fragments.Request{Bytes: rng.Uint64N(64 * mib)})
		require.Equal(t, want, [3]uint64{r.Held, r.Inactive, r.Free})
		require.Equal(t, r.Inactive, r.Usable+r.TooSmall+r.Elsewhere)
		require.LessOrEqual(t, r.Returnable, r.Inactive+r.Free)
		sum := uint64(0)
		for _, p := range r.Pools {
			sum += p.Reserved
		}
		require.Equal(t, r.Reserved, sum)
	}
}

// Pins add up by site and holder; the age is that of the oldest block.
func TestPins(t *testing.T) {
	m := job()
	m.Time = 1000
	n := uint64(0)
	for i := range m.Segments {
		for _, b := range m.Segments[i].Pins() {
			n++
			b.Time, b.Stack = 100*n, event.StackID(1+n%2)
		}
	}
	names := func(_ *fragments.Map, b *fragments.Block) (string, string) {
		return map[event.StackID]string{1: "a.py:1", 2: "b.py:2"}[b.Stack], "model"
	}
	r := fragments.New(m, fragments.Request{Bytes: 60 * mib})
	all := r.Pins(m, names, nil)
	require.Equal(t, []fragments.Pin{
		{Site: "a.py:1", Holder: "model", Blocks: 3, Bytes: 2*mib + 512 + 2*mib, Segments: 3, Stranded: 30*mib + 2*mib - 1024 + 78*mib,
			Oldest: 200},
		{Site: "b.py:2", Holder: "model", Blocks: 3, Bytes: 4*mib + 512 + 2*mib, Segments: 3, Stranded: 16*mib + 2*mib - 1024 + 18*mib,
			Oldest: 100},
	}, all)
	require.EqualValues(t, 800, all[0].Age(m.Time))
	require.Equal(t, event.Unknown, all[0].Age(100))
	one := r.Pins(m, names, r.Stranded[:1])
	require.Len(t, one, 1)
	require.EqualValues(t, 2*mib, one[0].Bytes)
}

// The maps of a recording have all that its allocator has reserved, and the sites of its blocks.
func TestAt(t *testing.T) {
	s := eventtest.Random(5, 3000)
	trace, err := view.NewTrace(s, nil)
	require.NoError(t, err)
	maps, err := fragments.At(trace, view.Selection{Moment: moment.Moment{Kind: moment.Peak}})
	require.NoError(t, err)
	accounts := trace.End().Snapshot.Accounts
	require.Len(t, maps, len(accounts))
	for i, m := range maps {
		r := fragments.New(m, fragments.Request{})
		require.Equal(t, accounts[i].PeakTime, m.Time)
		require.Equal(t, accounts[i].Peak-accounts[i].PeakBefore, r.Held)
		require.Equal(t, r.Inactive, r.Fragmented)
		for _, p := range r.Pins(m, fragments.NamesOf(trace), nil) {
			require.NotEmpty(t, p.Site)
			require.Empty(t, p.Holder)
		}
	}
}

// A map that was read from outside learns the sites of its blocks from the events.
func TestKnow(t *testing.T) {
	read, events := job(), job()
	events.Segments[0].Blocks[0].Stack, events.Segments[0].Blocks[0].Time = 9, 5
	events.Segments[2].Blocks[0].Stack = 8
	events.Segments[2].Blocks[0].Size += 512 // another block by then
	read.Know(events)
	require.EqualValues(t, 9, read.Segments[0].Blocks[0].Stack)
	require.EqualValues(t, 5, read.Segments[0].Blocks[0].Time)
	require.Zero(t, read.Segments[2].Blocks[0].Stack)
}
