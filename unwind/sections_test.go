// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/gputrace/gputrace/internal/elfimage"
)

// sectionMacros write .eh_frame by hand: what assemblers and linkers never make, or only of odd inputs. A cie has the usual
// state, an fde is of n bytes from a label and has its CFA at sp+off all along.
const sectionMacros = `
.macro cie label
.balign 8
\label: .long 2f-1f
1: .long 0
.byte 1
.string "zR"
.byte 1, 0x78, 16, 1, 0x1b, 0x0c, 7, 8, 0x90, 1
.balign 8
2:
.endm
.macro body cie from n off
1: .long 1b-\cie
.long .L\from-., \n
.byte 0, 0x0e, \off
.balign 8
2:
.endm
.macro fde cie from n off
.long 2f-1f
body \cie \from \n \off
.endm
.macro fde64 cie from n off
.long 0xffffffff
.quad 2f-1f
body \cie \from \n \off
.endm
.macro func name
.globl \name
.type \name, @function
\name: .L\name: .skip 16, 0x90
.size \name, 16
.endm
.text
func a
func b
func c
func d
func e
.section .eh_frame, "a", @progbits
`

// oddSections: want has the CFA's offset from sp in each of the functions a to e, 0 for no rule; the descriptions are known by
// that offset too.
var oddSections = []struct {
	name, Section string
	// grown and cut are changed when the file is there, because linkers refuse it: how many bytes a description covers, and how
	// long its record says that it is.
	grown, cut map[byte]uint32
	want       [5]int64
	bare       *[5]int64 // without section headers; nil: the same
	untold     bool      // without a table for the binary search there is an error
}{
	{
		name: "usual", want: [5]int64{16, 24, 32, 40, 48},
		Section: "cie x\n fde x a 16 16\n fde x b 16 24\n fde x c 16 32\n fde x d 16 40\n fde x e 16 48\n.long 0",
	},
	{
		name: "terminators in the middle", want: [5]int64{16, 24, 32, 0, 0}, bare: &[5]int64{16, 0, 0, 0, 0}, // ld makes no table
		Section: "cie x\n fde x a 16 16\n.long 0\n fde x b 16 24\n.long 0, 0\ncie y\n fde y c 16 32\n.long 0",
	},
	{
		name: "one cie for all, one for none", want: [5]int64{16, 0, 0, 0, 48},
		Section: "cie x\n cie y\n fde x e 16 48\n fde x a 16 16\n.long 0",
	},
	{
		name: "64-bit lengths", want: [5]int64{16, 24, 0, 40, 0},
		Section: "cie x\n fde64 x a 16 16\n fde x b 16 24\n fde64 x d 16 40\n.long 0",
	},
	{
		name: "no terminator", want: [5]int64{16, 24, 0, 0, 0},
		Section: "cie x\n fde x a 16 16\n fde x b 16 24",
	},
	{
		name: "one inside another", want: [5]int64{16, 24, 0, 0, 0}, grown: map[byte]uint32{16: 64},
		Section: "cie x\n fde x a 16 16\n fde x b 16 24\n.long 0",
	},
	{
		name: "one over the end of another", want: [5]int64{16, 24, 24, 0, 0}, grown: map[byte]uint32{16: 24, 24: 32},
		Section: "cie x\n fde x a 16 16\n fde x b 16 24\n.long 0",
	},
	{
		name: "a length that leads out", want: [5]int64{16, 0, 32, 40, 0}, cut: map[byte]uint32{24: 0x7ffffff0}, untold: true,
		Section: "cie x\n fde x a 16 16\n fde x b 16 24\n fde x c 16 32\n fde x d 16 40\n.long 0",
	},
	{
		name: "a length of zero", want: [5]int64{16, 0, 32, 40, 0}, cut: map[byte]uint32{24: 0}, untold: true,
		Section: "cie x\n fde x a 16 16\n fde x b 16 24\n fde x c 16 32\n fde x d 16 40\n.long 0",
	},
}

// buildOdd builds the file of a case and makes the changes.
func buildOdd(t *testing.T, i int, flags ...string) []byte {
	t.Helper()
	s := &oddSections[i]
	image, err := os.ReadFile(build(t, "odd.s", sectionMacros+s.Section+"\n", flags...))
	if err != nil {
		t.Fatal(err)
	}
	for off, n := range s.grown {
		binary.LittleEndian.PutUint32(image[lengthOf(t, image, off):], n)
	}
	for off, n := range s.cut {
		binary.LittleEndian.PutUint32(image[lengthOf(t, image, off)-12:], n) // length, id, start: 4 bytes each
	}
	return image
}

