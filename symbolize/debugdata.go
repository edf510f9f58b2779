// SPDX-License-Identifier: Apache-2.0

package symbolize

import (
	"bytes"
	"compress/zlib"
	"debug/dwarf"
	"debug/elf"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"

	"github.com/gputrace/gputrace/internal/elfimage"
)

// debug/dwarf trusts what it reads: it makes tables of 16 times the size of what they are made of, one for each unit, copies
// strings of any length, and follows nested entries by recursion. What it is given is bounded, and checked before.
const (
	// maxInfo, maxAbbrev, maxRanges and maxStrings bound sections, bytes.
	maxInfo    = 1 << 30
	maxAbbrev  = 16 << 20
	maxRanges  = 64 << 20
	maxStrings = 512 << 20
	// maxUnits bounds the units of a file, maxAttributes those of an entry, maxString a name; compilers write up to some 10,000,
	// 30, and 10,000 bytes.
	maxUnits      = 1 << 17
	maxAttributes = 128
	maxString     = 1 << 20

	// maxUnpacked bounds what the compressed debug sections of one file take in memory, bytes.
	maxUnpacked = 256 << 20
	// maxDeflate is how much deflate can pack a byte; a section that claims more lies.
	maxDeflate = 1032
)

// debugSections are those that are read, and their limits in bytes.
var debugSections = map[string]int{
	".debug_info": maxInfo, ".debug_abbrev": maxAbbrev, ".debug_line": maxStrings, ".debug_str": maxStrings,
	".debug_line_str": maxStrings, ".debug_ranges": maxRanges, ".debug_rnglists": maxRanges, ".debug_addr": maxRanges,
	".debug_str_offsets": maxRanges,
}

// debugInfo is a file's debug information.
type debugInfo struct {
	data  *dwarf.Data
	lines lineSections
	units []unitHeader
}

