// SPDX-License-Identifier: Apache-2.0

package bfc

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// Addresses of the made allocator.
const (
	objectAt  = 0x10000
	headAt    = 0x418 // of the mutex in the object, as in JAX 0.10.2
	regionsAt = 0x20000
	handlesAt = 0x30000
	chunksAt  = 0x40000
)

// memory is a made process: bytes by the address of the first.
type memory map[uint64][]byte

func (m memory) ReadAt(b []byte, addr uint64) (int, error) {
	for start, data := range m {
		if addr >= start && addr < start+uint64(len(data)) {
			if n := copy(b, data[addr-start:]); n < len(b) {
				return n, io.ErrUnexpectedEOF
			}
			return len(b), nil
		}
	}
	return 0, errors.New("bad address")
}

// made is an allocator to be written to memory.
type made struct {
	head   head
	layout layout
	chunks [][6]uint64 // size, requested, id, ptr, prev, next
	region [][4]uint64 // start, size, end, first chunk
}

// common is the layout of TensorFlow 2.21 and JAX 0.10.2, at the place of the latter.
var common = layout{headAt, 64, 48, 0}

// newMade is two regions: 1 KiB in use with 1,000 B requested and 3 KiB free; and 512 B in use. Chunk 2 is unused.
func newMade(l layout) *made {
	m := &made{layout: l, chunks: [][6]uint64{
		{1024, 1000, 7, 0x7000_0000, none, 1},
		{3072, 5, noID, 0x7000_0400, 0, none},
		{99, 99, noID, 0x7000_0400, 1, none},
		{512, 512, 9, 0x7100_0000, none, none},
	}, region: [][4]uint64{{0x7000_0000, 4096, 0x7000_1000, 0}, {0x7100_0000, 512, 0x7100_0200, 3}}}
	m.head.Fields[6] = 2
	copy(m.head.Fields[7+l.more:], []uint64{10, 9, 1536})
	return m
}

// memory writes the allocator.
func (m *made) memory() memory {
	out := memory{regionsAt: nil, chunksAt: nil, handlesAt: nil}
	for i, r := range m.region {
		out[regionsAt] = binary.LittleEndian.AppendUint64(append64(out[regionsAt], r[:3]...), handlesAt+8*uint64(i))
		out[regionsAt] = append64(append64(out[regionsAt], 0, 0), make([]uint64, (m.layout.region-48)/8)...)
		out[handlesAt] = append64(out[handlesAt], r[3])
	}
	for _, c := range m.chunks {
		out[chunksAt] = append(append64(out[chunksAt], c[:]...), bytes.Repeat([]byte{0xee}, int(m.layout.stride)-48)...)
	}
	h := m.head
	set := func(at int, begin uint64) {
		end := begin + uint64(len(out[begin]))
		if h.Fields[at] == 0 {
			copy(h.Fields[at:], []uint64{begin, end, end})
		}
	}
	set(0, regionsAt)
	set(3, chunksAt)
	object := bytes.Repeat([]byte{0x11}, headAt)
	out[objectAt] = append64(append64(object, h.Mutex), h.Fields[:]...)
	return out
}

