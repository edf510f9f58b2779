// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"debug/elf"

	"github.com/gputrace/gputrace/process"
)

// unwindMachine is the architecture that Unwinder knows.
const unwindMachine = elf.EM_X86_64

// signalRegisters are the DWARF numbers of the registers that lie one after another in the kernel's frame for a signal handler,
// from signalBase above the trampoline's stack pointer on: struct ucontext and sigcontext of the kernel's asm/ucontext.h and
// asm/sigcontext.h.
var signalRegisters = [...]uint64{8, 9, 10, 11, 12, 13, 14, 15, 5, 4, 6, 3, 1, 0, 2, 7, 16}

const signalBase = 40

// fromSignal goes on to the code that a signal interrupted. Where libraries describe their trampoline at all, not all do so
// rightly; the kernel's frame is the same everywhere.
func (w *unwinding) fromSignal(m *machine) (WalkEnd, bool) {
	sp := w.regs.value[m.sp]
	next := registerValues{}
	for i, n := range signalRegisters {
		v, err := process.Uint64(w.Stack, sp+signalBase+8*uint64(i))
		if err != nil {
			return WalkNoMemory, true
		}
		next.value[n] = v
	}
	w.regs, w.caller = next, false
	return WalkDone, false
}
