// SPDX-License-Identifier: Apache-2.0

package machinecode

import (
	"encoding/binary"
	"iter"
	"slices"
)

// arm64 is arm64, with its procedure call standard (AAPCS64, 6.1.1).
var arm64 = Machine{
	Arguments:    []Reg{1, 2, 3, 4}, // x0 to x3
	Result:       1,
	Stack:        armStack,
	Frame:        30, // x29
	instructions: armInstructions,
	importCalls:  armImportCalls,
}

const (
	armStack  = 32
	armKept   = 0x7ff<<19 | 1<<31 // x19 to x29 and the stack pointer keep their value over a call
	armLength = 4
)

// general is a register operand: 31 is the one that is always zero.
func general(number uint32) Reg {
	if number &= 31; number == 31 {
		return 0
	}
	return Reg(number) + 1
}

// orStack is a register operand of which 31 is the stack pointer.
func orStack(number uint32) Reg { return Reg(number&31) + 1 }

// signed is a field of a word as a signed number.
func signed(word uint32, low, bits int) int64 {
	return int64(int32(word<<(32-low-bits)) >> (32 - bits))
}

// armInstructions decodes code. Addresses are put together of two instructions, adrp and one that adds to it, so what registers are
// known to hold is followed, until a jump.
func armInstructions(b []byte, at uint64) iter.Seq[Inst] {
	return func(yield func(Inst) bool) {
		var known knowledge
		for ; len(b) >= armLength; b = b[armLength:] {
			inst := armDecode(binary.LittleEndian.Uint32(b), at)
			at += armLength
			known.follow(&inst)
			if !yield(inst) {
				return
			}
		}
	}
}

// knowledge is, by register, the number that it holds, or the address from which its value was loaded.
type knowledge [armStack + 1]struct {
	isNumber, isLoaded bool
	value              uint64
}

// follow replaces the operands of an instruction by what is known of them, and then notes what it does.
func (k *knowledge) follow(i *Inst) {
	if base := k[i.Base]; base.isNumber && i.Index == 0 && (i.InMemory || i.Op == Add) {
		i.Base, i.Offset = 0, i.Offset+int64(base.value)
		if i.Op == Add {
			i.Op, i.Value, i.Operand = Constant, uint64(i.Offset), Operand{}
		}
	}
	if from := k[i.From]; (i.Op == Call || i.Op == Jump) && from.isLoaded {
		i.InMemory, i.Operand = true, Operand{Offset: int64(from.value), Size: 8}
	}
	before := *k
	for r := Reg(1); r <= armStack; r++ {
		if i.Writes(r) || i.Op == Jump || i.Op == Return || i.Op == Trap || i.Op == Unknown {
			k[r].isNumber, k[r].isLoaded = false, false
		}
	}
	switch {
	case i.To == 0:
	case i.Op == Constant:
		k[i.To].isNumber, k[i.To].value = true, i.Value
	case i.Op == Load && i.Base == 0 && i.Index == 0 && i.Size == 8:
		k[i.To].isLoaded, k[i.To].value = true, uint64(i.Offset)
	case i.Op == Copy:
		k[i.To] = before[i.From]
	}
}

// armImportCalls knows PLT entries of three and four instructions, and those that begin with one more for indirect jumps:
// adrp x16, slot ; ldr x17, [x16, slot] ; add x16, x16, slot ; br x17.
func armImportCalls(all []code, slots []uint64) (calls []uint64) {
	var entries []uint64
	var direct []Inst
	for i := range all {
		for inst := range armInstructions(all[i].bytes, all[i].start) {
			at := inst.End - armLength
			throughSlot := inst.InMemory && inst.Base == 0 && slices.Contains(slots, uint64(inst.Offset))
			switch {
			case inst.Op == Jump && throughSlot:
				entries = append(entries, at-2*armLength, at-3*armLength, at-4*armLength)
			case inst.Op == Call && throughSlot:
				calls = append(calls, at)
			case inst.Op == Call && inst.Target != 0:
				direct = append(direct, inst)
			}
		}
	}
	for i := range direct {
		if slices.Contains(entries, direct[i].Target) {
			calls = append(calls, direct[i].End-armLength)
		}
	}
	return calls
}

// armDecode reads one instruction, by the groups of the Arm ARM (C4.1): bits 28 to 25 of a word.
func armDecode(word uint32, at uint64) Inst {
	i := Inst{Op: Other, End: at + armLength, writes: general(word).bit()}
	switch group := word >> 25 & 15; {
	case group < 4: // not allocated; scalable vectors and matrices
		return Inst{End: i.End}
	case group&14 == 8:
		i.armImmediate(word, at)
	case group&14 == 10:
		i.armBranch(word, at)
	case group&5 == 4:
		i.armMemory(word, at)
	case group&7 == 5:
		i.armRegisters(word)
	default:
		i.armVector(word)
	}
	return i
}

