// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"bytes"
	"debug/elf"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gputrace/gputrace/internal/elftest"
)

func TestCompiledFrames(t *testing.T) {
	for _, flags := range []string{
		"-O0", "-O2", "-O2 -fomit-frame-pointer", "-O2 -fno-omit-frame-pointer", "-O2 -mstackrealign",
		"-O3 -mavx2 -fcf-protection=full -Wl,-z,ibtplt", "-Os -fno-asynchronous-unwind-tables -funwind-tables",
	} {
		t.Run(strings.ReplaceAll(flags, " ", "_"), func(t *testing.T) {
			path := build(t, "call.c", elftest.CallC, strings.Fields(flags)...)
			table := tableOf(t, open(t, path))
			checkShape(t, table)
			if c := compare(t, table, readelfFrames(t, path)); c.points < 8 {
				t.Errorf("only %d points compared", c.points)
			}
		})
	}
}

// TestExpressions checks what readelf's interpretation shows as "exp" against the expressions that it prints raw.
func TestExpressions(t *testing.T) {
	const plt = `breg7 \(rsp\): (8); DW_OP_breg16 \(rip\): 0; DW_OP_lit15; DW_OP_and; DW_OP_lit(\d+); DW_OP_ge; DW_OP_lit3; DW_OP_shl; ` +
		`DW_OP_plus\)`
	for _, c := range []struct{ flags, raw, want string }{
		{"-O2", plt, "sp+$1, +8 from byte $2"},
		{"-O2 -fcf-protection=full -Wl,-z,ibtplt", plt, "sp+$1, +8 from byte $2"},
		{"-O2", `(?s)r6 \(rbp\) \(DW_OP_breg6 \(rbp\): (0)\).{0,90}def_cfa_expression \(DW_OP_breg6 \(rbp\): (-\d+); DW_OP_deref\)`,
			"*fp$2 fp=*(fp+$1)"},
	} {
		t.Run(c.flags+c.want, func(t *testing.T) {
			path := build(t, "call.c", elftest.CallC, append(strings.Fields(c.flags), "-Wl,-z,lazy")...)
			raw := output(t, "readelf", "-W", "--debug-dump=no-follow-links", "--debug-dump=frames", path)
			re := regexp.MustCompile(c.raw)
			found := re.FindStringSubmatchIndex(raw)
			if found == nil {
				t.Fatalf("the compiler did not make %q:\n%s", c.raw, raw)
			}
			want := string(re.ExpandString(nil, c.want, raw, found))
			if got := rules(tableOf(t, open(t, path))); !slices.Contains(got, want) {
				t.Errorf("got %q, want %q among them", got, want)
			}
		})
	}
}

func rules(t *Table) (s []string) {
	for _, r := range t.Rules {
		s = append(s, Rule(r).String())
	}
	return s
}

// asmRow is a function of one instruction: what its directives are to give.
type asmRow struct {
	name, cfi string
	want      Rule
}

