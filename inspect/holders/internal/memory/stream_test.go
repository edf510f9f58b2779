// SPDX-License-Identifier: Apache-2.0

//go:build linux

package memory

import (
	"encoding/binary"
	"io"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// pagesMemory is pages by address; others are unmapped.
type pagesMemory map[uint64][]byte

// ReadAt implements process.Memory: it stops at the first unmapped page.
func (m pagesMemory) ReadAt(b []byte, addr uint64) (int, error) {
	for done := 0; done < len(b); {
		at := addr + uint64(done)
		page := m[at&^(PageSize-1)]
		if page == nil {
			return done, io.ErrUnexpectedEOF
		}
		done += copy(b[done:], page[at%PageSize:])
	}
	return len(b), nil
}

const streamBase = 0x7f0000000000

func newPagesMemory(n int) pagesMemory {
	m := pagesMemory{}
	for i := range n {
		m[streamBase+uint64(i)<<PageShift] = make([]byte, PageSize)
	}
	return m
}

// visited are the numbers of the pages that go by.
func visited(t *testing.T, m pagesMemory, runs []Run) (out []int) {
	t.Helper()
	im, err := New(t.Context(), m, []Region{{Start: streamBase, End: streamBase + 4096<<PageShift, Heap: true}}, 16)
	require.NoError(t, err)
	defer im.Close()
	im.present = runs
	im.EachPage(func(addr uint64, page []byte) uint64 {
		out = append(out, int((addr-streamBase)>>PageShift))
		return im.Buffer(addr, page)
	})
	return out
}

func numbers(ranges ...[2]int) (out []int) {
	for _, r := range ranges {
		for i := r[0]; i < r[1]; i++ {
			out = append(out, i)
		}
	}
	return out
}

// TestStream: all pages go by once, in order, but for unmapped ones.
func TestStream(t *testing.T) {
	at := func(page, pages uint64) Run { return Run{Addr: streamBase + page<<PageShift, Pages: pages} }
	m := newPagesMemory(1000)
	require.Equal(t, numbers([2]int{0, 1000}), visited(t, m, []Run{at(0, 1000)}))
	require.Equal(t, numbers([2]int{3, 4}, [2]int{5, 300}), visited(t, m, []Run{at(3, 1), at(5, 295)}))
	for _, gone := range []uint64{0, 255, 256, 600, 999} {
		delete(m, streamBase+gone<<PageShift)
	}
	want := numbers([2]int{1, 255}, [2]int{257, 600}, [2]int{601, 999})
	require.Equal(t, want, visited(t, m, []Run{at(0, 1000)}))
	require.Empty(t, visited(t, m, nil))
}

// TestStreamBuffers: large buffers go by with their first page; what only looks like one does not hide anything.
func TestStreamBuffers(t *testing.T) {
	head := func(m pagesMemory, page int, lead, size uint64) {
		b := m[streamBase+uint64(page)<<PageShift]
		binary.LittleEndian.PutUint64(b[lead:], lead)
		binary.LittleEndian.PutUint64(b[lead+8:], size-lead|bufferFlag)
	}
	for name, tt := range map[string]struct {
		page       int
		lead, size uint64
		want       []int
	}{
		"array":         {10, 0, 500 << PageShift, numbers([2]int{0, 11}, [2]int{510, 1000})},
		"aligned":       {10, 0x30, 300 << PageShift, numbers([2]int{0, 11}, [2]int{310, 1000})},
		"within a read": {10, 0, 40 << PageShift, numbers([2]int{0, 11}, [2]int{50, 1000})},
		"to the end":    {300, 0, 700 << PageShift, numbers([2]int{0, 301})},
		"small":         {10, 0, 16 << PageShift, numbers([2]int{0, 1000})},
		"half a page":   {10, 0, 500<<PageShift + 512, numbers([2]int{0, 1000})},
		"too large":     {10, 0, 5000 << PageShift, numbers([2]int{0, 1000})},
		"at the front":  {0, 0, 600 << PageShift, numbers([2]int{600, 1000})},
	} {
		t.Run(name, func(t *testing.T) {
			m := newPagesMemory(1000)
			head(m, tt.page, tt.lead, tt.size)
			require.Equal(t, tt.want, visited(t, m, []Run{{Addr: streamBase, Pages: 1000}}))
			require.Equal(t, tt.want, visited(t, m, []Run{{Addr: streamBase, Pages: 200}, {Addr: streamBase + 200<<PageShift, Pages: 800}}))
		})
	}
}

// reads counts the bytes that are read, by page.
type reads struct {
	pagesMemory
	pages map[uint64]int
}

// ReadAt implements process.Memory.
func (r reads) ReadAt(b []byte, addr uint64) (int, error) {
	for at := addr &^ (PageSize - 1); at < addr+uint64(len(b)); at += PageSize {
		r.pages[at]++
	}
	return r.pagesMemory.ReadAt(b, addr)
}

// TestStreamPasses: of buffers one behind the other the first pages are read and no others, and no page is read
// that was not present: it would be taken for the process.
func TestStreamPasses(t *testing.T) {
	m := reads{newPagesMemory(1000), map[uint64]int{}}
	page := func(n int) uint64 { return streamBase + uint64(n)<<PageShift }
	for _, at := range []int{0, 300, 700} {
		binary.LittleEndian.PutUint64(m.pagesMemory[page(at)][8:], 300<<PageShift|bufferFlag)
	}
	im, err := New(t.Context(), m, []Region{{Start: page(0), End: page(700), Heap: true}, {Start: page(700), End: page(1000), Heap: true}}, 16)
	require.NoError(t, err)
	defer im.Close()
	im.present = []Run{{Addr: page(0), Pages: 650}, {Addr: page(900), Pages: 10}}
	visits := 0
	im.EachPage(func(uint64, []byte) uint64 { visits++; return 0 })
	require.Equal(t, 60, visits)
	require.Len(t, m.pages, 2+60)
	require.Positive(t, m.pages[page(300)])
}

// TestPopulateAhead: memory is there before it is written to, some of it and not all, and more when that is used.
func TestPopulateAhead(t *testing.T) {
	const pages = 8 * aheadPages
	im, err := New(t.Context(), newPagesMemory(1), []Region{{Start: streamBase, End: streamBase + pages<<PageShift, Heap: true}}, pages)
	require.NoError(t, err)
	im.PopulateAhead()
	resident := func() (n int) {
		there := make([]byte, len(im.pages)>>PageShift)
		_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&im.pages[0])), uintptr(len(im.pages)),
			uintptr(unsafe.Pointer(&there[0])))
		require.Zero(t, errno)
		for _, b := range there {
			n += int(b & 1)
		}
		return n
	}
	atLeast := func(n int) {
		t.Helper()
		require.Eventually(t, func() bool { return resident() >= n }, 10*time.Second, 10*time.Millisecond)
	}
	atLeast(aheadPages)
	time.Sleep(20 * time.Millisecond)
	require.Less(t, resident(), 2*aheadPages)
	page := make([]byte, PageSize)
	for i := range uint64(aheadPages) {
		im.Keep(streamBase+i<<PageShift, page)
	}
	atLeast(aheadPages + aheadPages/2)
	im.Close()
	im.Close() // nothing more is to be ended
}

