// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"github.com/gputrace/gputrace/event"
)

// shape is the fields that many events of a program have in common, which take few values, and the encoding of the
// other fields. A shape is written once, and events refer to it by number.
type shape struct {
	pid, tid uint32
	kind     event.Kind
	layer    event.Layer
	object   event.Object
	device   event.Device
	call     string
	stream   uint64
	context  uint64
	how      how
}

// how encodes the fields of an event that are not in its shape, four bits per field:
//
//	bit  15      12      11     8 7      4 3      0
//	     | unused | reserved | allocated | requested | size |   and above it, one bit each: handle, stack, aligned
type how uint32

// How a size is encoded. They are written to files: never renumber.
const (
	encodedUnknown how = 0 // event.Unknown
	encodedValue   how = 1 // in its column
	// encodedAsBefore: the reserved bytes equal those of this allocator's previous event; the allocated bytes follow
	// from that event and the size.
	encodedAsBefore how = 2
	encodedAsSize   how = 3 // the requested bytes are the size
)

// The positions of the fields of how.
const (
	howRequested = 4
	howAllocated = 8
	howReserved  = 12
	hasHandle    = how(1) << 16 // the handle is in its column; otherwise event.Unknown
	hasStack     = how(1) << 17 // the stack is in its column; otherwise 0
	isAligned    = how(1) << 18 // the column of addresses has multiples of alignment
	howKnown     = isAligned<<1 - 1
)

// alignment is the allocation granularity of PyTorch's allocator (kMinBlockSize, c10/cuda/CUDACachingAllocator.h).
const alignment = 512

func (h how) size() how      { return h & 15 }
func (h how) requested() how { return h >> howRequested & 15 }
func (h how) allocated() how { return h >> howAllocated & 15 }
func (h how) reserved() how  { return h >> howReserved & 15 }

// valid rejects values that this version never writes.
func (h how) valid() bool {
	return h <= howKnown && h.size() <= encodedValue && h.requested() <= encodedAsSize && h.requested() != encodedAsBefore &&
		h.allocated() <= encodedAsBefore && h.reserved() <= encodedAsBefore
}

// totalsKey identifies a caching allocator.
type totalsKey struct {
	pid    uint32
	device event.Device
}

// totals holds an allocator's totals at its last event, bytes; both may be event.Unknown.
type totals struct{ allocated, reserved uint64 }

// memory is what writer and reader both store of earlier events of the epoch, so that values that follow from it need
// not be written.
type memory struct {
	time, addr uint64 // of the previous event
	totals     []totals
	ofKey      map[totalsKey]int
	lastKey    totalsKey // most programs have one allocator
	last       int       // -1: none
}

func newMemory() *memory {
	return &memory{ofKey: map[totalsKey]int{}, last: -1}
}

// account returns the index of an allocator's totals.
func (m *memory) account(key totalsKey) int {
	if m.last >= 0 && m.lastKey == key {
		return m.last
	}
	i, ok := m.ofKey[key]
	if !ok {
		i = len(m.totals)
		m.totals = append(m.totals, totals{event.Unknown, event.Unknown})
		m.ofKey[key] = i
	}
	m.lastKey, m.last = key, i
	return i
}

// expect returns the allocated bytes that should follow an event of the caching allocator.
func (t *totals) expect(kind event.Kind, size uint64) uint64 {
	switch {
	case t.allocated == event.Unknown || size == event.Unknown:
		return t.allocated
	case kind == event.KindAlloc:
		return t.allocated + size
	case kind == event.KindFree:
		return t.allocated - size
	}
	return t.allocated
}

// take stores the totals of an event, if it has them.
func (t *totals) take(allocated, reserved uint64) {
	if allocated != event.Unknown {
		t.allocated = allocated
	}
	if reserved != event.Unknown {
		t.reserved = reserved
	}
}
