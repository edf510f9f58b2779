// SPDX-License-Identifier: Apache-2.0

// Package memory reads the memory of a process: a copy of what is its own, pages of libraries when they are asked for, and
// everything once as it is read. Nothing in it knows what the memory holds.
package memory

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/inspect/internal/present"
	"github.com/gputrace/gputrace/process"
)

// PageSize is the size of a page of memory, bytes, and PageShift its logarithm.
const (
	PageShift = 12
	PageSize  = 1 << PageShift
)

// MaxAddress is above all addresses that a process maps unless it asks for more (47 bits on x86-64, mm.rst; 48 on arm64, memory.rst).
const MaxAddress = topSpans << spanShift

const (
	// spanShift is the size of what one part of Leaves covers: 1 GiB.
	spanShift = 30
	// topSpans covers 48 bits of addresses.
	topSpans = 1 << (48 - spanShift)
	// farPages bounds what is read beside the copy, on demand: read-only data of libraries, mostly.
	farPages = 1 << 15
	// farRun is how many pages are read at once there, and nearRun in the process's own memory: neighbours are wanted as well.
	farRun  = 4
	nearRun = 2
	// minRing is the least that an image holds that drops pages, 4 MiB.
	minRing = 1 << 10
)

// Region is a range of addresses that may be read.
type Region = present.Region

// Run is neighbouring pages that are present.
type Run = present.Run

// Image is what was read of a process: a copy of its private memory, and pages of libraries that are read when they are
// asked for. It implements cpython.Image. It is not safe for concurrent use, but for Word and View of addresses in the copy.
type Image struct {
	ctx     context.Context // ends the readings
	memory  process.Memory
	regions []Region // sorted
	pages   []byte   // the copy; pages 0 and 1 are not used
	used    uint32   // pages of it
	next    uint32   // page of it that is filled next
	tables  pageTable
	ring    []uint64                                          // nil: pages stay; else the address of each page of the copy, 0: none
	bytes   uint64                                            // read from the process
	absent  []uint64                                          // pages that could not be read
	renew   func() (regions []Region, present []Run, ok bool) // see OnRenew
	renewed int                                               // how often renew was called
	mapped  bool                                              // pages is a mapping of ours
	cut     bool                                              // the copy of the heap regions was begun and not ended
	whole   bool                                              // the heap regions were copied as a whole: what is not there was not present
	present []Run                                             // pages of the heap regions that may be read; nil: all
	full    bool                                              // there was no room for a page
	near    bool                                              // only the page itself is read when one is asked for
	tracked bool                                              // order is kept
	order   []uint64                                          // pages that were entered, when tracked
	ahead   *ahead                                            // nil: memory is taken when it is first written to
}

// Entries of a table of pages that are no page's number.
const (
	pageUnknown = 0 // not asked for yet
	pageAbsent  = 1 // cannot be read
	firstPage   = 2
)

// New makes an image without a copy that holds at most so many pages. When ctx is done, nothing more can be read.
func New(ctx context.Context, m process.Memory, regions []Region, capacity uint64) (*Image, error) {
	return newImage(ctx, m, regions, capacity+farPages)
}

func newImage(ctx context.Context, m process.Memory, regions []Region, capacity uint64) (*Image, error) {
	im := &Image{ctx: ctx, memory: process.Until(ctx, m), regions: regions, used: firstPage, next: firstPage}
	size := int(firstPage+capacity) << PageShift
	b, err := reserve(size)
	if err != nil {
		return nil, fmt.Errorf("make room for a copy of %d MiB: %w", size>>20, err)
	}
	im.pages, im.mapped = b, true
	return im, nil
}

// NewRing makes an image without a copy that holds so many pages at most, and at least minRing: when there is no
// room, what was read first is dropped, to be read again when it is asked for. It is never Full and never Whole.
func NewRing(ctx context.Context, m process.Memory, regions []Region, pages uint64) (*Image, error) {
	im, err := newImage(ctx, m, regions, max(pages, minRing))
	if err == nil {
		im.ring = make([]uint64, len(im.pages)>>PageShift)
	}
	return im, err
}

// NewProbe makes an image that reads a page alone when one is asked for, and knows which pages it has: see Pages.
func NewProbe(ctx context.Context, m process.Memory, regions []Region, capacity uint64) (*Image, error) {
	im, err := New(ctx, m, regions, capacity)
	if err != nil {
		return nil, err
	}
	im.near, im.tracked = true, true
	return im, nil
}

