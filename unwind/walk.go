// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"debug/elf"
	"errors"
	"fmt"

	"github.com/gputrace/gputrace/process"
)

// Registers are a thread's general registers by DWARF number. Of x86-64 (System V ABI, AMD64 supplement, figure 3.36): 0 rax,
// 1 rdx, 2 rcx, 3 rbx, 4 rsi, 5 rdi, 6 rbp, 7 rsp, 8 to 15 r8 to r15, 16 the program counter. Of arm64: 0 to 30 x0 to x30, 31 sp,
// 32 the program counter.
type Registers [numRegisters]uint64

// Code is what lies at an address in a process.
type Code struct {
	Frames *Frames // of the file; nil: code without a file, such as a JIT compiler makes, or none
	Bias   uint64  // of the file: address - link-time address
	Exec   bool    // there is executable memory
}

// Unwinder walks stacks outside the process, by all that a frame description can say: any register, any expression. The kernel
// side cannot afford that. Not safe for concurrent use.
type Unwinder struct {
	// Code tells what lies at an address.
	Code func(addr uint64) Code
	// Stack is the memory that frames are read from: a copy of the thread's stack.
	Stack process.Memory
	// Text is where code without a file is read from; nil: such code ends a walk.
	Text process.Memory
	// Machine is the architecture; 0: the one that this program runs on.
	Machine elf.Machine
	// Mask has the bits of an address that are not of the signature of a return address (arm64); 0: all.
	Mask uint64
	// Replaced are the return addresses that return probes have replaced, by the CFA of the function. Only arm64's are looked up
	// here: x86-64 keeps them on the stack.
	Replaced map[uint64]uint64
}

// StackFrame is one native frame.
type StackFrame struct {
	PC     uint64
	Caller bool // PC is a return address: the call is before it
	// SP and CFA bound the frame on the stack: [SP, CFA). They are equal for a frame that was not unwound, and for the one
	// that the kernel makes for a signal handler.
	SP, CFA uint64
	// Guessed: what called it was found by the frame pointer, without a description.
	Guessed bool
}

// WalkEnd says why a walk ended.
type WalkEnd uint8

// The reasons.
const (
	WalkDone      WalkEnd = iota // at the outermost frame
	WalkNoMapping                // a pc in no executable memory
	WalkNoRow                    // a pc without a description, and nothing to guess by
	WalkBadRule                  // a description that cannot be followed
	WalkNoMemory                 // memory that Stack does not have
	WalkOrder                    // a frame that does not lie above its callee
	WalkLimit                    // more frames than asked for
)

var walkEndNames = map[WalkEnd]string{
	WalkDone: "outermost frame", WalkNoMapping: "no mapping", WalkNoRow: "no description", WalkBadRule: "description not to be followed",
	WalkNoMemory: "no memory", WalkOrder: "frames out of order", WalkLimit: "too many frames",
}

func (e WalkEnd) String() string {
	if s, ok := walkEndNames[e]; ok {
		return s
	}
	return fmt.Sprintf("end(%d)", uint8(e))
}

// registerValues are the registers of one frame, as far as they are known.
type registerValues struct {
	value Registers
	lost  uint64 // a bit for each that is not known
}

func (r *registerValues) get(n uint64) (uint64, error) {
	if n >= numRegisters || r.lost>>n&1 != 0 {
		return 0, errRegister
	}
	return r.value[n], nil
}

// unwinding is one walk under way.
type unwinding struct {
	*Unwinder
	machine *machine
	regs    registerValues
	kind    elf.Machine
	caller  bool // the pc is a return address
	frames  []StackFrame
}

// Walk lists the frames from the innermost on, at most limit.
func (u *Unwinder) Walk(regs Registers, limit int) ([]StackFrame, WalkEnd) {
	kind := u.Machine
	if kind == 0 {
		kind = here
	}
	w := unwinding{Unwinder: u, machine: machines[kind], kind: kind, regs: registerValues{value: regs}}
	if w.machine == nil {
		return nil, WalkBadRule
	}
	for len(w.frames) < limit {
		if end, over := w.step(); over {
			return w.frames, end
		}
	}
	return w.frames, WalkLimit
}

// step adds the present frame and goes on to its caller.
func (w *unwinding) step() (end WalkEnd, over bool) {
	m := w.machine
	pc, sp := w.regs.value[m.pc], w.regs.value[m.sp]
	w.frames = append(w.frames, StackFrame{PC: pc, Caller: w.caller, SP: sp, CFA: sp})
	frame := &w.frames[len(w.frames)-1]
	if w.caller && hasTrampoline(w.text(pc, len(m.trampoline)), m) {
		return w.fromSignal(m)
	}
	at := pc
	if w.caller {
		at--
	}
	code := w.Code(at)
	rules, end := w.rulesOf(code, at)
	switch {
	case end != WalkDone && w.caller && w.madeByHand(pc):
		return WalkDone, true
	case end == WalkNoRow && w.guess(code, frame):
	case end != WalkDone:
		return end, true
	case rules.state.ra.kind == regUndefined:
		return WalkDone, true
	default:
		if end := w.apply(rules, frame); end != WalkDone {
			return end, true
		}
	}
	return WalkDone, w.regs.value[m.pc] == 0 // some outermost frames have no description but a zero
}

