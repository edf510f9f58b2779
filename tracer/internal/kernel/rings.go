// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

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
	// groupCPUs is the number of CPUs that share a ring: about as many as can use its lock without waiting
	// (docs/decisions/one-ring.md). maxRings is the maximum number of rings (MAX_RINGS of bpf/limits.h).
	groupCPUs = 8
	maxRings  = 8
	// recordTime is the offset of the time in a record, the same for every kind (bpf/records.h), bytes.
	recordTime = uint64(unsafe.Offsetof(bpf.TraceRecordEvent{}.Time))
)

// ringGroups returns the number of groups of CPUs with their own ring, a power of two, and the logarithm of the number
// of CPUs in a group. If wanted is 0, the number of online CPUs decides; last is the highest CPU number. Zero groups
// means that all CPUs share one ring.
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

// groupsHere returns ringGroups for this machine.
func groupsHere(wanted int) (groups, shift int) {
	online, last := onlineCPUs()
	return ringGroups(wanted, online, last)
}

// groupBytes returns the size of a group's ring, given the size of a single ring: a process uses several.
func groupBytes(ring int) int { return max(ring/2, os.Getpagesize()) }

// openRings opens the single ring, or creates those of groups.
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

// onlineCPUs returns the number of online CPUs and the highest CPU number (Documentation/admin-guide/cputopology.rst).
// If they cannot be read, it assumes one CPU.
func onlineCPUs() (n, last int) {
	text, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		return 1, 0
	}
	return parseCPUs(strings.TrimSpace(string(text)))
}

// parseCPUs counts the CPUs in a list such as 0-3,8.
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

// makeRings creates the rings of groups and passes them to the programs.
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

// recordReader reads records in the order in which they happened. ReadInto waits for one until the deadline; then it
// returns os.ErrDeadlineExceeded, which means that everything from before the call was read.
type recordReader interface {
	ReadInto(*ringbuf.Record) error
	SetDeadline(time.Time)
	Close() error
}

// groupReader merges the rings of groups of CPUs by the times of their records.
//
// When every ring was read up to its reserved end at one moment, all events up to that moment are known, because an
// event's time is read after its record is reserved. For other records (stacks, code objects, ends of processes) the
// time is read just before, so an earlier one can be missing; but whatever refers to it comes later, with a time after
// that moment. So records up to the moment are returned in order, and the rest waits for the next moment.
type groupReader struct {
	rings    []*sharedRing
	epoll    int
	deadline time.Time
	now      func() uint64 // CLOCK_MONOTONIC, ns

	noted   uint64 // the moment up to which the rings are read, to their marks; 0: none
	until   uint64 // records up to this time are in order
	looked  bool   // the rings were checked since the last wait
	records []groupRecord
	next    int // index of the next one
	data    []byte
	spare   []byte
}

type groupRecord struct {
	time    uint64
	at, end int // offsets in data
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

// collect reads all rings up to their ends at one moment, and sorts the records. It returns false if a record is incomplete.
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

// compact drops the records that were returned.
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

// drain reads a ring up to its mark. It returns false at an incomplete record.
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
