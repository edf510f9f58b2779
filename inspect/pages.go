//go:build linux

package inspect

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/process"
)

const (
	pageSize = 4096
	// maxPages bounds what is copied of a target: 512 MiB, the books of about two million blocks.
	maxPages = 1 << 17
	// maxVectors is UIO_MAXIOV, the kernel's limit for one call (process_vm_readv(2)).
	maxVectors = 1024
	growth     = 64 // pages
)

var errTooMuch = errors.New("more memory than the limit")

// batch copies pages of a target, from one address each.
type batch func(to [][]byte, addrs []uint64) error

// pages is a copy of the pages of a process that were asked for. The copy is made page by page when an address is first
// read, and as a whole, within microseconds, when it is made again: this is what catches the books of a busy allocator in
// one state.
type pages struct {
	memory process.Memory
	batch  batch
	index  map[uint64][]byte // by page address
	fresh  []byte            // memory for further pages
	misses int               // pages read since the last refresh
	last   uint64
	lastAt []byte // the page at last
}

func newPages(m process.Memory) *pages {
	c := &pages{memory: m, index: map[uint64][]byte{}, batch: plainBatch(m)}
	if p, ok := m.(*process.Process); ok {
		c.batch = vectorBatch(p.PID)
	}
	return c
}

// ReadAt implements process.Memory. It reads all of b or gives an error.
func (c *pages) ReadAt(b []byte, addr uint64) (int, error) {
	for done := 0; done < len(b); {
		at := addr + uint64(done)
		page, err := c.page(at &^ (pageSize - 1))
		if err != nil {
			return done, err
		}
		done += copy(b[done:], page[at%pageSize:])
	}
	return len(b), nil
}

func (c *pages) page(addr uint64) ([]byte, error) {
	if c.lastAt != nil && c.last == addr {
		return c.lastAt, nil
	}
	page := c.index[addr]
	if page == nil {
		if len(c.index) >= maxPages {
			return nil, fmt.Errorf("copy the books: %w of %d pages", errTooMuch, maxPages)
		}
		if len(c.fresh) == 0 {
			c.fresh = make([]byte, growth*pageSize)
		}
		c.misses++
		page = c.fresh[:pageSize:pageSize]
		if _, err := c.memory.ReadAt(page, addr); err != nil {
			return nil, err
		}
		c.index[addr], c.fresh = page, c.fresh[pageSize:]
	}
	c.last, c.lastAt = addr, page
	return page, nil
}

// refresh copies all pages again. After an error, which is usual when the target has given memory back, the copy is empty.
func (c *pages) refresh() error {
	addrs := slices.Sorted(maps.Keys(c.index))
	to := make([][]byte, len(addrs))
	for i, a := range addrs {
		to[i] = c.index[a]
	}
	c.misses = 0
	if err := c.batch(to, addrs); err != nil {
		c.drop()
		return err
	}
	return nil
}

// drop forgets everything.
func (c *pages) drop() {
	clear(c.index)
	c.misses, c.lastAt = 0, nil
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

// vectorBatch reads up to 1,024 pages with one process_vm_readv(2). Pages beside each other are one range for the kernel.
func vectorBatch(pid int) batch {
	return func(to [][]byte, addrs []uint64) error {
		for len(to) > 0 {
			n := min(len(to), maxVectors)
			local := make([]unix.Iovec, n)
			var remote []unix.RemoteIovec
			for i := range n {
				local[i] = unix.Iovec{Base: &to[i][0], Len: pageSize}
				if last := len(remote) - 1; i > 0 && addrs[i] == addrs[i-1]+pageSize {
					remote[last].Len += pageSize
					continue
				}
				remote = append(remote, unix.RemoteIovec{Base: uintptr(addrs[i]), Len: pageSize})
			}
			got, err := unix.ProcessVMReadv(pid, local, remote, 0)
			if err != nil {
				return fmt.Errorf("read %d pages of pid %d: %w", n, pid, err)
			}
			if want := n * pageSize; got < want {
				return fmt.Errorf("read %d pages of pid %d: got %d bytes, want %d", n, pid, got, want)
			}
			to, addrs = to[n:], addrs[n:]
		}
		return nil
	}
}