// Populate takes memory for so many pages now, and not one by one while they are copied.
func (im *Image) Populate(pages uint64) error {
	const atOnce = 8 << 20 // it can be cancelled between two
	size := min(int(pages)<<PageShift, len(im.pages))
	for done := 0; done < size && !im.Over(); done += atOnce {
		if err := populate(im.pages[done:min(done+atOnce, size)]); err != nil {
			return fmt.Errorf("populate %d MiB: %w", size>>20, err)
		}
	}
	return nil
}

// Room is how many pages the copy may have.
func (im *Image) Room() uint64 { return uint64(len(im.pages))>>PageShift - firstPage - farPages }

// Reset forgets what was copied. Of the heap regions the runs are present, and nothing else is read.
func (im *Image) Reset(regions []Region, present []Run) {
	im.regions, im.used, im.next, im.whole, im.cut, im.present, im.full = regions, firstPage, firstPage, false, false, present, false
	im.absent = im.absent[:0]
	im.tables = pageTable{}
	clear(im.ring)
}

// Regions are the ranges of addresses that may be read, sorted.
func (im *Image) Regions() []Region { return im.regions }

// Whole reports that the heap regions were copied as a whole: what is not in the copy was not there.
func (im *Image) Whole() bool { return im.whole }

// Copied reports that the heap regions were copied, as a whole or as far as there was time.
func (im *Image) Copied() bool { return im.whole || im.cut }

// Full reports that there was no room for a page.
func (im *Image) Full() bool { return im.full }

// BytesRead is how much was read from the process.
func (im *Image) BytesRead() uint64 { return im.bytes }

// BytesHeld is how much is held in our memory.
func (im *Image) BytesHeld() uint64 { return uint64(im.used) << PageShift }

// Raw is the memory of the pages that are held, in the order in which they were read. Tests damage it.
func (im *Image) Raw() []byte { return im.pages[firstPage<<PageShift : uint64(im.used)<<PageShift] }

// Again reads the pages of a range once more, also where the copy has them already: a program that runs may have changed them. It is
// false for an image that reads nothing more, or where the range cannot be read.
func (im *Image) Again(addr, n uint64) bool {
	if im.memory == nil || im.whole || n == 0 || addr+n < addr || addr+n > MaxAddress {
		return false
	}
	for at := addr &^ (PageSize - 1); at < addr+n; at += PageSize {
		page := im.entry(at)
		if page < firstPage {
			if im.RegionAt(at) == nil && !im.Renew() || im.RegionAt(at) == nil || im.load(at, 1) != 1 {
				return false
			}
			continue
		}
		b := im.pages[uint64(page)<<PageShift : uint64(page+1)<<PageShift]
		if got, _ := im.memory.ReadAt(b, at); got != PageSize {
			im.set(at, pageAbsent)
			return false
		}
		im.bytes += PageSize
	}
	return true
}

// maxRenewals bounds how often Renew asks, of an image that is not forgotten: it takes milliseconds.
const maxRenewals = 16

// OnRenew says how to learn what may be read now: a program that runs maps more memory, and writes pages that were not there. No
// present: all pages may be read.
func (im *Image) OnRenew(renew func() (regions []Region, present []Run, ok bool)) { im.renew = renew }

// Renew has what may be read now be read from now on, also where it could not be before. It is false for a copy, which is of one
// moment, and when it was asked too often.
func (im *Image) Renew() bool {
	if im.renew == nil || im.whole || im.memory == nil || im.renewed >= maxRenewals {
		return false
	}
	im.renewed++
	regions, present, ok := im.renew()
	if !ok {
		return false
	}
	im.regions, im.present = regions, present
	for _, addr := range im.absent {
		if im.entry(addr) == pageAbsent {
			im.set(addr, pageUnknown)
		}
	}
	im.absent = im.absent[:0]
	return true
}

// miss notes a page that cannot be read.
func (im *Image) miss(addr uint64) {
	if im.set(addr, pageAbsent) {
		im.absent = append(im.absent, addr)
	}
}

// Pages lists the addresses of the pages that were asked for since Forget, of an image that NewProbe made.
func (im *Image) Pages() []uint64 { return im.order }

// Pager is a memory that reads many pages at once, quicker than one after the other is asked for, and says how long that took by itself.
type Pager interface {
	ReadPages(addrs []uint64, b []byte) (there []bool, took time.Duration, err error)
}

