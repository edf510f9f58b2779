// SPDX-License-Identifier: Apache-2.0

//go:build linux

package machinecode

import (
	"bufio"
	"debug/elf"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// needsArm64 returns a program of the tools for arm64.
func needsArm64(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath("aarch64-linux-gnu-" + name)
	if err != nil && os.Getenv("CI") != "true" {
		t.Skipf("no aarch64-linux-gnu-%s: it is in Debian's gcc-aarch64-linux-gnu", name)
	}
	require.NoError(t, err)
	return path
}

// forms are instructions of each kind, and those that look alike but do something else.
const forms = `
f: nop; bti c; paciasp; ret; retaa; br x3; blr x4; braa x3, sp; blraa x4, x5; b f; bl f; b.ne f; cbz x1, f; tbnz w2, #7, f; brk 1
svc 0; udf 0; adr x1, f; adrp x2, f; mov x3, 816; mov w4, 0x7fffffff; mov x5, -1; movk x6, 0x1234, lsl 32; mov x7, x8; mov w9, w10
mov x29, sp; mov sp, x11; add x12, x13, 0x220; add x14, x15, 8, lsl 12; sub sp, sp, 0x40; sub sp, sp, x10; add x1, sp, x2
sub x16, x17, 1; add w18, w19, 4; adds x20, x21, 5; add x22, x23, x24; add x25, x26, x27, lsl 3; add x28, x1, w2, uxtw; cmp x3, x4
cmp x5, 6; cmp w7, w8; cmn x9, 1; cset w10, ne; cset w11, eq; cset x12, ne; csel x13, x14, x15, ge; ccmp x16, x17, 0, eq
ccmp x16, 3, 0, eq; and x18, x19, 0xff; tst x20, 0xff; orr x21, x22, x23; mvn x24, x25; neg x26, x27; madd x1, x2, x3, x4
udiv x5, x6, x7; lsl x8, x9, 4; bfi w10, w11, 8, 8; ubfx x12, x13, 4, 4; extr x14, x15, x16, 3; clz x17, x18; rev x19, x20
mrs x1, tpidr_el0; msr tpidr_el0, x2; dmb ish; isb; ldr x1, [x2]; ldr x3, [sp, 152]; ldr x4, [x5, 0x7ff8]; ldr x6, [x7, x8]
ldr x9, [x10, x11, lsl 3]; ldr x12, [x13, w14, uxtw]; ldr w15, [x16, 8]; ldrb w17, [x18, 1]; ldrh w19, [x20, 2]; ldrsb w21, [x22]
ldrsw x23, [x24, 4]; ldr x25, [x26], 16; ldr x27, [x28, -16]!; ldur x1, [x2, -8]; ldr x3, f; ldr w4, f; ldrsw x5, f
prfm pldl1keep, [x6]; ldar x7, [x8]; ldxr x9, [x10]; stxr w11, x12, [x13]; stlr x14, [x15]; ldapr x1, [x2]; ldadd x16, x17, [x18]
swp x19, x20, [x21]; cas x22, x23, [x24]; ldaddal w25, w26, [x27]; casp x2, x3, x4, x5, [x6]; str x1, [x2]; str xzr, [x3, 8]
str w4, [x5, 4]; strb w6, [x7]; str x8, [sp, -32]!; str x9, [x10], 8; stur x11, [x12, -8]; str x13, [x14, x15]
ldp x1, x2, [x3, 16]; ldp x4, x5, [sp], 32; ldp x6, x7, [x8, -16]!; ldp w9, w10, [x11, 8]; ldpsw x12, x13, [x14]
ldnp x15, x16, [x17]; stp x29, x30, [sp, -80]!; stp x1, xzr, [x19, 16]; stp w2, w3, [x4]; stp q0, q1, [x2]; ldp d0, d1, [x3]
stp d2, d3, [sp, -16]!; ldr q3, [x2]; ldr d1, [x0, 584]; str q0, [x2]; str q3, [x20, 96]!; str s2, [x19, 216]; stur q0, [x19, 232]
ldr s4, [x5, x6]; ldr q1, f; ld1 {v0.16b}, [x1], 16; st1 {v0.16b, v1.16b}, [x2]; ld1r {v3.4s}, [x4]; fmov s2, 1.0; fmov x1, d0
fmov d0, x2; fcmp d0, d1; fcvtzs x3, d2; scvtf d3, x4; fadd d0, d1, d2; movi v0.4s, 0; umov w5, v1.s[1]; dup v2.4s, w6
smov x7, v3.b[2]; addv s0, v1.4s; fcvtzu w8, s1, 3; ins v0.d[1], x9; fcsel d0, d1, d2, eq
`

// armForms assembles them.
func armForms(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	source, object := filepath.Join(dir, "forms.s"), filepath.Join(dir, "forms.o")
	require.NoError(t, os.WriteFile(source, []byte(".arch armv8.5-a+lse\n"+forms), 0o600))
	out, err := exec.Command(needsArm64(t, "gcc"), "-c", "-o", object, source).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return object
}

// disassembled is a line of objdump's.
type disassembled struct {
	at   uint64
	word uint32
	name string
	args []string // without brackets, as "[sp", "#16]!"
}

var objdumpLine = regexp.MustCompile(`^ *([0-9a-f]+):\t([0-9a-f]{8}) \t(\S+)\t?([^/<]*)`)

func objdump(t testing.TB, file string) []disassembled {
	t.Helper()
	cmd := exec.Command(needsArm64(t, "objdump"), "-d", file)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var list []disassembled
	for s := bufio.NewScanner(out); s.Scan(); {
		m := objdumpLine.FindStringSubmatch(s.Text())
		if m == nil {
			continue
		}
		at, _ := strconv.ParseUint(m[1], 16, 64)
		word, _ := strconv.ParseUint(m[2], 16, 32)
		d := disassembled{at: at, word: uint32(word), name: m[3]}
		for arg := range strings.SplitSeq(m[4], ",") {
			d.args = append(d.args, strings.TrimSpace(arg))
		}
		list = append(list, d)
	}
	require.NoError(t, cmd.Wait())
	return list
}

// register reads x0 to x30, w0 to w30 and sp; 0 for anything else.
func register(s string) Reg {
	s = strings.Trim(s, "[]!")
	if s == "sp" || s == "wsp" {
		return armStack
	}
	n, err := strconv.Atoi(strings.TrimLeft(s, "xw"))
	if err != nil || s[0] != 'x' && s[0] != 'w' {
		return 0
	}
	return Reg(n) + 1
}

func is64(s string) bool { return strings.HasPrefix(s, "x") }

func (d *disassembled) arg(i int) string {
	if i < len(d.args) {
		return d.args[i]
	}
	return ""
}

// number reads "#0x10" and "#16]!", shifted as the next operand says; 0 if it is something else.
func (d *disassembled) number(i int) int64 {
	s := strings.Trim(d.arg(i), "#[]!")
	n, err := strconv.ParseInt(s, 0, 64)
	if err != nil {
		return 0
	}
	if shift, ok := strings.CutPrefix(d.arg(i+1), "lsl #"); ok {
		by, _ := strconv.Atoi(shift)
		n <<= by
	}
	return n
}

// target is an address without 0x.
func (d *disassembled) target(i int) uint64 {
	n, _ := strconv.ParseUint(strings.TrimSpace(d.arg(i)), 16, 64)
	return n
}

// memory is the operand that begins at an argument.
func (d *disassembled) memory(i, size int) Operand {
	o := Operand{Base: register(d.arg(i)), Size: size}
	switch {
	case strings.HasSuffix(d.arg(i), "]"): // also [x1], #16
	case register(d.arg(i+1)) != 0:
		o.Index = register(d.arg(i + 1))
		if d.arg(i+2) != "" {
			o.Size = 0
		}
	default:
		o.Offset = d.number(i + 1)
	}
	return o
}

// expected is what objdump says, of the instructions that are asked for; ok is false for the rest.
func (d *disassembled) expected() (i Inst, ok bool) {
	first, second := d.arg(0), d.arg(1)
	wide, literal := is64(first), !strings.HasPrefix(second, "[")
	switch d.name {
	case "ldr", "ldur":
		if !wide {
			return i, false
		}
		i = Inst{Op: Load, To: register(first), InMemory: true, Operand: d.memory(1, 8)}
		if literal {
			i.Operand = Operand{Offset: int64(d.target(1)), Size: 8}
		}
		return i, true
	case "str", "stur":
		return Inst{Op: Store, From: register(first), InMemory: true, Operand: d.memory(1, 8)}, wide
	case "ldp", "ldnp":
		return Inst{Op: Load, To: register(first), Second: register(second), InMemory: true, Operand: d.memory(2, 16)}, wide
	case "stp", "stnp":
		return Inst{Op: Store, From: register(first), Second: register(second), InMemory: true, Operand: d.memory(2, 16)}, wide
	case "add", "sub", "mov", "adr", "adrp", "cmp":
		return d.computed(wide || first == "sp")
	case "cset":
		return Inst{Op: SetNotEqual}, strings.HasPrefix(second, "ne")
	case "b":
		return Inst{Op: Jump, Target: d.target(0)}, true
	case "bl":
		return Inst{Op: Call, Target: d.target(0)}, true
	case "br", "braa":
		return Inst{Op: Jump, From: register(first)}, true
	case "blr", "blraa":
		return Inst{Op: Call, From: register(first)}, true
	case "ret", "retaa":
		return Inst{Op: Return}, true
	case "nop", "bti", "paciasp", "autiasp":
		return Inst{Op: Nop}, true
	case "brk":
		return Inst{Op: Trap}, true
	case "udf":
		return Inst{Op: Unknown}, true
	}
	return i, false
}

// computed is a result in a register of 64 bits.
func (d *disassembled) computed(wide bool) (i Inst, ok bool) {
	first, second, third := d.arg(0), d.arg(1), d.arg(2)
	switch {
	case d.name == "adr" || d.name == "adrp":
		return Inst{Op: Constant, To: register(first), Value: d.target(1)}, true
	case d.name == "cmp":
		return Inst{Op: Compare, From: register(first)}, wide
	case d.name == "mov" && strings.HasPrefix(second, "#"):
		value, err := strconv.ParseInt(strings.TrimPrefix(second, "#"), 0, 64)
		if err != nil {
			unsigned, _ := strconv.ParseUint(strings.TrimPrefix(second, "#"), 0, 64)
			value = int64(unsigned)
		}
		if !wide {
			value = int64(uint32(value))
		}
		return Inst{Op: Constant, To: register(first), Value: uint64(value)}, d.word>>23&7 == 5 // masks are not asked for
	case !wide:
		return i, false
	case d.name == "mov" && second == "xzr":
		return Inst{Op: Constant, To: register(first)}, true
	case d.name == "mov":
		return Inst{Op: Copy, To: register(first), From: register(second)}, register(second) != 0
	case strings.HasPrefix(third, "#"):
		offset := d.number(2)
		if d.name == "sub" {
			offset = -offset
		}
		if offset == 0 {
			return Inst{Op: Copy, To: register(first), From: register(second)}, true
		}
		return Inst{Op: Add, To: register(first), Operand: Operand{Base: register(second), Offset: offset}}, true
	}
	return Inst{Op: Add, To: register(first), Operand: Operand{Base: register(second), Index: register(third)}},
		d.name == "add" && d.arg(3) == "" && is64(third) && register(third) != 0 && first != "sp" && second != "sp" && register(second) != 0
}

// writesNothing are instructions whose first operand is a register that they do not write.
var writesNothing = regexp.MustCompile(`^(st[^xl].*|stlr.*|stllr.*|cmp|cmn|tst|ccmp|ccmn|cbn?z|tbn?z|b[r.].*|blr.*|ret|msr|prfm|` +
	`ldadd.*|cas.*|swp.*|st1|ld1.*)$`)

// compareWith compares each instruction of a file with what objdump says, and returns how many were compared in full.
func compareWith(t *testing.T, file string) (compared int) {
	t.Helper()
	for _, d := range objdump(t, file) {
		got := armDecode(d.word, d.at)
		if written := register(d.arg(0)); written != 0 && !writesNothing.MatchString(d.name) {
			require.True(t, got.Writes(written), "%x: %s %v", d.at, d.name, d.args)
		}
		want, ok := d.expected()
		if !ok {
			continue
		}
		compared++
		want.End, want.writes, want.stores = d.at+4, got.writes, got.stores
		require.Equal(t, want, got, "%x: %s %v", d.at, d.name, d.args)
		require.Equal(t, want.Op == Store, got.stores, "%x: %s %v", d.at, d.name, d.args)
	}
	return compared
}

// TestArm64Decode compares with objdump: instructions of all kinds, a program of ours and, where it has been fetched, PyTorch's library.
func TestArm64Decode(t *testing.T) {
	require.Greater(t, compareWith(t, armForms(t)), 50)
	require.Greater(t, compareWith(t, "../../../tracer/internal/program/image/program-arm64.elf"), 20)
	library := "../../../testdata/.work/arm64/site/torch/lib/libc10_cuda.so"
	if _, err := os.Stat(library); err == nil {
		n := compareWith(t, library)
		t.Logf("%d instructions of libc10_cuda.so", n)
		require.Greater(t, n, 50_000)
	}
}

// TestArm64Writes: what an instruction writes beside its first operand, and what it does not write.
func TestArm64Writes(t *testing.T) {
	const x0, x1, x16, x19, x30, sp = Reg(1), Reg(2), Reg(17), Reg(20), Reg(31), Reg(armStack)
	for _, c := range []struct {
		text    string
		word    uint32
		written []Reg
		kept    []Reg
	}{
		{"ldr x1, [x0], #16", 0xf8410401, []Reg{x0, x1}, []Reg{x19}},
		{"str x1, [x0, #-16]!", 0xf81f0c01, []Reg{x0}, []Reg{x1}},
		{"ldp x1, x0, [sp], #32", 0xa8c203e1, []Reg{x0, x1, sp}, []Reg{x19}},
		{"stp x1, x0, [sp, #-32]!", 0xa9be03e1, []Reg{sp}, []Reg{x0, x1}},
		{"stp q0, q1, [x0]", 0xad000400, nil, []Reg{x0, x1}},
		{"ldr q1, [x0]", 0x3dc00001, nil, []Reg{x0, x1}},
		{"ldr q1, [x0], #16", 0x3cc10401, []Reg{x0}, []Reg{x1}},
		{"movi v0.4s, #0", 0x4f000400, nil, []Reg{x0}},
		{"fmov x0, d1", 0x9e660020, []Reg{x0}, nil},
		{"fcmp d0, d1", 0x1e612000, nil, []Reg{x0, x1}},
		{"bl", 0x94000001, []Reg{x0, x1, x16, x30}, []Reg{x19, 29, 30, sp}},
		{"cmp x1, x0", 0xeb00003f, nil, []Reg{x0, x1, sp}},
		{"sub sp, sp, #64", 0xd10103ff, []Reg{sp}, []Reg{x0}},
		{"cas x0, x1, [sp]", 0xc8a07fe1, []Reg{x0}, nil},
		{"stxr w0, x1, [sp]", 0xc8007fe1, []Reg{x0}, []Reg{sp}},
		{"cbz x0", 0xb4000040, nil, []Reg{x0}},
		{"svc #0", 0xd4000001, []Reg{x0}, []Reg{x19}},
	} {
		inst := armDecode(c.word, 0)
		for _, r := range c.written {
			assert.True(t, inst.Writes(r), "%s writes %d", c.text, r)
		}
		for _, r := range c.kept {
			assert.False(t, inst.Writes(r), "%s keeps %d", c.text, r)
		}
	}
}

func armWords(words ...uint32) (code []byte) {
	for _, w := range words {
		code = binary.LittleEndian.AppendUint32(code, w)
	}
	return code
}

// TestArm64Addresses: an address that is put together of two instructions, and what ends that.
func TestArm64Addresses(t *testing.T) {
	m := For(elf.EM_AARCH64)
	// adrp x5, 0x2000; ldr x5, [x5, 4088]; add x5, x5, 0x7fc; blr x5
	const adrp, ldr, add, blr = 0xb0000005, 0xf947fca5, 0x911ff0a5, 0xd63f00a0
	last := func(words ...uint32) Inst {
		p := m.Decode(armWords(words...), 0x1000, len(words))
		return p[len(p)-1]
	}
	loaded := last(adrp, ldr)
	assert.Equal(t, Operand{Offset: 0x2ff8, Size: 8}, loaded.Operand)
	assert.True(t, loaded.InMemory)
	assert.Equal(t, uint64(0x27fc), last(adrp, add).Value)
	call := last(adrp, ldr, blr)
	assert.Equal(t, Operand{Offset: 0x2ff8, Size: 8}, call.Operand)
	copied := last(adrp, ldr, 0xaa0503f0, 0xd61f0200) // mov x16, x5; br x16
	assert.Equal(t, Jump, copied.Op)
	assert.Equal(t, Operand{Offset: 0x2ff8, Size: 8}, copied.Operand)
	for name, between := range map[string]uint32{"call": 0x94000001, "jump": 0x14000001, "return": 0xd65f03c0, "write": 0xaa0003e5} {
		after := last(adrp, between, ldr)
		assert.Equal(t, Reg(6), after.Base, name)
		after = last(adrp, ldr, between, blr)
		assert.False(t, after.InMemory, name)
	}
	assert.Equal(t, uint64(0x27fc), last(adrp, 0xb4000040, add).Value, "a condition does not end it")
}

func FuzzInstructions(f *testing.F) {
	f.Add([]byte{0x05, 0, 0, 0xb0, 0xa5, 0xfc, 0x47, 0xf9}, uint64(0x1000))
	f.Add([]byte{0x48, 0x8b, 0x05, 1, 2, 3, 4, 0xc3, 0xff, 0x15}, ^uint64(0))
	f.Fuzz(func(t *testing.T, code []byte, at uint64) {
		for _, m := range []*Machine{&x86, &arm64} {
			end := at
			for inst := range m.Instructions(code, at) {
				if inst.End-end == 0 || inst.End-at > uint64(len(code)) {
					t.Fatalf("an instruction from %#x to %#x", end, inst.End)
				}
				end = inst.End
			}
			p := m.Decode(code, at, len(code))
			for _, r := range append(m.Arguments, m.Result, m.Stack, m.Frame) {
				p.LoadOf(r)
			}
		}
	})
}
