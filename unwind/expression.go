// SPDX-License-Identifier: Apache-2.0

package unwind

import "github.com/gputrace/gputrace/internal/elfimage"

// DWARF expression operators (DWARF 5, table 7.9) that compilers and linkers use in frame descriptions.
const (
	opDeref  = 0x06
	opAnd    = 0x1a
	opPlus   = 0x22
	opShl    = 0x24
	opGe     = 0x2a
	opLit0   = 0x30
	opLit31  = 0x4f
	opBreg0  = 0x70
	opBreg31 = 0x8f
)

// rule condenses a state; signal says that the description is of a signal trampoline.
func (s *cfiState) rule(m *machine, signal bool) Rule {
	switch {
	case s.ra.kind == regUndefined:
		return Rule(RuleEnd)
	case m.linked:
		return s.linkedRule(m, signal)
	case s.cfa != nil:
		return s.expressionRule(m, signal)
	case s.ra.kind != regAtCFA || s.ra.off != m.returnOffset || signal:
		return Rule(RuleUnsupported)
	case s.cfaReg == m.sp:
		return s.withFP(m, RuleSP, s.cfaOff)
	case s.cfaReg == m.fp:
		return s.withFP(m, RuleFP, s.cfaOff)
	default:
		return Rule(RuleUnsupported)
	}
}

// linkedRule condenses a state of a machine that leaves the return address in a register. Compilers save it beside the frame pointer.
func (s *cfiState) linkedRule(m *machine, signal bool) Rule {
	kind := RuleSP
	switch {
	case signal: // the description of the vdso's trampoline leads to the interrupted function's caller
		return Rule(RuleSignal)
	case s.cfa != nil:
		return Rule(RuleUnsupported)
	case s.cfaReg == m.fp:
		kind = RuleFP
	case s.cfaReg != m.sp:
		return Rule(RuleUnsupported)
	}
	switch {
	case s.ra.unchanged() && s.fp.unchanged():
		return NewRule(kind, s.cfaOff, SavedFP{})
	case s.ra.kind == regAtCFA && s.fp.kind == regAtCFA && s.ra.off == s.fp.off+8:
		return NewRule(kind, s.cfaOff, SavedFP{Base: FPAtCFA, Offset: s.fp.off})
	case s.ra.kind == regAtCFA && s.fp.unchanged():
		return NewRule(kind, s.cfaOff, SavedFP{Base: ReturnAtCFA, Offset: s.ra.off})
	default:
		return Rule(RuleUnsupported)
	}
}

// withFP adds where the frame pointer is saved.
func (s *cfiState) withFP(m *machine, kind RuleKind, off int64) Rule {
	switch s.fp.kind {
	case regUnspecified, regUndefined, regSame:
		return NewRule(kind, off, SavedFP{})
	case regAtCFA:
		return NewRule(kind, off, SavedFP{Base: FPAtCFA, Offset: s.fp.off})
	case regAtExpr:
		return s.withFPExpression(m, kind, off)
	default:
		return Rule(RuleUnsupported)
	}
}

// withFPExpression knows "register + constant": of the frame pointer where a function realigned its stack, and of the
// stack pointer where that has a known distance from the CFA.
func (s *cfiState) withFPExpression(m *machine, kind RuleKind, off int64) Rule {
	r := elfimage.Reader{B: s.fp.expr}
	reg, n, ok := breg(&r)
	switch {
	case !ok || r.Off != len(r.B):
		return Rule(RuleUnsupported)
	case reg == m.fp && s.frameGone(m):
		return NewRule(kind, off, SavedFP{})
	case reg == m.fp:
		return NewRule(kind, off, SavedFP{Base: FPAtFP, Offset: n})
	case reg == m.sp && kind == RuleSP:
		return NewRule(kind, off, SavedFP{Base: FPAtCFA, Offset: n - off})
	default:
		return Rule(RuleUnsupported)
	}
}

// frameGone reports whether nothing is left of the frame but the return address. What was saved at a distance from the frame
// pointer is then back in its register: at the return of a function that realigned its stack gcc leaves the descriptions standing.
func (s *cfiState) frameGone(m *machine) bool {
	return s.cfa == nil && s.cfaReg == m.sp && s.cfaOff == m.entryCFA()
}

// savedByFP reports whether a register was saved at a distance from the frame pointer.
func (r *regRule) savedByFP(m *machine) bool {
	e := elfimage.Reader{B: r.expr}
	reg, _, ok := breg(&e)
	return r.kind == regAtExpr && ok && reg == m.fp && e.Off == len(e.B)
}

// expressionRule recognises the expressions for the CFA that occur: a saved pointer, a linkage table, a signal frame.
func (s *cfiState) expressionRule(m *machine, signal bool) Rule {
	r := elfimage.Reader{B: s.cfa}
	reg, off, ok := breg(&r)
	if !ok {
		return Rule(RuleUnsupported)
	}
	deref := string(r.B[r.Off:]) == "\x06"
	switch {
	case deref && reg == m.sp && off == m.signalSP && s.returnsFromSignal(m):
		return Rule(RuleSignal)
	case s.ra.kind != regAtCFA || s.ra.off != m.returnOffset || signal:
		return Rule(RuleUnsupported)
	case deref && reg == m.fp:
		return s.withFP(m, RuleDerefFP, off)
	case deref && reg == m.sp:
		return s.withFP(m, RuleDerefSP, off)
	case reg == m.sp && s.fp.unchanged():
		return pltRule(m, &r, off)
	default:
		return Rule(RuleUnsupported)
	}
}

// returnsFromSignal reports whether the return address is the interrupted pc, in the kernel's signal frame.
func (s *cfiState) returnsFromSignal(m *machine) bool {
	r := elfimage.Reader{B: s.ra.expr}
	reg, off, ok := breg(&r)
	return s.ra.kind == regAtExpr && ok && r.Off == len(r.B) && reg == m.sp && off == m.signalPC
}

// pltRule reads the rest of what linkers describe a linkage table with (binutils, elf_x86_64_eh_frame_lazy_plt and its
// IBT variant): sp+8 + (((pc & 15) >= compare) << shift).
func pltRule(m *machine, r *elfimage.Reader, off int64) Rule {
	const entryMask = 15
	reg, n, ok := breg(r)
	mask, okMask := lit(r)
	and := r.U8()
	compare, okCompare := lit(r)
	ge := r.U8()
	shift, okShift := lit(r)
	shl, plus := r.U8(), r.U8()
	known := ok && reg == m.pc && n == 0 && okMask && mask == entryMask && and == opAnd &&
		okCompare && ge == opGe && okShift && shift < 8 && shl == opShl && plus == opPlus
	if !known || r.Bad || r.Off != len(r.B) {
		return Rule(RuleUnsupported)
	}
	return NewPLTRule(off, compare, 1<<shift)
}

// breg reads DW_OP_breg0 to DW_OP_breg31: register plus constant.
func breg(r *elfimage.Reader) (reg uint64, off int64, ok bool) {
	op := r.U8()
	if op < opBreg0 || op > opBreg31 {
		return 0, 0, false
	}
	off = r.SLEB()
	return uint64(op - opBreg0), off, !r.Bad
}

// lit reads DW_OP_lit0 to DW_OP_lit31.
func lit(r *elfimage.Reader) (v uint8, ok bool) {
	op := r.U8()
	return op - opLit0, op >= opLit0 && op <= opLit31
}
