// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"debug/elf"
	"encoding/hex"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// words is memory of 8-byte words from an address on.
type words struct {
	base uint64
	data []uint64
}

func (w *words) ReadAt(b []byte, addr uint64) (int, error) {
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

// TestEvaluate: each operator, by what DWARF 5, section 2.5.1, says of it.
func TestEvaluate(t *testing.T) {
	memory := &words{0x1000, []uint64{0x1122334455667788, 7}}
	regs := &registerValues{lost: 1 << 4}
	for i := range regs.value {
		regs.value[i] = uint64(i) * 0x100
	}
	for name, c := range map[string]struct {
		expr string // hex
		want int64
	}{
		"literals":             {"30 4f 22", 31},
		"constants, unsigned":  {"08 ff 0a feff 0c fdffffff 1e 1c", 0xff - 0xfffe*0xfffffffd},
		"constants, signed":    {"09 ff 0b feff 0d fdffffff 0f fcffffffffffffff 22 22 22", -1 - 2 - 3 - 4},
		"constant of 8 bytes":  {"0e 0100000000000080", math.MinInt64 + 1},
		"address":              {"03 0010000000000000 06", 0x1122334455667788},
		"leb":                  {"10 e58e26 11 9bf159 22", 0},
		"register":             {"73 78", 3*0x100 - 8},
		"bregx":                {"92 0c 08", 12*0x100 + 8},
		"linkage table":        {"77 08 80 00 3f 1a 3b 2a 33 24 22", 7*0x100 + 8},
		"deref":                {"0a 0010 06", 0x1122334455667788},
		"deref of 2 bytes":     {"0a 0010 94 02", 0x7788},
		"dup":                  {"35 12 1e", 25},
		"drop":                 {"35 36 13", 5},
		"over":                 {"39 33 14 1e 1c", 9 - 27},
		"pick":                 {"39 33 32 15 02 22 13 1c", 9 - 3},
		"swap":                 {"39 33 16 1c", 3 - 9},
		"rot":                  {"31 32 33 17 34 24 1c 1c", 3 - (1 - 2<<4)},
		"abs":                  {"09 f0 19", 16},
		"neg":                  {"35 1f", -5},
		"not":                  {"35 20", ^5},
		"and, or, xor":         {"3c 3a 1a 31 21 33 27", (12&10 | 1) ^ 3},
		"div":                  {"09 f9 32 1b", -3},
		"mod":                  {"41 35 1d", 2},
		"plus_uconst":          {"35 23 8001", 5 + 128},
		"shra, shr":            {"09 f0 32 26 09 f0 08 3c 25 22", -4 + 15},
		"shl by all":           {"35 08 40 24", 0},
		"less, signed":         {"09 ff 30 2d", 1},
		"other comparisons":    {"31 31 29 31 31 2e 22 32 31 2b 22 31 32 2c 22 32 31 2a 22", 4},
		"branch taken":         {"35 31 28 0100 36 37 22", 5 + 7},
		"branch not taken":     {"35 30 28 0100 36 22", 5 + 6},
		"skip, nop":            {"35 2f 0100 ff 96", 5},
		"loop of ten":          {"30 3a 16 31 22 16 31 1c 12 28 f6ff 13", 10},
		"the last one is left": {"31 32", 2},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := evaluate(unhex(t, c.expr), regs, memory)
			require.NoError(t, err)
			require.Equal(t, c.want, int64(got))
		})
	}
	for name, c := range map[string]struct {
		expr string
		want error
	}{
		"empty": {"", errExpression}, "nothing left": {"31 13", errExpression}, "too few": {"31 22", errExpression},
		"division by 0": {"31 30 1b", errExpression}, "rest of 0": {"31 30 1d", errExpression}, "not assigned": {"31 31 ff", errExpression},
		"of another use": {"31 31 9c", errExpression}, "cut": {"0a 01", errExpression}, "for ever": {"2f fdff", errExpression},
		"grows for ever": {"31 2f fcff", errExpression}, "out of it": {"31 2f 0500", errExpression}, "before it": {"2f 00 80", errExpression},
		"deref of 9": {"31 94 09", errExpression}, "lost register": {"74 00", errRegister}, "no such register": {"92 21 00", errRegister},
		"no memory": {"31 06", io.ErrUnexpectedEOF}, "memory that ends": {"0a 0c10 06", io.ErrUnexpectedEOF},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := evaluate(unhex(t, c.expr), regs, memory)
			require.ErrorIs(t, err, c.want)
		})
	}
}

