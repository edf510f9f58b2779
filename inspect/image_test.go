// SPDX-License-Identifier: Apache-2.0

//go:build linux

package inspect

import (
	"compress/gzip"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"flag"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/process"
)

var update = flag.Bool("update", false, "write testdata/state-VERSION.json.gz from a process of the PyTorch that setup.sh gives")

// image is the words of a process that were needed to read its allocator state, and PyTorch's own view of the same moment.
type image struct {
	Native                 uint64
	Vectors, Totals, Sizes []uint64
	Plain                  bool // blocks without a requested size
	Words                  map[uint64]uint64
	Oracle                 oracle
}

// ReadAt returns zeros for words of a page from which others are known.
func (m *image) ReadAt(b []byte, addr uint64) (int, error) {
	known := false
	var w uint64
	for i := range b {
		at := addr + uint64(i)
		if i == 0 || at%8 == 0 {
			var ok bool
			w, ok = m.Words[at&^7]
			known = known || ok
		}
		b[i] = byte(w >> (8 * (at % 8)))
	}
	if !known {
		return 0, io.ErrUnexpectedEOF
	}
	return len(b), nil
}

func (m *image) allocator() *Allocator {
	return &Allocator{memory: m, native: m.Native, layout: layout{
		mutexSize: mutexSizes[elf.EM_X86_64],
		vectors:   slices.Clone(m.Vectors), totals: slices.Clone(m.Totals), shapes: []shape{m.shape()},
	}}
}

func (m *image) shape() shape { return shape{size: m.Sizes[0], requested: !m.Plain} }

// recorder keeps the words that are read.
type recorder struct {
	process.Memory
	words map[uint64]uint64
}

func (r *recorder) ReadAt(b []byte, addr uint64) (int, error) {
	first, end := addr&^7, (addr+uint64(len(b))+7)&^7
	whole := make([]byte, end-first)
	if n, err := r.Memory.ReadAt(whole, first); err != nil {
		return n, err
	}
	for i := 0; i < len(whole); i += 8 {
		r.words[first+uint64(i)] = binary.LittleEndian.Uint64(whole[i:])
	}
	return copy(b, whole[addr-first:]), nil
}

// record reads the allocator state of a live process as Map does, but word by word instead of by page, so that nothing else of the
// process gets into the file.
func record(t *testing.T) {
	p, o := start(t, "mixed", "STANDIN_EVENT_US=3600000000")
	a, err := Find(p)
	require.NoError(t, err)
	r := &recorder{p, map[uint64]uint64{}}
	a.memory = r
	m := image{
		Native: a.native, Vectors: a.vectors, Totals: a.totals, Words: r.words, Oracle: *o,
		Sizes: []uint64{a.shapes[0].size}, Plain: !a.shapes[0].requested,
	}
	mapsOf(t, a)
	m.dropText(t)
	version, _, _ := strings.Cut(o.Version, "+")
	f, err := os.Create("testdata/state-" + version + ".json.gz")
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewWriterLevel(f, gzip.BestCompression)
	require.NoError(t, err)
	require.NoError(t, json.NewEncoder(z).Encode(&m))
	require.NoError(t, z.Close())
}

// dropText forgets what is text among the words in and behind the objects of the devices: what lies there is not always part
// of the object. A word of the state has zeros in its highest bytes, but for the load factor of a table.
func (m *image) dropText(t *testing.T) {
	devices, err := m.allocator().devices(t.Context())
	require.NoError(t, err)
	for _, d := range devices {
		for at := d.addr; at < d.addr+d.limit; at += 8 {
			if w := m.Words[at]; w>>48 != 0 && w>>32 != loadFactor {
				m.Words[at] = w & 0xff // a flag, perhaps, and what lay in its padding
			}
		}
	}
	mapsOf(t, m.allocator())
}

// mapsOf reads the state of every device once, without a copy of pages.
func mapsOf(t testing.TB, a *Allocator) [][]Segment {
	t.Helper()
	devices, err := a.devices(t.Context())
	require.NoError(t, err)
	out := make([][]Segment, len(devices))
	for i, d := range devices {
		s, err := a.stats(t.Context(), d)
		require.NoError(t, err)
		out[i], err = newStateReader(a.memory, i, d, a.shapes[0]).prove(s)
		require.NoError(t, err)
	}
	return out
}

func images(t testing.TB) map[string]*image {
	t.Helper()
	files, err := filepath.Glob("testdata/state-*.json.gz")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	out := map[string]*image{}
	for _, name := range files {
		f, err := os.Open(name)
		require.NoError(t, err)
		defer f.Close()
		z, err := gzip.NewReader(f)
		require.NoError(t, err)
		m := &image{}
		require.NoError(t, json.NewDecoder(z).Decode(m))
		out[name] = m
	}
	return out
}

// TestImages reads recorded states of several versions of PyTorch, through the whole of Totals and Map.
func TestImages(t *testing.T) {
	if *update {
		record(t)
	}
	for name, m := range images(t) {
		t.Run(name, func(t *testing.T) {
			a := m.allocator()
			checkTotals(t, a, &m.Oracle)
			got, err := a.Map(t.Context())
			require.NoError(t, err)
			require.Len(t, got.Devices, 1)
			m.Oracle.check(t, 0, got.Devices[0].Segments)
			assert.Len(t, a.shapes, 1, "the layout was not kept")
		})
	}
}