// armImmediate is the instructions with a number in them (C4.1.93).
func (i *Inst) armImmediate(word uint32, at uint64) {
	wide := word>>31 == 1
	switch word >> 23 & 7 {
	case 0, 1: // adr, adrp
		distance := signed(word, 5, 19)<<2 | int64(word>>29&3)
		i.Op, i.To, i.Value = Constant, general(word), at+uint64(distance)
		if wide {
			i.Value = at&^0xfff + uint64(distance<<12)
		}
	case 2: // add, sub, and cmp, which is one that keeps no result
		i.armAdd(word, wide)
	case 4: // and, orr, eor; ands, which is tst
		if word>>29&3 != 3 {
			i.writes = orStack(word).bit()
		}
	case 5:
		i.armMoveWide(word, wide)
	}
}

func (i *Inst) armAdd(word uint32, wide bool) {
	offset := int64(word >> 10 & 0xfff)
	if word>>22&1 == 1 {
		offset <<= 12
	}
	if word>>30&1 == 1 {
		offset = -offset
	}
	flags := word>>29&1 == 1
	switch {
	case flags && general(word) == 0:
		i.Op, i.From = Compare, orStack(word>>5)
	case flags:
	default:
		i.writes = orStack(word).bit()
		if !wide {
			return
		}
		i.Op, i.To, i.Operand = Add, orStack(word), Operand{Base: orStack(word >> 5), Offset: offset}
		if offset == 0 { // mov to or from the stack pointer
			i.Op, i.From, i.Operand = Copy, i.Base, Operand{}
		}
	}
}

// armMoveWide is movz and movn; movk changes a part of what there is.
func (i *Inst) armMoveWide(word uint32, wide bool) {
	value := uint64(word>>5&0xffff) << (16 * (word >> 21 & 3))
	switch word >> 29 & 3 {
	case 0:
		value = ^value
		if !wide {
			value = uint64(uint32(value))
		}
	case 2:
	default:
		return
	}
	i.Op, i.To, i.Value = Constant, general(word), value
}

// armBranch is branches, exceptions and system instructions (C4.1.94).
func (i *Inst) armBranch(word uint32, at uint64) {
	switch {
	case word>>26&0x1f == 5: // b, bl
		i.Op, i.writes = Jump, 0
		if word>>31 == 1 {
			i.Op, i.writes = Call, armCallWrites
		}
		i.Target = at + uint64(signed(word, 0, 26)<<2)
	case word>>25 == 0x6b:
		i.armBranchTo(word)
	case word>>24 == 0xd4:
		i.Op, i.writes = Trap, 0
		if word&0x1f == 1 { // svc, whose call may write what a function may
			i.Op, i.writes = Other, armCallWrites
		}
	case word&0xfffff01f == 0xd503201f: // hints: nop, bti, and those that sign x17 or x30
		i.Op, i.writes = Nop, general(17).bit()|general(16).bit()|general(30).bit()
	case word>>20&0xfff == 0xd53: // mrs
	default: // conditional branches, barriers, msr
		i.writes = 0
	}
}

const armCallWrites = anyRegister &^ armKept

// armBranchTo is br, blr and ret, also with authentication.
func (i *Inst) armBranchTo(word uint32) {
	i.writes, i.From = 0, general(word>>5)
	switch word >> 21 & 7 {
	case 0:
		i.Op = Jump
	case 1:
		i.Op, i.writes = Call, armCallWrites
	case 2:
		i.Op, i.From = Return, 0
	default:
		i.Op, i.From = Trap, 0 // returns from exceptions
	}
}

// armMemory is loads and stores (C4.1.97).
func (i *Inst) armMemory(word uint32, at uint64) {
	vector := word>>26&1 == 1
	i.InMemory, i.Base = true, orStack(word>>5)
	switch group := word >> 27 & 7; {
	case group == 7:
		i.armLoadStore(word, vector)
	case group == 5:
		i.armPair(word, vector)
	case group == 3 && word>>24&1 == 0: // relative to the instruction
		i.Op, i.To, i.Base, i.Offset, i.Size = Load, general(word), 0, int64(at)+signed(word, 5, 19)<<2, 4<<(word>>30&1)
		if vector {
			i.Op, i.To, i.writes = Other, 0, 0
		} else if word>>30 >= 2 { // with a sign, and prefetches
			i.Op, i.To = Other, 0
		}
	case group == 1 && !vector: // exclusive and ordered ones; comparisons that swap
		i.stores = word>>22&1 == 0 || word>>21&1 == 1
		i.writes |= general(word>>10).bit() | general(word>>16).bit()
		i.Size = 16
	default: // several vectors, tags, copies
		i.stores, i.Size, i.writes = true, 64, i.writes|orStack(word>>5).bit()|general(word>>16).bit()
	}
}

