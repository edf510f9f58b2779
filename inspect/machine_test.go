// SPDX-License-Identifier: Apache-2.0

//go:build linux

package inspect

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/inspect/internal/machinecode"
	"github.com/gputrace/gputrace/symbolize"
)

// functions makes a library with an exported function f0, f1, ... for each body.
func (a *assembler) functions(t testing.TB, data string, bodies ...string) *symbolize.File {
	t.Helper()
	var b strings.Builder
	for i, body := range bodies {
		fmt.Fprintf(&b, ".globl f%[1]d\n.type f%[1]d,%%function\nf%[1]d: .cfi_startproc\n%[2]s\n.cfi_endproc\n.size f%[1]d,.-f%[1]d\n", i, body)
	}
	return a.link(t, b.String()+data)
}

func addressOf(t testing.TB, f *symbolize.File, name string) uint64 {
	t.Helper()
	s, ok := f.Find(name)
	require.True(t, ok, name)
	return s.Addr
}

// initialized is the virtual function that says whether there are devices, in the wheels and in other forms, and what looks like it.
var initialized = []struct {
	a    *assembler
	code string
	want uint64 // 0: it is not it
}{
	{&assemblerX86, "mov 0x5838(%rdi),%rax; cmp %rax,0x5840(%rdi); setne %al; ret", 0x5838},
	{&assemblerX86, "endbr64; mov 0x5840(%rdi),%rax; cmp %rax,0x5838(%rdi); setne %al; ret", 0x5838},
	{&assemblerX86, "mov 0x5838(%rdi),%rax; cmp %rax,0x5840(%rdi); sete %al; ret", 0},
	{&assemblerX86, "mov 0x5838(%rdi),%rax; cmp %rax,0x5848(%rdi); setne %al; ret", 0},
	{&assemblerX86, "mov 0x5838(%rdi),%eax; cmp %eax,0x5840(%rdi); setne %al; ret", 0},
	{&assemblerX86, "mov 0x5838(%rsi),%rax; cmp %rax,0x5840(%rsi); setne %al; ret", 0},
	{&assemblerX86, "mov 0x5838(%rdi),%rax; cmp %rax,0x5840(%rdi); setne %al; nop; push %rax; ret", 0},
	{&assemblerArm64, "add x0, x0, 8, lsl 12; ldr x1, [x0, 2880]; ldr x0, [x0, 2888]; cmp x1, x0; cset w0, ne; ret", 0x8b40},
	{&assemblerArm64, "bti c; ldr x1, [x0, 2888]; ldr x0, [x0, 2880]; cmp x1, x0; cset w0, ne; ret", 0xb40},
	{&assemblerArm64, "add x0, x0, 0xb40; ldp x1, x0, [x0]; cmp x1, x0; cset w0, ne; ret", 0xb40},
	{&assemblerArm64, "ldr x1, [x0, 2880]; ldr x0, [x0, 2888]; cmp x1, x0; cset w0, eq; ret", 0},
	{&assemblerArm64, "ldr x1, [x0, 2880]; ldr x0, [x0, 2896]; cmp x1, x0; cset w0, ne; ret", 0},
	{&assemblerArm64, "ldr w1, [x0, 2880]; ldr w0, [x0, 2884]; cmp w1, w0; cset w0, ne; ret", 0},
	{&assemblerArm64, "ldr x1, [x2, 2880]; ldr x0, [x2, 2888]; cmp x1, x0; cset w0, ne; ret", 0},
	{&assemblerArm64, "ldr x1, [x0, 2880]; ldr x0, [x0, 2888]; cmp x1, x0; ret", 0},
	{&assemblerArm64, "ldr x1, [x0]; ldr x0, [x0, 8]; cmp x1, x0; cset w0, ne; ret", 0}, // there is its table
}

func TestNotEmpty(t *testing.T) {
	for _, c := range initialized {
		t.Run(c.a.gcc+"/"+c.code, func(t *testing.T) {
			f := c.a.functions(t, "", c.code)
			code, ok := f.Text(addressOf(t, f, "f0"), 32)
			require.True(t, ok)
			got, ok := notEmpty(machinecode.For(f.Machine()), code)
			assert.Equal(t, c.want != 0, ok)
			if ok {
				assert.Equal(t, c.want, got)
			}
		})
	}
}

