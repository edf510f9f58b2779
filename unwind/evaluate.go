// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"encoding/binary"
	"errors"

	"github.com/gputrace/gputrace/internal/elfimage"
	"github.com/gputrace/gputrace/process"
)

// Limits of an expression; compilers and hand-written descriptions stay below 20 and 5.
const (
	maxOperations = 1000
	maxOperands   = 64
)

// errExpression: an expression that DWARF does not allow in a frame description, or that does not end.
var errExpression = errors.New("unwind expression cannot be evaluated")

// errRegister: a value that is asked for was lost on the way here.
var errRegister = errors.New("a register that is needed was not saved")

// DWARF expression operators (DWARF 5, table 7.9) beside those that expression.go names.
const (
	opAddr       = 0x03
	opConst1u    = 0x08
	opConst1s    = 0x09
	opConst2u    = 0x0a
	opConst2s    = 0x0b
	opConst4u    = 0x0c
	opConst4s    = 0x0d
	opConst8u    = 0x0e
	opConst8s    = 0x0f
	opConstu     = 0x10
	opConsts     = 0x11
	opDup        = 0x12
	opDrop       = 0x13
	opOver       = 0x14
	opPick       = 0x15
	opSwap       = 0x16
	opRot        = 0x17
	opAbs        = 0x19
	opDiv        = 0x1b
	opMinus      = 0x1c
	opMod        = 0x1d
	opMul        = 0x1e
	opNeg        = 0x1f
	opNot        = 0x20
	opOr         = 0x21
	opPlusUconst = 0x23
	opShr        = 0x25
	opShra       = 0x26
	opXor        = 0x27
	opBra        = 0x28
	opEq         = 0x29
	opGt         = 0x2b
	opLe         = 0x2c
	opLt         = 0x2d
	opNe         = 0x2e
	opSkip       = 0x2f
	opBregx      = 0x92
	opDerefSize  = 0x94
	opNop        = 0x96
)

// evaluator runs one expression on a stack of words.
type evaluator struct {
	regs   *registerValues
	memory process.Memory
	reader elfimage.Reader
	stack  []uint64
	err    error
}

// evaluate returns the value of an expression. initial are the operands that it begins with: the CFA, but for the CFA's own.
// Errors: errExpression, errRegister, what reading the memory gave.
func evaluate(expr []byte, regs *registerValues, memory process.Memory, initial ...uint64) (uint64, error) {
	e := evaluator{regs: regs, memory: memory, reader: elfimage.Reader{B: expr}, stack: initial}
	for n := 0; e.reader.Off < len(expr) && e.err == nil; n++ {
		if n == maxOperations || len(e.stack) > maxOperands {
			return 0, errExpression
		}
		e.operation(e.reader.U8())
		if e.reader.Bad {
			return 0, errExpression
		}
	}
	if v := e.pop(); e.err == nil {
		return v, nil
	}
	return 0, e.err
}

func (e *evaluator) push(v uint64) { e.stack = append(e.stack, v) }

func (e *evaluator) pop() uint64 { return e.remove(0) }

// peek is the operand that lies below a number of others.
func (e *evaluator) peek(below int) uint64 {
	if below >= len(e.stack) {
		e.fail(errExpression)
		return 0
	}
	return e.stack[len(e.stack)-1-below]
}

// remove takes out the operand that lies below a number of others.
func (e *evaluator) remove(below int) uint64 {
	v := e.peek(below)
	if at := len(e.stack) - 1 - below; at >= 0 {
		e.stack = append(e.stack[:at], e.stack[at+1:]...)
	}
	return v
}

func (e *evaluator) fail(err error) {
	if e.err == nil {
		e.err = err
	}
}

func (e *evaluator) operation(op byte) {
	switch {
	case op >= opLit0 && op <= opLit31:
		e.push(uint64(op - opLit0))
	case op >= opBreg0 && op <= opBreg31:
		e.register(uint64(op - opBreg0))
	case op >= opConst1u && op <= opConsts || op == opAddr:
		e.constant(op)
	case op >= opDup && op <= opRot:
		e.shuffle(op)
	case op == opBra || op == opSkip:
		e.branch(op)
	case op == opBregx:
		e.register(e.reader.ULEB())
	case op == opDeref:
		e.load(8)
	case op == opDerefSize:
		e.load(e.reader.U8())
	case op == opPlusUconst:
		e.push(e.pop() + e.reader.ULEB())
	case op == opAbs || op == opNeg || op == opNot:
		e.unary(op)
	case op != opNop:
		e.binary(op)
	}
}

