// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package kernel

import (
	"encoding/binary"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/cilium/ebpf/ringbuf"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestRingGroups(t *testing.T) {
	for _, c := range []struct{ wanted, online, last, groups, shift int }{
		{0, 1, 0, 0, 0}, {0, 2, 1, 0, 0}, {0, 15, 14, 0, 0}, {0, 16, 15, 2, 3}, {0, 24, 23, 2, 4}, {0, 32, 31, 4, 3}, {0, 64, 63, 8, 3},
		{0, 256, 255, 8, 5}, {0, 16, 239, 2, 7}, {1, 64, 63, 0, 0}, {2, 2, 1, 2, 0}, {4, 2, 1, 4, 0}, {3, 8, 7, 2, 2}, {99, 8, 7, 8, 0},
	} {
		groups, shift := ringGroups(c.wanted, c.online, c.last)
		require.Equal(t, [2]int{c.groups, c.shift}, [2]int{groups, shift}, "%+v", c)
		require.True(t, groups == 0 || c.last>>shift < groups)
	}
}

func TestParseCPUs(t *testing.T) {
	for list, want := range map[string][2]int{
		"0": {1, 0}, "0-3": {4, 3}, "0-1,4-5,9": {5, 9}, "": {1, 0}, "x-3": {1, 0}, "3-0": {1, 0},
	} {
		n, last := parseCPUs(list)
		require.Equal(t, want, [2]int{n, last}, "%q", list)
	}
}

// memoryRing is a ring in memory of ours, of which a test is the kernel.
type memoryRing struct {
	*sharedRing
	at uint64 // where the next record is reserved
}

func newMemoryRing(size int) *memoryRing {
	return &memoryRing{sharedRing: &sharedRing{read: new(uint64), written: new(uint64), data: make([]byte, size), mask: uint64(size - 1)}}
}

// reserve makes room for a record whose time is not known yet.
func (m *memoryRing) reserve(n int) (at uint64) {
	at = m.at
	m.put(at, func(b []byte) { binary.NativeEndian.PutUint32(b, uint32(n)|unix.BPF_RINGBUF_BUSY_BIT) })
	m.at += uint64(n+unix.BPF_RINGBUF_HDR_SZ+7) &^ 7
	*m.written = m.at
	return at
}

// submit writes it.
func (m *memoryRing) submit(at, time uint64, text string) {
	n := uint32(16 + len(text))
	b := make([]byte, n)
	binary.NativeEndian.PutUint64(b[recordTime:], time)
	copy(b[16:], text)
	for i := range b {
		m.data[(at+unix.BPF_RINGBUF_HDR_SZ+uint64(i))&m.mask] = b[i]
	}
	m.put(at, func(b []byte) { binary.NativeEndian.PutUint32(b, n) })
}

// put writes a head.
func (m *memoryRing) put(at uint64, write func([]byte)) { write(m.data[at&m.mask:]) }

func (m *memoryRing) add(time uint64, text string) { m.submit(m.reserve(16+len(text)), time, text) }

// groups reads rings in memory on a clock that a test sets.
type groups struct {
	*groupReader
	rings []*memoryRing
	clock uint64
}

func newGroups(t *testing.T, n, size int) *groups {
	t.Helper()
	r, err := newGroupReader(nil, size)
	require.NoError(t, err)
	t.Cleanup(func() { r.epollClose(t) })
	g := &groups{groupReader: r}
	r.now = func() uint64 { return g.clock }
	for range n {
		m := newMemoryRing(size)
		g.rings = append(g.rings, m)
		r.rings = append(r.rings, m.sharedRing)
	}
	return g
}

func (r *groupReader) epollClose(t *testing.T) {
	t.Helper()
	r.rings = nil // they are no mappings
	require.NoError(t, r.Close())
}

// all reads until there is nothing.
func (g *groups) all(t *testing.T) (out []string) {
	t.Helper()
	g.SetDeadline(time.Now())
	for {
		var record ringbuf.Record
		err := g.ReadInto(&record)
		if err != nil {
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			return out
		}
		out = append(out, string(record.RawSample[16:]))
	}
}