// madeByHand reports whether a return address that follows no described code is the first byte of a function: no call can return
// there. The code that made the stack put it there, to run when the outermost function is done (makecontext of glibc).
func (w *unwinding) madeByHand(pc uint64) bool {
	rules, end := w.rulesOf(w.Code(pc), pc)
	return end == WalkDone && rules.state.frameGone(w.machine)
}

// rulesOf finds the description of a place in the code.
func (w *unwinding) rulesOf(code Code, at uint64) (*fullRules, WalkEnd) {
	if !code.Exec {
		return nil, WalkNoMapping
	}
	if code.Frames == nil || code.Frames.Image.Machine() != w.kind {
		return nil, WalkNoRow
	}
	rules, err := code.Frames.fullRules(at - code.Bias)
	switch {
	case err != nil:
		return nil, WalkBadRule
	case rules == nil:
		return nil, WalkNoRow
	}
	return rules, WalkDone
}

// apply computes the caller's registers.
func (w *unwinding) apply(rules *fullRules, frame *StackFrame) WalkEnd {
	m := w.machine
	cfa, err := w.cfa(rules)
	if err != nil {
		return endOf(err)
	}
	next, gone := w.regs, rules.state.frameGone(m)
	for n := range rules.regs {
		rule := rules.regs[n]
		if gone && rule.savedByFP(m) {
			rule = regRule{}
		}
		v, err := w.restore(uint64(n), &rule, cfa)
		next.value[n], next.lost = v, next.lost&^(1<<n)
		if err != nil && uint64(n) == m.ra {
			return endOf(err)
		}
		if err != nil {
			next.lost |= 1 << n
		}
	}
	if rules.regs[m.sp].kind == regUnspecified {
		next.value[m.sp], next.lost = cfa, next.lost&^(1<<m.sp)
	}
	sp := next.value[m.sp]
	// A function that keeps its return address in a register need not have a byte on the stack.
	onStack := rules.regs[m.ra].kind == regAtCFA
	unsaved := rules.regs[m.ra].unchanged() && (!m.linked || w.caller) // whoever made a call has overwritten it
	switch {
	case next.lost>>m.sp&1 != 0, unsaved:
		return WalkBadRule
	case !rules.signal && (sp < frame.SP || sp == frame.SP && onStack):
		return WalkOrder
	}
	if !rules.signal {
		frame.CFA = cfa
	}
	w.regs, w.caller = next, !rules.signal
	w.goBack(cfa)
	return WalkDone
}

// goBack makes the return address of a linked machine the pc.
func (w *unwinding) goBack(cfa uint64) {
	m := w.machine
	if !m.linked {
		return
	}
	pc := w.unsigned(w.regs.value[m.ra])
	if original, ok := w.Replaced[cfa]; ok {
		pc = w.unsigned(original)
	}
	w.regs.value[m.pc] = pc
}

// unsigned is a return address without its signature.
func (w *unwinding) unsigned(address uint64) uint64 {
	if w.Mask == 0 {
		return address
	}
	return address & w.Mask
}

func (w *unwinding) cfa(rules *fullRules) (uint64, error) {
	if rules.state.cfa != nil {
		return evaluate(rules.state.cfa, &w.regs, w.Stack)
	}
	base, err := w.regs.get(rules.state.cfaReg)
	return base + uint64(rules.state.cfaOff), err
}

// restore is the caller's value of a register.
func (w *unwinding) restore(n uint64, rule *regRule, cfa uint64) (uint64, error) {
	switch rule.kind {
	case regUnspecified, regSame:
		return w.regs.get(n)
	case regAtCFA:
		return process.Uint64(w.Stack, cfa+uint64(rule.off))
	case regAtExpr:
		addr, err := evaluate(rule.expr, &w.regs, w.Stack, cfa)
		if err != nil {
			return 0, err
		}
		return process.Uint64(w.Stack, addr)
	case regInRegister:
		return w.regs.get(uint64(rule.off))
	case regValueOffset:
		return cfa + uint64(rule.off), nil
	case regValueExpr:
		return evaluate(rule.expr, &w.regs, w.Stack, cfa)
	default:
		return 0, errRegister
	}
}

// endOf says what an error means for the walk.
func endOf(err error) WalkEnd {
	if errors.Is(err, errExpression) || errors.Is(err, errRegister) {
		return WalkBadRule
	}
	return WalkNoMemory
}

// text is the code at an address, n bytes; nil when it cannot be read.
func (w *unwinding) text(addr uint64, n int) []byte {
	code := w.Code(addr)
	if code.Frames != nil {
		b, _ := code.Frames.Image.Text(addr-code.Bias, n)
		return b
	}
	if !code.Exec || w.Text == nil {
		return nil
	}
	b := make([]byte, n)
	if _, err := w.Text.ReadAt(b, addr); err != nil {
		return nil
	}
	return b
}
