// SPDX-License-Identifier: Apache-2.0

package darwin

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/darwin/ring"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// TestLostEnds: an object at the address of one whose end had no room ends that, in the totals and in the live set.
func TestLostEnds(t *testing.T) {
	d := newDecoder(1, 0)
	var out []event.Event
	give := func(e ring.Event) {
		e.Time = uint64(len(out) + 1)
		out = d.event(&e, out)
	}
	unknown := uint64(event.Unknown)
	give(ring.Event{Hook: ring.HookHeap, Object: 1, Size: 8 << 20, Requested: unknown})
	give(ring.Event{Hook: ring.HookResource, Object: 2, Size: 1 << 20, Requested: 1 << 20, Heap: 1})
	give(ring.Event{Hook: ring.HookAllocate, Object: 2, Size: 1 << 20, Requested: 1000})
	give(ring.Event{Hook: ring.HookAllocate, Object: 2, Size: 1 << 20, Requested: 2000})             // the buffer was freed between
	give(ring.Event{Hook: ring.HookAllocate, Object: 9, Size: unknown, Requested: 300})              // of a buffer that is not known
	give(ring.Event{Hook: ring.HookAllocate, Object: 9, Size: unknown, Requested: 400})              // likewise
	give(ring.Event{Hook: ring.HookHeap, Object: 3, Size: 4 << 20, Requested: unknown})              // whose end is lost
	give(ring.Event{Hook: ring.HookResource, Object: 3, Size: 64 << 10, Requested: 60_000, Heap: 0}) // at its address
	h := heap.New()
	h.ApplyAll(out)
	totals := h.Totals()
	require.EqualValues(t, 1<<20+400, totals.Accounts[0].Live.Bytes)
	require.EqualValues(t, 2400, totals.Accounts[0].Live.Requested)
	require.EqualValues(t, 1<<20+400, d.torch.Allocated)
	require.EqualValues(t, 8<<20+64<<10, totals.Drivers[0].Live.Bytes)
	require.EqualValues(t, 8<<20+64<<10, d.known)
}

// FuzzDecoder: whatever a process writes into its ring, in whatever order, neither the decoder nor the live set panics, and what has no
// sense is counted.
func FuzzDecoder(f *testing.F) {
	f.Add([]byte{1, 0, 1, 0, 1, 1, 2, 1, 5, 4, 1, 7})
	f.Add([]byte("A\"00")) // a heap that is in itself
	f.Add([]byte("0123456789abcdef0123456789"))
	f.Fuzz(func(t *testing.T, program []byte) {
		d := newDecoder(1, 4)
		var file memoryFile
		for at := 0; at+4 <= len(program) && at < 2000; at += 4 {
			file = append(file, fuzzed(program[at:at+4])...)
		}
		written := uint64(len(file) / recordBytes)
		r, err := ring.New(memoryRing(file))
		require.NoError(t, err)
		var out []event.Event
		_, err = r.Read(func(record *ring.Record) error {
			out = d.take(record, out)
			return nil
		})
		require.NoError(t, err)
		h := heap.New()
		h.ApplyAll(out)
		_ = h.Totals()
		counted := d.strange
		for _, n := range d.received {
			counted += n
		}
		require.Equal(t, written, counted)
	})
}

const recordBytes = 88

// fuzzed is an event of four bytes: few objects, sizes and flags, so that they meet.
func fuzzed(b []byte) []byte {
	sizes := []uint64{0, 1, 16384, 8 << 20, 1 << 43, 1 << 60, event.Unknown, event.Unknown - 1}
	le := binary.LittleEndian
	out := le.AppendUint32(nil, recordBytes)
	out = le.AppendUint16(out, uint16(ring.TypeEvent))
	out = le.AppendUint16(out, uint16(b[0]%9))
	for _, n := range []uint64{
		uint64(b[3]), 1, uint64(b[1] % 8), sizes[b[2]%8], sizes[b[2]>>3%8], uint64(b[1] >> 4), sizes[b[3]%8], uint64(b[3] % 3),
		uint64(b[0] >> 3 % 4), event.Unknown,
	} {
		out = le.AppendUint64(out, n)
	}
	return out
}

// memoryFile is a file in memory.
type memoryFile []byte

func (m memoryFile) ReadAt(b []byte, at int64) (int, error)  { return bytes.NewReader(m).ReadAt(b, at) }
func (m memoryFile) WriteAt(b []byte, at int64) (int, error) { return copy(m[at:], b), nil }
func (m memoryFile) Close() error                            { return nil }

// memoryRing is a ring of records; its header is that of ring.h.
func memoryRing(records []byte) memoryFile {
	const capacity = 1 << 16
	file := make(memoryFile, 16384+capacity)
	le := binary.LittleEndian
	le.PutUint32(file, 0x67707472)
	le.PutUint16(file[4:], 4)
	le.PutUint16(file[6:], 1)
	le.PutUint32(file[12:], 1)
	le.PutUint64(file[16:], capacity)
	le.PutUint64(file[64:], uint64(len(records)))
	copy(file[16384:], records)
	return file
}
