// SPDX-License-Identifier: Apache-2.0

package unwind

import "github.com/gputrace/gputrace/internal/elfimage"

// Call frame instructions (DWARF 5, section 7.24). The three with an operand in the opcode are recognized by the top two bits.
const (
	cfaAdvanceLoc = 1
	cfaOffset     = 2
	cfaRestore    = 3
)

// maxRemembered bounds DW_CFA_remember_state; compilers nest it once.
const maxRemembered = 64

// cfiState is one row of the table that the instructions describe, for the registers that unwinding needs.
type cfiState struct {
	cfaReg uint64
	cfaOff int64
	cfa    []byte // the expression, when not nil
	fp, ra regRule
}

// regRule says where the caller's value of a register is.
type regRule struct {
	kind regKind
	off  int64  // regAtCFA, regValueOffset; regInRegister: its number
	expr []byte // regAtExpr, regValueExpr
}

type regKind uint8

const (
	regUnspecified regKind = iota // the ABI says: callee-saved, so unchanged
	regUndefined
	regSame
	regAtCFA       // saved at CFA + off
	regAtExpr      // saved at the address that the expression gives
	regInRegister  // in another register
	regValueOffset // CFA + off itself
	regValueExpr   // what the expression gives
	regBroken      // not known
)

// unchanged reports whether the caller's value is the callee's, or lost, which is the same for a register that is not needed.
func (r *regRule) unchanged() bool { return r.kind <= regSame }

// numRegisters is how many registers the full rules are kept of: the general ones, the stack pointer and the pc of arm64. x86-64 has
// fewer: 17 with the return address.
const numRegisters = 33

// registerRules are the rules of all registers, beside a cfiState.
type registerRules struct {
	now, initial [numRegisters]regRule // initial: behind the CIE's instructions
	remembered   [][numRegisters]regRule
}

// interpreter executes the instructions of one frame description after another. emit gets the state from each place on.
type interpreter struct {
	section    *frameSection
	cie        *cie
	state      cfiState
	remembered []cfiState
	loc, end   uint64
	base       uint64         // address of the instructions' first byte
	all        *registerRules // nil: only what the tables need is kept
	emit       func(loc uint64, s *cfiState) error
	err        error
	broken     bool // an instruction that cannot be understood: what follows is worth nothing
}

// initialState runs a CIE's instructions.
func (s *frameSection) initialState(c *cie, program []byte, rec record) cfiState {
	x := interpreter{section: s, cie: c, base: s.addr + uint64(rec.pos)}
	x.run(program)
	if x.broken {
		x.state.ra = regRule{kind: regBroken}
	}
	return x.state
}

// frame runs an FDE's instructions and emits its rows.
func (x *interpreter) frame(c *cie, fr frame, program []byte, base uint64) error {
	x.cie, x.state, x.remembered = c, c.initial, x.remembered[:0]
	x.loc, x.end, x.base, x.err, x.broken = uint64(fr.start), uint64(fr.end), base, nil, false
	x.run(program)
	if x.broken {
		x.state.ra = regRule{kind: regBroken}
	}
	if x.err == nil && x.loc < x.end {
		x.err = x.emit(x.loc, &x.state)
	}
	return x.err
}

func (x *interpreter) run(program []byte) {
	r := elfimage.Reader{B: program}
	for r.Off < len(program) && !x.broken && x.err == nil {
		op := program[r.Off]
		r.Off++
		operand := uint64(op & 0x3f)
		switch op >> 6 {
		case cfaAdvanceLoc:
			x.advance(operand)
		case cfaOffset:
			x.set(operand, regRule{kind: regAtCFA, off: int64(r.ULEB()) * x.cie.dataAlign})
		case cfaRestore:
			x.restore(operand)
		default:
			x.extended(&r, op)
		}
		x.broken = x.broken || r.Bad
	}
}

// extended runs an instruction that the table describes.
func (x *interpreter) extended(r *elfimage.Reader, code byte) {
	op := &cfiOps[code]
	if op.run == nil {
		x.broken = true
		return
	}
	var args cfiArgs
	x.operand(r, op.first, &args.a, &args)
	x.operand(r, op.second, &args.b, &args)
	if !r.Bad {
		op.run(x, args)
	}
}

