// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package decode

import (
	"encoding/binary"
	"io"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/bpf"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/process"
)

// stackRecordBytes lays a stack record out by hand: type, status, number of words, pid, time, hash, words (bpf/records.h).
func stackRecordBytes(status uint8, hash uint64, words ...uint64) []byte {
	b := []byte{uint8(bpf.TraceRecordTypeRECORD_STACK), status}
	b = binary.LittleEndian.AppendUint16(b, uint16(len(words)))
	b = binary.LittleEndian.AppendUint32(b, 77)
	b = binary.LittleEndian.AppendUint64(b, 1<<40)
	b = binary.LittleEndian.AppendUint64(b, hash)
	for _, w := range words {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

func TestDecodeStack(t *testing.T) {
	got, err := decodeStack(stackRecordBytes(3, 0xabc, 1, 1<<63|2, 1<<64-1))
	require.NoError(t, err)
	require.Equal(t, stackRecord{status: 3, pid: 77, hash: 0xabc, words: []uint64{1, 1<<63 | 2, 1<<64 - 1}}, got)

	got, err = decodeStack(stackRecordBytes(8, 1))
	require.NoError(t, err)
	require.Empty(t, got.words)
}

func TestDecodeStackRefuses(t *testing.T) {
	whole := stackRecordBytes(0, 5, 1, 2, 3)
	for n := range whole {
		_, err := decodeStack(whole[:n])
		require.Error(t, err, "%d bytes", n)
	}
	_, err := decodeStack(append(whole, make([]byte, 8)...)) // the ring pads records
	require.NoError(t, err)
}

func FuzzDecodeStack(f *testing.F) {
	f.Add(stackRecordBytes(0, 5, 1, 2, 3))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, err := decodeStack(raw)
		if err == nil {
			require.Equal(t, stackRecordBytes(r.status, r.hash, r.words...)[16:24], raw[16:24])
			require.LessOrEqual(t, stackHeaderBytes+8*len(r.words), len(raw))
		}
	})
}

func TestDecodeEvent(t *testing.T) {
	want := bpf.TraceRecordEvent{
		Type: uint8(bpf.TraceRecordTypeRECORD_EVENT), Kind: 1, Layer: 2, DeviceType: 1, DeviceIndex: -1, Hook: 3, Call: 4, Pid: 5, Tid: 6,
		Time: 7, Addr: 1<<64 - 1, Size: 8, Requested: 9, Stream: 10, Pool: 11, Allocated: 12, Reserved: 13, Stack: 14,
	}
	raw := make([]byte, eventBytes)
	_, err := binary.Encode(raw, binary.LittleEndian, struct {
		Type, Kind, Layer, Status, DeviceType uint8
		DeviceIndex                           int8
		Hook                                  uint16
		Time                                  uint64
		PID, TID                              uint32
		Call                                  uint16
		Pad                                   [3]uint16
		Words                                 [8]uint64
	}{1, 1, 2, 0, 1, -1, 3, 7, 5, 6, 4, [3]uint16{}, [8]uint64{1<<64 - 1, 8, 9, 10, 11, 12, 13, 14}})
	require.NoError(t, err)
	require.Equal(t, want, *decodeEvent(raw))
}

// TestDecodeRefuses: what no record can be makes no event.
func TestDecodeRefuses(t *testing.T) {
	for name, raw := range map[string][]byte{
		"empty":       {},
		"unknown":     make([]byte, 200),
		"short event": append([]byte{uint8(bpf.TraceRecordTypeRECORD_EVENT)}, make([]byte, eventBytes-2)...),
		"short stack": {uint8(bpf.TraceRecordTypeRECORD_STACK), 0, 255, 255},
		"short code":  append([]byte{uint8(bpf.TraceRecordTypeRECORD_CODE)}, make([]byte, codeBytes-2)...),
		"short page":  append([]byte{uint8(bpf.TraceRecordTypeRECORD_RAW_PAGE)}, make([]byte, rawPageHeader-2)...),
		"long page":   rawPageBytes(1, 0x1000, 9, 1),
		"short raw":   rawBytes(1, make([]uint64, bpf.TraceRawWordRAW_WORDS-1)...),
		"beyond":      {255},
	} {
		t.Run(name, func(t *testing.T) {
			events, ok := decodeAny(New(nil).NewProcess(nil), nil, raw)
			require.Empty(t, events)
			require.False(t, ok)
		})
	}
}

// FuzzDecode: nothing that the ring could hold may stop it.
func FuzzDecode(f *testing.F) {
	f.Add(stackRecordBytes(0, 5, 1, 1<<63|2, 3))
	f.Add(stackRecordBytes(0, 5, 1<<63))
	f.Add(append([]byte{uint8(bpf.TraceRecordTypeRECORD_EVENT)}, make([]byte, eventBytes)...))
	f.Add(append([]byte{uint8(bpf.TraceRecordTypeRECORD_CODE)}, make([]byte, codeBytes)...))
	f.Add(rawPageBytes(5, 0x1000, 16, 16))
	f.Add(rawBytes(5, append(make([]uint64, bpf.TraceRawWordRAW_WORDS), boundaryWord|0x1000, pythonWord|0x7000, 9, slotWord|0x1008, 3)...))
	f.Fuzz(func(t *testing.T, raw []byte) {
		p := New(nil).NewProcess(nil)
		events, ok := decodeAny(p, nil, raw)
		for id := range p.stacks.byID {
			require.NotNil(t, p.Stack(id))
		}
		made := len(events) + len(p.stacks.byID)
		require.LessOrEqual(t, made, 1)
		require.True(t, ok || made == 0)
	})
}

