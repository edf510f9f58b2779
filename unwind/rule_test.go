// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/gputrace/gputrace/internal/elfimage"
)

// TestRuleFields packs and unpacks the edges of every field.
func TestRuleFields(t *testing.T) {
	const least, most = -1 << 23, 1<<23 - 1
	for _, kind := range []RuleKind{RuleSP, RuleFP, RuleDerefFP, RuleDerefSP} {
		for _, off := range []int64{least, -1, 0, 1, most} {
			for _, fp := range []SavedFP{{}, {FPAtCFA, least}, {FPAtCFA, most}, {FPAtFP, -1}, {FPAtFP, 0}} {
				r := NewRule(kind, off, fp)
				if r.Kind() != kind || r.Offset() != off || r.FP() != fp {
					t.Errorf("%v %d %v: got %v %d %v", kind, off, fp, r.Kind(), r.Offset(), r.FP())
				}
			}
		}
	}
	for _, off := range []int64{least - 1, most + 1} {
		if r := NewRule(RuleSP, off, SavedFP{}); r != Rule(RuleUnsupported) {
			t.Errorf("offset %d: got %v", off, r)
		}
		if r := NewRule(RuleSP, 8, SavedFP{FPAtCFA, off}); r != Rule(RuleUnsupported) {
			t.Errorf("frame pointer at %d: got %v", off, r)
		}
	}
	r := NewPLTRule(8, 11, 8)
	if c, a := r.PLT(); r.Kind() != RulePLT || r.Offset() != 8 || c != 11 || a != 8 {
		t.Errorf("got %v, %d, %d, %d", r.Kind(), r.Offset(), c, a)
	}
	// The kernel reads these bits; the numbers are from the drawing.
	if got := NewRule(RuleFP, 16, SavedFP{FPAtCFA, -16}); uint64(got) != 0x00_fffff0_000010_12 {
		t.Errorf("got %#x", uint64(got))
	}
	if got := NewRule(RuleDerefFP, -8, SavedFP{FPAtFP, 0}); uint64(got) != 0x00_000000_fffff8_24 {
		t.Errorf("got %#x", uint64(got))
	}
	if got := NewPLTRule(8, 11, 8); uint64(got) != 0x00_00080b_000008_03 {
		t.Errorf("got %#x", uint64(got))
	}
}

func TestNoUnwindData(t *testing.T) {
	f := open(t, build(t, "none.s", ".globl f\n.type f, @function\nf: nop\n.size f, 1"))
	if table, err := f.Frames().Table(); table != nil || err != nil {
		t.Errorf("table %v, error %v", table, err)
	}
	if r := (*Table)(nil).Lookup(0); r != Rule(RuleNone) {
		t.Errorf("rule %v", r)
	}
}

// TestHighCode has code at 4 GiB: rows cannot hold it.
func TestHighCode(t *testing.T) {
	path := build(t, "high.s", ".globl f\nf:\n.cfi_startproc\nnop\n.cfi_endproc", "-Wl,-Ttext-segment=0x100000000")
	if table, err := open(t, path).Frames().Table(); !errors.Is(err, elfimage.ErrFormat) {
		t.Errorf("table %v, error %v, want ErrFormat", table, err)
	}
}

func TestOtherMachine(t *testing.T) {
	b, err := os.ReadFile(libc(t))
	if err != nil {
		t.Fatal(err)
	}
	binary.LittleEndian.PutUint16(b[18:], uint16(elf.EM_RISCV))
	image, err := elfimage.New(b, "riscv")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (&Frames{Image: image}).Table(); !errors.Is(err, elfimage.ErrFormat) || !strings.Contains(err.Error(), "EM_RISCV") {
		t.Errorf("error %v", err)
	}
}
