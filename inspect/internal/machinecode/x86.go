// SPDX-License-Identifier: Apache-2.0

package machinecode

import (
	"bytes"
	"encoding/binary"
	"iter"
	"slices"

	"golang.org/x/arch/x86/x86asm"
)

// x86 is x86-64, with the calling convention of System V (x86-64 psABI, 3.2.3).
var x86 = Machine{
	Arguments:    []Reg{regOf(x86asm.RDI), regOf(x86asm.RSI), regOf(x86asm.RDX), regOf(x86asm.RCX)},
	Result:       regOf(x86asm.RAX),
	Stack:        regOf(x86asm.RSP),
	Frame:        regOf(x86asm.RBP),
	instructions: x86Instructions,
	importCalls:  x86ImportCalls,
}

// relative finds the instructions that consist of an opcode and a 32-bit distance to one of the targets. It looks at
// every byte, not at every instruction: a chance match is one in four billion for each target.
func (c *code) relative(opcode []byte, targets []uint64) []uint64 {
	var out []uint64
	n := len(opcode)
	for i := 0; ; i++ {
		next := bytes.Index(c.bytes[i:], opcode)
		if next < 0 || i+next+n+4 > len(c.bytes) {
			return out
		}
		i += next
		distance := int32(binary.LittleEndian.Uint32(c.bytes[i+n:]))
		end := c.start + uint64(i+n+4)
		if slices.Contains(targets, end+uint64(int64(distance))) {
			out = append(out, c.start+uint64(i))
		}
	}
}

// Encodings with a 32-bit distance (Intel SDM volume 2: CALL, JMP).
var (
	opCall         = []byte{0xe8}
	opCallIndirect = []byte{0xff, 0x15}
	opJumpIndirect = []byte{0xff, 0x25}
)

// x86ImportCalls knows PLT entries that begin with endbr64, and jumps with a bnd prefix.
func x86ImportCalls(all []code, slots []uint64) (calls []uint64) {
	var entries []uint64
	for i := range all {
		for _, jump := range all[i].relative(opJumpIndirect, slots) {
			entries = append(entries, jump, jump-1, jump-4, jump-5)
		}
	}
	for i := range all {
		calls = append(calls, all[i].relative(opCallIndirect, slots)...)
		if len(entries) > 0 {
			calls = append(calls, all[i].relative(opCall, entries)...)
		}
	}
	return calls
}

var endbr64 = []byte{0xf3, 0x0f, 0x1e, 0xfa}

// x86Instructions decodes code. An instruction that the decoder does not know (vector extensions) is passed byte by byte: x86 code
// falls back into step within a few instructions.
func x86Instructions(b []byte, at uint64) iter.Seq[Inst] {
	return func(yield func(Inst) bool) {
		for len(b) > 0 {
			inst, n := x86Decode(b, at)
			if !yield(inst) {
				return
			}
			at += uint64(n)
			b = b[min(n, len(b)):]
		}
	}
}

func x86Decode(b []byte, at uint64) (Inst, int) {
	if bytes.HasPrefix(b, endbr64) {
		return Inst{Op: Nop, End: at + uint64(len(endbr64))}, len(endbr64)
	}
	native, err := x86asm.Decode(b, 64)
	if err != nil || native.Len == 0 {
		return Inst{End: at + 1}, 1
	}
	if native.Op == 0 {
		return Inst{End: at + uint64(native.Len)}, native.Len
	}
	inst := Inst{Op: Other, End: at + uint64(native.Len), writes: x86Writes(native)}
	inst.operand(native)
	inst.x86Operation(native)
	return inst, native.Len
}

// operand takes over the operand in memory, if there is one.
func (i *Inst) operand(native x86asm.Inst) {
	for n, arg := range native.Args {
		m, ok := arg.(x86asm.Mem)
		if !ok {
			continue
		}
		i.InMemory = native.Op != x86asm.LEA
		i.stores = n == 0 && !slices.Contains(readOnly, native.Op)
		i.Operand = Operand{Base: regOf(m.Base), Index: regOf(m.Index), Offset: displacement(m), Size: native.MemBytes}
		if m.Base == x86asm.RIP {
			i.Offset += int64(i.End)
		}
		if m.Segment != 0 || i.Base == 0 && m.Base != x86asm.RIP { // not relative to a register: nothing that is asked for
			i.InMemory, i.Operand = false, Operand{}
		}
		return
	}
}

// x86Operation says what is done, of the instructions that are asked for.
func (i *Inst) x86Operation(native x86asm.Inst) {
	first, _ := native.Args[0].(x86asm.Reg)
	second, _ := native.Args[1].(x86asm.Reg)
	number, isNumber := native.Args[1].(x86asm.Imm)
	switch native.Op {
	case x86asm.NOP:
		i.Op = Nop
	case x86asm.MOV:
		i.move(first, second, number, isNumber)
	case x86asm.LEA:
		i.lea(first)
	case x86asm.ADD:
		if r := regOf(first); r != 0 && isNumber {
			i.Op, i.To, i.Operand = Add, r, Operand{Base: r, Offset: int64(number)}
		}
	case x86asm.CMP:
		i.Op, i.From = Compare, regOf(cmpOr(first, second))
	case x86asm.SETNE:
		i.Op = SetNotEqual
	case x86asm.CALL, x86asm.JMP:
		i.Op = Call
		if native.Op == x86asm.JMP {
			i.Op = Jump
		}
		if distance, ok := native.Args[0].(x86asm.Rel); ok {
			i.Target = i.End + uint64(int64(distance))
		}
	case x86asm.RET:
		i.Op = Return
	case x86asm.UD2:
		i.Op = Trap
	}
}