func unhex(t *testing.T, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	require.NoError(t, err)
	return b
}

// TestFullRulesCondense: of every row of a library, all registers' rules come to what the table says.
func TestFullRulesCondense(t *testing.T) {
	for _, path := range libraries(t)[:2] {
		f := open(t, path)
		table := tableOf(t, f)
		known := 0
		for i := range table.Rows {
			want := rowRule(table, i)
			vaddr := uint64(uint32(table.Rows[i]))
			rules, err := f.Frames().fullRules(vaddr)
			if err != nil {
				t.Fatalf("%#x: %v", vaddr, err)
			}
			got := Rule(RuleNone)
			if rules != nil {
				known++
				got = rules.state.rule(machines[f.Machine()], rules.signal)
			}
			if got != want && !(want.Kind() == RuleSignal && rules == nil) { // the table begins a byte early
				t.Fatalf("%s: %#x: got %v, want %v", path, vaddr, got, want)
			}
		}
		require.Greater(t, known, len(table.Rows)/2, path)
	}
}

// TestIsCall compares with a disassembler: at the end of each call instruction there is one, and rarely elsewhere.
func TestIsCall(t *testing.T) {
	path := libraries(t)[1]
	f := open(t, path)
	calls, missed, others, taken := 0, 0, 0, 0
	indirect := map[int]int{} // calls through a pointer, by their length
	lines(t, func(line string) {
		col := strings.SplitN(line, "\t", 3)
		if len(col) < 3 {
			return
		}
		var vaddr uint64
		if _, err := fmt.Sscanf(col[0], "%x:", &vaddr); err != nil {
			return
		}
		code := strings.Fields(col[1])
		end := vaddr + uint64(len(code))
		m := machines[elf.EM_X86_64]
		b, ok := f.Text(end-uint64(m.callBytes), m.callBytes)
		if !ok {
			return
		}
		isOne := m.isCall(b)
		switch {
		case strings.HasPrefix(col[2], "call") || strings.Contains(col[2], " call"):
			if calls++; !isOne {
				missed++
				t.Errorf("%#x: %s", vaddr, line)
			}
			if strings.Contains(col[2], "*") {
				indirect[len(code)]++
			}
		default:
			if others++; isOne {
				taken++
			}
		}
	}, "objdump", "-d", "--section=.text", "--insn-width=16", path)
	t.Logf("%d calls, by length of the indirect ones %v; %d of %d other instructions end like one", calls, indirect, taken, others)
	require.Greater(t, calls, 10_000)
	require.GreaterOrEqual(t, len(indirect), 4, "forms")
	require.Less(t, taken, others/100)
}

// TestIsCallForms has the forms of addressing, as the assembler encodes them.
func TestIsCallForms(t *testing.T) {
	for code, want := range map[string]bool{
		"90 90 e8 01 02 03 04": true, "90 90 90 90 90 ff d0": true, "90 90 90 90 41 ff d7": true, "90 90 90 90 90 ff 10": true,
		"90 90 90 90 ff 50 08": true, "90 90 90 90 ff 14 c8": true, "90 90 90 ff 54 24 08": true, "90 ff 15 01 02 03 04": true,
		"90 ff 90 01 02 03 04": true, "ff 14 25 01 02 03 04": true, "ff 94 24 01 02 03 04": true, "ff 14 cd 01 02 03 04": true,
		"90 90 90 90 90 ff e0": false, "90 90 90 90 90 ff 50": false, "90 90 90 e8 01 02 03": false, "90 90 90 90 90 90 90": false,
		"90 90 90 90 ff 14 25": false, "90 90 90 90 ff 15 01": false, "": false, "ff d0": false,
	} {
		require.Equal(t, want, isCallX86(unhex(t, code)), code)
	}
}

