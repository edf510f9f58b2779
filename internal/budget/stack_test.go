// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/stretchr/testify/require"
)

// function names a function's first instruction. Calls of it need a name only.
func function(name string, insns ...asm.Instruction) asm.Instructions {
	insns[0] = insns[0].WithSymbol(name)
	return insns
}

func call(name string) asm.Instruction {
	return asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Call), Src: asm.PseudoCall, Constant: -1}.WithReference(name)
}

func address(dst asm.Register, name string) asm.Instruction {
	return asm.Instruction{OpCode: asm.LoadImmOp(asm.DWord), Dst: dst, Src: asm.PseudoFunc, Constant: -1}.WithReference(name)
}

// zero stores 4 bytes at an offset from a register.
func zero(r asm.Register, offset int16) asm.Instruction { return asm.StoreImm(r, offset, 0, asm.Word) }

func TestDeepest(t *testing.T) {
	end := asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}
	for name, row := range map[string]struct {
		insns asm.Instructions
		want  int
	}{
		"no stack":         {nil, 0},
		"rounded to slots": {asm.Instructions{zero(asm.R10, -4)}, 8},
		"store":            {asm.Instructions{zero(asm.R10, -8)}, 8},
		"deepest of two":   {asm.Instructions{zero(asm.R10, -40), zero(asm.R10, -16)}, 40},
		"load":             {asm.Instructions{asm.LoadMem(asm.R0, asm.R10, -24, asm.Word)}, 24},
		"pointer":          {asm.Instructions{asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, -72)}, 72},
		"pointer lowered":  {asm.Instructions{asm.Mov.Reg(asm.R2, asm.R10), asm.Sub.Imm(asm.R2, 72)}, 72},
		"copy of a pointer": {asm.Instructions{
			asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, -16), asm.Mov.Reg(asm.R6, asm.R2), zero(asm.R6, -16)}, 32},
		"an index is added": {asm.Instructions{
			asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, -64), asm.Add.Reg(asm.R2, asm.R1), zero(asm.R2, 8)}, 64},
		"added to an index": {asm.Instructions{asm.Add.Reg(asm.R1, asm.R10), zero(asm.R1, -48)}, 48},
		"only a copy":       {asm.Instructions{asm.Mov.Reg(asm.R2, asm.R10)}, 0},
		"not a pointer": {asm.Instructions{
			asm.Mov.Reg(asm.R2, asm.R10), asm.Mov.Imm(asm.R2, 0), asm.Add.Imm(asm.R2, -72)}, 0},
		"of a caller": {asm.Instructions{zero(asm.R1, -72)}, 0},
		"after a helper": {asm.Instructions{
			asm.Mov.Reg(asm.R1, asm.R10), asm.FnKtimeGetNs.Call(), asm.Add.Imm(asm.R1, -72)}, 0},
		"loaded over": {asm.Instructions{
			asm.Mov.Reg(asm.R2, asm.R10), asm.LoadImm(asm.R2, 1, asm.DWord), zero(asm.R2, -72)}, 0},
		// The pointer comes to the label by the jump only; what is written between them is another.
		"by a jump": {asm.Instructions{
			asm.Mov.Reg(asm.R2, asm.R10), asm.JEq.Imm(asm.R1, 0, "use"), asm.Mov.Imm(asm.R2, 0), asm.Ja.Label("end"),
			zero(asm.R2, -56).WithSymbol("use"), asm.Mov.Imm(asm.R3, 0).WithSymbol("end")}, 56},
		"by a jump back": {asm.Instructions{
			asm.Mov.Reg(asm.R2, asm.R10), asm.Mov.Reg(asm.R3, asm.R10), zero(asm.R2, -8).WithSymbol("loop"),
			asm.Add.Imm(asm.R3, -96), asm.Mov.Reg(asm.R2, asm.R3), asm.Mov.Reg(asm.R3, asm.R10), asm.JEq.Imm(asm.R1, 0, "loop")}, 104},
		"lowered for ever": {asm.Instructions{
			asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, -8).WithSymbol("loop"), asm.JEq.Imm(asm.R1, 0, "loop")}, -bottom + 8},
		"behind the end": {asm.Instructions{asm.Ja.Label("end"), zero(asm.R10, -88), asm.Mov.Imm(asm.R0, 0).WithSymbol("end")}, 0},
		"raw distance": {asm.Instructions{
			{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Ja), Offset: 3}, zero(asm.R10, -88), asm.LoadImm(asm.R2, 1, asm.DWord)}, 0},
		"long jump": {asm.Instructions{asm.LongJump("end"), zero(asm.R10, -88), asm.Mov.Imm(asm.R0, 0).WithSymbol("end")}, 0},
	} {
		p, err := Measure(function(name, append(row.insns, end...)...))
		require.NoError(t, err, name)
		require.Len(t, p.Functions, 1, name)
		require.Equal(t, row.want, p.Functions[0].Deepest, name)
	}
}

