// SPDX-License-Identifier: Apache-2.0

package darwin

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/darwin/ring"
	"github.com/gputrace/gputrace/process"
)

// Places of the question in a ring, as in ring.h, and what can be asked.
const (
	madeAsked   = 2704
	madeKind    = madeAsked + 16
	madeGot     = madeAsked + 40
	madeRecords = 16384 + 1<<16
	madeMemory  = 1
	madeRegions = 2
	madePresent = 3
	madeImages  = 4
)

// madeMac is a process of macOS that answers as a test says.
type madeMac struct {
	memoryFile
	answer func(kind, addr, n uint64) []byte
}

func (m madeMac) WriteAt(b []byte, at int64) (int, error) {
	n, err := m.memoryFile.WriteAt(b, at)
	if at == madeAsked {
		u64 := binary.LittleEndian.Uint64
		answer := m.answer(u64(m.memoryFile[madeKind:]), u64(m.memoryFile[madeKind+8:]), u64(m.memoryFile[madeKind+16:]))
		binary.LittleEndian.PutUint64(m.memoryFile[madeGot:], uint64(copy(m.memoryFile[madeRecords:], answer)))
		copy(m.memoryFile[madeAsked+8:], b)
	}
	return n, err
}

func askMade(t *testing.T, answer func(kind, addr, n uint64) []byte) *asked {
	t.Helper()
	r, err := ring.New(madeMac{append(memoryRing(nil), make([]byte, 1<<20)...), answer})
	require.NoError(t, err)
	a, err := r.Asker(t.Context())
	require.NoError(t, err)
	return &asked{a, nil, map[ring.Image]*image{}}
}

func numbers(all ...uint64) (out []byte) {
	for _, n := range all {
		out = binary.LittleEndian.AppendUint64(out, n)
	}
	return out
}

// TestPresentLargePages: pages of 16 KiB, of a Mac with arm64, are given by 4 KiB, as far as they lie in what was asked for.
func TestPresentLargePages(t *testing.T) {
	a := askMade(t, func(kind, addr, n uint64) []byte {
		require.EqualValues(t, madePresent, kind)
		require.Equal(t, [2]uint64{0x13000, 0x20000 - 0x13000 + 0x5000}, [2]uint64{addr, n})
		return append(numbers(16<<10), 1, 0, 1, 1, 0, 1)
	})
	runs, err := a.Present(0x13000, 0x25000)
	require.NoError(t, err)
	require.Equal(t, [][2]uint64{{0x13000, 1}, {0x18000, 8}, {0x24000, 1}}, runs)
}

// segmentOf is a LC_SEGMENT_64.
func segmentOf(address, size uint64, protection, flags uint32) []byte {
	b := make([]byte, 72)
	le := binary.LittleEndian
	le.PutUint32(b, 0x19)
	le.PutUint32(b[4:], 72)
	copy(b[8:], "__DATA")
	le.PutUint64(b[24:], address)
	le.PutUint64(b[32:], size)
	le.PutUint32(b[60:], protection)
	le.PutUint32(b[68:], flags)
	return b
}

// headerOf is a Mach-O header with its load commands.
func headerOf(segments ...[]byte) []byte {
	b := make([]byte, 32)
	le := binary.LittleEndian
	le.PutUint32(b, 0xfeedfacf)
	le.PutUint32(b[16:], uint32(len(segments)))
	for _, s := range segments {
		b = append(b, s...)
	}
	le.PutUint32(b[20:], uint32(len(b)-32))
	return b
}

func regionOf(start, end uint64, protection, tag, share, other uint32) []byte {
	b := numbers(start, end)
	for _, n := range []uint32{protection, tag, share, other} {
		b = binary.LittleEndian.AppendUint32(b, n)
	}
	return b
}

