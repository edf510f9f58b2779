// SPDX-License-Identifier: Apache-2.0

package symbolize

import (
	"debug/elf"

	"github.com/gputrace/gputrace/internal/elfimage"
)

const relaSize = 24 // Elf64_Rela: r_offset, r_info, r_addend (gABI, chapter 4)

// Range is link-time addresses, [Start, End).
type Range struct{ Start, End uint64 }

// CodeRanges lists the executable segments, in the order of the program headers.
func (f *File) CodeRanges() []Range {
	var out []Range
	for i := range f.Segments {
		s := &f.Segments[i]
		if s.Kind == elf.PT_LOAD && s.Flags&elf.PF_X != 0 && s.FileSize > 0 {
			out = append(out, Range{Start: s.Addr, End: s.Addr + s.FileSize})
		}
	}
	return out
}

// ImportSlots lists where the loader writes the address of a function whose name begins with prefix, for calls through
// the PLT and through the GOT: link-time addresses of 8-byte words. It needs no sections and no .symtab. Slots outside
// of the file's segments are left out.
func (f *File) ImportSlots(prefix string) (slots []uint64) {
	defer elfimage.OnFault(func(error) { slots = nil })()
	tags := f.dynamicTags()
	for _, t := range []struct{ table, size elf.DynTag }{{elf.DT_JMPREL, elf.DT_PLTRELSZ}, {elf.DT_RELA, elf.DT_RELASZ}} {
		if tags[t.table] == 0 {
			continue
		}
		b := f.At(tags[t.table])
		slots = append(slots, f.importSlots(b[:min(tags[t.size], uint64(len(b)))], prefix)...)
	}
	return slots
}

func (f *File) importSlots(table []byte, prefix string) (slots []uint64) {
	symbols := &f.tables()[0]
	r := elfimage.Reader{B: table}
	for r.Off+relaSize <= len(r.B) {
		slot, info, addend := r.U64(), r.U64(), r.U64()
		symbol := elf.R_SYM64(info)
		if addend != 0 || !f.isAddress(elf.R_TYPE64(info)) || int(symbol) >= symbols.count() || f.Loaded(slot) == nil {
			continue
		}
		if symbols.begins(symbols.symbol(int(symbol)), prefix) {
			slots = append(slots, slot)
		}
	}
	return slots
}

// isAddress reports whether a relocation stores the plain address of its symbol (psABI of each machine).
func (f *File) isAddress(kind uint32) bool {
	switch f.Machine() {
	case elf.EM_X86_64:
		r := elf.R_X86_64(kind)
		return r == elf.R_X86_64_JMP_SLOT || r == elf.R_X86_64_GLOB_DAT || r == elf.R_X86_64_64
	case elf.EM_AARCH64:
		r := elf.R_AARCH64(kind)
		return r == elf.R_AARCH64_JUMP_SLOT || r == elf.R_AARCH64_GLOB_DAT || r == elf.R_AARCH64_ABS64
	}
	return false
}