// cfiArgs are an instruction's operands: numbers (signed ones in two's complement) and a block.
type cfiArgs struct {
	a, b  uint64
	block []byte
}

type operandKind uint8

const (
	operandNone operandKind = iota
	operandU8
	operandU16
	operandU32
	operandU64
	operandULEB
	operandSLEB
	operandScaled       // uleb times the data alignment
	operandScaledSigned // sleb times the data alignment
	operandAddress      // encoded as in the FDE
	operandBlock        // uleb length and bytes
)

func (x *interpreter) operand(r *elfimage.Reader, kind operandKind, v *uint64, args *cfiArgs) {
	switch kind {
	case operandNone:
	case operandU8:
		*v = uint64(r.U8())
	case operandU16:
		*v = uint64(r.U16())
	case operandU32:
		*v = uint64(r.U32())
	case operandU64:
		*v = r.U64()
	case operandULEB:
		*v = r.ULEB()
	case operandSLEB:
		*v = uint64(r.SLEB())
	case operandScaled:
		*v = r.ULEB() * uint64(x.cie.dataAlign)
	case operandScaledSigned:
		*v = uint64(r.SLEB()) * uint64(x.cie.dataAlign)
	case operandAddress:
		addr, ok := x.section.pointer(r, x.cie.encoding, x.base)
		*v, r.Bad = addr, r.Bad || !ok
	case operandBlock:
		args.block = r.Take(r.ULEB())
	}
}

// cfiOp is one instruction: its operands and what it does. A nil run marks a code that is not assigned.
type cfiOp struct {
	first, second operandKind
	run           func(*interpreter, cfiArgs)
}

// cfiOps by opcode: DWARF 5, table 7.29, and the vendors' extensions that binutils' dwarf2.def lists for x86-64 and arm64.
var cfiOps = [64]cfiOp{
	0x00: {run: (*interpreter).nothing}, // nop
	0x01: {operandAddress, operandNone, (*interpreter).setLoc},
	0x02: {operandU8, operandNone, (*interpreter).advanceBy},
	0x03: {operandU16, operandNone, (*interpreter).advanceBy},
	0x04: {operandU32, operandNone, (*interpreter).advanceBy},
	0x05: {operandULEB, operandScaled, (*interpreter).offset},
	0x06: {operandULEB, operandNone, (*interpreter).restoreExtended},
	0x07: {operandULEB, operandNone, (*interpreter).undefined},
	0x08: {operandULEB, operandNone, (*interpreter).sameValue},
	0x09: {operandULEB, operandULEB, (*interpreter).inRegister},
	0x0a: {run: (*interpreter).remember},
	0x0b: {run: (*interpreter).restoreState},
	0x0c: {operandULEB, operandULEB, (*interpreter).defCFA},
	0x0d: {operandULEB, operandNone, (*interpreter).defCFARegister},
	0x0e: {operandULEB, operandNone, (*interpreter).defCFAOffset},
	0x0f: {operandBlock, operandNone, (*interpreter).defCFAExpression},
	0x10: {operandULEB, operandBlock, (*interpreter).expression},
	0x11: {operandULEB, operandScaledSigned, (*interpreter).offset},
	0x12: {operandULEB, operandScaledSigned, (*interpreter).defCFA},
	0x13: {operandScaledSigned, operandNone, (*interpreter).defCFAOffset},
	0x14: {operandULEB, operandScaled, (*interpreter).valueOffset},
	0x15: {operandULEB, operandScaledSigned, (*interpreter).valueOffset},
	0x16: {operandULEB, operandBlock, (*interpreter).valueExpression},
	0x1d: {operandU64, operandNone, (*interpreter).advanceBy}, // MIPS_advance_loc8
	0x2d: {run: (*interpreter).nothing},                       // AARCH64_negate_ra_state
	0x2e: {operandULEB, operandNone, (*interpreter).nothing},  // GNU_args_size
	0x2f: {operandULEB, operandScaled, (*interpreter).offsetNegated},
}