// TestGroupsInOrder: records of several rings come by their times, those of one that were written out of their order too.
func TestGroupsInOrder(t *testing.T) {
	g := newGroups(t, 3, 4096)
	g.clock = 100
	g.rings[0].add(10, "a")
	g.rings[0].add(40, "d")
	g.rings[1].add(30, "c")
	g.rings[1].add(20, "b")
	g.rings[2].add(50, "e")
	require.Equal(t, []string{"a", "b", "c", "d", "e"}, g.all(t))
	require.Empty(t, g.all(t))
}

// TestGroupsHoldBack: what is later than the moment at which the rings were looked at waits for the next, and so
// comes behind what was reserved in another ring since.
func TestGroupsHoldBack(t *testing.T) {
	g := newGroups(t, 2, 4096)
	g.clock = 100
	g.rings[0].add(90, "before")
	g.rings[0].add(120, "after")
	require.Equal(t, []string{"before"}, g.all(t))
	g.rings[1].add(95, "a stack that was sent late")
	g.rings[1].add(110, "between")
	g.clock = 200
	require.Equal(t, []string{"a stack that was sent late", "between", "after"}, g.all(t))
}

// TestGroupsBusy: a record that is reserved and not written is waited for, with all that is later, of each ring.
func TestGroupsBusy(t *testing.T) {
	g := newGroups(t, 2, 4096)
	g.clock = 100
	g.rings[0].add(10, "a")
	at := g.rings[0].reserve(16 + 1)
	g.rings[1].add(30, "c")
	require.False(t, g.collect())
	var record ringbuf.Record
	require.False(t, g.take(&record), "what was reserved can be earlier")
	g.clock = 500
	g.rings[1].add(400, "d")
	require.False(t, g.collect())
	g.rings[0].submit(at, 20, "b")
	require.True(t, g.collect())
	require.Equal(t, []string{"a", "b", "c", "d"}, g.all(t))
}

// TestGroupsAround: many records go around the ends of small rings, some of them dropped, and each comes once and in order.
func TestGroupsAround(t *testing.T) {
	g := newGroups(t, 2, 4096)
	n, want := uint64(0), []string(nil)
	for round := range 300 {
		for i := range 20 {
			n++
			ring := g.rings[(round+i)%2]
			text := fmt.Sprintf("%d%*s", n, int(n*7%90), "")
			if n%11 == 0 {
				at := ring.reserve(16 + len(text))
				ring.put(at, func(b []byte) { binary.NativeEndian.PutUint32(b, uint32(16+len(text))|unix.BPF_RINGBUF_DISCARD_BIT) })
				continue
			}
			ring.add(n, text)
			want = append(want, text)
		}
		g.clock = n
		got := g.all(t)
		require.Equal(t, want, got)
		want = want[:0]
		for _, r := range g.rings {
			require.Equal(t, r.at, *r.sharedRing.read)
		}
	}
}

// TestOneAround: records go around the end of a small ring, in one piece or two, and each comes once and in order;
// then the deadline is said.
func TestOneAround(t *testing.T) {
	ring := newMemoryRing(4096)
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	require.NoError(t, err)
	defer unix.Close(epoll)
	r := &oneReader{ring: ring.sharedRing, epoll: epoll}
	for n := range 3000 {
		text := fmt.Sprintf("%d%*s", n, n*7%90, "")
		if n%11 == 0 {
			at := ring.reserve(16 + len(text))
			ring.put(at, func(b []byte) { binary.NativeEndian.PutUint32(b, uint32(16+len(text))|unix.BPF_RINGBUF_DISCARD_BIT) })
		}
		ring.add(uint64(n), text)
		r.SetDeadline(time.Now())
		var record ringbuf.Record
		require.NoError(t, r.ReadInto(&record))
		require.Equal(t, text, string(record.RawSample[16:]))
		require.Zero(t, record.Remaining)
		require.ErrorIs(t, r.ReadInto(&record), os.ErrDeadlineExceeded)
		require.Equal(t, ring.at, *ring.read)
	}
}