func (e *evaluator) register(n uint64) {
	v, err := e.regs.get(n)
	if err != nil {
		e.fail(err)
	}
	e.push(v + uint64(e.reader.SLEB()))
}

func (e *evaluator) constant(op byte) {
	r := &e.reader
	switch op {
	case opAddr, opConst8u, opConst8s:
		e.push(r.U64())
	case opConst1u:
		e.push(uint64(r.U8()))
	case opConst1s:
		e.push(uint64(int8(r.U8())))
	case opConst2u:
		e.push(uint64(r.U16()))
	case opConst2s:
		e.push(uint64(int16(r.U16())))
	case opConst4u:
		e.push(uint64(r.U32()))
	case opConst4s:
		e.push(uint64(int32(r.U32())))
	case opConstu:
		e.push(r.ULEB())
	case opConsts:
		e.push(uint64(r.SLEB()))
	}
}

func (e *evaluator) shuffle(op byte) {
	switch op {
	case opDup:
		e.push(e.peek(0))
	case opDrop:
		e.pop()
	case opOver:
		e.push(e.peek(1))
	case opPick:
		e.push(e.peek(int(e.reader.U8())))
	case opSwap:
		e.push(e.remove(1))
	case opRot:
		e.rotate()
	}
}

// rotate puts the uppermost operand below the two under it.
func (e *evaluator) rotate() {
	a, b, c := e.pop(), e.pop(), e.pop()
	e.stack = append(e.stack, a, c, b)
}

// branch moves on by a signed number of bytes, from behind it.
func (e *evaluator) branch(op byte) {
	by := int(int16(e.reader.U16()))
	if op == opBra && e.pop() == 0 {
		return
	}
	to := e.reader.Off + by
	if to < 0 || to > len(e.reader.B) {
		e.fail(errExpression)
		return
	}
	e.reader.Off = to
}

// load replaces an address by the bytes that lie there.
func (e *evaluator) load(size byte) {
	if size == 0 || size > 8 {
		e.fail(errExpression)
		return
	}
	var b [8]byte
	addr := e.pop()
	if e.err != nil {
		return
	}
	if _, err := e.memory.ReadAt(b[:size], addr); err != nil {
		e.fail(err)
	}
	e.push(binary.LittleEndian.Uint64(b[:]))
}

func (e *evaluator) unary(op byte) {
	v := e.pop()
	switch {
	case op == opNot:
		e.push(^v)
	case op == opNeg || int64(v) < 0:
		e.push(-v)
	default:
		e.push(v)
	}
}

// binary replaces two operands by one. Comparisons are signed (DWARF 5, section 2.5.1.5), so is the division.
func (e *evaluator) binary(op byte) {
	right, left := e.pop(), e.pop()
	signedLeft, signedRight := int64(left), int64(right)
	switch {
	case (op == opDiv || op == opMod) && right == 0:
		e.fail(errExpression)
	case op == opAnd:
		e.push(left & right)
	case op == opDiv:
		e.push(uint64(signedLeft / signedRight))
	case op == opMinus:
		e.push(left - right)
	case op == opMod:
		e.push(left % right)
	case op == opMul:
		e.push(left * right)
	case op == opOr:
		e.push(left | right)
	case op == opPlus:
		e.push(left + right)
	case op == opShl:
		e.push(left << right)
	case op == opShr:
		e.push(left >> right)
	case op == opShra:
		e.push(uint64(signedLeft >> right))
	case op == opXor:
		e.push(left ^ right)
	default:
		e.compare(op, signedLeft, signedRight)
	}
}

func (e *evaluator) compare(op byte, left, right int64) {
	results := map[byte]bool{
		opEq: left == right, opGe: left >= right, opGt: left > right, opLe: left <= right, opLt: left < right, opNe: left != right,
	}
	result, known := results[op]
	if !known {
		e.fail(errExpression)
		return
	}
	if result {
		e.push(1)
		return
	}
	e.push(0)
}