// lengthOf is where in a file the description with a CFA offset says how many bytes it covers.
func lengthOf(t *testing.T, image []byte, off byte) int {
	t.Helper()
	pattern := []byte{16, 0, 0, 0, 0, 0x0e, off}
	if n := bytes.Count(image, pattern); n != 1 {
		t.Fatalf("%d descriptions with offset %d", n, off)
	}
	return bytes.Index(image, pattern)
}

func TestOddSections(t *testing.T) {
	for i := range oddSections {
		s := &oddSections[i]
		t.Run(s.name, func(t *testing.T) {
			image := buildOdd(t, i)
			checkOdd(t, image, image, &s.want)
		})
		t.Run(s.name+", no table", func(t *testing.T) {
			image := buildOdd(t, i, "-Wl,--no-eh-frame-hdr")
			if !s.untold {
				checkOdd(t, image, image, &s.want)
			} else if table, err := open(t, written(t, "odd.so", image)).Frames().Table(); !errors.Is(err, elfimage.ErrFormat) {
				t.Errorf("table %v, error %v, want ErrFormat", table, err)
			}
		})
		t.Run(s.name+", no section headers", func(t *testing.T) {
			whole := buildOdd(t, i)
			image := bytes.Clone(whole)
			clear(image[40:48]) // e_shoff
			clear(image[60:64]) // e_shnum, e_shstrndx
			checkOdd(t, image, whole, cmp.Or(s.bare, &s.want))
		})
	}
}

// checkOdd compares the rules of an image with what is wanted of each function; whole has the symbols too.
func checkOdd(t *testing.T, image, whole []byte, want *[5]int64) {
	t.Helper()
	named := open(t, written(t, "whole.so", whole))
	f := open(t, written(t, "odd.so", image))
	table := tableOf(t, f)
	checkShape(t, table)
	for i, off := range want {
		rule := Rule(RuleNone)
		if off != 0 {
			rule = NewRule(RuleSP, off, SavedFP{})
		}
		at := mustFind(t, named, string(rune('a'+i)))
		for _, pc := range []uint64{at, at + 15} {
			if got := table.Lookup(pc); got != rule {
				t.Errorf("%c+%d: got %v, want %v", 'a'+i, pc-at, got, rule)
			}
		}
	}
}

// TestOverlapEqualsLibgcc asks the unwinder of the C++ runtime which description it takes at every address.
func TestOverlapEqualsLibgcc(t *testing.T) {
	for i := range oddSections {
		s := &oddSections[i]
		if s.grown == nil {
			continue
		}
		lib := written(t, "odd.so", buildOdd(t, i))
		f := open(t, lib)
		a := mustFind(t, f, "a")
		found := strings.Fields(output(t, "python3", "-c", findFDEs, lib))
		if len(found) != 80 {
			t.Fatalf("libgcc found %d addresses", len(found))
		}
		for i, line := range found {
			pc, want := a+uint64(i), line != "-1"
			start, _, ok := f.Frames().Bounds(pc)
			if has := tableOf(t, f).Lookup(pc) != Rule(RuleNone); has != want || ok != want {
				t.Errorf("%s, a+%d: rule %v, bounds %v, libgcc %s", s.name, i, has, ok, line)
			} else if ok && fmt.Sprint(start-a) != line {
				t.Errorf("%s, a+%d: got a+%d, libgcc a+%s", s.name, i, start-a, line)
			}
		}
	}
}

// findFDEs prints for each byte of the functions where the description that _Unwind_Find_FDE gives begins, from a on.
const findFDEs = `
import ctypes, sys
lib, gcc = ctypes.CDLL(sys.argv[1]), ctypes.CDLL('libgcc_s.so.1')
find = gcc._Unwind_Find_FDE
find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_void_p]
a = ctypes.cast(lib.a, ctypes.c_void_p).value
for pc in range(a, a + 80):
    bases = (ctypes.c_void_p * 3)()
    fde = find(pc, bases)
    print(bases[2] - a if fde else -1)
`
