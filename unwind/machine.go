// SPDX-License-Identifier: Apache-2.0

package unwind

import "debug/elf"

// machine is what unwinding needs to know of an architecture.
type machine struct {
	// DWARF register numbers: stack pointer, frame pointer, return address (x86-64: a column of its own), program counter
	// in expressions.
	sp, fp, ra, pc uint64
	// returnOffset is where every call leaves the return address, relative to the CFA.
	returnOffset int64
	// trampoline is the code of a signal trampoline: set the number of rt_sigreturn, enter the kernel.
	trampoline []byte
	// signalSP and signalPC are where a signal trampoline finds the interrupted stack pointer and program counter,
	// relative to its own stack pointer.
	signalSP, signalPC int64
}

// machines: x86-64 numbers are from the System V ABI, AMD64 supplement, figure 3.36; the offsets from ucontext_t of the
// kernel's asm/ucontext.h and asm/sigcontext.h (uc_mcontext at 40, sp at 120 and ip at 128 in it).
var machines = map[elf.Machine]*machine{
	elf.EM_X86_64: {
		sp: 7, fp: 6, ra: 16, pc: 16, returnOffset: -8,
		trampoline: []byte{0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05}, // mov $15, %rax; syscall
		signalSP:   160, signalPC: 168,
	},
}