// TestSplit: every page of the runs is on one side.
func TestSplit(t *testing.T) {
	at := func(page, pages uint64) Run { return Run{Addr: page << PageShift, Pages: pages} }
	for name, tt := range map[string]struct{ runs, ranges, outside, inside []Run }{
		"no ranges":       {[]Run{at(1, 5)}, nil, []Run{at(1, 5)}, nil},
		"no runs":         {nil, []Run{at(1, 5)}, nil, nil},
		"apart":           {[]Run{at(10, 5)}, []Run{at(1, 5), at(20, 1)}, []Run{at(10, 5)}, nil},
		"within":          {[]Run{at(10, 10)}, []Run{at(12, 3)}, []Run{at(10, 2), at(15, 5)}, []Run{at(12, 3)}},
		"all":             {[]Run{at(10, 10)}, []Run{at(5, 30)}, nil, []Run{at(10, 10)}},
		"over two runs":   {[]Run{at(10, 5), at(20, 5)}, []Run{at(12, 10)}, []Run{at(10, 2), at(22, 3)}, []Run{at(12, 3), at(20, 2)}},
		"two beside":      {[]Run{at(10, 10)}, []Run{at(10, 3), at(13, 4)}, []Run{at(17, 3)}, []Run{at(10, 3), at(13, 4)}},
		"between the Run": {[]Run{at(10, 2), at(30, 2)}, []Run{at(15, 5), at(30, 1)}, []Run{at(10, 2), at(31, 1)}, []Run{at(30, 1)}},
	} {
		t.Run(name, func(t *testing.T) {
			outside, inside := split(tt.runs, tt.ranges)
			require.Equal(t, tt.outside, outside)
			require.Equal(t, tt.inside, inside)
		})
	}
}

