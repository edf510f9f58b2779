// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

package kernel

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math/bits"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/bpf"
)

const (
	// groupCPUs is how many CPUs share a ring: about as many as its lock takes without waiting (docs/one-ring.md), and maxRings how
	// many rings there are at most (MAX_RINGS of bpf/limits.h).
	groupCPUs = 8
	maxRings  = 8
	// recordTime is where a record has its time, bytes: every kind at the same place (bpf/records.h).
	recordTime = uint64(unsafe.Offsetof(bpf.TraceRecordEvent{}.Time))
)

// ringGroups is how many groups of CPUs have a ring, a power of two, and the logarithm of how many CPUs are a group. wanted 0: by the number
// of CPUs that are online, of which last is the highest number. No groups: all have one.
func ringGroups(wanted, online, last int) (groups, shift int) {
	if wanted == 0 {
		wanted = online / groupCPUs
	}
	if wanted = min(wanted, maxRings); wanted < 2 {
		return 0, 0
	}
	groups = 1 << (bits.Len(uint(wanted)) - 1)
	for (last >> shift) >= groups {
		shift++
	}
	return groups, shift
}

// groupsHere is ringGroups of this machine.
func groupsHere(wanted int) (groups, shift int) {
	online, last := onlineCPUs()
	return ringGroups(wanted, online, last)
}

// groupBytes is how large the ring of a group is, of what one ring would have: a process uses several.
func groupBytes(ring int) int { return max(ring/2, os.Getpagesize()) }

// openRings opens the one ring, or makes those of groups.
func (k *Side) openRings(bytes, groups int) (err error) {
	if groups == 0 {
		k.reader, err = newOneReader(k.objs.Ring, bytes)
		return err
	}
	bytes = groupBytes(bytes)
	if k.rings, err = makeRings(groups, bytes, k.objs.Rings); err != nil {
		return err
	}
	k.reader, err = newGroupReader(k.rings, bytes)
	return err
}

// onlineCPUs reads how many CPUs are online, and the highest number (Documentation/admin-guide/cputopology.rst). Where that cannot be read it
// is one.
func onlineCPUs() (n, last int) {
	text, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		return 1, 0
	}
	return parseCPUs(strings.TrimSpace(string(text)))
}

// parseCPUs counts the CPUs of a list such as 0-3,8.
func parseCPUs(list string) (n, last int) {
	for part := range strings.SplitSeq(list, ",") {
		from, to, ok := strings.Cut(part, "-")
		if !ok {
			to = from
		}
		first, err := strconv.Atoi(from)
		end, err2 := strconv.Atoi(to)
		if err != nil || err2 != nil || end < first {
			return 1, 0
		}
		n, last = n+end-first+1, max(last, end)
	}
	return n, last
}

// makeRings makes the rings of groups, and gives them to the programs.
func makeRings(groups, bytes int, outer *ebpf.Map) (rings []*ebpf.Map, err error) {
	defer func() {
		if err != nil {
			closeMaps(rings)
		}
	}()
	var keys, values []uint32
	for i := range groups {
		m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.RingBuf, MaxEntries: uint32(bytes)})
		if err != nil {
			return rings, fmt.Errorf("make a ring of %d bytes: %w", bytes, err)
		}
		rings = append(rings, m)
		keys, values = append(keys, uint32(i)), append(values, uint32(m.FD()))
	}
	if err := putChunks(outer, keys, values); err != nil {
		return rings, fmt.Errorf("make the rings known: %w", err)
	}
	return rings, nil
}

func closeMaps(maps []*ebpf.Map) {
	for _, m := range maps {
		m.Close()
	}
}

// recordReader reads records in the order in which they happened. ReadInto waits until the deadline for one, and then says that there is none
// by os.ErrDeadlineExceeded: then all was read that happened before it was called.
type recordReader interface {
	ReadInto(*ringbuf.Record) error
	SetDeadline(time.Time)
	Close() error
}

// groupReader puts the rings of groups of CPUs together by the times of their records.
//
// What is read of all rings, each up to where it was reserved at a moment, has every event up to that moment: the time of an event is read once
// it is reserved. The time of any other record, a stack, a code object, what became of a process, is read just before, so one can be missing of
// which the time is earlier; but what refers to it comes later, with a later time than the moment. So records up to the moment are in order, and
// the rest waits for the next.
type groupReader struct {
	rings    []*sharedRing
	epoll    int
	deadline time.Time
	now      func() uint64 // CLOCK_MONOTONIC, ns

	noted   uint64 // the moment at which the rings are read up to their marks; 0: none
	until   uint64 // records up to here are in order
	looked  bool   // since the last wait
	records []groupRecord
	next    int // of them
	data    []byte
	spare   []byte
}