// TestPairsOfArm64: both words of a list, by two loads or by one of two.
func TestPairsOfArm64(t *testing.T) {
	f := assemblerArm64.functions(t, ".bss\n.balign 64\n.globl list\n.hidden list\n.type list,%object\nlist: .zero 24\n",
		"adrp x0, list; ldr x1, [x0, :lo12:list]; add x0, x0, :lo12:list; ldr x2, [x0, 8]; ret",
		"adrp x0, list; add x0, x0, :lo12:list; ldp x1, x2, [x0]; ret",
		"adrp x0, list; ldr w1, [x0, :lo12:list]; add x0, x0, :lo12:list; ldr w2, [x0, 8]; ret",
		"adrp x0, list; ldr x1, [x0, :lo12:list]; b 1f; 1: add x0, x0, :lo12:list; ldr x2, [x0, 8]; ret")
	for i, want := range [][]uint64{{addressOf(t, f, "list")}, {addressOf(t, f, "list")}, nil, nil} {
		assert.Equal(t, want, pairsOf(f, addressOf(t, f, fmt.Sprint("f", i))), i)
	}
}

// indexData is the words of a thread-local variable, and of another one.
const indexData = ".data\n.balign 16\n.globl index\n.hidden index\n.type index,%object\nguard: .quad 3,4\nindex: .quad 1,2\n"

// words8 is memory of 8-byte words; what is not there is 0.
type words8 map[uint64]uint64

func (w words8) ReadAt(b []byte, addr uint64) (int, error) {
	for i := 0; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], w[addr+uint64(i)])
	}
	return len(b), nil
}

// accessorForms are functions that return a thread-local variable, or its address, from PyTorch's wheels and in other forms. offset is
// what they add to what the loader knows; a negative one: nothing is found.
var accessorForms = []struct {
	a          *assembler
	code       string
	offset     int64
	isAddress  bool
	descriptor bool
}{
	{&assemblerX86, "sub $8,%rsp; lea index(%rip),%rdi; call tls@plt; mov 0x38(%rax),%rax; add $8,%rsp; ret", 0x38, false, false},
	{&assemblerX86, "push %rbx; lea index(%rip),%rdi; call tls@plt; add $0x40,%rax; pop %rbx; ret", 0x40, true, false},
	{&assemblerX86, "push %rbx; lea index(%rip),%rdi; pop %rbx; ret", -1, false, false},
	{&assemblerArm64, "stp x29, x30, [sp, -16]!; mrs x1, tpidr_el0; mov x29, sp; " + descriptorCall + "ldr x0, [x1, x0]; " +
		"ldp x29, x30, [sp], 16; ret", 0, false, true},
	{&assemblerArm64, "mrs x1, tpidr_el0; " + descriptorCall + "str x19, [sp, 16]; add x19, x1, x0; ldr x0, [x1, x0]; cbz x0, 1f; 1: ret",
		0, false, true},
	{&assemblerArm64, "mrs x1, tpidr_el0; " + descriptorCall + "add x0, x1, x0; ret", 0, true, true},
	{&assemblerArm64, "mrs x1, tpidr_el0; " + descriptorCall + "add x0, x0, x1; ldr x0, [x0, 24]; ret", 24, false, true},
	{&assemblerArm64, "mrs x1, tpidr_el0; " + descriptorCall + "add x0, x0, x1; add x0, x0, 24; ret", 24, true, true},
	// The first variable says whether the second has been initialised.
	{&assemblerArm64, "mrs x19, tpidr_el0; adrp x0, guard; ldr x1, [x0, :lo12:guard]; add x0, x0, :lo12:guard; blr x1; add x3, x19, x0; " +
		"ldr x0, [x19, x0]; tbz w0, 0, 1f; " + descriptorCall + "add x0, x19, x0; ldr x19, [sp, 16]; 1: ret", 0, true, true},
	{&assemblerArm64, "stp x29, x30, [sp, -16]!; adrp x0, index; add x0, x0, :lo12:index; bl tls; ldr x0, [x0, 56]; ret", 56, false, false},
	{&assemblerArm64, "mrs x1, tpidr_el0; " + descriptorCall + "add x3, x1, x0; mov x0, 1; ret", -1, true, true},
	{&assemblerArm64, "mrs x1, tpidr_el0; " + descriptorCall + "add x0, x1, x0; mov x0, 1; ret", -1, true, true},
	{&assemblerArm64, "mrs x1, tpidr_el0; " + descriptorCall + "ldr x0, [x1, x0]; ret", -1, true, true},
	{&assemblerArm64, "mrs x1, tpidr_el0; ldr x0, [x1, 16]; ret", -1, false, true},
}

// descriptorCall asks for a variable, in x0.
const descriptorCall = "adrp x0, index; ldr x2, [x0, :lo12:index]; add x0, x0, :lo12:index; blr x2; "

