// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
)

// The file is a header and frames, all numbers little endian:
//
//	byte  0          8       10      12               16
//	      | GPUTRACE | major | minor | CRC of 0 to 11 |
//
//	byte  0      1       2          4        8     12               16
//	      | type | flags | not used | stored | raw | CRC of the rest | stored bytes
//
// CRC is CRC-32C (Castagnoli); a frame's covers its first 12 bytes and the stored bytes. raw is the length of the
// payload. If flagZstd is set, the payload is compressed into the stored bytes (one or more Zstandard frames, RFC
// 8878); otherwise it is stored as it is.
const (
	headerBytes = 16
	frameBytes  = 16
	magic       = "GPUTRACE"
)

// The version of the format. A file of another major version cannot be read. A newer minor version has frame types and
// fields that readers skip.
const (
	Major = 1
	// 1.1 marks inlined frames, 1.2 when events were lost, 1.3 steps and what holds sites that grow; 1.4 has event.KindMark, 1.5 readings of
	// the driver and of holders while a program runs, 1.6 event.KindMemoryInfo.
	Minor = 6
)

// frameType is the type of a frame's content. Readers skip the types that they do not know.
type frameType uint8

// The types are written to files: never renumber.
const (
	frameInfo       frameType = 1 // Info as JSON
	frameCheckpoint frameType = 2 // begins an epoch: later frames refer to nothing before it
	frameNames      frameType = 3 // strings, modules, frames, stacks and shapes that are used from here on
	frameEvents     frameType = 4 // columns of events, and the annotations between them
	frameEnd        frameType = 5 // End as JSON; the last frame
)

const flagZstd = 1

// Limits of the content of a frame, bytes: a wrong length must not make a reader allocate.
const (
	maxEventsRaw = 64 << 20
	maxNamesRaw  = 16 << 20
	maxRaw       = 256 << 20
)

// Errors on which callers branch.
var (
	// ErrFormat means that the file is not a recording, or has a version that cannot be read.
	ErrFormat = errors.New("not a recording")
	// ErrNewer means that the file has a newer major version. It is also an ErrFormat.
	ErrNewer = fmt.Errorf("%w of a version that this gputrace reads", ErrFormat)
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func limit(t frameType) uint32 {
	switch t {
	case frameEvents:
		return maxEventsRaw
	case frameNames:
		return maxNamesRaw
	}
	return maxRaw
}

func appendHeader(b []byte) []byte {
	at := len(b)
	b = append(b, magic...)
	b = binary.LittleEndian.AppendUint16(b, Major)
	b = binary.LittleEndian.AppendUint16(b, Minor)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[at:], castagnoli))
}

// checkHeader returns an error if the version in the header cannot be read.
func checkHeader(b []byte) error {
	if len(b) < headerBytes || string(b[:len(magic)]) != magic {
		return fmt.Errorf("%w: it does not begin with %s", ErrFormat, magic)
	}
	if got, want := crc32.Checksum(b[:12], castagnoli), binary.LittleEndian.Uint32(b[12:]); got != want {
		return fmt.Errorf("%w: the header's checksum is %#x, its bytes give %#x", ErrFormat, want, got)
	}
	if major := binary.LittleEndian.Uint16(b[8:]); major != Major {
		return fmt.Errorf("%w: the file is version %d.%d, versions %d.x are read", ErrNewer, major, binary.LittleEndian.Uint16(b[10:]), Major)
	}
	return nil
}

// frameHead is the first bytes of a frame.
type frameHead struct {
	kind        frameType
	flags       uint8
	stored, raw uint32
	crc         uint32
}

// appendFrame appends a frame. stored is its stored bytes, raw the length of its payload.
func appendFrame(b []byte, kind frameType, flags uint8, raw int, stored []byte) ([]byte, error) {
	if raw > int(limit(kind)) || len(stored) > math.MaxInt32 {
		return b, fmt.Errorf("a frame of type %d with %d bytes: at most %d", kind, raw, limit(kind))
	}
	at := len(b)
	b = append(b, byte(kind), flags, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(stored)))
	b = binary.LittleEndian.AppendUint32(b, uint32(raw))
	b = binary.LittleEndian.AppendUint32(b, frameCRC(b[at:], stored))
	return append(b, stored...), nil
}

func frameCRC(head, stored []byte) uint32 {
	return crc32.Update(crc32.Checksum(head[:12], castagnoli), castagnoli, stored)
}

// readHead reads the head of the frame at an offset of a file that ends at end.
func readHead(r io.ReaderAt, offset, end int64) (h frameHead, head [frameBytes]byte, err error) {
	if offset+frameBytes > end {
		return h, head, fmt.Errorf("%d bytes where a frame begins: want %d", end-offset, frameBytes)
	}
	if _, err := r.ReadAt(head[:], offset); err != nil {
		return h, head, fmt.Errorf("read: %w", err)
	}
	h = frameHead{
		kind: frameType(head[0]), flags: head[1], stored: binary.LittleEndian.Uint32(head[4:]),
		raw: binary.LittleEndian.Uint32(head[8:]), crc: binary.LittleEndian.Uint32(head[12:]),
	}
	if next := offset + frameBytes + int64(h.stored); next > end {
		return h, head, fmt.Errorf("a frame of %d bytes, of which %d are there", h.stored+frameBytes, end-offset)
	}
	return h, head, nil
}

// readStored reads the stored bytes of a frame into buf and checks them.
func readStored(r io.ReaderAt, offset int64, h frameHead, head []byte, buf []byte) ([]byte, error) {
	if cap(buf) < int(h.stored) {
		buf = make([]byte, h.stored)
	}
	buf = buf[:h.stored]
	if _, err := r.ReadAt(buf, offset+frameBytes); err != nil {
		return buf, fmt.Errorf("read: %w", err)
	}
	if got := frameCRC(head, buf); got != h.crc {
		return buf, fmt.Errorf("a frame of type %d, %d bytes: its checksum is %#x, its bytes give %#x", h.kind, h.stored, h.crc, got)
	}
	return buf, nil
}
