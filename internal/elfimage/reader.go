// SPDX-License-Identifier: Apache-2.0

package elfimage

import (
	"bytes"
	"encoding/binary"
)

// Reader walks foreign bytes. Behind the end it yields zeros and sets Bad: check Bad once, behind a group of reads.
type Reader struct {
	B   []byte
	Off int
	Bad bool
}

// Take returns the next n bytes, or nil.
func (r *Reader) Take(n uint64) []byte {
	if r.Bad || n > uint64(len(r.B)-r.Off) {
		r.Bad = true
		return nil
	}
	s := r.B[r.Off : r.Off+int(n)]
	r.Off += int(n)
	return s
}

// U8 reads a byte.
func (r *Reader) U8() byte {
	if r.Bad || r.Off >= len(r.B) {
		r.Bad = true
		return 0
	}
	r.Off++
	return r.B[r.Off-1]
}

// U16 reads a little-endian number of 2 bytes.
func (r *Reader) U16() uint16 {
	if s := r.Take(2); s != nil {
		return binary.LittleEndian.Uint16(s)
	}
	return 0
}

// U32 reads one of 4 bytes.
func (r *Reader) U32() uint32 {
	if s := r.Take(4); s != nil {
		return binary.LittleEndian.Uint32(s)
	}
	return 0
}

// U64 reads one of 8 bytes.
func (r *Reader) U64() uint64 {
	if s := r.Take(8); s != nil {
		return binary.LittleEndian.Uint64(s)
	}
	return 0
}

// ULEB reads a ULEB128 (DWARF 5, section 7.6). Nearly all of those in call frame information are one byte long.
func (r *Reader) ULEB() uint64 {
	if r.Off < len(r.B) && r.B[r.Off] < 0x80 {
		r.Off++
		return uint64(r.B[r.Off-1])
	}
	v, _ := r.Leb()
	return v
}

// SLEB reads a SLEB128 (DWARF 5, section 7.6).
func (r *Reader) SLEB() int64 {
	v, bits := r.Leb()
	if bits < 64 && v>>(bits-1)&1 != 0 {
		v |= ^uint64(0) << bits
	}
	return int64(v)
}

// leb reads a LEB128 without extending its sign. bits is the number of bits that it carried, at least 7. Bits above the
// 64th are dropped: a padded number is legal.
func (r *Reader) Leb() (v uint64, bits uint) {
	for {
		c := r.U8()
		if bits < 64 {
			v |= uint64(c&0x7f) << bits
		}
		bits += 7
		if c < 0x80 {
			return v, bits
		}
	}
}

// CString reads up to a NUL and leaves it out.
func (r *Reader) CString() []byte {
	n := -1
	if !r.Bad {
		n = bytes.IndexByte(r.B[r.Off:], 0)
	}
	if n < 0 {
		r.Bad = true
		return nil
	}
	r.Off += n + 1
	return r.B[r.Off-1-n : r.Off-1]
}

// CStringAt is the NUL-terminated string at off of a string table; nil when there is none of at most limit bytes.
func CStringAt(tab []byte, off uint32, limit int) []byte {
	if uint64(off) >= uint64(len(tab)) {
		return nil
	}
	tab = tab[off:]
	n := bytes.IndexByte(tab[:min(len(tab), limit+1)], 0)
	if n < 0 {
		return nil
	}
	return tab[:n]
}