var asmRows = []asmRow{
	{"plain", "", NewRule(RuleSP, 8, SavedFP{})},
	{"fp", ".cfi_def_cfa rbp, 16\n.cfi_offset rbp, -16", NewRule(RuleFP, 16, SavedFP{FPAtCFA, -16})},
	{"same_value", ".cfi_offset rbp, -16\n.cfi_same_value rbp", NewRule(RuleSP, 8, SavedFP{})},
	{"fp_undefined", ".cfi_undefined rbp", NewRule(RuleSP, 8, SavedFP{})},
	{"fp_restore", ".cfi_offset rbp, -16\n.cfi_restore rbp", NewRule(RuleSP, 8, SavedFP{})},
	{"fp_register", ".cfi_register rbp, rbx", Rule(RuleUnsupported)},
	{"remember", ".cfi_remember_state\n.cfi_def_cfa rbp, 16\n.cfi_restore_state", NewRule(RuleSP, 8, SavedFP{})},
	{"remembered", ".cfi_def_cfa_offset 32\n.cfi_remember_state\n.cfi_def_cfa_offset 8\n.cfi_restore_state",
		NewRule(RuleSP, 32, SavedFP{})},
	{"nested", ".cfi_def_cfa_offset 32\n.cfi_remember_state\n.cfi_def_cfa_offset 40\n.cfi_remember_state\n" +
		".cfi_def_cfa_offset 8\n.cfi_restore_state\n.cfi_restore_state", NewRule(RuleSP, 32, SavedFP{})},
	{"restore_without", ".cfi_escape 0x0b", Rule(RuleUnsupported)},
	{"unassigned", ".cfi_escape 0x3f", Rule(RuleUnsupported)},
	{"cut_off", ".cfi_escape 0x0f, 0x7f", Rule(RuleUnsupported)},
	{"args_size", ".cfi_escape 0x2e, 0x10", NewRule(RuleSP, 8, SavedFP{})},
	{"val_offset", ".cfi_val_offset rbp, -16", Rule(RuleUnsupported)},
	{"val_expression", ".cfi_escape 0x16, 6, 2, 0x76, 0", Rule(RuleUnsupported)},
	{"rbx_ignored", ".cfi_escape 0x16, 3, 2, 0x76, 0", NewRule(RuleSP, 8, SavedFP{})},
	{"def_cfa_sf", ".cfi_escape 0x12, 6, 0x7c", NewRule(RuleFP, 32, SavedFP{})}, // -4 times -8
	{"def_cfa_offset_sf", ".cfi_escape 0x13, 0x7c", NewRule(RuleSP, 32, SavedFP{})},
	{"offset_extended", ".cfi_escape 5, 6, 3", NewRule(RuleSP, 8, SavedFP{FPAtCFA, -24})},
	{"offset_extended_sf", ".cfi_escape 0x11, 6, 0x7d", NewRule(RuleSP, 8, SavedFP{FPAtCFA, 24})},
	{"negative_offset_extended", ".cfi_escape 0x2f, 6, 3", NewRule(RuleSP, 8, SavedFP{FPAtCFA, 24})},
	{"restore_extended", ".cfi_escape 5, 6, 3, 6, 6", NewRule(RuleSP, 8, SavedFP{})},
	{"padded_uleb", ".cfi_escape 0x0e, 0x90, 0x80, 0", NewRule(RuleSP, 16, SavedFP{})},
	{"end", ".cfi_undefined rip", Rule(RuleEnd)},
	{"end_whatever", ".cfi_undefined rip\n.cfi_def_cfa r10, 0", Rule(RuleEnd)},
	{"ra_register", ".cfi_register rip, rdi", Rule(RuleUnsupported)},
	{"ra_same", ".cfi_same_value rip", Rule(RuleUnsupported)},
	{"ra_elsewhere", ".cfi_offset rip, -16", Rule(RuleUnsupported)},
	{"cfa_r10", ".cfi_def_cfa r10, 0", Rule(RuleUnsupported)},
	{"largest", ".cfi_def_cfa_offset 0x7fffff", NewRule(RuleSP, 0x7fffff, SavedFP{})},
	{"too_large", ".cfi_def_cfa_offset 0x800000", Rule(RuleUnsupported)},
	{"smallest", ".cfi_def_cfa_offset -0x800000", NewRule(RuleSP, -0x800000, SavedFP{})},
	{"too_small", ".cfi_def_cfa_offset -0x800008", Rule(RuleUnsupported)},
	{"deref_fp", ".cfi_escape 0x0f, 3, 0x76, 0x78, 6, 0x10, 6, 2, 0x76, 0", NewRule(RuleDerefFP, -8, SavedFP{FPAtFP, 0})},
	{"deref_sp", ".cfi_escape 0x0f, 3, 0x77, 0x10, 6", NewRule(RuleDerefSP, 16, SavedFP{})},
	{"deref_other", ".cfi_escape 0x0f, 3, 0x7a, 0x10, 6", Rule(RuleUnsupported)},
	{"deref_twice", ".cfi_escape 0x0f, 4, 0x76, 0x78, 6, 6", Rule(RuleUnsupported)},
	{"deref_replaced", ".cfi_escape 0x0f, 3, 0x76, 0x78, 6\n.cfi_def_cfa rsp, 24", NewRule(RuleSP, 24, SavedFP{})},
	{"fp_at_fp", ".cfi_def_cfa rbp, 16\n.cfi_escape 0x10, 6, 2, 0x76, 0x78", NewRule(RuleFP, 16, SavedFP{FPAtFP, -8})},
	{"fp_at_sp", ".cfi_def_cfa_offset 32\n.cfi_escape 0x10, 6, 2, 0x77, 8", NewRule(RuleSP, 32, SavedFP{FPAtCFA, -24})},
	{"fp_at_sp_unknown", ".cfi_def_cfa rbp, 16\n.cfi_escape 0x10, 6, 2, 0x77, 8", Rule(RuleUnsupported)},
	{"plt_odd_mask", ".cfi_escape 0x0f, 11, 0x77, 8, 0x80, 0, 0x37, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22", Rule(RuleUnsupported)},
	{"signal_elsewhere", ".cfi_signal_frame\n.cfi_def_cfa_offset 16", Rule(RuleUnsupported)},
}

func (r *asmRow) source() string {
	return fmt.Sprintf(".globl %s\n.type %[1]s, @function\n%[1]s:\n.cfi_startproc\n%s\nnop\n.cfi_endproc\n"+
		".size %[1]s, .-%[1]s\nud2\n", r.name, strings.NewReplacer("rbp", "%rbp", "rsp", "%rsp", "rip", "%rip",
		"rbx", "%rbx", "rdi", "%rdi", "r10", "%r10").Replace(r.cfi))
}

