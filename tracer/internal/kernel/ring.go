// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package kernel

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"
)

// sharedRing is the shared memory of a ring (kernel/bpf/ringbuf.c): a page with the reader's position, one with the
// writers', then the data. A record can wrap around the end. The kernel could map the data twice to avoid that, but the
// second mapping would count as memory of ours.
type sharedRing struct {
	read, written *uint64
	data          []byte
	mask          uint64
	mark          uint64 // reserved up to here at the noted moment
	consumer      []byte
	producer      []byte
}

// mapRing maps a ring with this number of bytes.
func mapRing(fd, bytes int) (*sharedRing, error) {
	g := &sharedRing{mask: uint64(bytes - 1)}
	page := os.Getpagesize()
	var err error
	if g.consumer, err = unix.Mmap(fd, 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, fmt.Errorf("map a ring: %w", err)
	}
	if g.producer, err = unix.Mmap(fd, int64(page), page+bytes, unix.PROT_READ, unix.MAP_SHARED); err != nil {
		g.unmap()
		return nil, fmt.Errorf("map a ring: %w", err)
	}
	g.read, g.written = (*uint64)(unsafe.Pointer(&g.consumer[0])), (*uint64)(unsafe.Pointer(&g.producer[0]))
	g.data = g.producer[page:]
	return g, nil
}

func (g *sharedRing) unmap() {
	_ = unix.Munmap(g.consumer)
	if g.producer != nil {
		_ = unix.Munmap(g.producer)
	}
}

// head returns the head of the record at a position: its length, and whether it is complete. Heads are at multiples of
// 8 bytes and never wrap around.
func (g *sharedRing) head(at uint64) uint32 {
	return atomic.LoadUint32((*uint32)(unsafe.Pointer(&g.data[at&g.mask])))
}

// copyTo appends the data of the record at a position.
func (g *sharedRing) copyTo(b []byte, at, length uint64) []byte {
	from := (at + unix.BPF_RINGBUF_HDR_SZ) & g.mask
	first := min(length, g.mask+1-from)
	b = append(b, g.data[from:from+first]...)
	return append(b, g.data[:length-first]...)
}

// after returns the position after a record.
func after(at, length uint64) uint64 { return at + (length+unix.BPF_RINGBUF_HDR_SZ+7)&^7 }

// oneReader reads the records of one ring.
type oneReader struct {
	ring     *sharedRing
	epoll    int
	deadline time.Time
	waited   bool // the ring is read until it is empty before the next wait
	over     bool // the deadline has passed
}

// newOneReader reads a ring of so many bytes.
func newOneReader(m *ebpf.Map, bytes int) (*oneReader, error) {
	ring, err := mapRing(m.FD(), bytes)
	if err != nil {
		return nil, err
	}
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err == nil {
		if err = unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, m.FD(), &unix.EpollEvent{Events: unix.EPOLLIN}); err != nil {
			_ = unix.Close(epoll)
		}
	}
	if err != nil {
		ring.unmap()
		return nil, fmt.Errorf("wait for a ring: %w", err)
	}
	return &oneReader{ring: ring, epoll: epoll}, nil
}

// Close implements recordReader.
func (r *oneReader) Close() error {
	if r.ring == nil {
		return nil
	}
	r.ring.unmap()
	r.ring = nil
	return unix.Close(r.epoll)
}

// SetDeadline implements recordReader.
func (r *oneReader) SetDeadline(t time.Time) { r.deadline, r.over = t, false }

// ReadInto implements recordReader.
func (r *oneReader) ReadInto(record *ringbuf.Record) error {
	for {
		if !r.waited {
			if r.over {
				r.over = false
				return os.ErrDeadlineExceeded
			}
			if err := waitFor(r.epoll, r.deadline); err != nil {
				return err
			}
			r.waited, r.over = true, !time.Now().Before(r.deadline)
		}
		if r.take(record) {
			return nil
		}
		r.waited = false
	}
}

// take reads the next record. It waits for a record that is reserved and not complete.
func (r *oneReader) take(record *ringbuf.Record) bool {
	g := r.ring
	for at := atomic.LoadUint64(g.read); at != atomic.LoadUint64(g.written); {
		head := g.head(at)
		if head&unix.BPF_RINGBUF_BUSY_BIT != 0 {
			time.Sleep(busyPause)
			continue
		}
		length := uint64(head &^ unix.BPF_RINGBUF_DISCARD_BIT)
		if head&unix.BPF_RINGBUF_DISCARD_BIT != 0 {
			at = after(at, length)
			atomic.StoreUint64(g.read, at)
			continue
		}
		record.RawSample = g.copyTo(record.RawSample[:0], at, length)
		at = after(at, length)
		record.Remaining = int(atomic.LoadUint64(g.written) - at)
		atomic.StoreUint64(g.read, at)
		return true
	}
	return false
}

// busyPause is the pause while waiting for an incomplete record, which takes a microsecond unless its writer lost the CPU.
const busyPause = 50 * time.Microsecond

// waitFor returns at the deadline, or when the kernel signals something urgent.
func waitFor(epoll int, deadline time.Time) error {
	left := max(0, time.Until(deadline))
	var events [maxRings]unix.EpollEvent
	_, err := unix.EpollWait(epoll, events[:], int((left+time.Millisecond-1)/time.Millisecond))
	if err != nil && !errors.Is(err, unix.EINTR) {
		return fmt.Errorf("wait for the kernel's records: %w", err)
	}
	return nil
}
