// SPDX-License-Identifier: Apache-2.0

//go:build linux

package holders

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/process"
)

const (
	pageShift = 12
	pageSize  = 1 << pageShift
	// spanShift is the size of what one table of pages covers: 1 GiB.
	spanShift = 30
	spanPages = 1 << (spanShift - pageShift)
	// topSpans covers 47 bits of addresses, all that a process maps unless it asks for more (x86-64, mm.rst).
	topSpans = 1 << (47 - spanShift)
	// maxSpans bounds the tables of pages, 1 MiB of address space of ours each.
	maxSpans = 1024
	// farPages bounds what is read beside the copy, on demand: read-only data of libraries, mostly.
	farPages = 1 << 15
	// farRun is how many pages are read at once there, and nearRun in the process's own memory: neighbours are wanted as well.
	farRun  = 4
	nearRun = 4
)

// region is a range of addresses that may be read.
type region struct {
	start, end uint64
	// heap: private memory that the program writes, where objects are. Otherwise data of a library.
	heap  bool
	exec  bool
	stack bool // of the main thread
	file  string
}

// image is what was read of a process: a copy of its private memory, and pages of libraries that are read when they are
// asked for. It implements cpython.Image. It is not safe for concurrent use, but for word and view of addresses in the copy.
type image struct {
	memory  process.Memory
	regions []region // sorted
	pages   []byte   // the copy; pages 0 and 1 are not used
	used    uint32   // pages of it
	tables  [][]uint32
	spans   int
	bytes   uint64   // read from the process
	absent  int      // pages that could not be read
	mapped  bool     // pages is a mapping of ours
	cut     bool     // the copy of the heap regions was begun and not ended
	whole   bool     // the heap regions were copied as a whole: what is not there was not present
	present []run    // pages of the heap regions that may be read; nil: all
	full    bool     // there was no room for a page
	near    bool     // only the page itself is read when one is asked for
	tracked bool     // order is kept
	order   []uint64 // pages that were entered, when tracked
}

// Entries of a table of pages that are no page's number.
const (
	pageUnknown = 0 // not asked for yet
	pageAbsent  = 1 // cannot be read
	firstPage   = 2
)

// newImage makes an image without a copy that holds at most so many pages.
func newImage(m process.Memory, regions []region, capacity uint64) (*image, error) {
	im := &image{memory: m, regions: regions, used: firstPage, tables: make([][]uint32, topSpans)}
	size := int(firstPage+capacity+farPages) << pageShift
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("make room for a copy of %d MiB: %w", size>>20, err)
	}
	_ = unix.Madvise(b, unix.MADV_HUGEPAGE) // fewer page faults; nothing is lost without
	im.pages, im.mapped = b, true
	return im, nil
}

// populate takes memory for so many pages now, and not one by one while they are copied.
func (im *image) populate(pages uint64) error {
	size := min(int(pages)<<pageShift, len(im.pages))
	if err := unix.Madvise(im.pages[:size], unix.MADV_POPULATE_WRITE); err != nil {
		return fmt.Errorf("populate %d MiB: %w", size>>20, err)
	}
	return nil
}

// room is how many pages the copy may have.
func (im *image) room() uint64 { return uint64(len(im.pages))>>pageShift - firstPage - farPages }

// reset forgets what was copied.
func (im *image) reset(regions []region) {
	im.regions, im.used, im.spans, im.whole, im.cut, im.present, im.full = regions, firstPage, 0, false, false, nil, false
	clear(im.tables)
}

// forget drops the pages of an image that is no copy, to read them anew.
func (im *image) forget() {
	im.used = firstPage
	if !im.tracked {
		for _, t := range im.tables {
			clear(t)
		}
		return
	}
	for _, addr := range im.order {
		im.tables[addr>>spanShift][addr>>pageShift&(spanPages-1)] = pageUnknown
	}
	im.order = im.order[:0]
}

