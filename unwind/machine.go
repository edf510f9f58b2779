// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"debug/elf"
	"runtime"
)

// machine is what unwinding needs to know of an architecture.
type machine struct {
	// DWARF register numbers: stack pointer, frame pointer, return address (x86-64: a column of its own), program counter
	// in expressions.
	sp, fp, ra, pc uint64
	// returnOffset is where every call leaves the return address, relative to the CFA. Not of a linked machine.
	returnOffset int64
	// linked: a call leaves the return address in the register ra, and the function that was called saves it if it calls another.
	linked bool
	// trampoline is the code of a signal trampoline: set the number of rt_sigreturn, enter the kernel.
	trampoline []byte
	// signalSP and signalPC are where a signal trampoline finds the interrupted stack pointer and program counter,
	// relative to its own stack pointer.
	signalSP, signalPC int64
	// signalRegisters are the registers that lie one after another in the kernel's frame for a signal handler, from signalBase
	// above the trampoline's stack pointer on.
	signalRegisters []uint64
	signalBase      uint64
	// preserved are the registers, a bit each, that a call leaves as they were, but for sp and fp.
	preserved uint64
	// callBytes is how long a call instruction is at most, without prefixes; isCall recognises one at the end of callBytes bytes.
	callBytes int
	isCall    func(b []byte) bool
}

// entryCFA is the distance of the CFA from the stack pointer at the first instruction of a function.
func (m *machine) entryCFA() int64 { return -m.returnOffset }

// machines: x86-64 numbers are from the System V ABI, AMD64 supplement, figure 3.36; the offsets from ucontext_t of the
// kernel's asm/ucontext.h and asm/sigcontext.h (uc_mcontext at 40, sp at 120 and ip at 128 in it). The numbers of arm64 are from DWARF for
// the Arm 64-bit architecture, table 3, with 32 for the pc, which has no number; the offsets from struct rt_sigframe of the kernel's
// arch/arm64/kernel/signal.c and asm/sigcontext.h (a siginfo of 128 bytes, uc_mcontext at 176, regs at 8 in it).
var machines = map[elf.Machine]*machine{
	elf.EM_X86_64: {
		sp: 7, fp: 6, ra: 16, pc: 16, returnOffset: -8,
		trampoline: []byte{0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05}, // mov $15, %rax; syscall
		signalSP:   160, signalPC: 168,
		signalRegisters: []uint64{8, 9, 10, 11, 12, 13, 14, 15, 5, 4, 6, 3, 1, 0, 2, 7, 16}, signalBase: 40,
		preserved: 1<<3 | 1<<12 | 1<<13 | 1<<14 | 1<<15,
		callBytes: 7, isCall: isCallX86,
	},
	elf.EM_AARCH64: {
		sp: 31, fp: 29, ra: 30, pc: 32, linked: true,
		trampoline: []byte{0x68, 0x11, 0x80, 0xd2, 0x01, 0, 0, 0xd4}, // mov x8, #139; svc #0
		signalSP:   560, signalPC: 568,
		signalRegisters: upTo(32), signalBase: 312,
		preserved: 0x3ff << 19, // x19 to x28
		callBytes: 4, isCall: isCallArm64,
	},
}

// upTo are the numbers from 0 to last.
func upTo(last uint64) (out []uint64) {
	for n := range last + 1 {
		out = append(out, n)
	}
	return out
}

// here is the architecture that this program runs on, and that it traces.
var here = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]