func cmpOr(a, b x86asm.Reg) x86asm.Reg {
	if a != 0 {
		return a
	}
	return b
}

// move is a mov between registers, memory and numbers. Narrow ones are something else, but for numbers of 32 bits, which are extended
// by zeros.
func (i *Inst) move(first, second x86asm.Reg, number x86asm.Imm, isNumber bool) {
	switch {
	case isNumber && !i.InMemory && first >= x86asm.EAX && first <= x86asm.R15:
		i.Op, i.To, i.Value = Constant, wide(first), uint64(number)
	case i.InMemory && first != 0:
		i.Op, i.To = Load, wide(first)
	case i.InMemory && i.stores && second != 0:
		i.Op, i.From = Store, regOf(second)
	case regOf(first) != 0 && regOf(second) != 0:
		i.Op, i.To, i.From = Copy, regOf(first), regOf(second)
	}
}

// lea is the address of an operand, or a sum.
func (i *Inst) lea(to x86asm.Reg) {
	switch i.To = regOf(to); {
	case i.To == 0, i.Operand == Operand{}:
	case i.Base == 0 && i.Index == 0:
		i.Op, i.Value, i.Operand = Constant, uint64(i.Offset), Operand{}
	default:
		i.Op = Add
	}
}

// displacement is an operand's. The decoder leaves one of 32 bits without its sign.
func displacement(m x86asm.Mem) int64 { return int64(int32(m.Disp)) }

// regOf is a 64-bit register; 0 for any other.
func regOf(r x86asm.Reg) Reg {
	if r < x86asm.RAX || r > x86asm.R15 {
		return 0
	}
	return Reg(r-x86asm.RAX) + 1
}

// readOnly are the instructions whose first operand is not written.
var readOnly = []x86asm.Op{x86asm.CMP, x86asm.TEST, x86asm.NOP, x86asm.PUSH, x86asm.BT, x86asm.UCOMISS, x86asm.UCOMISD}

// implicit are the instructions that write registers which are not among their operands, or more than one operand.
var implicit = []x86asm.Op{
	x86asm.MUL, x86asm.DIV, x86asm.IDIV, x86asm.CWD, x86asm.CDQ, x86asm.CQO, x86asm.CBW, x86asm.CWDE, x86asm.CDQE,
	x86asm.XCHG, x86asm.XADD, x86asm.CMPXCHG, x86asm.CMPXCHG8B, x86asm.CMPXCHG16B, x86asm.CPUID, x86asm.RDTSC,
	x86asm.RDTSCP, x86asm.SYSCALL, x86asm.LEAVE, x86asm.MOVSB, x86asm.MOVSW, x86asm.MOVSD, x86asm.MOVSQ,
	x86asm.STOSB, x86asm.STOSW, x86asm.STOSD, x86asm.STOSQ, x86asm.LODSB, x86asm.LODSW, x86asm.LODSD, x86asm.LODSQ,
	x86asm.SCASB, x86asm.SCASW, x86asm.SCASD, x86asm.SCASQ, x86asm.CMPSB, x86asm.CMPSW, x86asm.CMPSD, x86asm.CMPSQ,
}

// calleeSaved keep their value over a call (System V x86-64 psABI, 3.2.1).
var calleeSaved = setOf(x86asm.RBX, x86asm.RBP, x86asm.RSP, x86asm.R12, x86asm.R13, x86asm.R14, x86asm.R15)

func setOf(registers ...x86asm.Reg) (set uint32) {
	for _, r := range registers {
		set |= regOf(r).bit()
	}
	return set
}

// anyRegister is all that an instruction could write.
const anyRegister = ^uint32(0)

// x86Writes is the registers that an instruction may change.
func x86Writes(inst x86asm.Inst) uint32 {
	written, _ := inst.Args[0].(x86asm.Reg)
	first := wide(written).bit()
	switch {
	case inst.Op == x86asm.CALL:
		return ^calleeSaved
	case inst.Op == x86asm.PUSH:
		return setOf(x86asm.RSP)
	case inst.Op == x86asm.POP:
		return setOf(x86asm.RSP) | first
	case slices.Contains(readOnly, inst.Op):
		return 0
	case inst.Op == x86asm.LEAVE, inst.Op == x86asm.XCHG, inst.Op == x86asm.XADD:
		return anyRegister
	case slices.Contains(implicit, inst.Op), inst.Op == x86asm.IMUL && inst.Args[1] == nil:
		return ^calleeSaved
	}
	return first
}

// wide is the 64-bit register that a general register is part of; 0 for another register.
func wide(r x86asm.Reg) Reg {
	switch {
	case r >= x86asm.AL && r <= x86asm.BL:
		return regOf(r - x86asm.AL + x86asm.RAX)
	case r >= x86asm.AH && r <= x86asm.BH:
		return regOf(r - x86asm.AH + x86asm.RAX)
	case r >= x86asm.SPB && r <= x86asm.R15B:
		return regOf(r - x86asm.SPB + x86asm.RSP)
	case r >= x86asm.AX && r <= x86asm.R15W:
		return regOf(r - x86asm.AX + x86asm.RAX)
	case r >= x86asm.EAX && r <= x86asm.R15L:
		return regOf(r - x86asm.EAX + x86asm.RAX)
	}
	return regOf(r)
}
