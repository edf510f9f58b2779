// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/gputrace/gputrace/internal/elfimage"
)

// Pointer encodings (Linux Standard Base, core, section "DWARF Extensions", DW_EH_PE_*).
const (
	encAbsptr  = 0x00
	encULEB    = 0x01
	encUdata2  = 0x02
	encUdata4  = 0x03
	encUdata8  = 0x04
	encSLEB    = 0x09
	encSdata2  = 0x0a
	encSdata4  = 0x0b
	encSdata8  = 0x0c
	encPcrel   = 0x10
	encDatarel = 0x30
	encOmit    = 0xff

	encFormatMask = 0x0f
	encBaseMask   = 0x70
	encIndirect   = 0x80
)

// cie is a common information entry.
type cie struct {
	codeAlign uint64
	dataAlign int64
	encoding  byte // of pointers in FDEs
	augmented bool // FDEs carry augmentation data
	signal    bool
	program   []byte   // its instructions
	initial   cfiState // behind them
}

// record is a CIE or FDE, cut out.
type record struct {
	off  int    // of the record
	next int    // of the one behind it
	body []byte // behind the id; nil for a zero record
	pos  int    // of body
	cie  int    // of the FDE's CIE; -1 when the record is a CIE
}

func (r *record) isCIE() bool { return r.cie < 0 }

// record reads the record at an offset. Its id is 4 bytes wide also in the 64-bit form (Linux Standard Base, core).
func (s *frameSection) record(off int) (record, error) {
	r := elfimage.Reader{B: s.data, Off: off}
	n := uint64(r.U32())
	if n == math.MaxUint32 {
		n = r.U64()
	}
	start := r.Off
	body := r.Take(n)
	if r.Bad || n > 0 && n < 4 {
		return record{}, fmt.Errorf("eh_frame record at %#x: %d bytes of %d: %w", off, n, len(s.data)-off, elfimage.ErrFormat)
	}
	rec := record{off: off, next: r.Off, cie: -1}
	if n == 0 {
		return rec, nil
	}
	if back := int(binary.LittleEndian.Uint32(body)); back != 0 {
		rec.cie = start - back
		if rec.cie < 0 {
			return record{}, fmt.Errorf("eh_frame record at %#x: its cie lies %d bytes before it: %w", off, back, elfimage.ErrFormat)
		}
	}
	rec.body, rec.pos = body[4:], start+4
	return rec, nil
}

// readFDE reads the head of an FDE and returns its instructions too. ok is false for one that covers nothing that can be
// in memory: a leftover of a discarded function, at address 0 or without a length.
func (s *frameSection) readFDE(rec record, c *cie) (fr frame, program []byte, ok bool) {
	r := elfimage.Reader{B: rec.body}
	start, ok := s.pointer(&r, c.encoding, s.addr+uint64(rec.pos))
	length, okLength := s.pointer(&r, c.encoding&encFormatMask, 0)
	if c.augmented {
		r.Take(r.ULEB())
	}
	if r.Bad || !ok || !okLength || start == 0 || length == 0 ||
		start > math.MaxUint32 || length > math.MaxUint32-start {
		return frame{}, nil, false
	}
	return frame{start: uint32(start), end: uint32(start + length), off: uint32(rec.off)}, r.B[r.Off:], true
}

// pointer reads an encoded pointer; base is the address of the reader's first byte. ok is false for a null pointer with a
// base, which stands for nothing, and for encodings that do not occur in frame descriptions.
func (s *frameSection) pointer(r *elfimage.Reader, encoding byte, base uint64) (v uint64, ok bool) {
	pos := base + uint64(r.Off)
	v, ok = rawPointer(r, encoding&encFormatMask)
	if !ok || encoding&encIndirect != 0 {
		return 0, false
	}
	switch encoding & encBaseMask {
	case encAbsptr:
		return v, true
	case encPcrel:
		return v + pos, v != 0
	case encDatarel:
		return v + s.hdr, v != 0 && s.hdr != 0
	default:
		return 0, false
	}
}

