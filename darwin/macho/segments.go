// SPDX-License-Identifier: Apache-2.0

package macho

import (
	"bytes"
	"encoding/binary"
)

// Sizes of a 64-bit header and of LC_SEGMENT_64 (mach-o/loader.h), bytes.
const (
	HeaderBytes = 32
	MaxCommands = 1 << 16 // more than any image has

	magic64         = 0xfeedfacf
	headerCommands  = 16
	headerSize      = 20
	loadSegment     = 0x19
	segmentBytes    = 72
	segmentName     = 8
	segmentAddress  = 24
	segmentSize     = 32
	segmentInitial  = 60
	segmentFlags    = 68
	segmentReadOnly = 0x10 // dyld makes it read-only when it has bound it
	protWrite       = 2
	protExec        = 4
)

// Segment is a part of an image in memory, as its header has it: what it lies behind that by is the image's slide.
type Segment struct {
	Name           string
	Address, Size  uint64
	Writable, Exec bool
}

// CommandBytes is how many bytes of load commands follow a header; ok is false when it is none of 64 bits.
func CommandBytes(header []byte) (n int, ok bool) {
	if len(header) < HeaderBytes || binary.LittleEndian.Uint32(header) != magic64 {
		return 0, false
	}
	return int(min(binary.LittleEndian.Uint32(header[headerSize:]), MaxCommands)), true
}

// Segments are those that the load commands of an image list.
func Segments(header, commands []byte) []Segment {
	var out []Segment
	le := binary.LittleEndian
	for n := le.Uint32(header[headerCommands:]); n > 0 && len(commands) >= 8; n-- {
		size := le.Uint32(commands[4:])
		if size < 8 || uint64(size) > uint64(len(commands)) {
			break
		}
		if c := commands[:size]; le.Uint32(c) == loadSegment && size >= segmentBytes {
			prot := le.Uint32(c[segmentInitial:])
			name, _, _ := bytes.Cut(c[segmentName:segmentName+16], []byte{0})
			out = append(out, Segment{
				Name: string(name), Address: le.Uint64(c[segmentAddress:]), Size: le.Uint64(c[segmentSize:]),
				Writable: prot&protWrite != 0 && le.Uint32(c[segmentFlags:])&segmentReadOnly == 0, Exec: prot&protExec != 0,
			})
		}
		commands = commands[size:]
	}
	return out
}
