// SPDX-License-Identifier: Apache-2.0

package symbolize

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gputrace/gputrace/internal/elftest"
	"github.com/gputrace/gputrace/unwind"
)

// FuzzFile edits a small real file: up to four words anywhere, and its length. Nothing may panic, hang, or break what
// Table and SymbolAt promise.
func FuzzFile(f *testing.F) {
	var images [][]byte
	for _, path := range []string{
		build(f, "call.c", elftest.CallC, "-O2", "-Wl,-z,lazy"),
		build(f, "rows.s", ".globl fp\n.type fp, @function\nfp:\n.cfi_startproc\n.cfi_def_cfa rbp, 16\n.cfi_offset rbp, -16\n"+
			".cfi_remember_state\n.cfi_def_cfa_offset 32\nnop\n.cfi_restore_state\nnop\n.cfi_endproc\n.size fp, .-fp\n"),
	} {
		b, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		images = append(images, b)
	}
	f.Add(byte(0), uint32(1<<31), []byte{}, uint64(0x1050))
	f.Add(byte(1), uint32(1<<31), []byte{40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, uint64(0x1000))
	f.Fuzz(func(t *testing.T, which byte, size uint32, edits []byte, vaddr uint64) {
		image := images[int(which)%len(images)]
		image = append([]byte(nil), image[:min(uint64(size), uint64(len(image)))]...)
		for ; len(edits) >= 12 && len(image) > 8; edits = edits[12:] {
			at := binary.LittleEndian.Uint32(edits) % uint32(len(image)-8)
			copy(image[at:], edits[4:12])
		}
		exercise(t, image, vaddr)
	})
}

// FuzzImage takes the bytes as they are.
func FuzzImage(f *testing.F) {
	for _, flags := range []string{"-Wl,-z,lazy", "-Wl,-s"} {
		b, err := os.ReadFile(build(f, "call.c", "void f(void){}", "-Os", flags, "-Wl,-z,noseparate-code"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, uint64(0x300))
	}
	f.Fuzz(func(t *testing.T, image []byte, vaddr uint64) { exercise(t, image, vaddr) })
}

func exercise(t *testing.T, image []byte, vaddr uint64) {
	e, err := OpenBytes(image, "fuzz")
	if err != nil {
		return
	}
	table, err := e.Frames().Table()
	if err != nil && table != nil {
		t.Fatal("a table beside an error")
	}
	if table != nil {
		table.Lookup(vaddr)
	}
	for i := range min(2, e.tables()[1].count()) {
		vaddr ^= e.tables()[1].symbol(i).addr
	}
	if s, ok := e.SymbolAt(vaddr); ok && (s.Addr > vaddr || s.Size != 0 && vaddr-s.Addr >= s.Size) {
		t.Fatalf("%#x in %+v", vaddr, s)
	}
	walkNoise(e, vaddr)
	if start, end, ok := e.Frames().Bounds(vaddr); ok && (vaddr < start || vaddr >= end) {
		t.Fatalf("%#x from %#x to %#x", vaddr, start, end)
	}
	e.Find("plain")
	e.FindPrefix("re")
	e.Text(vaddr, 16)
	e.FileOffset(vaddr)
	e.Bias(vaddr, vaddr&0xffff)
}

// FuzzDemangle: names come from files too.
func FuzzDemangle(f *testing.F) {
	f.Add("_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE")
	f.Add("_RNvNtCs1234_7mycrate3foo3bar")
	f.Add("_RC_") // was shown as nothing
	f.Fuzz(func(t *testing.T, name string) {
		if got := Demangle(name); name != "" && got == "" {
			t.Errorf("%q became empty", name)
		}
	})
}

// FuzzDebugInfo edits a library with debug information, up to four words anywhere. What is found may be wrong, never
// unbounded.
func FuzzDebugInfo(f *testing.F) {
	var images [][]byte
	var addrs []uint64
	for _, flags := range []string{"-O2 -g", "-O2 -g -gdwarf-4", "-O2 -g -gz=zlib"} {
		lib := build(f, "inlined.c", inlinedSmall, strings.Fields(flags)...)
		b, err := os.ReadFile(lib)
		if err != nil {
			f.Fatal(err)
		}
		images, addrs = append(images, b), append(addrs, addressOf(f, lib, "outer"))
		if n := open(f, lib).Names(addressOf(f, lib, "outer") + 8); len(n) == 0 || n[0].Line == 0 {
			f.Fatalf("%s: got %v", flags, n)
		}
	}
	f.Add(byte(0), []byte{}, uint16(8))
	f.Add(byte(1), []byte{40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, uint16(4))
	f.Fuzz(func(t *testing.T, which byte, edits []byte, off uint16) {
		i := int(which) % len(images)
		image := slices.Clone(images[i])
		for ; len(edits) >= 12; edits = edits[12:] {
			at := binary.LittleEndian.Uint32(edits) % uint32(len(image)-8)
			copy(image[at:], edits[4:12])
		}
		e, err := OpenBytes(image, "fuzz")
		if err != nil {
			return
		}
		for _, at := range []uint64{addrs[i] + uint64(off)%64, uint64(off)} {
			if n := e.Names(at); len(n) > maxInlineDepth {
				t.Fatalf("%d calls", len(n))
			}
		}
	})
}

// inlinedSmall has a call inlined into a function, in little debug information.
const inlinedSmall = `
int number(int);
static inline __attribute__((always_inline)) int inner(int n) { return number(n) + number(n + 1); }
int outer(int n) { int a = inner(n); { int b = inner(a); a += b; } return a; }
`

// FuzzDWARF fuzzes the sections themselves, so that debug/dwarf is reached at once.
func FuzzDWARF(f *testing.F) {
	lib := build(f, "inlined.c", inlinedSmall, "-O2", "-g")
	file, at := open(f, lib), addressOf(f, lib, "outer")
	get := func(name string) []byte { return file.Section(name).Data }
	f.Add(get(".debug_info"), get(".debug_abbrev"), get(".debug_line"))
	f.Fuzz(func(t *testing.T, info, abbrev, line []byte) {
		image := *file.Image
		image.Path, image.Sections = "fuzz", nil
		e := newFile(&image)
		for _, s := range file.Sections {
			switch s.Name {
			case ".debug_info":
				s.Data = info
			case ".debug_abbrev":
				s.Data = abbrev
			case ".debug_line":
				s.Data = line
			}
			e.Sections = append(e.Sections, s)
		}
		if n := e.Names(at + 8); len(n) > maxInlineDepth {
			t.Fatalf("%d calls", len(n))
		}
	})
}

// FuzzXZ unpacks anything, within the limit.
func FuzzXZ(f *testing.F) {
	for _, args := range [][]string{{}, {"--check=crc32", "--block-size=100"}, {"--check=none"}} {
		path := written(f, "text", bytes.Repeat([]byte("what is packed "), 50))
		output(f, "xz", append(args, path)...)
		b, err := os.ReadFile(path + ".xz")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, packed []byte) {
		const limit = 1 << 12
		if out, err := unxz(packed, limit); len(out) > limit || err != nil && out != nil {
			t.Fatalf("%d bytes, error %v", len(out), err)
		}
	})
}

// walkNoise unwinds from an address of a file, with registers and a stack that lead about in it.
func walkNoise(e *File, vaddr uint64) {
	const stack = 0x7000
	memory := &noise{base: stack}
	for i := range uint64(64) {
		memory.data = append(memory.data, [...]uint64{vaddr + i%3, stack + 8*i, i}[i%3])
	}
	var regs unwind.Registers
	for i := range regs {
		regs[i] = stack + 16*uint64(i)
	}
	regs[16] = vaddr
	u := unwind.Unwinder{Code: func(uint64) unwind.Code { return unwind.Code{Frames: e.Frames(), Exec: true} }, Stack: memory, Text: memory}
	u.Walk(regs, 100)
}

// noise is memory of 8-byte noise from an address on.
type noise struct {
	base uint64
	data []uint64
}

func (w *noise) ReadAt(b []byte, addr uint64) (int, error) {
	off, size := addr-w.base, uint64(len(w.data))*8
	if off > size || uint64(len(b)) > size-off {
		return 0, io.ErrUnexpectedEOF
	}
	for i := range b {
		at := off + uint64(i)
		b[i] = byte(w.data[at/8] >> (at % 8 * 8))
	}
	return len(b), nil
}