func append64(b []byte, words ...uint64) []byte {
	for _, w := range words {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

// clock counts its readings.
func clock() func() uint64 {
	n := uint64(0)
	return func() uint64 { n++; return n }
}

// TestRead: the fields are found wherever they are, whatever a chunk's size.
func TestRead(t *testing.T) {
	for _, l := range []layout{common, {headAt, 104, 56, 1}, {headAt, 104, 48, 0}, {headAt, 120, 48, 1}} {
		a := New(newMade(l).memory(), objectAt)
		for range 2 {
			s, err := a.Read(t.Context(), clock())
			require.NoError(t, err)
			require.Equal(t, s.From+1, s.To)
			require.Equal(t, s.From, s.Counted)
			s.From, s.Counted, s.To = 0, 0, 0
			require.Equal(t, &State{InUse: 1536, Reserved: 4608, Regions: []Region{{0x7000_0000, 4096}, {0x7100_0000, 512}}, Blocks: []Block{
				{Addr: 0x7000_0000, Size: 1024, Requested: 1000}, {Addr: 0x7100_0000, Size: 512, Requested: 512},
			}}, s)
			require.Equal(t, l, a.known)
		}
	}
}

// TestCorrupt: an allocator whose fields do not agree is not believed.
func TestCorrupt(t *testing.T) {
	chunk := func(n, field int, value uint64) func(m *made) {
		return func(m *made) { m.chunks[n][field/8] = value }
	}
	field := func(at int, values ...uint64) func(m *made) {
		return func(m *made) { copy(m.head.Fields[at:], values) }
	}
	overlap := func(m *made) { m.region[1] = [4]uint64{0x7000_0800, 512, 0x7000_0a00, 3} }
	for why, spoil := range map[string]func(m *made){
		"chunk 0 does not begin it":                                   chunk(0, chunkPtr, 0x7000_0400),
		"chunk 1 does not follow chunk 0":                             chunk(1, chunkPrev, 3),
		"chunk 0 is in two places":                                    chunk(0, chunkNext, 0),
		"chunk 3 follows the last one":                                chunk(1, chunkNext, 3),
		"no chunk has the number 4":                                   chunk(0, chunkNext, 4),
		"unused chunks: chunk 2 is in two places":                     chunk(2, chunkNext, 2),
		"unused chunks: chunk 3 is in two places":                     chunk(2, chunkNext, 3),
		"chunk 0 of 1024 bytes cannot be allocation 10 of 1000 bytes": chunk(0, chunkID, 10),
		"chunk 0 of 1024 bytes cannot be allocation 7 of 1025 bytes":  chunk(0, chunkRequested, 1025),
		"no chunk has the number 5":                                   field(6, 5),
		"a chunk is in no region and not unused":                      field(6, none),
		"no number of the next allocation":                            field(7, 0),
		"the chunks in use are 1536 bytes, the allocator counts 1535": field(9, 1535),
		"no list of regions":                                          field(0, regionsAt+96, regionsAt, regionsAt+96),
		"no list of chunks of 64 bytes":                               field(3, chunksAt, chunksAt+250, chunksAt+256),
		"bad address":                                                 field(3, 0x90000, 0x90000+256, 0x90000+256),
		"no region can be 4095 bytes at 0x70000000":                   func(m *made) { m.region[0][1]-- },
		"no region can be 512 bytes at 0x70000800":                    overlap,
	} {
		m := newMade(common)
		spoil(m)
		a := New(m.memory(), objectAt)
		_, err := a.copy(common, clock(), false)
		require.ErrorContains(t, err, why)
		_, err = a.attempt(clock(), false)
		require.ErrorIs(t, err, ErrUnknownLayout, why)
		require.Zero(t, a.known)
	}
}

// TestWrongStride: chunks of one size are not taken for chunks of another one.
func TestWrongStride(t *testing.T) {
	a := New(newMade(common).memory(), objectAt)
	for stride := uint64(minStride); stride <= maxStride; stride += 8 {
		for _, region := range regionSizes {
			for more := range 2 {
				l := layout{headAt, stride, region, more}
				_, err := a.copy(l, clock(), false)
				require.Equal(t, l == common, err == nil, "%+v: %v", l, err)
			}
		}
	}
}

// changing is a process whose allocator works: at each reading of the object something happens.
type changing struct {
	made *made
	look func(n int, m *made)
	n    int
}

func (c *changing) ReadAt(b []byte, addr uint64) (int, error) {
	if addr >= objectAt && addr < regionsAt {
		c.look(c.n, c.made)
		c.n++
	}
	return c.made.memory().ReadAt(b, addr)
}

// TestChanging: a copy is believed only if nothing happened while it was made, and another one is made otherwise.
func TestChanging(t *testing.T) {
	free := func(m *made) { // the block of 512 B
		m.chunks[3][chunkID/8], m.head.Fields[9] = noID, 1024
	}
	for name, look := range map[string]func(n int, m *made){
		"a free between the looks": func(n int, m *made) {
			if n == 2 { // the search is the first, the look before the copy the second
				free(m)
			}
		},
		"locked": func(n int, m *made) {
			m.head.Mutex = 0
			if n < 5 {
				m.head.Mutex = mutexWriter | 4
			}
			if n == 4 {
				free(m)
			}
		},
	} {
		a := New(&changing{made: newMade(common), look: look}, objectAt)
		_, err := a.attempt(clock(), false)
		require.ErrorIs(t, err, ErrChanged, name)
		s, err := a.Read(t.Context(), clock())
		require.NoError(t, err, name)
		require.EqualValues(t, 1024, s.InUse, name)
		require.Len(t, s.Blocks, 1, name)
	}
}

// newBusy is one region of 400 chunks of 256 B, all in use but the last.
func newBusy() *made {
	m := &made{layout: common, region: [][4]uint64{{0x7000_0000, 400 * 256, 0x7000_0000 + 400*256, 0}}}
	for n := range uint64(400) {
		m.chunks = append(m.chunks, [6]uint64{256, 200, n + 1, 0x7000_0000 + 256*n, n - 1, n + 1})
	}
	m.chunks[399][chunkNext/8], m.chunks[399][chunkID/8] = none, noID
	m.head.Fields[6] = none
	copy(m.head.Fields[7:], []uint64{1000, 999, 399 * 256})
	return m
}

// TestNeverStill: an allocator that never stands still is read as it changes, after some time and if nearly all of it goes together.
func TestNeverStill(t *testing.T) {
	work := func(n int, m *made) { // it takes the last chunk, and frees it
		m.head.Fields[7]++
		m.chunks[399][chunkID/8], m.head.Fields[9] = m.head.Fields[7]-1, 400*256
		if n%2 == 0 {
			m.chunks[399][chunkID/8], m.head.Fields[9] = noID, 399*256
		}
	}
	a := New(&changing{made: newBusy(), look: work}, objectAt)
	_, err := a.attempt(clock(), false)
	require.ErrorIs(t, err, ErrChanged)
	s, err := a.Read(t.Context(), clock())
	require.NoError(t, err)
	require.Equal(t, common, a.known)
	require.Less(t, s.From, s.Counted)
	require.Less(t, s.Counted, s.To)
	require.GreaterOrEqual(t, len(s.Blocks), 399)
	require.EqualValues(t, 400*256, s.Reserved)
	require.Equal(t, Block{0x7000_0000, 256, 200}, s.Blocks[0])

	for name, spoil := range map[string]func(m *made){
		"chunks apart": func(m *made) {
			for n := range 5 {
				m.chunks[n][chunkPrev/8] = 77
			}
		},
		"another list of chunks": func(m *made) { m.head.Fields[3] = chunksAt + 64 },
		"another count":          func(m *made) { m.head.Fields[9] = 1 << 40 },
		"locked":                 func(m *made) { m.head.Mutex = mutexWriter },
	} {
		m := newBusy()
		a := New(&changing{made: m, look: func(n int, m *made) {
			work(n, m)
			if n == 1 { // the look behind the copy
				spoil(m)
			}
		}}, objectAt)
		if name == "chunks apart" {
			spoil(m)
		}
		_, err := a.copy(common, clock(), true)
		require.ErrorIs(t, err, ErrChanged, name)
	}
}

// TestReadFails: an allocator that stays busy, is not known, or whose process has ended ends the reading with an error.
func TestReadFails(t *testing.T) {
	m := newMade(common)
	m.head.Mutex = mutexWriter
	_, err := New(m.memory(), objectAt).Read(t.Context(), clock())
	require.ErrorIs(t, err, ErrChanged)
	require.ErrorContains(t, err, "read the BFC allocator at 0x10000")
	_, err = New(memory{objectAt: make([]byte, objectBytes)}, objectAt).Read(t.Context(), clock())
	require.ErrorIs(t, err, ErrUnknownLayout)
	_, err = New(memory{}, objectAt).Read(t.Context(), clock())
	require.EqualError(t, err, "read the BFC allocator at 0x10000: bad address")
	stopped, cancel := context.WithCancelCause(t.Context())
	cancel(io.EOF)
	_, err = New(m.memory(), objectAt).Read(stopped, clock())
	require.Equal(t, io.EOF, err)

	a := New(newMade(common).memory(), objectAt)
	_, err = a.Read(t.Context(), clock())
	require.NoError(t, err)
	spoiled := newMade(common)
	spoiled.head.Fields[9]++
	a.memory = spoiled.memory()
	_, err = a.Read(t.Context(), clock())
	require.ErrorIs(t, err, ErrChanged, "it was proved before")
}

// FuzzRead changes words of an allocator. Nothing may panic, and blocks that are returned must add up and not overlap.
func FuzzRead(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(seed, uint8(seed))
	}
	f.Fuzz(func(t *testing.T, seed uint64, edits uint8) {
		rng, m := rand.New(rand.NewPCG(seed, 1)), newMade(layout{headAt, 64 + 8*(seed%8), regionSizes[seed%2], int(seed % 2)})
		image := m.memory()
		for range edits % 16 {
			at := []uint64{objectAt, regionsAt, handlesAt, chunksAt}[rng.IntN(4)]
			first := 0
			if at == objectAt {
				first = headAt / 8
			}
			word := image[at][8*(first+rng.IntN(len(image[at])/8-first)):]
			value := []uint64{0, 1, 2, 3, none, rng.Uint64(), rng.Uint64N(1 << 13), chunksAt, 0x7000_0000}[rng.IntN(9)]
			binary.LittleEndian.PutUint64(word, value)
		}
		s, err := New(image, objectAt).attempt(clock(), false)
		if err != nil {
			return
		}
		sum, end := uint64(0), uint64(0)
		for _, b := range s.Blocks {
			if b.Addr < end || b.Size == 0 || b.Requested > b.Size {
				t.Fatalf("block %+v after %#x", b, end)
			}
			sum, end = sum+b.Size, b.Addr+b.Size
		}
		if sum != s.InUse || sum > s.Reserved {
			t.Fatalf("%d bytes of %d in use, of %d", sum, s.InUse, s.Reserved)
		}
	})
}
