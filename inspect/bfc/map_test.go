// SPDX-License-Identifier: Apache-2.0

package bfc

import (
	"context"
	"io"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/inspect"
)

// TestMap: regions and chunks of an allocator that stands still are a map without a gap.
func TestMap(t *testing.T) {
	for _, l := range []layout{common, {headAt, 104, 56, 1}} {
		m, err := New(newMade(l).memory(), objectAt).Map(t.Context(), clock(), time.Second)
		require.NoError(t, err)
		require.Positive(t, m.Time)
		require.LessOrEqual(t, m.Window.From, m.Time)
		m.Time, m.Window = 0, inspect.Window{}
		require.Equal(t, &inspect.DeviceMap{
			DeviceTotals: inspect.DeviceTotals{Allocated: 1536, Reserved: 4608}, Active: 1536,
			Segments: []inspect.Segment{
				{Addr: 0x7000_0000, Size: 4096, Blocks: []inspect.Block{
					{Addr: 0x7000_0000, Size: 1024, Requested: 1000, ID: 7, State: inspect.StateAllocated}, {Addr: 0x7000_0400, Size: 3072},
				}},
				{Addr: 0x7100_0000, Size: 512, Blocks: []inspect.Block{
					{Addr: 0x7100_0000, Size: 512, Requested: 512, ID: 9, State: inspect.StateAllocated},
				}},
			},
		}, m)
	}
}

// working is an allocator that works while it is read: something happens at each reading of it, and in the middle of the list of chunks.
type working struct {
	*made
	rng   *rand.Rand
	clock uint64
	truth map[uint64]map[uint64]uint64 // at each time: address of what is in use -> id
}

func (w *working) ReadAt(b []byte, addr uint64) (int, error) {
	w.work()
	image := w.memory()
	n, err := image.ReadAt(b, addr)
	if addr == chunksAt && len(b) > 64 {
		w.work()
		half := len(b) / 128 * 64
		n, err = w.memory().ReadAt(b[half:], addr+uint64(half))
		n += half
	}
	return n, err
}

// now is the time, at which it notes what is in use.
func (w *working) now() uint64 {
	w.clock++
	used := map[uint64]uint64{}
	for _, c := range w.chunks {
		if c[chunkID/8] != noID {
			used[c[chunkPtr/8]] = c[chunkID/8]
		}
	}
	w.truth[w.clock] = used
	return w.clock
}

// work allocates or frees up to four of the chunks, or moves the border between two free ones.
func (w *working) work() {
	for range w.rng.IntN(5) {
		n := 300 + w.rng.IntN(100)
		c := &w.chunks[n]
		next := c[chunkNext/8]
		switch {
		case c[chunkID/8] != noID:
			c[chunkID/8] = noID
			w.head.Fields[9] -= c[0]
		case next != none && w.chunks[next][chunkID/8] == noID && w.chunks[next][0] > 64 && w.rng.IntN(3) == 0:
			c[0] += 64
			w.chunks[next][0] -= 64
			w.chunks[next][chunkPtr/8] += 64
		default:
			c[chunkID/8], c[chunkRequested/8] = w.head.Fields[7], c[0]/2
			w.head.Fields[7]++
			w.head.Fields[9] += c[0]
		}
	}
}

// TestMapOfWork: of an allocator that works without a pause, what is shown as in use was so at the instant, and the rest is bounded by the
// allocator's own count.
func TestMapOfWork(t *testing.T) {
	exact, found := 0, 0
	for seed := range uint64(200) {
		w := &working{made: newBusy(), rng: rand.New(rand.NewPCG(seed, 1)), truth: map[uint64]map[uint64]uint64{}}
		a := New(w, objectAt)
		a.known = common
		m, err := a.mapOnce(w.now)
		if err != nil {
			require.ErrorIs(t, err, ErrChanged)
			continue
		}
		found++
		truth := maps.Clone(w.truth[m.Time])
		used, sum, at := uint64(0), uint64(0), uint64(0x7000_0000)
		require.Len(t, m.Segments, 1)
		for _, b := range m.Segments[0].Blocks {
			require.Equal(t, at, b.Addr, "without a gap")
			at, sum = at+b.Size, sum+b.Size
			if b.State == inspect.StateAllocated {
				require.Equal(t, truth[b.Addr], b.ID, "at %#x", b.Addr)
				used += b.Size
			}
		}
		require.EqualValues(t, 400*256, sum)
		require.EqualValues(t, 400*256, m.Reserved)
		if m.Changing == nil {
			exact++
			require.Equal(t, m.Allocated, used)
			continue
		}
		require.Equal(t, m.Allocated-used, m.Changing.BytesLow)
		require.Equal(t, m.Changing.BytesLow, m.Changing.BytesHigh)
		require.LessOrEqual(t, m.Changing.BlocksLow, m.Changing.BlocksHigh)
	}
	t.Logf("%d maps, %d exact", found, exact)
	require.Greater(t, found, 150)
}

