// SPDX-License-Identifier: Apache-2.0

package cpython

import "sort"

// lineRun is a run of bytecode of one line.
type lineRun struct {
	end  uint32 // first unit behind the run; it begins where the one before ends
	line int32  // 0: no line
}

// Line is the line that the frame is at. Instr is the raw word of the frame: a pointer into the code object (3.11+) or an
// index, in 2-byte units (3.10) or in bytes (to 3.9). 0: not known, or the instruction has no line.
func (c *Code) Line(instr uint64) int {
	unit := int64(int32(instr)) // index of the instruction, in units of 2 bytes
	switch {
	case c.start != 0:
		unit = int64(instr-c.start) >> 1
	case c.inBytes:
		unit >>= 1
	}
	if unit == -1 {
		return c.FirstLine // a frame that has not run its first instruction is before it
	}
	if unit < 0 {
		return 0
	}
	i := sort.Search(len(c.runs), func(i int) bool { return unit < int64(c.runs[i].end) })
	if i == len(c.runs) {
		return 0
	}
	return int(c.runs[i].line)
}

// runBuilder collects the runs of one code object.
type runBuilder struct {
	runs []lineRun
	end  int64 // units so far
}

// add appends units of a line. Lines that no C int holds count as none.
func (b *runBuilder) add(units int64, line int) {
	if line < 0 || line > 1<<31-1 {
		line = 0
	}
	b.end += units
	if n := len(b.runs); n > 0 && int(b.runs[n-1].line) == line {
		b.runs[n-1].end = uint32(b.end)
		return
	}
	b.runs = append(b.runs, lineRun{uint32(b.end), int32(line)})
}

// decode turns co_linetable into runs. A table of maxLineTable bytes covers fewer units than 32 bits can count.
func (f lineFormat) decode(table []byte, first int) []lineRun {
	switch f {
	case linePairs:
		return decodePairs(table, first)
	case lineOldPairs:
		return decodeOldPairs(table, first)
	}
	return decodeLocations(table, first)
}

// decodeOldPairs reads co_lnotab, to 3.9 (Objects/lnotab_notes.txt there): pairs of bytes, how many bytes of code further,
// unsigned, and how many lines further, signed. The last line holds to the end of the code.
func decodeOldPairs(table []byte, first int) []lineRun {
	const rest = 1 << 30 // units, more than any code has
	var b runBuilder
	line := first
	for ; len(table) >= 2; table = table[2:] {
		b.add(int64(table[0])/2, line)
		line += int(int8(table[1]))
	}
	b.add(rest, line)
	return b.runs
}

// decodePairs reads co_linetable of 3.10 (Objects/lnotab_notes.txt there): pairs of bytes, how many bytes of code an entry
// covers, unsigned and even, and how its line differs from that of the entry before, signed; -128 means that it has none.
func decodePairs(table []byte, first int) []lineRun {
	const noLine = -128
	var b runBuilder
	for line := first; len(table) >= 2; table = table[2:] {
		units, delta := int64(table[0])/2, int8(table[1])
		if delta == noLine {
			b.add(units, 0)
			continue
		}
		line += int(delta)
		b.add(units, line)
	}
	return b.runs
}

// decodeLocations reads the location table of 3.11+ (Objects/locations.md, "The location table"). The first byte of an
// entry, and no other, has its top bit set:
//
//	1 cccc lll   code c; the entry covers l+1 units of 2 bytes; columns follow, which are skipped
//
//	c  0-9   same line
//	   10-12 line + c-10
//	   13,14 line + a signed varint
//	   15    no line
func decodeLocations(table []byte, first int) []lineRun {
	var b runBuilder
	line := first
	for i := 0; i < len(table); {
		code, units := table[i]>>3&15, int64(table[i]&7)+1
		i++
		switch {
		case code == 13, code == 14:
			line += signedVarint(table[i:])
		case code >= 10 && code <= 12:
			line += int(code) - 10
		}
		if code == 15 {
			b.add(units, 0)
		} else {
			b.add(units, line)
		}
		for i < len(table) && table[i]&0x80 == 0 {
			i++
		}
	}
	return b.runs
}

// signedVarint reads six bits a byte, the lowest first, while bit 6 is set; the lowest bit of the value is its sign. Of
// more bits than a C int has, the rest is dropped.
func signedVarint(b []byte) int {
	var v uint64
	for i, shift := 0, 0; i < len(b) && shift < 36; i, shift = i+1, shift+6 {
		v |= uint64(b[i]&0x3f) << shift
		if b[i]&0x40 == 0 {
			break
		}
	}
	if v&1 != 0 {
		return -int(v >> 1)
	}
	return int(v >> 1)
}
