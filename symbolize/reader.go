package symbolize

import (
	"bytes"
	"encoding/binary"
)

// reader walks foreign bytes. Behind the end it yields zeros and sets bad: check bad once, behind a group of reads.
type reader struct {
	b   []byte
	off int
	bad bool
}

// take returns the next n bytes, or nil.
func (r *reader) take(n uint64) []byte {
	if r.bad || n > uint64(len(r.b)-r.off) {
		r.bad = true
		return nil
	}
	s := r.b[r.off : r.off+int(n)]
	r.off += int(n)
	return s
}

func (r *reader) u8() byte {
	if r.bad || r.off >= len(r.b) {
		r.bad = true
		return 0
	}
	r.off++
	return r.b[r.off-1]
}

func (r *reader) u16() uint16 {
	if s := r.take(2); s != nil {
		return binary.LittleEndian.Uint16(s)
	}
	return 0
}

func (r *reader) u32() uint32 {
	if s := r.take(4); s != nil {
		return binary.LittleEndian.Uint32(s)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if s := r.take(8); s != nil {
		return binary.LittleEndian.Uint64(s)
	}
	return 0
}

// uleb reads a ULEB128 (DWARF 5, section 7.6). Nearly all of those in call frame information are one byte long.
func (r *reader) uleb() uint64 {
	if r.off < len(r.b) && r.b[r.off] < 0x80 {
		r.off++
		return uint64(r.b[r.off-1])
	}
	v, _ := r.leb()
	return v
}

func (r *reader) sleb() int64 {
	v, bits := r.leb()
	if bits < 64 && v>>(bits-1)&1 != 0 {
		v |= ^uint64(0) << bits
	}
	return int64(v)
}

// leb reads a LEB128 without extending its sign. bits is the number of bits that it carried, at least 7. Bits above the
// 64th are dropped: a padded number is legal.
func (r *reader) leb() (v uint64, bits uint) {
	for {
		c := r.u8()
		if bits < 64 {
			v |= uint64(c&0x7f) << bits
		}
		bits += 7
		if c < 0x80 {
			return v, bits
		}
	}
}

// cstring reads up to a NUL and leaves it out.
func (r *reader) cstring() []byte {
	n := -1
	if !r.bad {
		n = bytes.IndexByte(r.b[r.off:], 0)
	}
	if n < 0 {
		r.bad = true
		return nil
	}
	r.off += n + 1
	return r.b[r.off-1-n : r.off-1]
}

// cstringAt is the NUL-terminated string at off of a string table; nil when there is none of at most limit bytes.
func cstringAt(tab []byte, off uint32, limit int) []byte {
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