// armLoadStore reads the loads and stores of one register.
func (i *Inst) armLoadStore(word uint32, vector bool) {
	scale, opc := int(word>>30), word>>22&3
	if vector && opc >= 2 {
		scale = 4
	}
	i.Size = 1 << scale
	switch {
	case word>>24&1 == 1:
		i.Offset = int64(word>>10&0xfff) << scale
	case word>>21&1 == 0:
		i.Offset = signed(word, 12, 9)
		i.armIndexed(word >> 10 & 3)
	case word>>10&3 == 2:
		i.Index = general(word >> 16)
		i.armNarrowIndex(word)
	case word>>10&3 == 0: // atomic ones: what was there is loaded, and changed
		i.stores, i.Offset = true, 0
		return
	default: // with authentication
		i.writes |= i.Base.bit()
		return
	}
	i.armDirection(word, opc, vector)
}

// armNarrowIndex: an index that is multiplied, or extended from 32 bits, adds something else than the register.
func (i *Inst) armNarrowIndex(word uint32) {
	if word>>12&15 != 6 { // lsl by 0
		i.Size = 0
	}
}

// armIndexed adds what an access does to its base: 1 after it, 3 before it.
func (i *Inst) armIndexed(mode uint32) {
	if mode&1 == 0 {
		return
	}
	i.writes |= i.Base.bit()
	if mode == 1 {
		i.Offset = 0
	}
}

// armDirection says whether an access of one register loads or stores it.
func (i *Inst) armDirection(word, opc uint32, vector bool) {
	own := general(word).bit()
	switch {
	case vector:
		i.writes &^= own &^ i.indexedBase(word)
		i.stores = opc&1 == 0
	case opc == 0:
		i.Op, i.From, i.stores = Store, general(word), true
		i.writes &^= own &^ i.indexedBase(word)
	case opc == 1:
		i.Op, i.To = Load, general(word)
	case word>>30 == 3: // prefetch
		i.writes &^= own
	}
}

// indexedBase is the base, if the access changes it.
func (i *Inst) indexedBase(word uint32) uint32 {
	if word>>24&1 == 0 && word>>21&1 == 0 && word>>10&1 == 1 {
		return i.Base.bit()
	}
	return 0
}

// armPair reads the loads and stores of two registers.
func (i *Inst) armPair(word uint32, vector bool) {
	scale := 2 + int(word>>31)
	if vector {
		scale = 2 + int(word>>30)
	}
	mode := word >> 23 & 3
	i.Offset, i.Size = signed(word, 15, 7)<<scale, 2<<scale
	i.writes = 0
	if mode&1 == 1 {
		i.writes = i.Base.bit()
	}
	if mode == 1 {
		i.Offset = 0
	}
	loads := word>>22&1 == 1
	i.stores = !loads
	if vector {
		return
	}
	first, second := general(word), general(word>>10)
	if loads {
		i.writes |= first.bit() | second.bit()
	}
	switch {
	case word>>30 != 2: // narrow ones, tags
	case loads:
		i.Op, i.To, i.Second = Load, first, second
	default:
		i.Op, i.From, i.Second = Store, first, second
	}
}

// armRegisters is what is computed of registers (C4.1.95).
func (i *Inst) armRegisters(word uint32) {
	switch {
	case word&0xffe0ffe0 == 0xaa0003e0: // mov
		i.Op, i.To, i.From = Copy, general(word), general(word>>16)
		if i.From == 0 {
			i.Op, i.Value = Constant, 0
		}
	case word&0xffe0fc00 == 0x8b000000: // add
		i.Op, i.To = Add, general(word)
		i.Operand = Operand{Base: general(word >> 5), Index: general(word >> 16)}
		if i.Base == 0 || i.Index == 0 {
			i.Op, i.Operand = Other, Operand{}
		}
	case word&0xff20001f == 0xeb00001f, word&0xff20001f == 0xeb20001f: // cmp
		i.Op, i.From = Compare, general(word>>5)
	case word&0x3f200000 == 0x0b200000: // add and sub of an extended register, which may be of the stack pointer
		i.writes = orStack(word).bit()
	case word&0x7fffffe0 == 0x1a9f07e0: // cset ne
		i.Op = SetNotEqual
	case word&0x3fe00000 == 0x3a400000: // ccmp, ccmn
		i.writes = 0
	}
}

// armVector is floating point and vectors, which write a general register when they convert or move to one (C4.1.96).
func (i *Inst) armVector(word uint32) {
	conversion := word&0x5f20fc00 == 0x1e200000
	fixed := word&0x5f200000 == 0x1e000000
	element := word&0x9fe08400 == 0x0e000400
	if !conversion && !fixed && !element {
		i.writes = 0
	}
}