func rawPointer(r *elfimage.Reader, format byte) (v uint64, ok bool) {
	switch format {
	case encAbsptr, encUdata8, encSdata8:
		return r.U64(), true
	case encUdata4:
		return uint64(r.U32()), true
	case encSdata4:
		return uint64(int64(int32(r.U32()))), true
	case encUdata2:
		return uint64(r.U16()), true
	case encSdata2:
		return uint64(int64(int16(r.U16()))), true
	case encULEB:
		return r.ULEB(), true
	case encSLEB:
		return uint64(r.SLEB()), true
	default:
		return 0, false
	}
}

// readCIE reads the common information entry at an offset and runs its instructions.
func (s *frameSection) readCIE(off int) (*cie, error) {
	rec, err := s.record(off)
	if err != nil {
		return nil, err
	}
	bad := func(what string, got any) (*cie, error) {
		return nil, fmt.Errorf("cie at %#x: %s %v: %w", off, what, got, elfimage.ErrFormat)
	}
	if rec.body == nil || !rec.isCIE() {
		return bad("not a cie, but", rec.cie)
	}
	r := elfimage.Reader{B: rec.body}
	version, augmentation := r.U8(), string(r.CString())
	if version != 1 && version != 3 && version != 4 {
		return bad("version", version)
	}
	if augmentation == "eh" {
		r.U64() // a pointer to an exception table, of gcc 2
	}
	if version == 4 {
		if address, segment := r.U8(), r.U8(); address != 8 || segment != 0 {
			return bad("address size", address)
		}
	}
	c := &cie{codeAlign: r.ULEB(), dataAlign: r.SLEB()}
	ra := uint64(0)
	if version == 1 {
		ra = uint64(r.U8())
	} else {
		ra = r.ULEB()
	}
	if ra != s.machine.ra {
		return bad("return address register", ra)
	}
	if !s.readAugmentation(&r, augmentation, c) {
		return bad("augmentation", augmentation)
	}
	if r.Bad {
		return bad("ends early, bytes", len(rec.body))
	}
	c.program = r.B[r.Off:]
	c.initial = s.initialState(c, c.program, rec)
	return c, nil
}

// readAugmentation reads what the letters announce (Linux Standard Base, core, section "Common Information Entry
// Augmentation Data"): L and P are of no use here but precede R.
func (s *frameSection) readAugmentation(r *elfimage.Reader, letters string, c *cie) bool {
	if letters == "" || letters == "eh" {
		return true
	}
	if letters[0] != 'z' {
		return false
	}
	c.augmented = true
	data := elfimage.Reader{B: r.Take(r.ULEB())}
	for _, l := range letters[1:] {
		switch l {
		case 'L':
			data.U8()
		case 'P':
			if enc := data.U8(); enc != encOmit {
				if _, ok := rawPointer(&data, enc&encFormatMask); !ok {
					return false
				}
			}
		case 'R':
			c.encoding = data.U8()
		case 'S':
			c.signal = true
		case 'B': // arm64: return addresses are signed with key B
		default:
			return false
		}
	}
	return !data.Bad
}

// cieCache keeps the entries by offset. Neighbours mostly share theirs.
type cieCache struct {
	section *frameSection
	lastOff int
	last    *cie
	byOff   map[int]*cie
}

// get returns nil for an entry that cannot be read: its frames have no information.
func (c *cieCache) get(off int) *cie {
	if c.byOff != nil && c.lastOff == off {
		return c.last
	}
	entry, seen := c.byOff[off]
	if !seen {
		entry, _ = c.section.readCIE(off)
		if c.byOff == nil {
			c.byOff = map[int]*cie{}
		}
		c.byOff[off] = entry
	}
	c.lastOff, c.last = off, entry
	return entry
}