// ReadOnce reads the pages at some sorted addresses, and nothing else from then on: the rest was not read at that moment. It returns
// how long it took.
func (im *Image) ReadOnce(m process.Memory, pages []uint64) time.Duration {
	im.Forget()
	begun := time.Now()
	if p, ok := m.(Pager); ok {
		im.memory = nil
		return im.readPages(p, pages)
	}
	im.memory = process.Until(im.ctx, m)
	for at := 0; at < len(pages); {
		end := at + 1
		for end < len(pages) && pages[end] == pages[end-1]+PageSize {
			end++
		}
		im.load(pages[at], uint64(end-at))
		at = end
	}
	im.memory = nil
	return time.Since(begun)
}

// readPages enters pages that are read at once. What cannot be read is absent.
func (im *Image) readPages(p Pager, pages []uint64) time.Duration {
	pages = pages[:min(uint64(len(pages)), uint64(len(im.pages))>>PageShift-uint64(im.used))]
	there, took, err := p.ReadPages(pages, im.pages[uint64(im.used)<<PageShift:])
	if err != nil {
		return took
	}
	for i, ok := range there {
		if ok {
			im.set(pages[i], im.used+uint32(i))
			im.bytes += PageSize
		}
	}
	im.used += uint32(len(pages))
	im.next = im.used
	return took
}

// Over reports that nothing more can be read, because nobody waits for it any longer.
func (im *Image) Over() bool { return im.ctx.Err() != nil }

// Fixed reports that nothing more is read of the process.
func (im *Image) Fixed() bool { return im.memory == nil }

// Forget drops the pages of an image that is no copy, to read them anew.
func (im *Image) Forget() {
	im.used, im.next, im.absent, im.renewed = firstPage, firstPage, im.absent[:0], 0
	clear(im.ring)
	if !im.tracked {
		im.tables = pageTable{}
		return
	}
	for _, addr := range im.order {
		im.tables.set(addr, pageUnknown)
	}
	im.order = im.order[:0]
}

// Close frees the memory of the copy.
func (im *Image) Close() {
	im.ahead.end()
	im.ahead = nil
	if im.mapped {
		_ = unix.Munmap(im.pages)
	}
	im.pages, im.mapped, im.used, im.next, im.ring = nil, false, 0, 0, nil
	im.tables = pageTable{}
}

// RegionAt is the region of an address.
func (im *Image) RegionAt(addr uint64) *Region {
	i, _ := slices.BinarySearchFunc(im.regions, addr, func(r Region, a uint64) int { return cmp.Compare(r.End, a+1) })
	if i < len(im.regions) && im.regions[i].Start <= addr {
		return &im.regions[i]
	}
	return nil
}

// page is the number of the page of an address in the copy. It reads the page if it must.
func (im *Image) page(addr uint64) (n uint32, ok bool) {
	if addr >= topSpans<<spanShift {
		return 0, false
	}
	if n = im.tables.get(addr); n >= firstPage {
		return n, true
	}
	if n == pageAbsent {
		return 0, false
	}
	return im.fetch(addr)
}

// fetch reads pages that are not in the copy.
func (im *Image) fetch(addr uint64) (uint32, bool) {
	r := im.RegionAt(addr)
	if r == nil || im.memory == nil {
		return 0, false
	}
	first := addr &^ (PageSize - 1)
	end := min(r.End, first+farRun*PageSize)
	if r.Heap && im.present != nil {
		end = min(r.End, first+min(nearRun, im.presentAt(first))<<PageShift)
	}
	if im.near {
		end = first + PageSize
	}
	if r.Heap && im.whole {
		im.set(first, pageAbsent) // not there when the copy was made
		return 0, false
	}
	for at := first + PageSize; at < end; at += PageSize {
		if n := im.entry(at); n != pageUnknown {
			end = at
		}
	}
	got := uint64(0)
	if end > first {
		got = im.load(first, (end-first)>>PageShift)
	}
	if got == 0 {
		im.miss(first)
		return 0, false
	}
	return im.entry(first), true
}

// load reads n pages into the copy, and returns how many were read.
func (im *Image) load(addr, n uint64) uint64 {
	if n = im.room(n); n == 0 {
		return 0
	}
	at := uint64(im.next) << PageShift
	got := im.fill(im.pages[at:at+n<<PageShift], addr)
	whole := uint64(max(got, 0)) >> PageShift
	for i := range whole {
		if !im.set(addr+i<<PageShift, im.next+uint32(i)) {
			whole = i
			break
		}
	}
	im.took(whole)
	im.bytes += whole << PageShift
	return whole
}

