// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"cmp"
	"encoding/binary"
	"slices"
)

// A running process is not copied as a whole: its pages go by once, through two small buffers, of which one is filled while the
// other is looked at, and pages that have an object of C++ that matters are kept. The walk asks for what else it needs. A process
// Has gigabytes of which that is a few dozen megabytes.

// streamRun is how much is read at once, bytes: it stays in the processor's cache.
const streamRun = 1 << 20

// Visitor looks at a page, which is only good during the call. skip is how many pages from this one on need not be looked at; 0
// or 1: no others.
type Visitor func(addr uint64, page []byte) (skip uint64)

// stream is the pages of some runs while they go by.
type stream struct {
	im    *Image
	runs  []Run  // that are still to be read
	next  uint64 // no page before it is wanted
	visit Visitor
	spare [][]byte
}

// piece is some pages that were read at once.
type piece struct {
	Run
	buffer []byte
	got    uint64 // pages that came
}

// EachPage calls visit with every page that is present of the heap regions, in order: from the copy where the first page of a
// piece is in it, else from the process. Pages that were unmapped are left out, and of a process those of buffers
// that lie where a region begins.
func (im *Image) EachPage(visit Visitor) {
	runs := slices.Clone(im.present)
	if !im.whole && !im.cut {
		runs, _ = split(runs, im.buffers())
	}
	s := &stream{im: im, runs: runs, visit: visit, spare: [][]byte{make([]byte, streamRun), make([]byte, streamRun)}}
	for s.trim(); len(s.runs) > 0; s.trim() {
		r := s.take()
		if im.whole || im.cut && im.entry(r.Addr) >= firstPage {
			s.copied(r)
			continue
		}
		s.passing(r)
	}
}

// trim drops what is not wanted.
func (s *stream) trim() {
	if s.im.Over() {
		s.runs = nil
	}
	for len(s.runs) > 0 {
		r := &s.runs[0]
		end := r.Addr + r.Pages<<PageShift
		if s.next < end && r.Pages > 0 {
			if s.next > r.Addr {
				r.Addr, r.Pages = s.next, (end-s.next)>>PageShift
			}
			return
		}
		s.runs = s.runs[1:]
	}
}

// take cuts the next piece off the runs.
func (s *stream) take() Run {
	r := Run{Addr: s.runs[0].Addr, Pages: min(s.runs[0].Pages, streamRun>>PageShift)}
	s.runs[0].Addr, s.runs[0].Pages = r.Addr+r.Pages<<PageShift, s.runs[0].Pages-r.Pages
	return r
}

func (s *stream) copied(r Run) {
	for at := r.Addr; at < r.Addr+r.Pages<<PageShift; at += PageSize {
		if number := s.im.entry(at); number >= firstPage && at >= s.next {
			s.look(at, s.im.pages[uint64(number)<<PageShift:uint64(number+1)<<PageShift])
		}
	}
}

func (s *stream) look(addr uint64, page []byte) {
	if n := s.visit(addr, page); n > 1 {
		s.next = addr + n<<PageShift
	}
}

// passing reads pages, and those behind them while it looks at the first ones.
func (s *stream) passing(r Run) {
	coming := s.read(r)
	for {
		p := <-coming
		s.im.bytes += p.got << PageShift
		if p.got < p.Pages { // one page was unmapped: the rest is read anew
			rest := Run{Addr: p.Addr + (p.got+1)<<PageShift, Pages: p.Pages - p.got - 1}
			s.runs = slices.Insert(s.runs, 0, rest)
		}
		s.trim()
		more := len(s.runs) > 0 && !s.im.cut
		if more {
			coming = s.read(s.take())
		}
		for i := range p.got {
			if at := p.Addr + i<<PageShift; at >= s.next {
				s.look(at, p.buffer[i<<PageShift:(i+1)<<PageShift])
			}
		}
		s.spare = append(s.spare, p.buffer)
		if !more {
			return
		}
	}
}

// read begins to read a piece.
func (s *stream) read(r Run) <-chan piece {
	last := len(s.spare) - 1
	buffer := s.spare[last]
	s.spare = s.spare[:last]
	out := make(chan piece, 1)
	go func() {
		got, _ := s.im.memory.ReadAt(buffer[:r.Pages<<PageShift], r.Addr)
		out <- piece{r, buffer, uint64(max(got, 0)) >> PageShift}
	}()
	return out
}

// A piece of memory that malloc took from the kernel by itself (glibc, malloc/malloc.c: struct malloc_chunk, IS_MMAPPED) begins
// with two words: how far from the beginning of the mapping it is, and its size, which with that makes whole pages, and a flag.
// It is a buffer: an array, the data of a tensor on the processor, a list's elements. An object is never as large.
const (
	bufferFlags = 7
	bufferFlag  = 2
	bufferLeast = 128 << 10 // bytes (DEFAULT_MMAP_THRESHOLD_MIN)
	bufferLead  = 128       // bytes before it at most, for its alignment
)