// TestAgain: what changed since it was read is read once more, with what was not read yet; what is no longer there is not taken for what
// was.
func TestAgain(t *testing.T) {
	m := newPagesMemory(4)
	im, err := New(t.Context(), m, []Region{{Start: streamBase, End: streamBase + 4<<PageShift, Heap: true}}, 16)
	require.NoError(t, err)
	defer im.Close()
	const edge = streamBase + PageSize - 8
	write := func(addr, v uint64) { binary.LittleEndian.PutUint64(m[addr&^(PageSize-1)][addr%PageSize:], v) }
	write(edge, 1)
	require.EqualValues(t, 1, im.Word(edge))
	write(edge, 2)
	write(edge+8, 3)
	require.EqualValues(t, 1, im.Word(edge))
	require.True(t, im.Again(edge, 16))
	require.EqualValues(t, 2, im.Word(edge))
	require.EqualValues(t, 3, im.Word(edge+8))
	delete(m, streamBase)
	require.False(t, im.Again(edge, 16))
	require.Zero(t, im.Word(edge))
	require.False(t, im.Again(streamBase+4<<PageShift, 8), "it is in no region")
	im.memory = nil
	require.False(t, im.Again(edge+8, 8), "an image of one moment")
}

// TestRenew: memory that is mapped later, and pages that are written later, are read once the process was looked at again.
func TestRenew(t *testing.T) {
	const first, later = streamBase, streamBase + 1<<20
	m := newPagesMemory(1)
	m[later] = make([]byte, PageSize)
	m[later][0] = 7
	region := func(at uint64) Region { return Region{Start: at, End: at + PageSize, Heap: true} }
	im, err := New(t.Context(), m, []Region{region(first)}, 16)
	require.NoError(t, err)
	defer im.Close()
	im.present = []Run{{Addr: first, Pages: 1}}
	require.False(t, im.Again(later, 8), "nobody looked")
	require.Zero(t, im.Word(later))
	looked := 0
	im.OnRenew(func() ([]Region, []Run, bool) {
		looked++
		return []Region{region(first), region(later)}, []Run{{Addr: first, Pages: 1}, {Addr: later, Pages: 1}}, true
	})
	require.True(t, im.Again(later, 8))
	require.Equal(t, 1, looked)
	require.EqualValues(t, 7, im.Word(later))
	require.True(t, im.Again(first, 8))
	require.Equal(t, 1, looked, "it was known")
	for range 2 * maxRenewals {
		require.False(t, im.Again(later+PageSize, 8), "it is not mapped")
	}
	require.Equal(t, maxRenewals, looked)
	im.whole = true
	require.False(t, im.Renew(), "a copy is of one moment")
}