func (x *interpreter) nothing(cfiArgs) {}

func (x *interpreter) setLoc(a cfiArgs) {
	if a.a < x.loc {
		x.broken = true
		return
	}
	x.moveTo(a.a)
}

func (x *interpreter) advanceBy(a cfiArgs) { x.advance(a.a) }

// advance moves on by delta code units. A delta that leads out of the function ends it.
func (x *interpreter) advance(delta uint64) {
	if delta > x.end-x.loc || delta*x.cie.codeAlign > x.end-x.loc {
		x.moveTo(x.end)
		return
	}
	x.moveTo(x.loc + delta*x.cie.codeAlign)
}

func (x *interpreter) moveTo(loc uint64) {
	if loc == x.loc || x.loc >= x.end {
		return
	}
	x.err = x.emit(x.loc, &x.state)
	x.loc = min(loc, x.end)
}

// set stores the rule of a register. The tables need two of them.
func (x *interpreter) set(reg uint64, rule regRule) {
	if x.all != nil && reg < numRegisters {
		x.all.now[reg] = rule
	}
	switch m := x.section.machine; reg {
	case m.fp:
		x.state.fp = rule
	case m.ra:
		x.state.ra = rule
	}
}

func (x *interpreter) restore(reg uint64) {
	if x.all != nil && reg < numRegisters {
		x.all.now[reg] = x.all.initial[reg]
	}
	switch m := x.section.machine; reg {
	case m.fp:
		x.state.fp = x.cie.initial.fp
	case m.ra:
		x.state.ra = x.cie.initial.ra
	}
}

func (x *interpreter) restoreExtended(a cfiArgs) { x.restore(a.a) }

func (x *interpreter) offset(a cfiArgs) { x.set(a.a, regRule{kind: regAtCFA, off: int64(a.b)}) }

func (x *interpreter) offsetNegated(a cfiArgs) { x.set(a.a, regRule{kind: regAtCFA, off: -int64(a.b)}) }

func (x *interpreter) undefined(a cfiArgs) { x.set(a.a, regRule{kind: regUndefined}) }

func (x *interpreter) sameValue(a cfiArgs) { x.set(a.a, regRule{kind: regSame}) }

func (x *interpreter) inRegister(a cfiArgs) {
	x.set(a.a, regRule{kind: regInRegister, off: int64(min(a.b, numRegisters))})
}

func (x *interpreter) expression(a cfiArgs) { x.set(a.a, regRule{kind: regAtExpr, expr: a.block}) }

func (x *interpreter) valueOffset(a cfiArgs) {
	x.set(a.a, regRule{kind: regValueOffset, off: int64(a.b)})
}

func (x *interpreter) valueExpression(a cfiArgs) {
	x.set(a.a, regRule{kind: regValueExpr, expr: a.block})
}

func (x *interpreter) remember(cfiArgs) {
	if len(x.remembered) == maxRemembered {
		x.broken = true
		return
	}
	x.remembered = append(x.remembered, x.state)
	if x.all != nil {
		x.all.remembered = append(x.all.remembered, x.all.now)
	}
}

// restoreState takes the CFA back too, as gcc and gdb do (the standard's text leaves it open).
func (x *interpreter) restoreState(cfiArgs) {
	n := len(x.remembered) - 1
	if n < 0 {
		x.broken = true
		return
	}
	x.state, x.remembered = x.remembered[n], x.remembered[:n]
	if x.all != nil {
		x.all.now, x.all.remembered = x.all.remembered[n], x.all.remembered[:n]
	}
}

func (x *interpreter) defCFA(a cfiArgs) {
	x.state.cfaReg, x.state.cfaOff, x.state.cfa = a.a, int64(a.b), nil
}

func (x *interpreter) defCFARegister(a cfiArgs) { x.state.cfaReg, x.state.cfa = a.a, nil }

func (x *interpreter) defCFAOffset(a cfiArgs) { x.state.cfaOff = int64(a.a) }

func (x *interpreter) defCFAExpression(a cfiArgs) { x.state.cfa = a.block }
