// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"runtime"
	"slices"

	"github.com/gputrace/gputrace/process"
)

const (
	pageSize = 4096
	// minPages and maxPages bound what is copied of a target: 512 MiB, the state of about two million blocks that lie beside
	// each other, and 8 GiB where the machine has memory enough. A job that leaks has few blocks on a page: a million of one that
	// keeps its losses took 1.2 GiB.
	minPages = 1 << 17
	maxPages = 1 << 21
	// copyShare is the part of the machine's available memory that a copy may take. There can be two copies of a page.
	copyShare = 8
	// maxVectors is UIO_MAXIOV, the kernel's limit for one call (process_vm_readv(2)).
	maxVectors = 1024
	growth     = 64 // pages
	// maxAllHot is how many pages are copied at once without a look at which of them change: it takes less time than to
	// find that out.
	maxAllHot = 128
	// maxAge is how many comparisons a page stays hot without a change.
	maxAge = 4
)

var errTooMuch = errors.New("more memory than the limit")

// batch copies pages of a target, from one address each.
type batch func(to [][]byte, addrs []uint64) error

// lineSize is the part of a page whose use is noted, bytes: a cache line, of which a page has as many as a word has bits.
const lineSize = pageSize / 64

// page is a copy of one page.
type page struct {
	addr uint64
	data []byte
	next []byte // for the next copy of a hot page, or of all pages
	// used has a bit for each line that was read since the last call of renew, known for those before: only these are
	// compared. What else lies on the page is of no matter.
	used, known uint64
	hot         bool // it was seen to change
	late        bool // it was copied behind both copies of pages.twice
	age         int  // comparisons of the cold pages since it changed
}

// linesOf has a bit for each line of a page that n bytes from an offset touch. They end on the page.
func linesOf(offset, n uint64) uint64 {
	if n == 0 {
		return 0
	}
	first, last := offset/lineSize, (offset+n-1)/lineSize
	return ^uint64(0) >> (63 - (last - first)) << first
}

// changed reports whether a line that was read is another one in a copy.
func (p *page) changed(now []byte) bool {
	for rest := p.used; rest != 0; rest &= rest - 1 {
		at := bits.TrailingZeros64(rest) * lineSize
		if !bytes.Equal(p.data[at:at+lineSize], now[at:at+lineSize]) {
			return true
		}
	}
	return false
}

// pages is a copy of the pages of a process that were asked for. The copy is made page by page when an address is first
// read. After that it is brought to one moment in two steps: the hot pages, which change, are copied at once, within
// microseconds; the others, which may be many more, are compared with what they were before, one after the other. Those
// that are the same still were the same when the hot ones were copied.
type pages struct {
	limit  int // pages
	memory process.Memory
	batch  batch
	index  map[uint64]*page // by page address
	hot    []*page          // by address; all are in one of these two lists
	cold   []*page
	sorted bool    // no page has changed sides since they were divided
	fresh  []byte  // memory for further pages
	misses int     // pages, and lines of cold pages, that were read for the first time since the last compare
	pair   []*page // of which there are two copies, see twice
	paired bool    // twice was called: further pages are late
	late   bool    // something of a late page was read
	lates  int     // late pages
	last   *page
}

func newPages(m process.Memory) *pages {
	c := &pages{memory: m, index: map[uint64]*page{}, batch: plainBatch(m), limit: copyLimit()}
	if p, ok := m.(*process.Process); ok {
		c.batch = vectorBatch(p.PID)
	}
	return c
}

// ReadAt implements process.Memory. It reads all of b or returns an error.
func (c *pages) ReadAt(b []byte, addr uint64) (int, error) {
	for done := 0; done < len(b); {
		at := addr + uint64(done)
		n := min(uint64(len(b)-done), pageSize-at%pageSize)
		part, err := c.lines(at, n)
		if err != nil {
			return done, err
		}
		done += copy(b[done:], part)
	}
	return len(b), nil
}

// lines returns n bytes that lie on one page. What nothing has looked at before is not known to be of the moment of the copy:
// only the lines that were read are compared.
func (c *pages) lines(addr, n uint64) ([]byte, error) {
	p, err := c.page(addr &^ (pageSize - 1))
	if err != nil {
		return nil, err
	}
	lines := linesOf(addr%pageSize, n)
	p.used |= lines
	if !p.hot && lines&^p.known != 0 {
		p.known |= lines
		c.misses++
	}
	c.late = c.late || p.late
	return p.data[addr%pageSize:][:n], nil
}