func TestStackIsRounded(t *testing.T) {
	for deepest, want := range map[int]int{0: 32, 1: 32, 32: 32, 33: 64, 336: 352} {
		require.Equal(t, want, Function{Deepest: deepest}.Stack(), deepest)
	}
}

func TestChains(t *testing.T) {
	end := []asm.Instruction{asm.Mov.Imm(asm.R0, 0), asm.Return()}
	var insns asm.Instructions
	for _, f := range []struct {
		name  string
		stack int16
		insns []asm.Instruction
	}{
		{"program", 336, []asm.Instruction{call("wide"), call("tall"), address(asm.R2, "seen"), asm.LoadImm(asm.R3, 1, asm.DWord)}},
		{"wide", 128, []asm.Instruction{call("leaf")}},
		{"tall", 0, []asm.Instruction{call("middle"), call("leaf")}},
		{"middle", 8, []asm.Instruction{call("leaf")}},
		{"seen", 256, nil}, // called by a helper
		{"leaf", 80, nil},
	} {
		body := append(f.insns, end...)
		if f.stack > 0 {
			body = append([]asm.Instruction{zero(asm.R10, -f.stack)}, body...)
		}
		insns = append(insns, function(f.name, body...)...)
	}
	p, err := Measure(insns)
	require.NoError(t, err)
	require.Len(t, p.Functions, 6)
	require.Equal(t, "program(352) -> seen(256)", p.Deepest.String())
	require.Equal(t, 608, p.Deepest.Stack())
	require.Equal(t, "program(352) -> tall(32) -> middle(32) -> leaf(96)", p.Longest.String())
	require.Equal(t, len(insns)+2, p.Instructions, "an address and a constant of 64 bits")
}

func TestNotComputed(t *testing.T) {
	for name, row := range map[string]struct {
		insns asm.Instructions
		want  string
	}{
		"empty":     {nil, "no instructions"},
		"recursion": {append(function("a", call("b"), asm.Return()), function("b", call("a"), asm.Return())...), "a calls itself"},
		"tail call": {append(function("a", call("b"), asm.Return()), function("b", asm.FnTailCall.Call(), asm.Return())...),
			"b, instruction 0 is a tail call"},
		"missing":     {function("a", call("b"), asm.Return()), `a calls "b", which is not there`},
		"no end":      {function("a", asm.Mov.Imm(asm.R0, 0)), "instruction 0 is the last"},
		"jump beyond": {function("a", asm.Ja.Label("b"), asm.Return()), "instruction 0 jumps out of the function"},
	} {
		_, err := Measure(row.insns)
		require.ErrorContains(t, err, row.want, name)
	}
}

func TestCheckMaps(t *testing.T) {
	value := func(kind ebpf.MapType, bytes uint32) *ebpf.MapSpec {
		return &ebpf.MapSpec{Type: kind, ValueSize: bytes}
	}
	require.Equal(t, []Oversized{
		{".bss", MaxValue + 1, MaxValue}, {"counters", MaxPerCPU + 8, MaxPerCPU}, {"rows, inner", 5 << 20, MaxValue},
		{"threads", MaxStorage + 1, MaxStorage},
	}, CheckMaps(map[string]*ebpf.MapSpec{
		".bss":      value(ebpf.Array, MaxValue+1),
		".rodata":   value(ebpf.Array, MaxValue),
		"counters":  value(ebpf.PerCPUArray, MaxPerCPU+8),
		"threads":   value(ebpf.TaskStorage, MaxStorage+1),
		"processes": value(ebpf.TaskStorage, MaxStorage),
		"ring":      value(ebpf.RingBuf, MaxValue+1),
		"rows":      {Type: ebpf.ArrayOfMaps, ValueSize: 4, InnerMap: value(ebpf.Array, 5<<20)},
	}, 0))
	require.Empty(t, CheckMaps(map[string]*ebpf.MapSpec{".bss": value(ebpf.Array, MaxValue+1),
		"threads": value(ebpf.TaskStorage, MaxStorage+1)}, 5<<20))
}