// TestMapsOfMac: segments of images go by their slide and share no page; of the rest, private memory of malloc, Python and stacks is taken.
func TestMapsOfMac(t *testing.T) {
	header := headerOf(segmentOf(0x1000, 0x1800, 5, 0), segmentOf(0x2800, 0x900, 3, 0), segmentOf(0x4000, 0x1000, 3, 0x10),
		segmentOf(0x5000, 1<<40, 3, 0))
	path := []byte("/usr/lib/libx.dylib\x00")
	memory := map[uint64][]byte{0x700000: header, 0x800000: path}
	regions := [][]byte{
		regionOf(0x10000, 0x20000, 3, 0, 2, 0),           // Python's
		regionOf(0x20000, 0x30000, 3, 1, 4, 0),           // shared
		regionOf(0x30000, 0x40000, 1, 1, 2, 0),           // only read
		regionOf(0x40000, 0x50000, 3, 30, 2, 0),          // a stack
		regionOf(0x50000, 0x60000, 3, 2, 2, 1),           // of a file
		regionOf(0x60000, 0x70000, 3, 21, 2, 0),          // of IOKit
		regionOf(0x100000, 0x108000, 3, 7, 1, 0),         // with an image in it
		regionOf(1<<47-0x1000, 1<<47+0x1000, 3, 7, 1, 0), // above all addresses
	}
	a := askMade(t, func(kind, addr, n uint64) (out []byte) {
		switch kind {
		case madeImages:
			return numbers(0x700000, 0x100000, 0x800000)
		case madeMemory:
			for at, b := range memory {
				if addr >= at && addr < at+uint64(len(b)) {
					return b[addr-at : min(addr-at+n, uint64(len(b)))]
				}
			}
		case madeRegions:
			for _, r := range regions {
				out = append(out, r...)
			}
		}
		return out
	})
	maps, err := a.Maps()
	require.NoError(t, err)
	lib := process.Mapping{Inode: 1, Path: "/usr/lib/libx.dylib"}
	part := func(m process.Mapping, start, end uint64, exec, writable bool) process.Mapping {
		m.Start, m.End, m.Exec, m.Writable = start, end, exec, writable
		return m
	}
	require.Equal(t, []process.Mapping{
		part(process.Mapping{}, 0x10000, 0x20000, false, true), part(process.Mapping{Path: "[stack]"}, 0x40000, 0x50000, false, true),
		part(process.Mapping{}, 0x100000, 0x101000, false, true),
		part(lib, 0x101000, 0x103000, true, false), part(lib, 0x103000, 0x104000, false, true), part(lib, 0x104000, 0x105000, false, false),
		part(process.Mapping{}, 0x105000, 0x108000, false, true),
	}, maps)
}

// FuzzMapsOfMac: whatever a process says of itself, what is mapped is listed in order, without overlaps, and within bounds.
func FuzzMapsOfMac(f *testing.F) {
	f.Add(regionOf(0, 1<<46, 3, 0, 2, 0), numbers(1, 2, 3), headerOf(segmentOf(0, 1<<32, 3, 0), segmentOf(1<<31, 1<<32, 3, 0)))
	f.Fuzz(func(t *testing.T, regions, images, memory []byte) {
		a := askMade(t, func(kind, _, n uint64) []byte {
			switch kind {
			case madeImages:
				return images[:min(len(images), 1<<12)]
			case madeRegions:
				return regions[:min(len(regions), 1<<12)]
			}
			return memory[:min(uint64(len(memory)), n)]
		})
		maps, err := a.Maps()
		if err != nil {
			return
		}
		end, total := uint64(0), uint64(0)
		for i := range maps {
			require.LessOrEqual(t, end, maps[i].Start)
			require.Less(t, maps[i].Start, maps[i].End)
			require.LessOrEqual(t, maps[i].End, uint64(maxAddress))
			end = maps[i].End
			if maps[i].Inode != 0 {
				total += maps[i].End - maps[i].Start
			}
		}
		require.LessOrEqual(t, total, uint64(maxImages)+uint64(2*smallPage*len(maps)))
	})
}