func TestAccessorVariable(t *testing.T) {
	const bias, module, front, loaders = 0x10000, 7, 0x100, 0x5000
	for _, c := range accessorForms {
		t.Run(c.a.gcc+"/"+c.code, func(t *testing.T) {
			f := c.a.functions(t, indexData, c.code)
			index := addressOf(t, f, "index") + bias
			known := words8{index: module, index + 8: front}
			if c.descriptor {
				known = words8{index: 0x7000, index + 8: loaders, loaders: module, loaders + 8: front}
			}
			read := accessors{file: f, machine: machinecode.For(f.Machine()), memory: known, bias: bias}
			got := read.variable(addressOf(t, f, "f0"), c.isAddress)
			if c.offset < 0 {
				require.Error(t, read.err)
				return
			}
			require.NoError(t, read.err)
			assert.Equal(t, uint32(front+c.offset), got)
			assert.Equal(t, uint64(module), read.module)
			if c.descriptor { // a library that the loader knew when the program began
				known[index+8] = 0x780
				read = accessors{file: f, machine: machinecode.For(f.Machine()), memory: known, bias: bias}
				read.variable(addressOf(t, f, "f0"), c.isAddress)
				require.ErrorContains(t, read.err, "fixed place")
			}
		})
	}
}

// nodeForms are constructors of nodes. number is where they keep it; 0: it is not seen.
var nodeForms = []struct {
	a      *assembler
	code   string
	number uint16
}{
	{&assemblerX86, "push %rbx; mov %rdi,%rbx; mov %rsi,0x10(%rdi); call other@plt; mov %rax,0x28(%rbx); pop %rbx; ret", 0x10},
	{&assemblerX86, "push %rbx; mov %rdi,%rbx; mov %rsi,0x10(%rdi); call other@plt; mov %rax,0x30(%rbx); pop %rbx; ret", 0},
	{&assemblerX86, "push %rbx; mov %rdi,%rbx; xor %esi,%esi; mov %rsi,0x10(%rdi); call other@plt; mov %rax,0x28(%rbx); pop %rbx; ret", 0},
	{&assemblerArm64, "stp x29, x30, [sp, -80]!; stp x19, x20, [sp, 16]; mov x19, x0; mov x20, x19; adrp x0, .; stp xzr, xzr, [x19, 48]; " +
		"stp x1, xzr, [x19, 16]; add x1, x19, 0x118; adrp x0, .; ldr x0, [x0, 1184]; blr x0; ldp x21, x22, [sp, 32]; str x0, [x19, 40]; ret", 16},
	{&assemblerArm64, "mov x19, x0; str x1, [x0, 16]; bl other; str x0, [x19, 40]; ret", 16},
	{&assemblerArm64, "mov x19, x0; str x1, [x0, 16]; bl other; mov x0, x20; str x0, [x19, 40]; ret", 0},
	{&assemblerArm64, "mov x19, x0; mov x1, x2; str x1, [x0, 16]; bl other; str x0, [x19, 40]; ret", 0},
	{&assemblerArm64, "mov x19, x0; mov x0, x2; str x1, [x0, 16]; bl other; str x0, [x19, 40]; ret", 0},
	{&assemblerArm64, "mov x19, x0; str x1, [x0, 16]; str x0, [x19, 40]; ret", 0},
}

func TestNodeNumber(t *testing.T) {
	for _, c := range nodeForms {
		t.Run(c.a.gcc+"/"+c.code, func(t *testing.T) {
			f := c.a.functions(t, "", c.code)
			read := accessors{file: f, machine: machinecode.For(f.Machine())}
			got := read.nodeNumber(addressOf(t, f, "f0"))
			assert.Equal(t, c.number, got)
			assert.Equal(t, c.number == 0, read.err != nil)
		})
	}
}

func TestPointedTo(t *testing.T) {
	for _, c := range []struct {
		a    *assembler
		code string
	}{
		{&assemblerX86, "push %rbx; call *index(%rip); mov (%rax),%rax; pop %rbx; ret"},
		{&assemblerArm64, "stp x29, x30, [sp, -32]!; adrp x0, index; mov x29, sp; ldr x0, [x0, :lo12:index]; mov x19, x8; blr x0; " +
			"ldr x1, [x0]; ret"},
	} {
		t.Run(c.a.gcc, func(t *testing.T) {
			f := c.a.functions(t, indexData, c.code)
			const bias = 0x10000
			read := accessors{file: f, machine: machinecode.For(f.Machine()), bias: bias,
				memory: words8{addressOf(t, f, "index") + bias: 0x4321 + bias}}
			assert.Equal(t, uint64(0x4321), read.pointedTo(addressOf(t, f, "f0")))
			require.NoError(t, read.err)
		})
	}
}
