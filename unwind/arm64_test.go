// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"debug/elf"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/internal/elfimage"
)

// ownArm64 is a program whose functions keep the return address in each way that compilers do on arm64. Its source is beside it.
const ownArm64 = "../tracer/internal/program/image/program-arm64.elf"

// TestRowsArm64 compares rules with what the source says of its frames.
func TestRowsArm64(t *testing.T) {
	f := open(t, ownArm64)
	table := tableOf(t, f)
	unsaved := SavedFP{}
	for _, c := range []struct {
		at   string
		back uint64 // bytes: a return address is looked up before
		want Rule
	}{
		{"report", 0, NewRule(RuleSP, 0, unsaved)},
		{"allocate", 0, NewRule(RuleSP, 0, unsaved)},
		{"free", 0, NewRule(RuleSP, 0, unsaved)},
		{"returns_0", 1, NewRule(RuleSP, 32, SavedFP{Base: ReturnAtCFA, Offset: -32})},
		{"returns_plain", 1, NewRule(RuleSP, 48, SavedFP{Base: ReturnAtCFA, Offset: -48})},
		{"returns_pointer", 1, NewRule(RuleFP, 16, SavedFP{Base: FPAtCFA, Offset: -16})},
		{"returns_saves", 1, NewRule(RuleSP, 624, SavedFP{Base: FPAtCFA, Offset: -32})},
		{"returns_step", 1, NewRule(RuleSP, 16, SavedFP{Base: FPAtCFA, Offset: -16})},
		{"returns_start", 1, Rule(RuleEnd)},
	} {
		require.Equal(t, c.want.String(), table.Lookup(mustFind(t, f, c.at)-c.back).String(), c.at)
	}
}

// signed is a return address as a processor with pointer authentication saves it.
func signed(address uint64) uint64 { return address | 0x5a<<48 }

// TestWalkArm64 walks the stack of a call that went through each function, with signed return addresses, from an instruction on that
// has not saved its own yet.
func TestWalkArm64(t *testing.T) {
	f := open(t, ownArm64)
	in := func(addr uint64) Code { return Code{Frames: f.Frames(), Exec: addr < 1<<20} }
	const stack, top = 0x10000, 0x10000 + 32 + 624 + 16 + 64 + 48 + 16 + 16
	s := make([]uint64, (top-stack)/8)
	set := func(at, v uint64) { s[(at-stack)/8] = v }
	sp := uint64(stack)
	set(sp, mustFind(t, f, "returns_saves")) // of act, whose frame has 32 bytes; the functions are plain, pointer, saves
	sp += 32
	record := sp + 624 + 64 + 16
	set(sp+592, record)
	set(sp+600, signed(mustFind(t, f, "returns_pointer"))) // of saves, which has the frame pointer of pointer
	set(record, 7)
	set(record+8, mustFind(t, f, "returns_plain")) // of pointer
	sp = record + 16
	set(sp, mustFind(t, f, "returns_step")) // of plain
	sp += 48
	set(sp+8, signed(mustFind(t, f, "returns_start"))) // of step
	var want []uint64
	path := []string{"allocate", "returns_2", "returns_saves", "returns_pointer", "returns_plain", "returns_step", "returns_start"}
	for _, name := range path {
		want = append(want, mustFind(t, f, name))
	}
	regs := Registers{29: 99, 30: signed(want[1]), 31: stack, 32: want[0]}
	u := Unwinder{Code: in, Stack: &words{stack, s}, Machine: elf.EM_AARCH64, Mask: 1<<48 - 1}
	frames, end := u.Walk(regs, 20)
	require.Equal(t, WalkDone, end)
	var got []uint64
	for _, frame := range frames {
		got = append(got, frame.PC)
	}
	require.Equal(t, want, got)

	// A return probe of saves has replaced what it saved.
	set(stack+32+600, signed(0xffff_0000))
	u.Replaced = map[uint64]uint64{stack + 32 + 624: want[3]}
	frames, end = u.Walk(regs, 20)
	require.Equal(t, WalkDone, end)
	require.Equal(t, want[3], frames[3].PC)

	// A caller that has not saved its return address has lost it by its call.
	regs = Registers{30: mustFind(t, f, "allocate") + 4, 31: stack, 32: want[0]}
	frames, end = u.Walk(regs, 20)
	require.Equal(t, WalkBadRule, end)
	require.Len(t, frames, 2)
}

// TestIsCallArm64 has BL, BLR, BLRAA and others: B, BR, RET.
func TestIsCallArm64(t *testing.T) {
	for code, want := range map[string]bool{
		"01 00 00 94": true, "ff ff ff 97": true, "20 00 3f d6": true, "20 08 3f d7": true, "3f 08 3f d6": true,
		"01 00 00 14": false, "20 00 1f d6": false, "c0 03 5f d6": false, "94 00": false, "": false,
	} {
		require.Equal(t, want, isCallArm64(unhex(t, code)), code)
	}
}

// TestTrampolineWithoutDescriptions: a file as the vdso is, with no description at all, has rows for the trampoline only.
func TestTrampolineWithoutDescriptions(t *testing.T) {
	m := machines[elf.EM_AARCH64]
	code := append(append(make([]byte, 64), m.trampoline...), make([]byte, 64)...)
	f := Frames{Image: &elfimage.Image{Segments: []elfimage.Segment{{Kind: elf.PT_LOAD, Flags: elf.PF_X | elf.PF_R, Addr: 0x300, Data: code}}}}
	table := f.addTrampoline(nil, m)
	require.NotNil(t, table)
	for pc, want := range map[uint64]RuleKind{0x33e: RuleNone, 0x33f: RuleSignal, 0x347: RuleSignal, 0x348: RuleNone} {
		require.Equal(t, want, table.Lookup(pc).Kind(), "%#x", pc)
	}
}

// TestTrampolineArm64: what a signal handler returns to has a row, though no description covers it.
func TestTrampolineArm64(t *testing.T) {
	f := open(t, ownArm64)
	table := tableOf(t, f)
	n := len(table.Rows)
	const from, to = 0x205, 0x20c // before all code
	table.insertSignal(from, to)
	require.Len(t, table.Rows, n+2)
	for pc, want := range map[uint64]RuleKind{from - 1: RuleNone, from: RuleSignal, to - 1: RuleSignal, to: RuleNone} {
		require.Equal(t, want, table.Lookup(pc).Kind(), "%#x", pc)
	}
	require.Equal(t, RuleSP, table.Lookup(mustFind(t, f, "report")).Kind())
}