// debugInfo opens the debug information; nil without an error when the file has none.
func (f *File) debugInfo() (*debugInfo, error) {
	if s := f.Section(".debug_info"); s == nil || len(s.Data)+len(s.Packed) == 0 {
		return nil, nil
	}
	sections, err := f.readDebugSections()
	if err != nil {
		return nil, fmt.Errorf("debug information of %s: %w", f.Path, err)
	}
	info, abbrev, str := sections[".debug_info"], sections[".debug_abbrev"], sections[".debug_str"]
	units, ok := unitHeaders(info)
	if !ok || !checkAbbrev(abbrev, units) || !checkStrings(str) || !checkStrings(sections[".debug_line_str"]) {
		return nil, fmt.Errorf("debug information of %s: %w", f.Path, elfimage.ErrFormat)
	}
	data, err := dwarf.New(abbrev, nil, nil, info, nil, nil, sections[".debug_ranges"], str)
	for name, b := range sections {
		if err == nil && len(b) > 0 {
			err = data.AddSection(name, b)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("debug information of %s: %w", f.Path, err)
	}
	lines := lineSections{line: sections[".debug_line"], str: str, lineStr: sections[".debug_line_str"]}
	return &debugInfo{data: data, lines: lines, units: units}, nil
}

func (f *File) readDebugSections() (map[string][]byte, error) {
	out, left := map[string][]byte{}, maxUnpacked
	for i := range f.Sections {
		s := &f.Sections[i]
		limit, wanted := debugSections[s.Name]
		if !wanted || out[s.Name] != nil {
			continue
		}
		b := s.Data
		if s.Packed != nil {
			var err error
			if b, err = unpackSection(s.Packed, min(left, limit)); err != nil {
				return nil, fmt.Errorf("%s: %w", s.Name, err)
			}
			left -= len(b)
		}
		if len(b) > limit {
			return nil, fmt.Errorf("%s of %d bytes, at most %d: %w", s.Name, len(b), limit, elfimage.ErrFormat)
		}
		out[s.Name] = b
	}
	return out, nil
}

// unpackSection unpacks a compressed section (gABI, "Section Compression") of at most limit bytes.
func unpackSection(packed []byte, limit int) ([]byte, error) {
	r := elfimage.Reader{B: packed}
	kind := elf.CompressionType(r.U32())
	r.U32() // reserved
	size := r.U64()
	r.U64() // alignment
	if r.Bad || size > uint64(limit) {
		return nil, fmt.Errorf("packed section of %d bytes, at most %d: %w", size, limit, elfimage.ErrFormat)
	}
	var in io.Reader = bytes.NewReader(packed[r.Off:])
	switch kind {
	case elf.COMPRESS_ZLIB:
		z, err := zlib.NewReader(in)
		if err != nil {
			return nil, fmt.Errorf("zlib: %w: %w", elfimage.ErrFormat, err)
		}
		in = z
	case elf.COMPRESS_ZSTD:
		z, err := zstd.NewReader(in, zstd.WithDecoderMaxMemory(maxUnpacked), zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, fmt.Errorf("zstd: %w: %w", elfimage.ErrFormat, err)
		}
		defer z.Close()
		in = z
	default:
		return nil, fmt.Errorf("section packed by %v: %w", kind, elfimage.ErrFormat)
	}
	out := bytes.NewBuffer(make([]byte, 0, min(size, maxDeflate*uint64(len(packed)))))
	n, err := io.Copy(out, io.LimitReader(in, int64(size)))
	if err == nil && uint64(n) != size {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, fmt.Errorf("%d of %d bytes unpacked: %w: %w", n, size, elfimage.ErrFormat, err)
	}
	return out.Bytes(), nil
}

// unitHeader is a unit in .debug_info.
type unitHeader struct {
	root    dwarf.Offset // of its first entry
	size    uint64       // bytes
	abbrev  uint64       // offset in .debug_abbrev
	compile bool         // it is a compile unit, and not one of types
}

// Unit types and the bytes that their headers have more (DWARF 5, sections 7.5.1.1 to 7.5.1.3).
const (
	unitCompile  = 1
	unitType     = 2
	unitSkeleton = 4
	unitSplit    = 5
	unitSplitTyp = 6
)

// unitHeaders lists the units. ok is false when one of them is malformed.
func unitHeaders(info []byte) (units []unitHeader, ok bool) {
	for r := (elfimage.Reader{B: info}); r.Off < len(info); {
		length, width := uint64(r.U32()), uint64(4)
		if length == 0xffffffff {
			length, width = r.U64(), 8
		}
		if length == 0 && !r.Bad {
			continue
		}
		start := r.Off
		u, ok := readUnitHeader(elfimage.Reader{B: r.Take(length)}, width)
		if !ok || r.Bad || len(units) == maxUnits {
			return nil, false
		}
		u.root += dwarf.Offset(start)
		units = append(units, u)
	}
	return units, true
}

// readUnitHeader reads what is behind the length. root counts from there.
func readUnitHeader(r elfimage.Reader, width uint64) (u unitHeader, ok bool) {
	version, kind := r.U16(), byte(unitCompile)
	if version >= 5 {
		kind = r.U8()
		r.U8() // size of an address
	}
	offset := elfimage.Reader{B: r.Take(width)}
	u.abbrev = uint64(offset.U32())
	if width == 8 {
		u.abbrev |= uint64(offset.U32()) << 32
	}
	if version < 5 {
		r.U8()
	}
	switch kind {
	case unitSkeleton, unitSplit:
		r.Take(8)
	case unitType, unitSplitTyp:
		r.Take(8 + width)
	}
	u.root, u.size, u.compile = dwarf.Offset(r.Off), uint64(len(r.B)), kind == unitCompile || kind == unitSkeleton
	return u, !r.Bad && version >= 2 && version <= 5
}

// formImplicitConst has its value beside it (DWARF 5, section 7.5.3).
const formImplicitConst = 0x21

// checkAbbrev reports whether the tables of the units are whole, do not overlap and have no entry with too many attributes.
func checkAbbrev(abbrev []byte, units []unitHeader) bool {
	seen, left := map[uint64]bool{}, len(abbrev)
	for _, u := range units {
		if seen[u.abbrev] {
			continue
		}
		seen[u.abbrev] = true
		if u.abbrev > uint64(len(abbrev)) {
			return false
		}
		r := elfimage.Reader{B: abbrev[u.abbrev:]}
		for r.ULEB() != 0 {
			if left -= skipAbbreviation(&r); r.Bad || left < 0 {
				return false
			}
		}
		if r.Bad {
			return false
		}
	}
	return true
}

// skipAbbreviation skips one declaration and returns its size, bytes.
func skipAbbreviation(r *elfimage.Reader) int {
	start := r.Off
	r.ULEB() // tag
	r.U8()   // children
	for n := 0; ; n++ {
		attribute, form := r.ULEB(), r.ULEB()
		if attribute == 0 && form == 0 || r.Bad {
			return r.Off - start
		}
		if form == formImplicitConst {
			r.ULEB()
		}
		r.Bad = r.Bad || n == maxAttributes
	}
}

// checkStrings reports whether no string is too long.
func checkStrings(tab []byte) bool {
	for len(tab) > 0 {
		n := bytes.IndexByte(tab, 0)
		if n < 0 {
			n = len(tab) - 1
		}
		if n > maxString {
			return false
		}
		tab = tab[n+1:]
	}
	return true
}