// TestGuess: a frame pointer is followed only where all of it fits.
func TestGuess(t *testing.T) {
	const made, caller, stack = 0x10000, 0x20008, 0x7000
	text := &words{caller - 8, []uint64{0xd0ff_9090_9090_9090, 0x9090_9090_9090_9090}} // ends in call *%rax
	for name, c := range map[string]struct {
		fp    uint64
		stack []uint64
		end   WalkEnd
		n     int // frames
	}{
		"two frames":                {stack + 8, []uint64{1, stack + 24, caller, 0, 0, 0}, WalkNoRow, 2},
		"the outermost has a zero":  {stack + 8, []uint64{1, stack + 24, caller, stack + 40, caller, 0, 0}, WalkNoRow, 3},
		"below the stack pointer":   {stack - 8, []uint64{1, stack + 24, caller}, WalkNoRow, 1},
		"odd":                       {stack + 4, []uint64{1, stack + 24, caller}, WalkNoRow, 1},
		"beyond the copy":           {stack + 16, []uint64{1, stack + 24, caller}, WalkNoRow, 1},
		"leads to no code":          {stack + 8, []uint64{1, stack + 24, 0x5000}, WalkNoRow, 1},
		"leads behind no call":      {stack + 8, []uint64{1, stack + 24, caller + 8}, WalkNoRow, 1},
		"the caller's points down":  {stack + 8, []uint64{1, stack, caller, 0, 0}, WalkNoRow, 2},
		"the caller's is the same":  {stack + 8, []uint64{1, stack + 8, caller, 0, 0}, WalkNoRow, 2},
		"the text cannot be read":   {stack + 8, []uint64{1, stack + 24, made + 16, 0, 0}, WalkNoRow, 1},
		"the caller's is not known": {stack + 8, []uint64{1, 1 << 63, caller, 0, 0}, WalkNoRow, 2},
	} {
		t.Run(name, func(t *testing.T) {
			u := Unwinder{
				Machine: elf.EM_X86_64,
				Code:    func(addr uint64) Code { return Code{Exec: addr >= made && addr < caller+0x100} },
				Stack:   &words{stack, c.stack}, Text: text,
			}
			frames, end := u.Walk(Registers{6: c.fp, 7: stack, 16: made}, 10)
			require.Equal(t, c.end, end)
			require.Len(t, frames, c.n)
			for i := range frames {
				require.Equal(t, i < c.n-1, frames[i].Guessed)
			}
		})
	}
}

// TestWalkEnds: what a walk ends with where nothing is known, and that it ends.
func TestWalkEnds(t *testing.T) {
	path := build(t, "rows.s", asmRows[0].source())
	f := open(t, path)
	sym, ok := f.Find(asmRows[0].name)
	require.True(t, ok)
	in := func(addr uint64) Code { return Code{Frames: f.Frames(), Exec: addr < 1<<20} }
	pc := sym.Addr
	for name, c := range map[string]struct {
		pc    uint64
		stack []uint64
		end   WalkEnd
		n     int
	}{
		"no mapping": {1 << 30, nil, WalkNoMapping, 1}, "no description": {pc + 1, nil, WalkNoRow, 1}, "no memory": {pc, nil, WalkNoMemory, 1},
		"zero": {pc, []uint64{0}, WalkDone, 1}, "no mapping then": {pc, []uint64{1 << 30}, WalkNoMapping, 2},
		"limit": {pc, []uint64{pc + 1, pc + 1, pc + 1, pc + 1, pc + 1, pc + 1}, WalkLimit, 4},
	} {
		t.Run(name, func(t *testing.T) {
			u := Unwinder{Machine: elf.EM_X86_64, Code: in, Stack: &words{0x7000, c.stack}}
			frames, end := u.Walk(Registers{7: 0x7000, 16: c.pc}, 4)
			require.Equal(t, c.end, end)
			require.Len(t, frames, c.n)
		})
	}
}
