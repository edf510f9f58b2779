// SPDX-License-Identifier: Apache-2.0

package unwind

import "github.com/gputrace/gputrace/process"

// callBytes is the longest call instruction without prefixes.
const callBytes = 7

// guess goes on to the caller by the frame pointer, as compilers use it that write no descriptions: it points at the caller's,
// and the return address lies above that. It is believed only where it leads up the stack, to code behind a call.
func (w *unwinding) guess(code Code, frame *StackFrame) bool {
	m := machines[unwindMachine]
	fp, err := w.regs.get(m.fp)
	if err != nil || !code.Exec || fp < frame.SP || fp%8 != 0 {
		return false
	}
	saved, err := process.Uint64(w.Stack, fp)
	if err != nil {
		return false
	}
	ret, err := process.Uint64(w.Stack, fp+8)
	if err != nil || !w.Code(ret-1).Exec || !isCall(w.text(ret-callBytes, callBytes)) {
		return false
	}
	// The other callee-saved registers are unknown: the function may have changed them.
	const preserved = 1<<3 | 1<<12 | 1<<13 | 1<<14 | 1<<15
	w.regs.lost |= preserved
	w.regs.value[m.fp], w.regs.value[m.sp], w.regs.value[m.ra] = saved, fp+16, ret
	w.regs.lost &^= 1 << m.fp
	w.caller = true
	frame.CFA, frame.Guessed = fp+16, true
	return true
}

// isCall reports whether the bytes end in a call instruction: E8 with a 32-bit distance, or FF /2 in each of its forms (Intel
// SDM, volume 2, CALL and table 2-2).
func isCall(b []byte) bool {
	if len(b) != callBytes {
		return false
	}
	if b[2] == 0xe8 {
		return true
	}
	for n := 2; n <= callBytes; n++ {
		at := b[callBytes-n:]
		if at[0] == 0xff && at[1]>>3&7 == 2 && indirectLength(at) == n {
			return true
		}
	}
	return false
}

// indirectLength is the length of an instruction of one byte, a ModRM byte and what that asks for.
func indirectLength(b []byte) int {
	mod, rm := b[1]>>6, b[1]&7
	n := 2
	if mod == 3 {
		return n
	}
	if rm == 4 {
		n++ // SIB
		if mod == 0 && len(b) > 2 && b[2]&7 == 5 {
			n += 4
		}
	}
	switch {
	case mod == 1:
		n++
	case mod == 2, mod == 0 && rm == 5:
		n += 4
	}
	return n
}
