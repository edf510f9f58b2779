// SPDX-License-Identifier: Apache-2.0

package cpython

import (
	"encoding/binary"
	"io"

	"github.com/gputrace/gputrace/process"
)

// image is the memory of a process that does not run: bytes by address. Parts do not overlap.
type image map[uint64][]byte

var _ process.Memory = image{}

func (m image) ReadAt(b []byte, addr uint64) (int, error) {
	for start, part := range m {
		if addr >= start && addr-start < uint64(len(part)) {
			n := copy(b, part[addr-start:])
			if n < len(b) {
				return n, io.ErrUnexpectedEOF
			}
			return n, nil
		}
	}
	return 0, io.ErrUnexpectedEOF
}

// put appends words to a part and returns its start.
func (m image) put(start uint64, words ...uint64) uint64 {
	for _, w := range words {
		m[start] = binary.LittleEndian.AppendUint64(m[start], w)
	}
	return start
}

func (m image) set(start uint64, offset uint16, word uint64) {
	binary.LittleEndian.PutUint64(m[start][offset:], word)
}

// Addresses of the made-up interpreter.
const (
	addrCode     = 0x10000
	addrName     = 0x20000
	addrQualname = 0x22000
	addrFilename = 0x24000
	addrTable    = 0x26000
	addrTypes    = 0x30000 // str, bytes, code, 0x1000 apart
)

// codeImage is the memory around one code object, laid out as a version has it.
func codeImage(l *layout, name, qualname, filename string, first uint32, table []byte) image {
	m := image{addrCode: make([]byte, 256)}
	shift := uint16(l.shift())
	for i, w := range wantedTypes {
		at := uint64(addrTypes + 0x1000*i)
		m[at] = make([]byte, 256)
		m.set(at, TypeName+shift, at+240)
		copy(m[at][240:], w.name)
		m.set(at, TypeFlags+shift, w.flag)
	}
	m.set(addrCode, ObjectType+shift, addrTypes+0x1000*uint64(typeCode))
	binary.LittleEndian.PutUint32(m[addrCode][l.codeFirstLine:], first)
	m.set(addrCode, l.codeName, m.text(l, addrName, name))
	m.set(addrCode, l.codeFilename, m.text(l, addrFilename, filename))
	if l.codeQualname != NoField {
		m.set(addrCode, l.codeQualname, m.text(l, addrQualname, qualname))
	}
	m[addrTable] = make([]byte, BytesHeader+shift)
	m.set(addrTable, ObjectType+shift, addrTypes+0x1000*uint64(typeBytes))
	m.set(addrTable, ObjectSize+shift, uint64(len(table)))
	m[addrTable] = append(append(m[addrTable], table...), make([]byte, 32)...) // other objects follow
	m.set(addrCode, l.codeLineTable, addrTable)
	return m
}

// text lays out a compact ASCII str.
func (m image) text(l *layout, at uint64, s string) uint64 {
	const ascii = 1 | 1<<3 | 1<<4
	shift := uint16(l.shift())
	m[at] = make([]byte, l.asciiSize)
	m.set(at, ObjectType+shift, addrTypes)
	m.set(at, textLength+shift, uint64(len(s)))
	binary.LittleEndian.PutUint32(m[at][textState+shift:], ascii<<l.textKind)
	m[at] = append(m[at], s+"\x00"...)
	return at
}
