package symbolize

import (
	"encoding/binary"
	"os"
	"testing"
)

// FuzzFile edits a small real file: up to four words anywhere, and its length. Nothing may panic, hang, or break what
// Table and SymbolAt promise.
func FuzzFile(f *testing.F) {
	var images [][]byte
	for _, path := range []string{
		build(f, "call.c", callC, "-O2", "-Wl,-z,lazy"),
		build(f, "rows.s", asmRows[1].source()+asmRows[6].source()+asmRows[33].source()),
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
	table, err := e.UnwindTable()
	if err != nil && table != nil {
		t.Fatal("a table beside an error")
	}
	if table != nil {
		checkShape(t, table)
		table.Lookup(vaddr)
	}
	for i := range min(2, e.tables()[1].count()) {
		vaddr ^= e.tables()[1].symbol(i).addr
	}
	if s, ok := e.SymbolAt(vaddr); ok && (s.Addr > vaddr || s.Size != 0 && vaddr-s.Addr >= s.Size) {
		t.Fatalf("%#x in %+v", vaddr, s)
	}
	if start, end, ok := e.FunctionBounds(vaddr); ok && (vaddr < start || vaddr >= end) {
		t.Fatalf("%#x from %#x to %#x", vaddr, start, end)
	}
	e.Find("plain")
	e.FindPrefix("re")
	e.Text(vaddr, 16)
	e.FileOffset(vaddr)
	e.Bias(vaddr, vaddr&0xffff)
}

// FuzzFrames gives the section itself, so that the instructions are reached at once. The first seed is what a compiler
// writes.
func FuzzFrames(f *testing.F) {
	file := open(f, build(f, "call.c", callC, "-O2", "-Wl,-z,lazy"))
	sec, err := file.frameSection()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(sec.data)
	f.Add(open(f, build(f, "rows.s", asmRows[8].source()+asmRows[20].source())).section(".eh_frame").data)
	f.Fuzz(func(t *testing.T, data []byte) {
		s := *sec
		s.data = data
		table, err := file.buildTable(&s)
		if err == nil && table != nil {
			checkShape(t, table)
		}
	})
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