// room makes room for n pages at im.next, or for as many as there can be.
func (im *Image) room(n uint64) uint64 {
	room := uint64(len(im.pages))>>PageShift - uint64(im.next)
	if im.ring == nil {
		im.full = im.full || n > room
		return min(n, room)
	}
	if n > room {
		im.next = firstPage
		n = min(n, uint64(len(im.pages))>>PageShift-firstPage)
	}
	for i := range im.ring[im.next:][:n] {
		at := im.next + uint32(i)
		if addr := im.ring[at]; addr != 0 && im.entry(addr) == at {
			im.tables.set(addr, pageUnknown)
		}
		im.ring[at] = 0
	}
	return n
}

// took says that n pages at im.next were filled.
func (im *Image) took(n uint64) {
	im.next += uint32(n)
	im.used = max(im.used, im.next)
	im.ahead.of(im.used)
}

// twoHalves is from where on two threads share a read, bytes.
const twoHalves = 1 << 20

// fill reads memory, and returns how many bytes were read.
func (im *Image) fill(b []byte, addr uint64) int {
	half := len(b) / 2 &^ (PageSize - 1)
	if len(b) < twoHalves {
		got, _ := im.memory.ReadAt(b, addr)
		return got
	}
	second := make(chan int, 1)
	go func() {
		got, _ := im.memory.ReadAt(b[half:], addr+uint64(half))
		second <- got
	}()
	got, _ := im.memory.ReadAt(b[:half], addr)
	if rest := <-second; got == half {
		got += rest
	}
	return got
}

func (im *Image) entry(addr uint64) uint32 { return im.tables.get(addr) }

// set enters a page. It is false when there are too many tables.
func (im *Image) set(addr uint64, n uint32) bool {
	if !im.tables.set(addr, n) {
		return false
	}
	if im.ring != nil && n >= firstPage {
		im.ring[n] = addr &^ (PageSize - 1)
	}
	if im.tracked {
		im.order = append(im.order, addr&^(PageSize-1))
	}
	return true
}

// Word implements cpython.Image.
func (im *Image) Word(addr uint64) uint64 {
	if addr&7 != 0 || addr >= topSpans<<spanShift {
		return 0
	}
	if n := im.tables.get(addr); n >= firstPage {
		return binary.LittleEndian.Uint64(im.pages[uint64(n)<<PageShift|addr&(PageSize-1):])
	}
	n, ok := im.page(addr)
	if !ok {
		return 0
	}
	return binary.LittleEndian.Uint64(im.pages[uint64(n)<<PageShift|addr&(PageSize-1):])
}

// Has reports whether an address can be read.
func (im *Image) Has(addr uint64) bool {
	_, ok := im.page(addr)
	return ok
}

// View implements cpython.Image.
func (im *Image) View(addr uint64, n int) []byte {
	if n < 0 || uint64(n) > topSpans<<spanShift || addr+uint64(n) < addr {
		return nil
	}
	if n == 0 {
		return []byte{}
	}
	if im.ring != nil { // what it holds may be dropped
		return im.copied(addr, n)
	}
	first, ok := im.page(addr)
	if !ok {
		return nil
	}
	last := (addr + uint64(n) - 1) >> PageShift
	number, adjacent := first, true
	for p := addr>>PageShift + 1; p <= last; p++ {
		next, ok := im.page(p << PageShift)
		if !ok {
			return nil
		}
		adjacent = adjacent && next == number+1
		number = next
	}
	if adjacent {
		at := uint64(first)<<PageShift | addr&(PageSize-1)
		return im.pages[at : at+uint64(n) : at+uint64(n)]
	}
	return im.copied(addr, n)
}

// copied reads a range into memory of its own.
func (im *Image) copied(addr uint64, n int) []byte {
	if _, ok := im.page(addr); !ok { // before memory is taken for what may be no size
		return nil
	}
	out := make([]byte, n)
	if _, err := im.ReadAt(out, addr); err != nil {
		return nil
	}
	return out
}

// ReadAt implements process.Memory. What cannot be read ends it with io.ErrUnexpectedEOF.
func (im *Image) ReadAt(b []byte, addr uint64) (int, error) {
	for done := 0; done < len(b); {
		at := addr + uint64(done)
		n, ok := im.page(at)
		if !ok {
			return done, io.ErrUnexpectedEOF
		}
		from := uint64(n)<<PageShift | at&(PageSize-1)
		done += copy(b[done:], im.pages[from:uint64(n+1)<<PageShift])
	}
	return len(b), nil
}

// Executable reports whether code of a library is at an address.
func (im *Image) Executable(addr uint64) bool {
	r := im.RegionAt(addr)
	return r != nil && r.Exec
}
