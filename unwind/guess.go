// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"encoding/binary"

	"github.com/gputrace/gputrace/process"
)

// guess goes on to the caller by the frame pointer, as compilers use it that write no descriptions: it points at the caller's,
// and the return address lies above that. On arm64 only callers that count from the frame pointer are found after it. It is believed
// only where it leads up the stack, to code behind a call.
func (w *unwinding) guess(code Code, frame *StackFrame) bool {
	m := w.machine
	fp, err := w.regs.get(m.fp)
	if err != nil || !code.Exec || fp < frame.SP || fp%8 != 0 {
		return false
	}
	saved, err := process.Uint64(w.Stack, fp)
	if err != nil {
		return false
	}
	ret, err := process.Uint64(w.Stack, fp+8)
	ret = w.unsigned(ret)
	if err != nil || !w.Code(ret-1).Exec || !m.isCall(w.text(ret-uint64(m.callBytes), m.callBytes)) {
		return false
	}
	// The other callee-saved registers are unknown: the function may have changed them.
	w.regs.lost |= m.preserved
	w.regs.value[m.fp], w.regs.value[m.sp], w.regs.value[m.ra], w.regs.value[m.pc] = saved, fp+16, ret, ret
	w.regs.lost &^= 1 << m.fp
	if m.linked { // what is pushed lies at the bottom of a frame: how long that is, is not known
		w.regs.lost |= 1 << m.sp
	}
	w.caller = true
	frame.CFA, frame.Guessed = fp+16, true
	return true
}

// isCallArm64 reports whether the bytes are BL or BLR, with or without an authenticated register (Arm ARM, C6.2).
func isCallArm64(b []byte) bool {
	if len(b) != 4 {
		return false
	}
	word := binary.LittleEndian.Uint32(b)
	return word>>26 == 0x25 || word&0xfefff000 == 0xd63f0000 // bit 24: BLRAA with a modifier
}

// isCallX86 reports whether the bytes end in a call instruction: E8 with a 32-bit distance, or FF /2 in each of its forms (Intel
// SDM, volume 2, CALL and table 2-2).
func isCallX86(b []byte) bool {
	const callBytes = 7
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
