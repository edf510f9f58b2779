package symbolize

import (
	"debug/elf"
	"encoding/binary"
)

// dynamicTable finds .dynsym as the loader does, through the dynamic segment, in a file without section headers.
func (f *File) dynamicTable() symbolTable {
	tags := f.dynamicTags()
	at := func(tag elf.DynTag) []byte {
		if tags[tag] == 0 {
			return nil
		}
		return f.at(tags[tag])
	}
	names := at(elf.DT_STRTAB)
	if n := tags[elf.DT_STRSZ]; n < uint64(len(names)) {
		names = names[:n]
	}
	entries := at(elf.DT_SYMTAB)
	n := symbolCount(at(elf.DT_HASH), at(elf.DT_GNU_HASH))
	if n > uint64(len(entries))/symSize {
		return symbolTable{}
	}
	return symbolTable{entries: entries[:n*symSize], names: names, versions: at(elf.DT_VERSYM)}
}

func (f *File) dynamicTags() map[elf.DynTag]uint64 {
	tags := map[elf.DynTag]uint64{}
	for i := range f.Segments {
		if f.Segments[i].kind != elf.PT_DYNAMIC {
			continue
		}
		r := reader{b: f.Segments[i].data}
		for r.off+16 <= len(r.b) {
			tag, v := elf.DynTag(r.u64()), r.u64()
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
func symbolCount(sysv, gnu []byte) uint64 {
	if len(sysv) >= 8 {
		if n := binary.LittleEndian.Uint32(sysv[4:]); n > 0 && uint64(n) <= uint64(len(sysv))/4 {
			return uint64(n)
		}
	}
	r := reader{b: gnu}
	buckets, first, bloom := uint64(r.u32()), uint64(r.u32()), uint64(r.u32())
	r.u32() // bloom shift
	r.take(8 * bloom)
	last := uint64(0)
	table := reader{b: r.take(4 * buckets)}
	for table.off < len(table.b) {
		last = max(last, uint64(table.u32()))
	}
	if r.bad || last < first {
		return 0
	}
	r.take(4 * (last - first))
	for !r.bad { // the lowest bit ends a chain
		last++
		if r.u32()&1 != 0 {
			return last
		}
	}
	return 0
}