// close gives the memory of the copy back.
func (im *image) close() {
	if im.mapped {
		_ = unix.Munmap(im.pages)
	}
	im.pages, im.mapped, im.used = nil, false, 0
	clear(im.tables)
}

// regionsOf picks the mappings that may be read: private memory and data of libraries. Devices and other special files
// are never touched, and neither is memory that is shared.
func regionsOf(maps []process.Mapping) []region {
	libraries := map[string]bool{}
	for i := range maps {
		if maps[i].Exec && maps[i].Inode != 0 {
			libraries[maps[i].Path] = true
		}
	}
	var out []region
	for i := range maps {
		m := &maps[i]
		if m.Shared || m.End > topSpans<<spanShift || special(m.Path) {
			continue
		}
		switch {
		case m.Inode == 0 && m.Writable:
			out = append(out, region{start: m.Start, end: m.End, heap: true, stack: strings.HasPrefix(m.Path, "[stack")})
		case m.Inode != 0 && libraries[m.Path]:
			out = append(out, region{start: m.Start, end: m.End, heap: m.Writable, exec: m.Exec, file: m.Path})
		}
	}
	slices.SortFunc(out, func(a, b region) int { return cmp.Compare(a.start, b.start) })
	return out
}

// special tells what lies behind a mapping by its name: device files, the kernel's own pages, memory of other kinds.
func special(path string) bool {
	if strings.HasPrefix(path, "[") {
		return path != "[heap]" && !strings.HasPrefix(path, "[stack") && !strings.HasPrefix(path, "[anon")
	}
	return strings.HasPrefix(path, "/dev/") || strings.HasPrefix(path, "anon_inode:") || strings.HasPrefix(path, "/SYSV") ||
		strings.HasPrefix(path, "/dmabuf") || strings.HasPrefix(path, "socket:") || strings.HasPrefix(path, "/memfd:")
}

// regionAt is the region of an address.
func (im *image) regionAt(addr uint64) *region {
	i, _ := slices.BinarySearchFunc(im.regions, addr, func(r region, a uint64) int { return cmp.Compare(r.end, a+1) })
	if i < len(im.regions) && im.regions[i].start <= addr {
		return &im.regions[i]
	}
	return nil
}

// page is the number of the page of an address in the copy. It reads the page if it must.
func (im *image) page(addr uint64) (n uint32, ok bool) {
	if addr >= topSpans<<spanShift {
		return 0, false
	}
	if t := im.tables[addr>>spanShift]; t != nil {
		if n = t[addr>>pageShift&(spanPages-1)]; n >= firstPage {
			return n, true
		}
		if n == pageAbsent {
			return 0, false
		}
	}
	return im.fetch(addr)
}

// fetch reads pages that are not in the copy.
func (im *image) fetch(addr uint64) (uint32, bool) {
	r := im.regionAt(addr)
	if r == nil || im.memory == nil {
		return 0, false
	}
	first := addr &^ (pageSize - 1)
	end := min(r.end, first+farRun*pageSize)
	if r.heap && im.present != nil {
		end = min(r.end, first+min(nearRun, im.presentAt(first))<<pageShift)
	}
	if im.near {
		end = first + pageSize
	}
	if r.heap && im.whole {
		im.set(first, pageAbsent) // not there when the copy was made
		return 0, false
	}
	for at := first + pageSize; at < end; at += pageSize {
		if n := im.entry(at); n != pageUnknown {
			end = at
		}
	}
	got := uint64(0)
	if end > first {
		got = im.load(first, (end-first)>>pageShift)
	}
	if got == 0 {
		im.absent++
		im.set(first, pageAbsent)
		return 0, false
	}
	return im.entry(first), true
}

