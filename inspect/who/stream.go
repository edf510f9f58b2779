//go:build linux

package who

import (
	"cmp"
	"slices"
)

// A running process is not copied as a whole: its pages go by once, through a small buffer, and those that have an object of
// C++ that matters are kept. The walk asks for what else it needs. A process has gigabytes of which that is a few dozen
// megabytes.

// streamRun is how much goes by at once, bytes: it stays in the processor's cache.
const streamRun = 1 << 20

// pagesOf calls visit with every page of the runs, in order: from the copy where they are in it, else from the process. The
// slice is only good during the call. Pages that are gone are left out.
func (im *image) pagesOf(runs []run, visit func(addr uint64, page []byte)) {
	buffer := make([]byte, streamRun)
	for _, r := range runs {
		for r.pages > 0 {
			n := min(r.pages, streamRun>>pageShift)
			if im.whole {
				im.copied(run{r.addr, n}, visit)
			} else if got := im.passing(run{r.addr, n}, buffer, visit); got < n {
				n = got + 1 // that page is gone
			}
			r.addr, r.pages = r.addr+n<<pageShift, r.pages-n
		}
	}
}

func (im *image) copied(r run, visit func(addr uint64, page []byte)) {
	for at := r.addr; at < r.addr+r.pages<<pageShift; at += pageSize {
		if number := im.entry(at); number >= firstPage {
			visit(at, im.pages[uint64(number)<<pageShift:uint64(number+1)<<pageShift])
		}
	}
}

// passing reads pages, and gives how many came.
func (im *image) passing(r run, buffer []byte, visit func(addr uint64, page []byte)) uint64 {
	got, _ := im.memory.ReadAt(buffer[:r.pages<<pageShift], r.addr)
	n := uint64(max(got, 0)) >> pageShift
	im.bytes += n << pageShift
	for i := range n {
		visit(r.addr+i<<pageShift, buffer[i<<pageShift:(i+1)<<pageShift])
	}
	return n
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