type groupRecord struct {
	time    uint64
	at, end int // in data
}

// newGroupReader reads rings of so many bytes.
func newGroupReader(rings []*ebpf.Map, bytes int) (r *groupReader, err error) {
	r = &groupReader{epoll: -1, now: monotonic}
	defer func() {
		if err != nil {
			_ = r.Close()
		}
	}()
	if r.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return r, fmt.Errorf("wait for several rings: %w", err)
	}
	for _, m := range rings {
		g, err := mapRing(m.FD(), bytes)
		if err != nil {
			return r, err
		}
		r.rings = append(r.rings, g)
		if err := unix.EpollCtl(r.epoll, unix.EPOLL_CTL_ADD, m.FD(), &unix.EpollEvent{Events: unix.EPOLLIN}); err != nil {
			return r, fmt.Errorf("wait for several rings: %w", err)
		}
	}
	return r, nil
}

func monotonic() uint64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // never fails
	return uint64(t.Nano())
}

// Close implements recordReader.
func (r *groupReader) Close() error {
	for _, g := range r.rings {
		g.unmap()
	}
	r.rings = nil
	if r.epoll < 0 {
		return nil
	}
	fd := r.epoll
	r.epoll = -1
	return unix.Close(fd)
}

// SetDeadline implements recordReader.
func (r *groupReader) SetDeadline(t time.Time) { r.deadline = t }

// ReadInto implements recordReader.
func (r *groupReader) ReadInto(record *ringbuf.Record) error {
	for {
		if r.take(record) {
			return nil
		}
		if !r.looked {
			if err := waitFor(r.epoll, r.deadline); err != nil {
				return err
			}
			r.looked = true
		}
		for !r.collect() {
			time.Sleep(busyPause)
		}
		if r.take(record) {
			return nil
		}
		r.looked = false
		if !time.Now().Before(r.deadline) {
			return os.ErrDeadlineExceeded
		}
	}
}

func (r *groupReader) take(record *ringbuf.Record) bool {
	if r.next == len(r.records) || r.records[r.next].time > r.until {
		return false
	}
	one := r.records[r.next]
	record.RawSample = append(record.RawSample[:0], r.data[one.at:one.end]...)
	record.Remaining = 0
	r.next++
	return true
}

// collect reads all rings up to where they were at a moment, and puts what it has in order. It is false when a record is not written yet.
func (r *groupReader) collect() bool {
	if r.noted == 0 {
		r.noted = r.now()
		for _, g := range r.rings {
			g.mark = atomic.LoadUint64(g.written)
		}
		r.compact()
	}
	whole := true
	for _, g := range r.rings {
		whole = r.drain(g) && whole
	}
	if !whole {
		return false
	}
	r.until, r.noted = r.noted, 0
	slices.SortStableFunc(r.records, func(a, b groupRecord) int { return cmp.Compare(a.time, b.time) })
	return true
}

// compact drops the records that were taken.
func (r *groupReader) compact() {
	r.data, r.spare = r.spare[:0], r.data
	left := r.records[r.next:]
	for i := range left {
		at := len(r.data)
		r.data = append(r.data, r.spare[left[i].at:left[i].end]...)
		r.records[i] = groupRecord{left[i].time, at, len(r.data)}
	}
	r.records, r.next = r.records[:len(left)], 0
}

// drain reads a ring up to its mark. It is false when it has come to a record that is not written yet.
func (r *groupReader) drain(g *sharedRing) bool {
	for at := atomic.LoadUint64(g.read); at < g.mark; {
		head := g.head(at)
		if head&unix.BPF_RINGBUF_BUSY_BIT != 0 {
			return false
		}
		length := uint64(head &^ unix.BPF_RINGBUF_DISCARD_BIT)
		if head&unix.BPF_RINGBUF_DISCARD_BIT == 0 && length >= recordTime+8 {
			from := len(r.data)
			r.data = g.copyTo(r.data, at, length)
			r.records = append(r.records, groupRecord{binary.NativeEndian.Uint64(r.data[from+int(recordTime):]), from, len(r.data)})
		}
		at = after(at, length)
		atomic.StoreUint64(g.read, at)
	}
	return true
}