// Buffer is how many pages from one on are such a piece; 0: none.
func (im *Image) Buffer(addr uint64, page []byte) uint64 {
	for at := uint64(0); at < bufferLead; at += 16 {
		lead, head := binary.LittleEndian.Uint64(page[at:]), binary.LittleEndian.Uint64(page[at+8:])
		size := lead + head&^bufferFlags
		if head&bufferFlags != bufferFlag || lead != at || size < bufferLeast || size%PageSize != 0 {
			continue
		}
		if r := im.RegionAt(addr); r != nil && r.Heap && r.File == "" && size <= r.End-addr {
			return size >> PageShift
		}
	}
	return 0
}

// BuffersLast puts the pages of buffers behind all others, the smallest first: what matters most is copied first.
func (im *Image) BuffersLast(runs []Run) []Run {
	plain, rest := split(runs, im.buffers())
	slices.SortStableFunc(rest, func(x, y Run) int { return cmp.Compare(x.Pages, y.Pages) })
	return append(plain, rest...)
}

// buffers lists buffers by address. It looks at the beginnings of the regions, and where such a buffer ends: they lie one behind the other.
func (im *Image) buffers() (buffers []Run) {
	page := make([]byte, bufferLead+16)
	for _, r := range im.regions {
		for at := r.Start; r.Heap && r.File == "" && at < r.End; {
			if im.presentAt(at) == 0 { // nothing is to be taken for it
				break
			}
			if _, err := im.memory.ReadAt(page, at); err != nil {
				break
			}
			n := im.Buffer(at, page)
			if n == 0 {
				break
			}
			buffers = append(buffers, Run{Addr: at, Pages: n})
			at += n << PageShift
		}
	}
	return buffers
}

// split cuts runs into what lies outside of some ranges and what lies in them. Both are sorted by address, and stay so.
func split(runs, ranges []Run) (outside, inside []Run) {
	add := func(to []Run, from, end uint64) []Run {
		if from < end {
			to = append(to, Run{Addr: from, Pages: (end - from) >> PageShift})
		}
		return to
	}
	for _, r := range runs {
		at, end := r.Addr, r.Addr+r.Pages<<PageShift
		for len(ranges) > 0 && at < end {
			first, last := ranges[0].Addr, ranges[0].Addr+ranges[0].Pages<<PageShift
			if first >= end {
				break
			}
			outside = add(outside, at, min(first, end))
			inside = add(inside, max(at, first), min(last, end))
			at = max(at, min(last, end))
			if last > end {
				break
			}
			ranges = ranges[1:]
		}
		outside = add(outside, at, end)
	}
	return outside, inside
}

// Keep enters a page as it was read.
func (im *Image) Keep(addr uint64, page []byte) {
	if im.entry(addr) != pageUnknown {
		return
	}
	if im.room(1) == 1 && im.set(addr, im.next) {
		copy(im.pages[uint64(im.next)<<PageShift:], page[:PageSize])
		im.took(1)
	}
}

// Words finds where some words are in the process's own memory.
func (im *Image) Words(wanted *Table, visit func(at, word uint64)) {
	if wanted.Len() == 0 {
		return
	}
	const bits = 1 << 16 // a filter: most words are none of the wanted
	filter := make([]uint64, bits/64)
	low, high := ^uint64(0), uint64(0)
	for _, e := range wanted.entries {
		if k := e.key; k != 0 {
			low, high = min(low, k), max(high, k)
			filter[k>>3&(bits-1)/64] |= 1 << (k >> 3 % 64)
		}
	}
	im.EachPage(func(addr uint64, page []byte) uint64 {
		for i := 0; i+8 <= len(page); i += 8 {
			w := binary.LittleEndian.Uint64(page[i:])
			if w-low <= high-low && filter[w>>3&(bits-1)/64]>>(w>>3%64)&1 != 0 && wanted.Has(w) {
				visit(addr+uint64(i), w)
			}
		}
		return im.Buffer(addr, page)
	})
}

// presentAt is how many pages from an address on were there when the process was looked at.
func (im *Image) presentAt(addr uint64) uint64 {
	i, found := slices.BinarySearchFunc(im.present, addr, func(r Run, a uint64) int { return cmp.Compare(r.Addr, a) })
	if !found {
		i--
	}
	if i < 0 {
		return 0
	}
	if r := im.present[i]; addr < r.Addr+r.Pages<<PageShift {
		return r.Pages - (addr-r.Addr)>>PageShift
	}
	return 0
}
