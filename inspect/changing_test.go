// SPDX-License-Identifier: Apache-2.0

//go:build linux

package inspect

import (
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"io"
	"math/rand"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// made is an allocator that works while it is read: before each reading of its memory it makes some calls, as a job at full
// speed does. Its layout is that of PyTorch 2.6, its addresses are made up.
type made struct {
	words  map[uint64]uint64
	random *rand.Rand
	calls  func() int // how many calls before the next reading
	blocks []*madeBlock
	churn  int // the first so many blocks never change
	now    madeSums
	seen   []madeSums // after each call
	silent bool
}

// madeBlock is a Block that is never split or merged.
type madeBlock struct {
	at, ptr, size, prev, next uint64
	small, active             bool
}

// madeSums is the statistics, by kind: all, small, large; current, peak, allocated, freed.
type madeSums struct {
	active, bytes [3][4]uint64
	of            map[uint64]bool // active blocks, by ptr
}

const (
	madeNative  = 0x10000
	madeVector  = 0x50
	madeObject  = 0x20000
	madePools   = madeObject + 0x400 // large; small 0x80 behind
	madeTable   = madeObject + 0x500
	madeEntries = 0x40000
	madeSlots   = 4096
	madeHeap    = 0x1000000 // of Blocks, one each 0x180 bytes
	madeNodes   = 0x2000000 // of free sets, likewise
	madeDevice  = 0x7f0000000000
	madeBlocks  = 8 // a segment
)

// newMade has segments of blocks, half of them active.
func newMade(segments, still int, seed int64) *made {
	m := &made{words: map[uint64]uint64{}, random: rand.New(rand.NewSource(seed)), churn: still, calls: func() int { return 0 }}
	m.now.of = map[uint64]bool{}
	m.words[madeNative+madeVector], m.words[madeNative+madeVector+8], m.words[madeNative+madeVector+16] = 0x30000, 0x30008, 0x30008
	m.words[0x30000] = madeObject
	m.words[madeObject+mutexKind] = mutexRecursive
	for s := range segments {
		for k := range madeBlocks {
			i := len(m.blocks)
			b := &madeBlock{at: madeHeap + uint64(i)*0x180, ptr: madeDevice + uint64(s)<<28 + uint64(k)<<20, size: 1 << 20, small: s%2 == 1}
			if k > 0 {
				b.prev = b.at - 0x180
			}
			if k < madeBlocks-1 {
				b.next = b.at + 0x180
			}
			m.blocks = append(m.blocks, b)
		}
	}
	for i, b := range m.blocks {
		m.write(b)
		if i < still || m.random.Intn(2) == 0 {
			m.toggle(b)
		}
	}
	m.commit()
	return m
}

func (m *made) allocator() *Allocator {
	return &Allocator{memory: m, native: madeNative, layout: layout{
		mutexSize: mutexSizes[elf.EM_X86_64],
		vectors:   []uint64{madeVector},
		totals:    []uint64{mutexSizes[elf.EM_X86_64] + fromStatsToTotal},
		shapes:    []shape{{size: 0x30, requested: true}},
	}}
}

// ReadAt implements process.Memory: the job goes on meanwhile.
func (m *made) ReadAt(b []byte, addr uint64) (int, error) {
	if !m.silent {
		for range m.calls() {
			m.toggle(m.blocks[m.churn+m.random.Intn(len(m.blocks)-m.churn)])
			m.commit()
		}
	}
	if addr < minUser || addr >= madeNodes<<1 {
		return 0, io.ErrUnexpectedEOF
	}
	for i := range b {
		at := addr + uint64(i)
		b[i] = byte(m.words[at&^7] >> (8 * (at % 8)))
	}
	return len(b), nil
}

// toggle allocates or frees a block.
func (m *made) toggle(b *madeBlock) {
	kind, word := 2, 2
	if b.small {
		kind = 1
	}
	b.active = !b.active
	if b.active {
		m.now.of[b.ptr] = true
	} else {
		delete(m.now.of, b.ptr)
		word = 3
	}
	for _, k := range []int{0, kind} {
		for counter, n := range map[*[4]uint64]uint64{&m.now.active[k]: 1, &m.now.bytes[k]: b.size} {
			counter[word] += n
			counter[0] = counter[2] - counter[3]
			counter[1] = max(counter[1], counter[0])
		}
	}
	m.write(b)
}

// commit writes the statistics, the sets and the table, and notes the moment.
func (m *made) commit() {
	stats := uint64(madeObject) + mutexSizes[elf.EM_X86_64]
	reserved := [3][4]uint64{}
	for _, b := range m.blocks {
		k := 2
		if b.small {
			k = 1
		}
		reserved[0][0], reserved[k][0] = reserved[0][0]+b.size, reserved[k][0]+b.size
		reserved[0][1], reserved[k][1] = reserved[0][0], reserved[k][0]
	}
	for stat, c := range map[int]*[3][4]uint64{
		statAllocation: &m.now.active, statActive: &m.now.active, statAllocatedBytes: &m.now.bytes, statActiveBytes: &m.now.bytes,
		statRequestedBytes: &m.now.bytes, statReservedBytes: &reserved,
	} {
		for k := range c {
			for w, v := range c[k] {
				m.words[stats+uint64(stat*statSize+k*counterSize+w*8)] = v
			}
		}
	}
	m.lists()
	sums := m.now
	sums.of = map[uint64]bool{}
	for p := range m.now.of {
		sums.of[p] = true
	}
	m.seen = append(m.seen, sums)
}

// lists writes the sets of free blocks, each as a tree without left branches, and the table of active ones.
func (m *made) lists() {
	count := uint64(0)
	for s := uint64(0); s < madeSlots+12; s++ {
		m.words[madeEntries+16*s] = 0xff
	}
	m.words[madeEntries+16*(madeSlots+11)] = 0
	for _, b := range m.blocks {
		if b.active {
			m.words[madeEntries+16*count], m.words[madeEntries+16*count+8] = 0, b.at
			count++
		}
	}
	m.words[madeTable], m.words[madeTable+8], m.words[madeTable+16], m.words[madeTable+24] = madeEntries, madeSlots-1,
		loadFactor<<32|12<<8|(64-12), count
	for pool, small := range []bool{false, true} {
		at := uint64(madePools + 0x80*pool)
		for set := uint64(0); set < 2; set++ {
			header := at + set*setSize + setHeader
			for w, v := range []uint64{0, 0, header, header, 0} {
				m.words[header+uint64(8*w)] = v
			}
		}
		m.words[at+2*setSize] = uint64(pool)
		parent, where, n := at+setHeader, at+setHeader+8, uint64(0)
		for i, b := range m.blocks {
			if b.active || b.small != small {
				continue
			}
			node := madeNodes + uint64(i)*0x40
			for w, v := range []uint64{1, parent, 0, 0, b.at} {
				m.words[node+uint64(8*w)] = v
			}
			m.words[where] = node
			parent, where, n = node, node+24, n+1
		}
		if n > 0 {
			m.words[at+setHeader+16], m.words[at+setHeader+24] = m.words[at+setHeader+8], parent
		}
		m.words[at+setHeader+32] = n
	}
}

// write writes a Block.
func (m *made) write(b *madeBlock) {
	pool, flags, requested := uint64(madePools), uint64(1<<8), uint64(0)
	if b.small {
		pool += 0x80
	}
	if b.active {
		flags, requested = flags|1, b.size
	}
	for off, v := range map[uint64]uint64{0x30: b.size, 0x38: requested, 0x40: pool, 0x48: b.ptr, 0x50: flags, 0x58: b.prev, 0x60: b.next} {
		m.words[b.at+off] = v
	}
}

// TestMapNowStill: of a process that does nothing it is the map.
func TestMapNowStill(t *testing.T) {
	m := newMade(12, 8, 1)
	want, err := m.allocator().Map(t.Context())
	require.NoError(t, err)
	got, err := m.allocator().MapNow(t.Context(), time.Second)
	require.NoError(t, err)
	require.Nil(t, got.Devices[0].Changing)
	require.Equal(t, want.Devices[0].Segments, got.Devices[0].Segments)
	a := m.allocator()
	devices, err := a.devices(t.Context())
	require.NoError(t, err)
	pair, err := a.mapChanging(t.Context(), newPages(m), devices[0], 0)
	require.NoError(t, err)
	require.Nil(t, pair.Changing, "the pair did not find that nothing changed")
	require.Equal(t, want.Devices[0].Segments, pair.Segments)
}

// TestMapNow reads an allocator that never rests: at the instant of the totals what is said must be true, by the allocator
// itself.
func TestMapNow(t *testing.T) {
	for seed := range int64(20) {
		m := newMade(12, 8*int(seed%5)+1, seed)
		rate := int(seed%4) + 1
		m.calls = func() int { return m.random.Intn(2*rate) / 2 }
		got, err := m.allocator().MapNow(t.Context(), 5*time.Millisecond)
		require.NoError(t, err, seed)
		m.silent = true
		m.judge(t, &got.Devices[0])
	}
}

// TestCancelled: of an allocator that never rests, a reading that would wait for it ends as soon as nobody wants it any more.
func TestCancelled(t *testing.T) {
	cause := errors.New("not wanted")
	for name, read := range map[string]func(context.Context, *Allocator) error{
		"map":     func(ctx context.Context, a *Allocator) error { _, err := a.Map(ctx); return err },
		"map now": func(ctx context.Context, a *Allocator) error { _, err := a.MapNow(ctx, time.Hour); return err },
		"sweep":   func(ctx context.Context, a *Allocator) error { _, err := a.Sweep(ctx); return err },
	} {
		t.Run(name, func(t *testing.T) {
			m := newMade(12, 8, 1)
			ctx, cancel := context.WithCancelCause(t.Context())
			m.calls = func() int {
				cancel(cause)
				return 1 + m.random.Intn(2)
			}
			start := time.Now()
			require.ErrorIs(t, read(ctx, m.allocator()), cause)
			require.Less(t, time.Since(start), time.Second)
		})
	}
}

// judge finds the moments that have the totals of a map, and in one of them all that it says.
func (m *made) judge(t *testing.T, d *DeviceMap) {
	t.Helper()
	require.True(t, slices.ContainsFunc(m.seen, func(s madeSums) bool { return s.agrees(d) }), "at no moment is what it says true")
	still := map[uint64]bool{}
	ends := uint64(0)
	for _, s := range d.Segments {
		require.GreaterOrEqual(t, s.Addr, ends)
		require.Equal(t, uint64(madeBlocks<<20), s.Size)
		for i, b := range s.Blocks {
			if i == 0 {
				ends = s.Addr
			}
			require.Equal(t, ends, b.Addr)
			ends += b.Size
			if b.State != StateChanging {
				still[b.Addr] = true
			}
		}
		require.Equal(t, s.Addr+s.Size, ends)
	}
	for _, b := range m.blocks[:m.churn] {
		assert.True(t, still[b.ptr], "block %#x stood still and is not said to", b.ptr)
	}
	assert.Len(t, d.Segments, len(m.blocks)/madeBlocks)
}

// agrees: the totals are those of a moment, the active bytes in what changed are within their bounds, and no block that is
// said to have stood still is missing but for what the bounds leave open.
func (s *madeSums) agrees(d *DeviceMap) bool {
	if d.Active != s.bytes[0][0] || d.Allocated != s.bytes[0][0] {
		return false
	}
	var low, renewed, wrong uint64
	for p := range s.of {
		if block, ok := blockAt(d.Segments, p); !ok || block.State == StateChanging {
			low += 1 << 20
		} else if block.State == StateFree {
			wrong += 1 << 20
		}
	}
	for _, seg := range d.Segments {
		for _, b := range seg.Blocks {
			if b.State == StateAllocated && !s.of[b.Addr] {
				renewed += b.Size
			}
		}
	}
	c := d.Changing
	if c == nil {
		return low == 0 && renewed == 0 && wrong == 0
	}
	changed := low + wrong
	return c.BytesLow <= changed && changed <= c.BytesHigh && renewed <= c.BytesHigh-c.BytesLow
}

func blockAt(segments []Segment, ptr uint64) (Block, bool) {
	for _, s := range segments {
		for _, b := range s.Blocks {
			if b.Addr <= ptr && ptr < b.Addr+b.Size {
				return b, true
			}
		}
	}
	return Block{}, false
}

// TestLines: a page has changed when a line of it that was read has.
func TestLines(t *testing.T) {
	for _, tt := range []struct {
		offset, n, want uint64
	}{
		{0, 0, 0}, {0, 1, 1}, {63, 1, 1}, {63, 2, 3}, {64, 64, 2}, {0, pageSize, ^uint64(0)}, {pageSize - 1, 1, 1 << 63},
		{pageSize - 65, 65, 3 << 62},
	} {
		require.Equal(t, tt.want, linesOf(tt.offset, tt.n), "%+v", tt)
	}
	m := &made{words: map[uint64]uint64{}, silent: true}
	c := newPages(m)
	c.batch = plainBatch(m)
	var b [8]byte
	_, err := c.ReadAt(b[:], 0x5040)
	require.NoError(t, err)
	p := c.index[0x5000]
	now := make([]byte, pageSize)
	binary.LittleEndian.PutUint64(now[0x80:], 1)
	require.False(t, p.changed(now))
	binary.LittleEndian.PutUint64(now[0x78:], 1)
	require.True(t, p.changed(now))
}