func TestDecodeCode(t *testing.T) {
	raw := make([]byte, codeBytes)
	for i := range raw {
		raw[i] = byte(i * 7)
	}
	r, err := decodeCode(append(raw, 1, 2, 3))
	require.NoError(t, err)
	require.Equal(t, raw, unsafe.Slice((*byte)(unsafe.Pointer(r)), codeBytes))
	raw[0]++
	require.NotEqual(t, raw[0], r.Type, "the ring's memory is used again")
	_, err = decodeCode(raw[:codeBytes-1])
	require.Error(t, err)
}

// image is memory that holds the same byte everywhere, and says what was asked of it.
type image struct {
	fill  byte
	asked []uint64
}

func (m *image) ReadAt(b []byte, addr uint64) (int, error) {
	m.asked = append(m.asked, addr)
	if m.fill == 0 {
		return 0, io.ErrUnexpectedEOF
	}
	for i := range b {
		b[i] = m.fill
	}
	return len(b), nil
}

func TestCodeImage(t *testing.T) {
	const object, filename = 0x5000, 0x9000
	record := &bpf.TraceRecordCode{}
	record.Addr[bpf.TraceCodeChunkCODE_OBJECT], record.Len[bpf.TraceCodeChunkCODE_OBJECT] = object, 16
	record.Addr[bpf.TraceCodeChunkCODE_FILENAME], record.Len[bpf.TraceCodeChunkCODE_FILENAME] = filename, 1<<32-1
	copy(record.Object[:], "0123456789abcdefXXXX")
	copy(record.Filename[:], "/train.py")
	for name, c := range map[string]struct {
		addr uint64
		n    int
		want string
		live bool // read from the process, at least in part
	}{
		"whole":                            {object, 16, "0123456789abcdef", false},
		"inside":                           {object + 4, 4, "4567", false},
		"nothing":                          {object + 16, 0, "", false},
		"over what was copied":             {object + 12, 8, "cdef....", true},
		"behind what was copied":           {object + 16, 4, "....", true},
		"before":                           {object - 1, 2, "..", true},
		"length beyond the record's space": {filename, 9, "/train.py", false},
		"over the record's space":          {filename + 511, 2, "\x00.", true},
		"elsewhere":                        {1<<64 - 8, 8, "........", true},
	} {
		t.Run(name, func(t *testing.T) {
			live := &image{fill: '.'}
			b := make([]byte, c.n)
			n, err := (&codeImage{record, live}).ReadAt(b, c.addr)
			require.NoError(t, err)
			require.Equal(t, c.n, n)
			require.Equal(t, c.want, string(b))
			require.Equal(t, c.live, len(live.asked) > 0)
		})
	}
}

func FuzzCodeImage(f *testing.F) {
	f.Add(make([]byte, codeBytes), uint64(0), uint8(8))
	f.Fuzz(func(t *testing.T, raw []byte, addr uint64, n uint8) {
		r, err := decodeCode(raw)
		if err != nil {
			return
		}
		got, err := (&codeImage{r, &image{}}).ReadAt(make([]byte, n), addr)
		if err == nil {
			require.EqualValues(t, n, got)
		}
	})
}

// TestConstants compares the numbers of package event with those of the C side.
func TestConstants(t *testing.T) {
	for c, name := range map[uint32]event.Kind{
		uint32(bpf.TraceEventKindKIND_ALLOC): event.KindAlloc, uint32(bpf.TraceEventKindKIND_FREE): event.KindFree,
		uint32(bpf.TraceEventKindKIND_FREE_FAILED): event.KindFreeFailed, uint32(bpf.TraceEventKindKIND_OUT_OF_MEMORY): event.KindOutOfMemory,
	} {
		require.EqualValues(t, c, name)
	}
	for c, name := range map[uint32]event.Layer{
		uint32(bpf.TraceEventLayerLAYER_TORCH): event.LayerAllocator, uint32(bpf.TraceEventLayerLAYER_DEVICE): event.LayerDevice,
		uint32(bpf.TraceEventLayerLAYER_HOST): event.LayerHost,
	} {
		require.EqualValues(t, c, name)
	}
	for c, name := range map[uint32]event.StackStatus{
		uint32(bpf.TraceStackStatusSTACK_OK): event.StatusOK, uint32(bpf.TraceStackStatusSTACK_NO_MAPPING): event.StatusNoMapping,
		uint32(bpf.TraceStackStatusSTACK_NO_ROW): event.StatusNoRow, uint32(bpf.TraceStackStatusSTACK_BAD_RULE): event.StatusBadRule,
		uint32(bpf.TraceStackStatusSTACK_UNREADABLE): event.StatusUnreadable, uint32(bpf.TraceStackStatusSTACK_ORDER): event.StatusOrder,
		uint32(bpf.TraceStackStatusSTACK_TOO_DEEP): event.StatusTooDeep, uint32(bpf.TraceStackStatusSTACK_PYTHON_STATE): event.StatusPythonState,
		uint32(bpf.TraceStackStatusSTACK_NO_SCRATCH): event.StatusNoScratch, uint32(bpf.TraceStackStatusSTACK_LOST): event.StatusLost,
		uint32(bpf.TraceStackStatusSTACK_UNWOUND): event.StatusUnwound, uint32(bpf.TraceStackStatusSTACK_GUESSED): event.StatusGuessed,
		uint32(bpf.TraceStackStatusSTACK_COPY_ENDS): event.StatusCopyEnds,
	} {
		require.EqualValues(t, c, name)
	}
}

var _ process.Memory = (*image)(nil)