// peek returns the bytes at an address, as many as buf has: the copy itself, where they are on one page, otherwise in buf.
// They are valid until something else is read.
func peek(m process.Memory, addr uint64, buf []byte) ([]byte, error) {
	if c, ok := m.(*pages); ok && addr%pageSize+uint64(len(buf)) <= pageSize {
		return c.lines(addr, uint64(len(buf)))
	}
	_, err := m.ReadAt(buf, addr)
	return buf, err
}

func (c *pages) page(addr uint64) (*page, error) {
	if c.last != nil && c.last.addr == addr {
		return c.last, nil
	}
	p := c.index[addr]
	if p == nil {
		if len(c.index) >= c.limit {
			return nil, fmt.Errorf("copy the allocator state: %w of %d pages", errTooMuch, c.limit)
		}
		if len(c.fresh) == 0 {
			c.fresh = make([]byte, growth*pageSize)
		}
		p = &page{addr: addr, data: c.fresh[:pageSize:pageSize]}
		if _, err := c.memory.ReadAt(p.data, addr); err != nil {
			return nil, err
		}
		c.fresh = c.fresh[pageSize:]
		c.add(p)
	}
	c.last = p
	return p, nil
}

// prefetch copies the pages of things at sorted addresses together, as far as they are not copied yet. What cannot be read
// is left for later.
func prefetch(m process.Memory, addrs []uint64, size int) {
	c, ok := m.(*pages)
	if !ok {
		return
	}
	var missing []uint64
	for _, at := range addrs {
		if !pointer(at) {
			continue
		}
		for p := at &^ (pageSize - 1); p < at+uint64(size); p += pageSize {
			if (len(missing) == 0 || missing[len(missing)-1] < p) && c.index[p] == nil {
				missing = append(missing, p)
			}
		}
	}
	for part := range slices.Chunk(missing, maxVectors) {
		c.fetch(part)
	}
}

// fetch copies pages that are not copied yet.
func (c *pages) fetch(addrs []uint64) {
	if len(c.index)+len(addrs) > c.limit {
		return
	}
	data := make([]byte, len(addrs)*pageSize)
	to := make([][]byte, len(addrs))
	for i := range to {
		to[i] = data[i*pageSize : (i+1)*pageSize]
	}
	if c.batch(to, addrs) != nil {
		return
	}
	for i, addr := range addrs {
		c.add(&page{addr: addr, data: to[i]})
	}
}

// add takes in a page that was read just now.
func (c *pages) add(p *page) {
	c.misses++
	c.index[p.addr] = p
	p.known = ^uint64(0) // all of it was read just now, which is one miss
	p.hot, p.late = len(c.index) <= maxAllHot, c.paired
	if c.paired {
		c.lates++
	}
	c.cold, c.sorted = append(c.cold, p), false
}

// copyHot copies the pages that change. After an error, which is usual when the target has given memory back, the copy is
// empty.
func (c *pages) copyHot() error {
	c.sort()
	to, addrs := make([][]byte, len(c.hot)), make([]uint64, len(c.hot))
	for i, p := range c.hot {
		if p.next == nil {
			p.next = make([]byte, pageSize)
		}
		to[i], addrs[i] = p.next, p.addr
	}
	if err := c.read(to, addrs); err != nil {
		return err
	}
	for _, p := range c.hot {
		if p.changed(p.next) {
			p.age = 0
		}
		p.data, p.next = p.next, p.data
	}
	return nil
}

// compareCold copies all other pages, and tells how many are no longer what they were. Those are hot from then on. After
// an error the copy is empty.
func (c *pages) compareCold() (changed int, err error) {
	c.sort()
	c.misses = 0
	scratch := make([]byte, min(len(c.cold), maxVectors)*pageSize)
	for part := range slices.Chunk(c.cold, maxVectors) {
		to, addrs := make([][]byte, len(part)), make([]uint64, len(part))
		for i, p := range part {
			to[i], addrs[i] = scratch[i*pageSize:(i+1)*pageSize], p.addr
		}
		if err := c.read(to, addrs); err != nil {
			return 0, err
		}
		for i, p := range part {
			if p.changed(to[i]) {
				p.hot, p.age, changed = true, 0, changed+1
			}
			copy(p.data, to[i])
		}
	}
	for _, p := range c.hot {
		p.age++
		p.hot = p.age <= maxAge || len(c.index) <= maxAllHot
	}
	c.sorted = false
	return changed, nil
}

