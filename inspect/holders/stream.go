// SPDX-License-Identifier: Apache-2.0

//go:build linux

package holders

import (
	"cmp"
	"encoding/binary"
	"slices"
)

// A running process is not copied as a whole: its pages go by once, through two small buffers, of which one is filled while the
// other is looked at, and pages that have an object of C++ that matters are kept. The walk asks for what else it needs. A process
// has gigabytes of which that is a few dozen megabytes.

// streamRun is how much goes by at once, bytes: it stays in the processor's cache.
const streamRun = 1 << 20

// visitor looks at a page, which is only good during the call. skip is how many pages from this one on need not be looked at; 0
// or 1: no others.
type visitor func(addr uint64, page []byte) (skip uint64)

// stream is the pages of some runs while they go by.
type stream struct {
	im    *image
	runs  []run  // that are still to be read
	next  uint64 // no page before it is wanted
	visit visitor
	spare [][]byte
}

// piece is some pages that were read at once.
type piece struct {
	run
	buffer []byte
	got    uint64 // pages that came
}

// pagesOf calls visit with every page of the runs, in order: from the copy where the first page of a piece is in it, else from
// the process. Pages that were unmapped are left out.
func (im *image) pagesOf(runs []run, visit visitor) {
	s := &stream{im: im, runs: slices.Clone(runs), visit: visit, spare: [][]byte{make([]byte, streamRun), make([]byte, streamRun)}}
	for s.trim(); len(s.runs) > 0; s.trim() {
		r := s.take()
		if im.whole || im.cut && im.entry(r.addr) >= firstPage {
			s.copied(r)
			continue
		}
		s.passing(r)
	}
}

// trim drops what is not wanted.
func (s *stream) trim() {
	for len(s.runs) > 0 {
		r := &s.runs[0]
		end := r.addr + r.pages<<pageShift
		if s.next < end && r.pages > 0 {
			if s.next > r.addr {
				r.addr, r.pages = s.next, (end-s.next)>>pageShift
			}
			return
		}
		s.runs = s.runs[1:]
	}
}

// take cuts the next piece off the runs.
func (s *stream) take() run {
	r := run{s.runs[0].addr, min(s.runs[0].pages, streamRun>>pageShift)}
	s.runs[0].addr, s.runs[0].pages = r.addr+r.pages<<pageShift, s.runs[0].pages-r.pages
	return r
}

func (s *stream) copied(r run) {
	for at := r.addr; at < r.addr+r.pages<<pageShift; at += pageSize {
		if number := s.im.entry(at); number >= firstPage && at >= s.next {
			s.look(at, s.im.pages[uint64(number)<<pageShift:uint64(number+1)<<pageShift])
		}
	}
}

func (s *stream) look(addr uint64, page []byte) {
	if n := s.visit(addr, page); n > 1 {
		s.next = addr + n<<pageShift
	}
}

// passing reads pages, and those behind them while it looks at the first ones.
func (s *stream) passing(r run) {
	coming := s.read(r)
	for {
		p := <-coming
		s.im.bytes += p.got << pageShift
		if p.got < p.pages { // one page was unmapped: the rest is read anew
			rest := run{p.addr + (p.got+1)<<pageShift, p.pages - p.got - 1}
			s.runs = slices.Insert(s.runs, 0, rest)
		}
		s.trim()
		more := len(s.runs) > 0 && !s.im.cut
		if more {
			coming = s.read(s.take())
		}
		for i := range p.got {
			if at := p.addr + i<<pageShift; at >= s.next {
				s.look(at, p.buffer[i<<pageShift:(i+1)<<pageShift])
			}
		}
		s.spare = append(s.spare, p.buffer)
		if !more {
			return
		}
	}
}

// read begins to read a piece.
func (s *stream) read(r run) <-chan piece {
	last := len(s.spare) - 1
	buffer := s.spare[last]
	s.spare = s.spare[:last]
	out := make(chan piece, 1)
	go func() {
		got, _ := s.im.memory.ReadAt(buffer[:r.pages<<pageShift], r.addr)
		out <- piece{r, buffer, uint64(max(got, 0)) >> pageShift}
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

// buffer is how many pages from one on are such a piece; 0: none.
func (im *image) buffer(addr uint64, page []byte) uint64 {
	for at := uint64(0); at < bufferLead; at += 16 {
		lead, head := binary.LittleEndian.Uint64(page[at:]), binary.LittleEndian.Uint64(page[at+8:])
		size := lead + head&^bufferFlags
		if head&bufferFlags != bufferFlag || lead != at || size < bufferLeast || size%pageSize != 0 {
			continue
		}
		if r := im.regionAt(addr); r != nil && r.heap && r.file == "" && size <= r.end-addr {
			return size >> pageShift
		}
	}
	return 0
}

// buffersLast puts the pages of buffers behind all others, the smallest first: what matters most is copied first. It looks at
// the beginnings of the regions, and where such a buffer ends: buffers lie one behind the other.
func (im *image) buffersLast(runs []run) []run {
	var buffers []run
	page := make([]byte, bufferLead+16)
	for _, r := range im.regions {
		for at := r.start; r.heap && r.file == "" && at < r.end; {
			if _, err := im.memory.ReadAt(page, at); err != nil {
				break
			}
			n := im.buffer(at, page)
			if n == 0 {
				break
			}
			buffers = append(buffers, run{at, n})
			at += n << pageShift
		}
	}
	plain, rest := split(runs, buffers)
	slices.SortStableFunc(rest, func(x, y run) int { return cmp.Compare(x.pages, y.pages) })
	return append(plain, rest...)
}

// split cuts runs into what lies outside of some ranges and what lies in them. Both are sorted by address, and stay so.
func split(runs, ranges []run) (outside, inside []run) {
	add := func(to []run, from, end uint64) []run {
		if from < end {
			to = append(to, run{from, (end - from) >> pageShift})
		}
		return to
	}
	for _, r := range runs {
		at, end := r.addr, r.addr+r.pages<<pageShift
		for len(ranges) > 0 && at < end {
			first, last := ranges[0].addr, ranges[0].addr+ranges[0].pages<<pageShift
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

// keep enters a page as it was read.
func (im *image) keep(addr uint64, page []byte) {
	if im.entry(addr) != pageUnknown {
		return
	}
	at := uint64(im.used) << pageShift
	if at+pageSize > uint64(len(im.pages)) {
		im.full = true
		return
	}
	if im.set(addr, im.used) {
		copy(im.pages[at:], page)
		im.used++
	}
}

// presentAt is how many pages from an address on were there when the process was looked at.
func (im *image) presentAt(addr uint64) uint64 {
	i, found := slices.BinarySearchFunc(im.present, addr, func(r run, a uint64) int { return cmp.Compare(r.addr, a) })
	if !found {
		i--
	}
	if i < 0 {
		return 0
	}
	if r := im.present[i]; addr < r.addr+r.pages<<pageShift {
		return r.pages - (addr-r.addr)>>pageShift
	}
	return 0
}
