// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"debug/elf"
	"os"
	"strings"
	"testing"

	"github.com/gputrace/gputrace/internal/elfimage"
	"github.com/gputrace/gputrace/internal/elftest"
)

// FuzzUnwind walks the stack that the bytes are, in a library of every form of description.
func FuzzUnwind(f *testing.F) {
	var source strings.Builder
	for i := range asmRows {
		source.WriteString(asmRows[i].source())
	}
	file := open(f, build(f, "rows.s", source.String()))
	var pcs []uint64
	for i := range asmRows {
		sym, _ := file.Find(asmRows[i].name)
		pcs = append(pcs, sym.Addr)
	}
	const stack = 0x7000
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7}, []byte{8, 9, 10}, uint8(3))
	f.Fuzz(func(t *testing.T, registers, memory []byte, at uint8) {
		image := &words{base: stack} // each byte of memory is an address in it, or of a function
		for _, b := range memory {
			if b < 128 {
				image.data = append(image.data, pcs[int(b)%len(pcs)]+1)
			} else {
				image.data = append(image.data, stack+8*uint64(b-128))
			}
		}
		regs := Registers{16: pcs[int(at)%len(pcs)], 7: stack}
		for i, b := range registers[:min(len(registers), 16)] {
			regs[i] = stack + 8*uint64(b)
		}
		code := func(uint64) Code { return Code{Frames: file.Frames(), Exec: true} }
		u := Unwinder{Machine: elf.EM_X86_64, Code: code, Stack: image, Text: image}
		if frames, _ := u.Walk(regs, 50); len(frames) == 0 || len(frames) > 50 {
			t.Fatalf("%d frames", len(frames))
		}
	})
}

// FuzzEvaluate fuzzes the expression itself.
func FuzzEvaluate(f *testing.F) {
	f.Add([]byte{0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22}, uint64(1))
	f.Add([]byte{0x30, 0x3a, 0x16, 0x31, 0x22, 0x16, 0x31, 0x1c, 0x12, 0x28, 0xf6, 0xff, 0x13}, uint64(1))
	f.Fuzz(func(t *testing.T, expr []byte, cfa uint64) {
		regs := &registerValues{lost: cfa}
		if v, err := evaluate(expr, regs, &words{0, make([]uint64, 64)}, cfa); err != nil && v != 0 {
			t.Fatalf("%d beside %v", v, err)
		}
	})
}

// FuzzFrames fuzzes the section itself, so that the instructions are reached at once. The first seed is what a compiler
// writes.
func FuzzFrames(f *testing.F) {
	file := open(f, build(f, "call.c", elftest.CallC, "-O2", "-Wl,-z,lazy"))
	sec, err := file.Frames().frameSection()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(sec.data)
	f.Add(open(f, build(f, "rows.s", asmRows[8].source()+asmRows[20].source())).Section(".eh_frame").Data)
	f.Fuzz(func(t *testing.T, data []byte) {
		s := *sec
		s.data = data
		table, err := file.Frames().buildTable(&s)
		if err != nil || table == nil {
			return
		}
		checkShape(t, table)
		frames, err := file.Frames().scanFrames(&s)
		if err != nil {
			t.Fatal(err)
		}
		for _, fr := range frames {
			s.fullRules(fr, uint64(fr.end-1))
		}
	})
}

// FuzzObject takes an object as it is.
func FuzzObject(f *testing.F) {
	for _, flags := range []string{"-Wl,-z,lazy", "-Wl,-s"} {
		b, err := os.ReadFile(build(f, "call.c", elftest.CallC, "-O2", flags, "-Wl,-z,noseparate-code"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, uint64(0x300))
	}
	f.Fuzz(func(t *testing.T, object []byte, vaddr uint64) {
		image, err := elfimage.New(object, "fuzz")
		if err != nil {
			return
		}
		frames := &Frames{Image: image}
		table, err := frames.Table()
		if err != nil && table != nil {
			t.Fatal("a table beside an error")
		}
		if table != nil {
			checkShape(t, table)
			table.Lookup(vaddr)
		}
		if start, end, ok := frames.Bounds(vaddr); ok && (vaddr < start || vaddr >= end) {
			t.Fatalf("%#x from %#x to %#x", vaddr, start, end)
		}
	})
}
