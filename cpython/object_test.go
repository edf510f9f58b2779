// SPDX-License-Identifier: Apache-2.0

package cpython

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Every name of a real library's symbol table, against debug/elf's own reading of it.
func TestObjectFind(t *testing.T) {
	path := pyenvPrefix(t, "3.10.13") + "/lib/libpython3.10.so.1.0"
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	o, err := newObject(bytes.NewReader(b))
	require.NoError(t, err)
	symbols, err := o.elf.DynamicSymbols()
	require.NoError(t, err)
	checked := 0
	for i := 0; i < len(symbols); i += 25 {
		s := symbols[i]
		got, ok := o.find(s.Name)
		if s.Section == elf.SHN_UNDEF {
			continue
		}
		require.True(t, ok, s.Name)
		assert.Equal(t, symbol{s.Value, s.Size}, got, s.Name)
		checked++
	}
	assert.Greater(t, checked, 50)
	_, ok := o.find("PyRuntime") // only the tail of a name
	assert.False(t, ok)
	_, ok = o.find("malloc") // not defined here
	assert.False(t, ok)
}

// smallELF is an object file with one executable segment, at file offset 0x1000 and address 0x401040, and one symbol.
func smallELF(t testing.TB) []byte {
	t.Helper()
	const names, dynstr, rodata = "\x00.dynsym\x00.dynstr\x00.rodata\x00", "\x00a_PyRuntime\x00_PyRuntime\x00", "\x003.10.4\x00python3.10\x00"
	const phdrs, symbols = 64, 64 + 56
	text := symbols + 2*elf.Sym64Size
	sections := text + len(names) + len(dynstr) + len(rodata)
	var out bytes.Buffer
	write := func(v any) { require.NoError(t, binary.Write(&out, binary.LittleEndian, v)) }
	write(elf.Header64{
		Ident: [16]byte{0x7f, 'E', 'L', 'F', 2, 1, 1}, Type: uint16(elf.ET_DYN), Machine: uint16(elf.EM_X86_64), Version: 1,
		Phoff: phdrs, Shoff: uint64(sections), Ehsize: 64, Phentsize: 56, Phnum: 1, Shentsize: 64, Shnum: 5, Shstrndx: 4,
	})
	write(elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_X), Off: 0x1040, Vaddr: 0x401040, Filesz: 0x2000, Memsz: 0x2000})
	write(elf.Sym64{Name: 1, Shndx: 1, Value: 1})
	write(elf.Sym64{Name: 13, Shndx: 1, Value: 0x402000, Size: 8})
	out.WriteString(names + dynstr + rodata)
	section := func(name int, typ elf.SectionType, flags elf.SectionFlag, at, size, link int) {
		write(elf.Section64{Name: uint32(name), Type: uint32(typ), Flags: uint64(flags), Off: uint64(at), Size: uint64(size), Link: uint32(link)})
	}
	section(0, elf.SHT_NULL, 0, 0, 0, 0)
	section(1, elf.SHT_DYNSYM, elf.SHF_ALLOC, symbols, 2*elf.Sym64Size, 2)
	section(9, elf.SHT_STRTAB, elf.SHF_ALLOC, text+len(names), len(dynstr), 0)
	section(17, elf.SHT_PROGBITS, elf.SHF_ALLOC, text+len(names)+len(dynstr), len(rodata), 0)
	section(9, elf.SHT_STRTAB, 0, text, len(names), 0)
	return out.Bytes()
}

func TestSmallObject(t *testing.T) {
	o, err := newObject(bytes.NewReader(smallELF(t)))
	require.NoError(t, err)
	got, ok := o.find("_PyRuntime")
	assert.True(t, ok)
	assert.Equal(t, symbol{0x402000, 8}, got)
	constants, err := o.constants()
	require.NoError(t, err)
	v, ok := versionFromStrings(constants)
	assert.True(t, ok)
	assert.Equal(t, "3.10.4", v.String())

	// Mapped at 0x7f0000001000 from the page of the segment's first byte, or from a later page.
	for _, row := range []struct{ start, offset uint64 }{{0x7f0000001000, 0x1000}, {0x7f0000002000, 0x2000}} {
		bias, ok := o.bias(row.start, row.offset)
		assert.True(t, ok)
		assert.Equal(t, uint64(0x7f0000001000-0x401000), bias)
	}
	for _, offset := range []uint64{0, 0x3040, 1 << 40} {
		_, ok := o.bias(0x7f0000000000, offset)
		assert.False(t, ok, "no executable segment has offset %#x", offset)
	}
}

func FuzzObject(f *testing.F) {
	f.Add(smallELF(f), uint64(0x400000), uint64(0x2000))
	f.Add([]byte("\x7fELF\x02\x01\x01"), uint64(0), uint64(0))
	f.Fuzz(func(t *testing.T, file []byte, start, offset uint64) {
		o, err := newObject(bytes.NewReader(file))
		if err != nil {
			return
		}
		if _, ok := o.find("_PyRuntime"); ok && !bytes.Contains(file, []byte("_PyRuntime")) {
			t.Fatal("found a name that is not there")
		}
		o.bias(start, offset)
		if c, err := o.constants(); err == nil {
			versionFromStrings(c)
		}
	})
}