// renew begins to note anew which lines are read.
func (c *pages) renew() {
	for _, p := range c.index {
		p.used, p.known = 0, p.used
	}
}

// sort divides the pages into hot and cold ones.
func (c *pages) sort() {
	if c.sorted {
		return
	}
	all := append(c.hot, c.cold...)
	c.hot, c.cold = nil, make([]*page, 0, len(all))
	slices.SortFunc(all, func(x, y *page) int { return cmp.Compare(x.addr, y.addr) })
	for _, p := range all {
		if p.hot {
			c.hot = append(c.hot, p)
		} else {
			c.cold = append(c.cold, p)
		}
	}
	c.sorted = true
}

func (c *pages) read(to [][]byte, addrs []uint64) error {
	err := c.batch(to, addrs)
	if err != nil {
		c.drop()
	}
	return err
}

// drop forgets everything.
func (c *pages) drop() {
	clear(c.index)
	c.hot, c.cold, c.pair, c.last, c.misses, c.paired, c.late, c.lates = nil, nil, nil, nil, 0, false, false, 0
}

// collectAbove is how many pages are worth a collection of garbage when they are no longer needed: 256 MiB, with the second copies.
const collectAbove = 1 << 15

// release is drop for good. A job with a million blocks has gigabytes of pages, and what comes next takes as much again.
func (c *pages) release() {
	many := len(c.index) > collectAbove
	c.drop()
	c.fresh = nil
	if many {
		runtime.GC()
	}
}

// twice copies all pages two times, one copy behind the other, with a call in between. What is read then is the first of
// them; flip returns the other one. Pages that were unmapped are forgotten; those that are read for the first time behind it are late.
func (c *pages) twice(between func() error) error {
	c.paired, c.late, c.lates = true, false, 0
	c.pair = append(append(c.pair[:0], c.hot...), c.cold...)
	slices.SortFunc(c.pair, func(x, y *page) int { return cmp.Compare(x.addr, y.addr) })
	for _, p := range c.pair {
		p.late = false
	}
	c.copyPair()
	c.flip()
	if err := between(); err != nil {
		return err
	}
	c.copyPair()
	c.hot, c.cold, c.sorted, c.last = nil, slices.Clone(c.pair), false, nil
	return nil
}

// flip puts the other one of the two copies in the place of the one that is read.
func (c *pages) flip() {
	for _, p := range c.pair {
		p.data, p.next = p.next, p.data
	}
}

// copyPair copies the pages of the pair, and removes those that were unmapped.
func (c *pages) copyPair() {
	for _, p := range c.pair {
		if p.next == nil {
			p.next = make([]byte, pageSize)
		}
	}
	var gone map[*page]bool
	for part := range slices.Chunk(c.pair, maxVectors) {
		if c.copyNext(part) == nil {
			continue
		}
		for i, p := range part {
			if c.copyNext(part[i:i+1]) != nil {
				gone = putNew(gone, p)
			}
		}
	}
	if gone == nil {
		return
	}
	c.pair = slices.DeleteFunc(c.pair, func(p *page) bool { return gone[p] })
	for p := range gone {
		delete(c.index, p.addr)
	}
}

func putNew[K comparable](set map[K]bool, k K) map[K]bool {
	if set == nil {
		set = map[K]bool{}
	}
	set[k] = true
	return set
}

func (c *pages) copyNext(part []*page) error {
	to, addrs := make([][]byte, len(part)), make([]uint64, len(part))
	for i, p := range part {
		to[i], addrs[i] = p.next, p.addr
	}
	return c.batch(to, addrs)
}

// plainBatch reads one page after the other.
func plainBatch(m process.Memory) batch {
	return func(to [][]byte, addrs []uint64) error {
		for i, a := range addrs {
			if _, err := m.ReadAt(to[i], a); err != nil {
				return err
			}
		}
		return nil
	}
}