// TestInstructions asserts one rule for each instruction and form; "ud2" behind each function must have none.
func TestInstructions(t *testing.T) {
	var src strings.Builder
	for i := range asmRows {
		src.WriteString(asmRows[i].source())
	}
	path := build(t, "rows.s", src.String())
	f := open(t, path)
	table := tableOf(t, f)
	checkShape(t, table)
	for _, r := range asmRows {
		sym, ok := f.Find(r.name)
		if !ok || sym.Size != 1 {
			t.Fatalf("%s: %+v", r.name, sym)
		}
		if got := table.Lookup(sym.Addr); got != r.want {
			t.Errorf("%s: got %v, want %v", r.name, got, r.want)
		}
		if got := table.Lookup(sym.Addr + 1); got != Rule(RuleNone) {
			t.Errorf("%s: got %v behind it", r.name, got)
		}
	}
}

// TestAdvance has one long function: a row at each kind of advance, two at one place, adjacent functions without a gap.
func TestAdvance(t *testing.T) {
	path := build(t, "advance.s", `
.globl first
.type first, @function
first:
.cfi_startproc
.skip 1
.cfi_def_cfa_offset 16
.skip 60
.cfi_def_cfa_offset 24
.skip 200
.cfi_def_cfa_offset 999
.cfi_def_cfa_offset 32
.skip 60000
.cfi_def_cfa_offset 40
.skip 70000
.cfi_def_cfa_offset 48
.skip 1
.cfi_endproc
.cfi_startproc
.cfi_def_cfa_offset 48
.skip 1
.cfi_endproc
`)
	f := open(t, path)
	first, _ := f.Find("first")
	want := []struct{ off, cfa uint64 }{{0, 8}, {1, 16}, {61, 24}, {261, 32}, {60261, 40}, {130261, 48}, {130263, 0}}
	table := tableOf(t, f)
	if len(table.Rows) != len(want) {
		t.Fatalf("%d rows, want %d: %x", len(table.Rows), len(want), table.Rows)
	}
	for i, w := range want {
		rule := NewRule(RuleSP, int64(w.cfa), SavedFP{})
		if w.cfa == 0 {
			rule = Rule(RuleNone)
		}
		if pc := uint64(uint32(table.Rows[i])); pc != first.Addr+w.off || rowRule(table, i) != rule {
			t.Errorf("row %d: %#x %v, want %#x %v", i, pc, rowRule(table, i), first.Addr+w.off, rule)
		}
	}
}

var trampolineCode = []byte{0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05}

// TestSignalFrame looks at libc's own trampoline, and at one whose description does not begin early: a return address is
// looked up at the byte before it.
func TestSignalFrame(t *testing.T) {
	const early = `
.skip 16
.globl %s
.type %[1]s, @function
%[1]s:
.cfi_startproc simple
.cfi_signal_frame
.cfi_escape 0x0f, 4, 0x77, 0xa0, 1, 6
.cfi_escape 0x10, 16, 3, 0x77, 0xa8, 1
mov $15, %%rax
syscall
.cfi_endproc
`
	for name, path := range map[string]string{
		"libc": strings.TrimSpace(output(t, "gcc", "-print-file-name=libc.so.6")),
		"ours": build(t, "signal.s", fmt.Sprintf(early, "restore")),
	} {
		t.Run(name, func(t *testing.T) {
			table := tableOf(t, open(t, path))
			vaddr := findCode(t, path, trampolineCode)
			for _, at := range []uint64{vaddr - 1, vaddr, vaddr + 7} {
				if got := table.Lookup(at); got.Kind() != RuleSignal {
					t.Errorf("trampoline at %#x: got %v at %#x", vaddr, got, at)
				}
			}
			if got := table.Lookup(vaddr - 2); got.Kind() == RuleSignal {
				t.Errorf("trampoline at %#x: got %v two bytes before", vaddr, got)
			}
		})
	}
}

// findCode finds bytes in .text with the standard library's reader.
func findCode(t *testing.T, path string, code []byte) uint64 {
	t.Helper()
	e, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	text := e.Section(".text")
	b, err := text.Data()
	i := bytes.Index(b, code)
	if err != nil || i < 0 {
		t.Fatalf("%s: code %x not found: %v", path, code, err)
	}
	return text.Addr + uint64(i)
}

func TestFunctionBoundsEqualReadelf(t *testing.T) {
	for _, path := range libraries(t)[:3] {
		f := open(t, path)
		frames := readelfFrames(t, path)
		for i, fr := range frames {
			for _, at := range []uint64{fr.start, fr.end - 1} {
				if start, end, ok := f.Frames().Bounds(at); !ok || start != fr.start || end != fr.end {
					t.Fatalf("%s, %#x: got %#x to %#x, %v, want %#x to %#x", path, at, start, end, ok, fr.start, fr.end)
				}
			}
			if i+1 < len(frames) && frames[i+1].start > fr.end {
				if start, end, ok := f.Frames().Bounds(fr.end); ok {
					t.Fatalf("%s, %#x: got %#x to %#x, want none", path, fr.end, start, end)
				}
			}
		}
	}
}
