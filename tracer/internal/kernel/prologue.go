// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package kernel

import (
	"runtime"
	"slices"

	"golang.org/x/arch/x86/x86asm"
)

// maxPrologue limits how far into a function the probe may move, in instructions.
const maxPrologue = 16

// argumentRegisters are the argument registers of the System V x86-64 calling convention, in every width.
var argumentRegisters = map[x86asm.Reg]bool{}

func init() {
	for _, r := range []x86asm.Reg{
		x86asm.DIB, x86asm.DI, x86asm.EDI, x86asm.RDI, x86asm.SIB, x86asm.SI, x86asm.ESI, x86asm.RSI,
		x86asm.DL, x86asm.DH, x86asm.DX, x86asm.EDX, x86asm.RDX, x86asm.CL, x86asm.CH, x86asm.CX, x86asm.ECX, x86asm.RCX,
		x86asm.R8B, x86asm.R8W, x86asm.R8L, x86asm.R8, x86asm.R9B, x86asm.R9W, x86asm.R9L, x86asm.R9,
		x86asm.SPB, x86asm.SP, x86asm.ESP, x86asm.RSP,
	} {
		argumentRegisters[r] = true
	}
}

// readOnly are the instructions that write no register, so that their first operand need not be checked.
var readOnly = []x86asm.Op{x86asm.CMP, x86asm.TEST, x86asm.NOP}

// attachOffset returns the offset in a function, bytes from its entry, at which the probe is cheapest: that of the first
// instruction that the kernel emulates (arch/x86/kernel/uprobes.c) instead of single-stepping it, which takes several
// microseconds on a virtual machine. Up to there the code is straight and changes neither an argument nor the stack
// pointer, so arguments and return address are the same as at the entry. It returns 0 when there is no such instruction.
func attachOffset(code []byte) uint64 {
	if runtime.GOARCH == "arm64" { // the usual first instructions, stp and sub, are never simulated, nor is what follows them
		return 0
	}
	at := 0
	for range maxPrologue {
		if at >= len(code) {
			return 0
		}
		if endbr64(code[at:]) {
			at += 4
			continue
		}
		inst, err := x86asm.Decode(code[at:], 64)
		if err != nil {
			return 0
		}
		if emulated(inst) {
			return uint64(at)
		}
		if endsStraightLine(inst) || writesArgument(inst) {
			return 0
		}
		at += inst.Len
	}
	return 0
}

// emulated reports whether the kernel emulates an instruction: a push of a register, or a jump or call to an address in
// the instruction. It excludes conditional jumps, although the kernel emulates them: one can close a loop, and then the
// probe would be hit several times per call.
func emulated(inst x86asm.Inst) bool {
	switch inst.Op {
	case x86asm.NOP:
		return true
	case x86asm.PUSH:
		_, isReg := inst.Args[0].(x86asm.Reg)
		return isReg
	case x86asm.JMP, x86asm.CALL:
		_, isRel := inst.Args[0].(x86asm.Rel)
		return isRel
	default:
		return false
	}
}

// endbr64 reports whether code begins with f3 0f 1e fa, the landing pad of indirect branches (CET).
func endbr64(code []byte) bool {
	return len(code) >= 4 && code[0] == 0xf3 && code[1] == 0x0f && code[2] == 0x1e && code[3] == 0xfa
}

// straight are the instructions that prologues are known to contain before their first push. Any other one ends the search.
var straight = []x86asm.Op{
	x86asm.MOV, x86asm.MOVSX, x86asm.MOVSXD, x86asm.MOVZX, x86asm.LEA, x86asm.CMP, x86asm.TEST, x86asm.XOR, x86asm.SUB, x86asm.ADD,
	x86asm.AND, x86asm.OR,
}

func endsStraightLine(inst x86asm.Inst) bool { return !slices.Contains(straight, inst.Op) }

// writesArgument reports whether an instruction changes an argument register, the stack pointer or memory.
func writesArgument(inst x86asm.Inst) bool {
	if slices.Contains(readOnly, inst.Op) {
		return false
	}
	switch dst := inst.Args[0].(type) {
	case x86asm.Reg:
		return argumentRegisters[dst]
	default:
		return true
	}
}
