// SPDX-License-Identifier: Apache-2.0

package symbolize

import (
	"debug/elf"
	"encoding/binary"

	"github.com/gputrace/gputrace/internal/elfimage"
)

// dynamicTable finds .dynsym as the loader does, through the dynamic segment, in a file without section headers.
func (f *File) dynamicTable() symbolTable {
	tags := f.dynamicTags()
	at := func(tag elf.DynTag) []byte {
		if tags[tag] == 0 {
			return nil
		}
		return f.At(tags[tag])
	}
	names := at(elf.DT_STRTAB)
	if n := tags[elf.DT_STRSZ]; n < uint64(len(names)) {
		names = names[:n]
	}
	entries := at(elf.DT_SYMTAB)
	hash := readGNUHash(at(elf.DT_GNU_HASH))
	n := symbolCount(at(elf.DT_HASH), hash)
	if n > uint64(len(entries))/symSize {
		return symbolTable{}
	}
	return symbolTable{
		entries: entries[:n*symSize], names: names, versions: at(elf.DT_VERSYM), hash: hash,
	}
}

func (f *File) dynamicTags() map[elf.DynTag]uint64 {
	tags := map[elf.DynTag]uint64{}
	for i := range f.Segments {
		if f.Segments[i].Kind != elf.PT_DYNAMIC {
			continue
		}
		r := elfimage.Reader{B: f.Segments[i].Data}
		for r.Off+16 <= len(r.B) {
			tag, v := elf.DynTag(r.U64()), r.U64()
			if tag == elf.DT_NULL {
				break
			}
			tags[tag] = v
		}
	}
	return tags
}

// symbolCount is the size of .dynsym, which only its hash tables tell: the SysV table (gABI, chapter 5) by a field, the
// GNU one by the end of its last chain. It is 0 when neither makes sense.
func symbolCount(sysv []byte, h gnuHash) uint64 {
	if len(sysv) >= 8 {
		if n := binary.LittleEndian.Uint32(sysv[4:]); n > 0 && uint64(n) <= uint64(len(sysv))/4 {
			return uint64(n)
		}
	}
	last := uint64(0)
	table := elfimage.Reader{B: h.buckets}
	for table.Off < len(table.B) {
		last = max(last, uint64(table.U32()))
	}
	if last < uint64(h.first) {
		return 0
	}
	r := elfimage.Reader{B: h.chains}
	r.Take(4 * (last - uint64(h.first)))
	for !r.Bad { // the lowest bit ends a chain
		last++
		if r.U32()&1 != 0 {
			return last
		}
	}
	return 0
}