// load reads n pages into the copy, and gives how many came.
func (im *image) load(addr, n uint64) uint64 {
	room := uint64(len(im.pages))>>pageShift - uint64(im.used)
	im.full = im.full || n > room
	n = min(n, room)
	if n == 0 {
		return 0
	}
	at := uint64(im.used) << pageShift
	got := im.fill(im.pages[at:at+n<<pageShift], addr)
	whole := uint64(max(got, 0)) >> pageShift
	for i := range whole {
		if !im.set(addr+i<<pageShift, im.used+uint32(i)) {
			whole = i
			break
		}
	}
	im.used += uint32(whole)
	im.bytes += whole << pageShift
	return whole
}

// twoHalves is from where on two threads share a read, bytes.
const twoHalves = 1 << 20

// fill reads memory, and gives how many bytes came.
func (im *image) fill(b []byte, addr uint64) int {
	half := len(b) / 2 &^ (pageSize - 1)
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

func (im *image) entry(addr uint64) uint32 {
	if t := im.tables[addr>>spanShift]; t != nil {
		return t[addr>>pageShift&(spanPages-1)]
	}
	return pageUnknown
}

// set enters a page. It is false when there are too many tables.
func (im *image) set(addr uint64, n uint32) bool {
	t := im.tables[addr>>spanShift]
	if t == nil {
		if im.spans >= maxSpans {
			return false
		}
		im.spans++
		t = make([]uint32, spanPages)
		im.tables[addr>>spanShift] = t
	}
	t[addr>>pageShift&(spanPages-1)] = n
	if im.tracked {
		im.order = append(im.order, addr&^(pageSize-1))
	}
	return true
}

// Word implements cpython.Image.
func (im *image) Word(addr uint64) uint64 {
	if addr&7 != 0 || addr >= topSpans<<spanShift {
		return 0
	}
	if t := im.tables[addr>>spanShift]; t != nil {
		if n := t[addr>>pageShift&(spanPages-1)]; n >= firstPage {
			return binary.LittleEndian.Uint64(im.pages[uint64(n)<<pageShift|addr&(pageSize-1):])
		}
	}
	n, ok := im.page(addr)
	if !ok {
		return 0
	}
	return binary.LittleEndian.Uint64(im.pages[uint64(n)<<pageShift|addr&(pageSize-1):])
}

// has reports whether an address can be read.
func (im *image) has(addr uint64) bool {
	_, ok := im.page(addr)
	return ok
}

// View implements cpython.Image.
func (im *image) View(addr uint64, n int) []byte {
	if n < 0 || uint64(n) > topSpans<<spanShift || addr+uint64(n) < addr {
		return nil
	}
	if n == 0 {
		return []byte{}
	}
	first, ok := im.page(addr)
	if !ok {
		return nil
	}
	last := (addr + uint64(n) - 1) >> pageShift
	number, adjacent := first, true
	for p := addr>>pageShift + 1; p <= last; p++ {
		next, ok := im.page(p << pageShift)
		if !ok {
			return nil
		}
		adjacent = adjacent && next == number+1
		number = next
	}
	if adjacent {
		at := uint64(first)<<pageShift | addr&(pageSize-1)
		return im.pages[at : at+uint64(n) : at+uint64(n)]
	}
	out := make([]byte, n)
	if _, err := im.ReadAt(out, addr); err != nil {
		return nil
	}
	return out
}

// ReadAt implements process.Memory. What cannot be read ends it with io.ErrUnexpectedEOF.
func (im *image) ReadAt(b []byte, addr uint64) (int, error) {
	for done := 0; done < len(b); {
		at := addr + uint64(done)
		n, ok := im.page(at)
		if !ok {
			return done, io.ErrUnexpectedEOF
		}
		from := uint64(n)<<pageShift | at&(pageSize-1)
		done += copy(b[done:], im.pages[from:uint64(n+1)<<pageShift])
	}
	return len(b), nil
}

// executable reports whether code of a library is at an address.
func (im *image) executable(addr uint64) bool {
	r := im.regionAt(addr)
	return r != nil && r.exec
}