// TestSearch finds the layouts without what the code says about them.
func TestSearch(t *testing.T) {
	for name, m := range images(t) {
		t.Run(name, func(t *testing.T) {
			a := m.allocator()
			a.shapes, a.guessedVectors, a.guessedTotals = nil, true, true
			a.vectors = append([]uint64{m.Vectors[0] - 8, m.Vectors[0] + 8}, a.vectors...)
			a.totals = []uint64{m.Totals[0] - statSize, m.Totals[0] + statSize, m.Totals[0] + 8, m.Totals[0]}
			for s := uint64(minSizeOffset); s <= maxSizeOffset; s += 8 {
				a.shapes = append(a.shapes, shape{s, true}, shape{s, false})
			}
			got, err := a.Map(t.Context())
			require.NoError(t, err)
			m.Oracle.check(t, 0, got.Devices[0].Segments)
		})
	}
}

// TestDamage changes one thing of the state at a time: the map must be refused, while the totals are still right.
func TestDamage(t *testing.T) {
	for name, m := range images(t) {
		a := m.allocator()
		devices, err := a.devices(t.Context())
		require.NoError(t, err)
		s, err := a.stats(t.Context(), devices[0])
		require.NoError(t, err)
		b := newStateReader(m, 0, devices[0], m.shape())
		require.NoError(t, b.read())
		damages := 0
		for _, tile := range b.list {
			for off, value := range damagesOf(b, tile) {
				damages++
				old := m.Words[tile.at+off]
				m.Words[tile.at+off] = value
				_, err := newStateReader(m, 0, devices[0], m.shape()).prove(s)
				assert.Error(t, err, "%s: block %#x with %#x at +%#x", name, tile.at, value, off)
				checkTotals(t, a, &m.Oracle)
				m.Words[tile.at+off] = old
			}
		}
		assert.Greater(t, damages, 100)
	}
}

// damagesOf are words of a Block and wrong values for them.
func damagesOf(b *stateReader, t *tile) map[uint64]uint64 {
	pool := b.shape.pool()
	flags := pool + fromPoolToAllocated
	out := map[uint64]uint64{
		b.shape.size:          t.size + 512,
		pool:                  t.pool + 8,
		pool + fromPoolToPrev: t.at,
		pool + fromPoolToNext: t.at,
		flags:                 wordAt(b.memory, t.at+flags) ^ 1,
		blockDevice:           wordAt(b.memory, t.at+blockDevice) ^ 1,
	}
	if t.before != nil || t.after != nil { // the address of a segment of one block has no second witness
		out[pool+fromPoolToPtr] = t.ptr + 512
	}
	if t.active && b.shape.requested {
		out[b.shape.size+fromSizeToRequested] = t.requested + 1
	}
	return out
}

func wordAt(m process.Memory, addr uint64) uint64 {
	w, _ := process.Uint64(m, addr)
	return w
}

// FuzzState changes words of recorded states. Nothing may panic or hang, and a map that is given must balance.
func FuzzState(f *testing.F) {
	all := images(f)
	names := slices.Sorted(maps.Keys(all))
	words := make([][]uint64, len(names))
	for i, n := range names {
		words[i] = slices.Sorted(maps.Keys(all[n].Words))
	}
	f.Add(byte(0), []byte{})
	f.Add(byte(1), []byte{1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 9, 1})
	f.Fuzz(func(t *testing.T, which byte, edits []byte) {
		i := int(which) % len(names)
		m := *all[names[i]]
		m.Words = maps.Clone(m.Words)
		for n := 0; len(edits) >= 11 && n < 8; n++ {
			edit(&m, words[i], edits[:11])
			edits = edits[11:]
		}
		exercise(t, &m)
	})
}

// edit replaces a word: by a value, by another word, by a flipped bit, or by a pointer to another word.
func edit(m *image, words []uint64, e []byte) {
	at := words[int(binary.LittleEndian.Uint16(e))%len(words)]
	value := binary.LittleEndian.Uint64(e[3:])
	other := words[value%uint64(len(words))]
	switch e[2] % 4 {
	case 0:
		m.Words[at] = value
	case 1:
		m.Words[at] = m.Words[other]
	case 2:
		m.Words[at] ^= 1 << (value % 64)
	case 3:
		m.Words[at] = other
	}
}

func exercise(t *testing.T, m *image) {
	a := m.allocator()
	devices, err := a.devices(t.Context())
	if err != nil {
		return
	}
	for i, d := range devices {
		s, err := a.stats(t.Context(), d)
		if err != nil {
			continue
		}
		if swept, err := a.sweepBusy(t.Context(), newPages(m), d, i, s, Window{}); err == nil {
			checkApart(t, swept.Segments)
		}
		segments, err := newStateReader(newPages(m), i, d, a.shapes[0]).prove(s)
		if err != nil {
			continue
		}
		checkSums(t, &DeviceMap{DeviceTotals: s.totals(i), Active: s.current(statActiveBytes, 0), Segments: segments})
	}
}
