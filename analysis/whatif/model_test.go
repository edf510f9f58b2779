// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// plain is the caching allocator without lists or neighbours, after the text of CUDACachingAllocator.cpp: segments are walked from end to
// end for everything. Where segments are not expandable.
type plain struct {
	s        Settings
	oldest   bool // of equal blocks, that of the oldest segment is taken
	up       bool
	segments []*plainSegment // in the order in which they were obtained
	lowest   uint64          // addresses that were ever used
	highest  uint64
	count    uint64 // segments
	retries  int
}

type plainSegment struct {
	addr, size, stream, number uint64
	small                      bool
	blocks                     []*plainBlock // by address
}

type plainBlock struct {
	addr, size uint64
	held       bool
	of         *plainSegment
}

func (p *plain) reserved() (n uint64) {
	for _, s := range p.segments {
		n += s.size
	}
	return n
}

// free lists the free blocks of a pool, best fit first.
func (p *plain) free(small bool) (out []*plainBlock) {
	for _, s := range p.segments {
		for _, b := range s.blocks {
			if s.small == small && !b.held {
				out = append(out, b)
			}
		}
	}
	slices.SortFunc(out, func(x, y *plainBlock) int {
		age := 0
		if p.oldest {
			age = cmp.Compare(x.of.number, y.of.number)
		}
		return cmp.Or(cmp.Compare(x.size, y.size), age, cmp.Compare(x.addr, y.addr))
	})
	return out
}

// roundUp is round_size: to 512 bytes, or to a part of the distance between two powers of two.
func (p *plain) roundUp(n uint64) uint64 {
	if n < 512 {
		return 512
	}
	if p.s.Divisions > 1 && n > 512*p.s.Divisions {
		power := uint64(1)
		for power*2 <= n {
			power *= 2
		}
		step := max(512, power/p.s.Divisions)
		for at := power; ; at += step {
			if at >= n {
				return at
			}
		}
	}
	return (n + 511) / 512 * 512
}

func (p *plain) malloc(n, stream uint64) *plainBlock {
	size := p.roundUp(n)
	small := size <= 1<<20
	b := p.fit(size, stream, small)
	for try := 0; b == nil && try < 3; try++ {
		switch try {
		case 1:
			if !p.returnOversize(size, stream, small) {
				continue
			}
		case 2:
			p.retries++
			p.returnAll()
		}
		b = p.obtain(size, stream, small)
	}
	if b == nil {
		return nil
	}
	rest := b.size - size
	if small && rest >= 512 || !small && rest > 1<<20 && (p.s.MaxSplit == 0 || size < p.s.MaxSplit) {
		at := slices.Index(b.of.blocks, b)
		b.of.blocks = slices.Insert(b.of.blocks, at+1, &plainBlock{addr: b.addr + size, size: rest, of: b.of})
		b.size = size
	}
	b.held = true
	return b
}

func (p *plain) fit(size, stream uint64, small bool) *plainBlock {
	for _, b := range p.free(small) {
		if b.size < size || b.of.stream != stream {
			continue
		}
		if p.s.MaxSplit > 0 && (size < p.s.MaxSplit) != (b.size < p.s.MaxSplit) {
			return nil
		}
		if p.s.MaxSplit > 0 && size >= p.s.MaxSplit && b.size-size >= 20<<20 {
			return nil
		}
		return b
	}
	return nil
}

func (p *plain) obtain(size, stream uint64, small bool) *plainBlock {
	n := (size + 2<<20 - 1) >> 21 << 21
	switch {
	case small:
		n = 2 << 20
	case size < 10<<20:
		n = 20 << 20
	}
	if p.s.Fraction > 0 && float64(p.reserved()+n) > p.s.Fraction*float64(p.s.Device) || p.s.Device > 0 && p.reserved()+n > p.s.Device {
		return nil
	}
	s := &plainSegment{addr: p.place(n), size: n, stream: stream, number: p.count, small: small}
	p.count++
	s.blocks = []*plainBlock{{addr: s.addr, size: n, of: s}}
	p.segments = append(p.segments, s)
	return s.blocks[0]
}