// TestMapPatience: a moment without a change is waited for. Without one, the best pair is the result.
func TestMapPatience(t *testing.T) {
	w := &working{made: newBusy(), rng: rand.New(rand.NewPCG(1, 1)), truth: map[uint64]map[uint64]uint64{}}
	a := New(w, objectAt)
	a.known = common
	m, err := a.Map(t.Context(), w.now, 50*time.Millisecond)
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(m.Segments[0].Blocks), 300)

	locked := newBusy()
	locked.head.Mutex = mutexWriter
	a = New(locked.memory(), objectAt)
	a.known = common
	_, err = a.Map(t.Context(), clock(), time.Millisecond)
	require.ErrorIs(t, err, ErrChanged)
	_, err = New(memory{}, objectAt).Map(t.Context(), clock(), time.Millisecond)
	require.EqualError(t, err, "read the BFC allocator at 0x10000: bad address")
	stopped, cancel := context.WithCancelCause(t.Context())
	cancel(io.EOF)
	_, err = a.Map(stopped, clock(), time.Second)
	require.Equal(t, io.EOF, err)
}

// FuzzMap changes words of an allocator between two copies. Nothing may panic or hang, and the tiles are all of each region.
func FuzzMap(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 2))
		spoil := func(n int, m *made) {
			if n == 0 {
				return
			}
			m.chunks[rng.IntN(len(m.chunks))][rng.IntN(6)] = []uint64{0, 1, none, rng.Uint64(), rng.Uint64N(500), 0x7000_0000}[rng.IntN(6)]
			m.head.Fields[7+rng.IntN(3)] += rng.Uint64N(600)
		}
		a := New(&changing{made: newBusy(), look: spoil}, objectAt)
		a.known = common
		m, err := a.mapOnce(clock())
		if err != nil {
			return
		}
		for _, s := range m.Segments {
			at := s.Addr
			for _, b := range s.Blocks {
				if b.Addr != at || b.Size == 0 || b.Requested > b.Size {
					t.Fatalf("block %+v at %#x", b, at)
				}
				at += b.Size
			}
			if at != s.Addr+s.Size {
				t.Fatalf("the blocks end at %#x", at)
			}
		}
	})
}

// TestPair: memory in use that is in no chunk is in what changed or, if numbers were dealt out meanwhile, in what is free in both copies.
func TestPair(t *testing.T) {
	for name, c := range map[string]struct {
		more, dealt uint64 // bytes in use at the instant, beyond the chunks that are; numbers
		want        *inspect.Changing
	}{
		"nothing":           {0, 0, nil},
		"a number, no more": {0, 1, nil},
		"was in use":        {256, 1, &inspect.Changing{BlocksLow: 1, BlocksHigh: 1, BytesLow: 256, BytesHigh: 256}},
		"without a number":  {256, 0, &inspect.Changing{Ranges: -1}},
		"more than is free": {512, 1, &inspect.Changing{Ranges: -1}},
	} {
		a := New(newBusy().memory(), objectAt)
		first, err := a.look(common, clock())
		require.NoError(t, err)
		second, err := a.look(common, clock())
		require.NoError(t, err)
		p := newPair(first, second)
		p.instant.Fields[9] += c.more
		second.after.Fields[7] += c.dealt
		m, err := p.read()
		if c.want != nil && c.want.Ranges < 0 {
			require.ErrorIs(t, err, ErrChanged, name)
			continue
		}
		require.NoError(t, err, name)
		require.Equal(t, c.want, m.Changing, name)
	}
}

// TestMapCorrupt: an allocator that stands still and does not agree with itself is not believed, though it was before.
func TestMapCorrupt(t *testing.T) {
	m := newMade(common)
	m.chunks[1][chunkPrev/8] = 3
	a := New(m.memory(), objectAt)
	a.known = common
	_, err := a.mapOnce(clock())
	require.ErrorContains(t, err, "chunk 1 does not follow chunk 0")
}
