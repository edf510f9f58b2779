// SPDX-License-Identifier: Apache-2.0

package cpython

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/gputrace/gputrace/process"
)

// maxTable bounds one table read of a foreign file, bytes. Large enough for the symbol names of libtorch_cpu (about 30 MB).
const maxTable = 256 << 20

// object is an ELF file whose symbols are asked for by name.
type object struct {
	elf    *elf.File
	closer io.Closer
}

// symbol is a symbol with link-time address and size in bytes.
type symbol struct {
	addr, size uint64
}

// located is a file that defines _PyRuntime, as it is mapped.
type located struct {
	mapping process.Mapping
	file    *object
	bias    uint64 // address in the process minus link-time address
	runtime uint64 // address of _PyRuntime in the process
	bound   bool   // PyTorch's references lead to it
	abi     threadABI
}

// executables keeps the first executable mapping of every file.
func executables(maps []process.Mapping) []process.Mapping {
	type identity struct {
		device string
		inode  uint64
	}
	seen := map[identity]bool{}
	var out []process.Mapping
	for _, m := range maps {
		id := identity{m.Device, m.Inode}
		if !m.Exec || m.Inode == 0 || seen[id] {
			continue
		}
		seen[id] = true
		out = append(out, m)
	}
	return out
}

// nameless is what unlikely returns for a file whose name does not tell of Python.
const nameless = 3

func unlikely(m *process.Mapping, exe string) int {
	switch {
	case strings.Contains(m.Base(), "libpython"):
		return 0
	case strings.Contains(m.Base(), "python"):
		return 1
	case m.Path == exe:
		return 2
	default:
		return nameless
	}
}

// locateIn returns nil without an error when the file does not define _PyRuntime.
func locateIn(p *process.Process, m *process.Mapping) (*located, error) {
	f, err := p.OpenFile(m)
	if err != nil {
		return nil, err
	}
	o, err := newObject(f)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("parse %s: %w", m.Path, err)
	}
	o.closer = f
	sym, ok := o.find("_PyRuntime")
	bias, mapped := o.bias(m.Start, m.Offset)
	if !ok || !mapped {
		o.close()
		return nil, nil
	}
	return &located{mapping: *m, file: o, bias: bias, runtime: sym.addr + bias}, nil
}

// symbol is the address in the process of a symbol that the file defines.
func (l *located) symbol(name string) (addr uint64, ok bool) {
	sym, ok := l.file.find(name)
	return sym.addr + l.bias, ok
}

func newObject(r io.ReaderAt) (*object, error) {
	e, err := elf.NewFile(r)
	if err != nil {
		return nil, err
	}
	if e.Class != elf.ELFCLASS64 || e.Data != elf.ELFDATA2LSB {
		return nil, fmt.Errorf("got %s %s, want 64-bit little-endian", e.Class, e.Data)
	}
	return &object{elf: e}, nil
}

func (o *object) close() { o.closer.Close() }

// find looks for a defined symbol in .dynsym, then in .symtab.
func (o *object) find(name string) (symbol, bool) {
	for _, typ := range []elf.SectionType{elf.SHT_DYNSYM, elf.SHT_SYMTAB} {
		if s := o.elf.SectionByType(typ); s != nil {
			if sym, ok := o.findIn(s, name); ok {
				return sym, true
			}
		}
	}
	return symbol{}, false
}

// findIn looks for the name first: most files do not have it, and then their symbols need not be read.
func (o *object) findIn(s *elf.Section, name string) (symbol, bool) {
	if int(s.Link) >= len(o.elf.Sections) {
		return symbol{}, false
	}
	names, err := sectionData(o.elf.Sections[s.Link])
	if err != nil {
		return symbol{}, false
	}
	at := nameOffsets(names, name)
	if len(at) == 0 {
		return symbol{}, false
	}
	table, err := sectionData(s)
	if err != nil {
		return symbol{}, false
	}
	return scanSymbols(table, at)
}

// nameOffsets are the places of a name in a string table. A name may be the tail of a longer one.
func nameOffsets(names []byte, name string) map[uint32]bool {
	out := map[uint32]bool{}
	want := append([]byte(name), 0)
	for from := 0; ; {
		i := bytes.Index(names[from:], want)
		if i < 0 {
			return out
		}
		out[uint32(from+i)] = true
		from += i + 1
	}
}

// scanSymbols finds the first defined symbol with one of the names in a table of Elf64_Sym (elf(5)):
// name u32, info u8, other u8, section u16, value u64, size u64.
func scanSymbols(table []byte, names map[uint32]bool) (symbol, bool) {
	for ; len(table) >= elf.Sym64Size; table = table[elf.Sym64Size:] {
		if !names[binary.LittleEndian.Uint32(table)] {
			continue
		}
		if elf.SectionIndex(binary.LittleEndian.Uint16(table[6:])) != elf.SHN_UNDEF {
			return symbol{binary.LittleEndian.Uint64(table[8:]), binary.LittleEndian.Uint64(table[16:])}, true
		}
	}
	return symbol{}, false
}

func sectionData(s *elf.Section) ([]byte, error) {
	if s.Type == elf.SHT_NOBITS {
		return nil, fmt.Errorf("section %s has no bytes in the file", s.Name)
	}
	if s.Size > maxTable || s.FileSize > maxTable {
		return nil, fmt.Errorf("section %s has %d bytes, want at most %d", s.Name, max(s.Size, s.FileSize), maxTable)
	}
	return s.Data()
}

// bias is what a mapping of this file at start, from the file offset, adds to link-time addresses.
func (o *object) bias(start, offset uint64) (uint64, bool) {
	for _, p := range o.elf.Progs {
		if p.Type != elf.PT_LOAD || p.Flags&elf.PF_X == 0 {
			continue
		}
		// The kernel maps whole pages: the first may begin before the segment.
		if first := p.Off &^ uint64(os.Getpagesize()-1); offset >= first && offset < p.Off+p.Filesz {
			return start - offset + p.Off - p.Vaddr, true
		}
	}
	return 0, false
}

// constants are the bytes of the sections with read-only data.
func (o *object) constants() ([]byte, error) {
	var out []byte
	for _, s := range o.elf.Sections {
		if s.Type != elf.SHT_PROGBITS || s.Flags&(elf.SHF_ALLOC|elf.SHF_WRITE|elf.SHF_EXECINSTR) != elf.SHF_ALLOC {
			continue
		}
		if !strings.HasPrefix(s.Name, ".rodata") {
			continue
		}
		b, err := sectionData(s)
		if err != nil {
			return nil, err
		}
		out = append(out, b...)
	}
	return out, nil
}