// place finds addresses: an unused range between segments that is large enough, next to where the first segment was; else new ones.
func (p *plain) place(n uint64) uint64 {
	if p.highest == 0 {
		p.lowest, p.highest = firstEdge, firstEdge
	}
	byAddr := slices.Clone(p.segments)
	slices.SortFunc(byAddr, func(x, y *plainSegment) int { return cmp.Compare(x.addr, y.addr) })
	var ranges [][2]uint64
	from := p.lowest
	for _, s := range byAddr {
		ranges = append(ranges, [2]uint64{from, s.addr})
		from = s.addr + s.size
	}
	ranges = append(ranges, [2]uint64{from, p.highest})
	if !p.up {
		slices.Reverse(ranges)
	}
	for _, h := range ranges {
		if h[1]-h[0] >= n {
			if p.up {
				return h[0]
			}
			return h[1] - n
		}
	}
	if p.up {
		p.highest += n
		return p.highest - n
	}
	p.lowest -= n
	return p.lowest
}

func (p *plain) drop(s *plainSegment) {
	p.segments = slices.DeleteFunc(p.segments, func(x *plainSegment) bool { return x == s })
}

// returnOversize is release_available_cached_blocks.
func (p *plain) returnOversize(size, stream uint64, small bool) bool {
	if p.s.MaxSplit == 0 {
		return false
	}
	need, got := max(size, p.s.MaxSplit), uint64(0)
	var own []*plainBlock
	for _, b := range p.free(small) {
		if b.of.stream == stream {
			own = append(own, b)
		}
	}
	for _, b := range own {
		if b.size >= need {
			p.drop(b.of)
			return true
		}
	}
	slices.Reverse(own)
	for _, b := range own {
		if got >= need || b.size < p.s.MaxSplit {
			break
		}
		got += b.size
		p.drop(b.of)
	}
	return got >= need
}

func (p *plain) returnAll() {
	p.segments = slices.DeleteFunc(p.segments, func(s *plainSegment) bool { return len(s.blocks) == 1 && !s.blocks[0].held })
}

func (p *plain) release(b *plainBlock) {
	b.held = false
	list := b.of.blocks[:0:0]
	for _, x := range b.of.blocks {
		if last := len(list) - 1; last >= 0 && !list[last].held && !x.held {
			list[last].size += x.size
			continue
		}
		list = append(list, x)
	}
	b.of.blocks = list
}

// The same requests come to the same blocks at the same addresses, the same bytes reserved, and fail at the same points as in an allocator
// that was written down plainly.
func TestPlain(t *testing.T) {
	seeds := uint64(60)
	if testing.Short() {
		seeds = 24
	}
	failed, retried := 0, 0
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 11))
		s := Settings{Device: uint64(100+rng.IntN(300)) * mib}
		switch seed % 4 {
		case 1:
			s.MaxSplit = uint64(20+rng.IntN(30)) * mib
		case 2:
			s.Divisions = 4
		case 3:
			s.Fraction = 0.75
		}
		up, oldest := rng.IntN(2) == 0, rng.IntN(2) == 0
		c, p := newCache(&s, Rules{OldestFirst: oldest}, up, nil), &plain{s: s, oldest: oldest, up: up}
		pairs := map[*block]*plainBlock{}
		for i := range 400 {
			if rng.IntN(5) > 1 {
				n := 1 + rng.Uint64N(mib)<<rng.IntN(7)
				if rng.IntN(4) == 0 {
					n = n/mib*mib + mib // whole, so that limits are met exactly
				}
				stream := uint64(rng.IntN(2))
				got, want := c.malloc(n, stream), p.malloc(n, stream)
				require.Equal(t, want == nil, got == nil, "seed %d, request %d of %d", seed, i, n)
				if want == nil {
					failed++
				} else {
					require.Equal(t, [2]uint64{want.addr, want.size}, [2]uint64{got.addr, got.size}, "seed %d, request %d of %d", seed, i, n)
					pairs[got] = want
				}
			} else if b := oldestOf(pairs, rng.IntN(8)); b != nil {
				c.free(b)
				p.release(pairs[b])
				delete(pairs, b)
			}
			if rng.IntN(60) == 0 {
				c.releaseAll()
				p.returnAll()
			}
			require.Equal(t, p.reserved(), c.used, "seed %d, request %d", seed, i)
			require.Equal(t, p.retries, c.retries)
		}
		retried += p.retries
	}
	require.Greater(t, retried, failed, "some requests fail, some are served at the second try")
	require.NotZero(t, failed)
}

// oldestOf chooses one of the blocks, the same for the same number.
func oldestOf(pairs map[*block]*plainBlock, n int) *block {
	var list []*block
	for b := range pairs {
		list = append(list, b)
	}
	slices.SortFunc(list, compareAddr)
	if len(list) == 0 {
		return nil
	}
	return list[n*7919%len(list)]
}
