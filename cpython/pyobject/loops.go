// SPDX-License-Identifier: Apache-2.0

package pyobject

import (
	"slices"

	"github.com/gputrace/gputrace/cpython"
)

// loopForm is how a version encodes a for loop and what it assigns to, with the specialised forms (Include/opcode.h, Include/opcode_ids.h).
type loopForm struct {
	loops, unpacks           []byte // FOR_ITER and UNPACK_SEQUENCE
	loopCaches, unpackCaches int    // units after them
	locals                   []byte // STORE_FAST, and its forms of 3.11 and 3.12 of which the next instruction stays
	cell, name               byte   // STORE_DEREF and STORE_NAME
	pairs                    byte   // STORE_FAST_STORE_FAST, from 3.13 on: two variables in one argument
	withLoad                 byte   // STORE_FAST_LOAD_FAST, from 3.13 on: the variable is in the upper half of the argument
	end, extended            byte   // END_FOR, from 3.12 on, where a loop that is over jumps to; EXTENDED_ARG
}

func loopFormOf(minor int) loopForm {
	switch {
	case minor <= 10:
		return loopForm{loops: []byte{93}, unpacks: []byte{92}, locals: []byte{125}, cell: 137, name: 90, extended: 144}
	case minor == 11:
		return loopForm{loops: []byte{93}, unpacks: []byte{92, 177, 178, 179, 180}, unpackCaches: 1,
			locals: []byte{125, 161, 167}, cell: 138, name: 90,
			extended: 144}
	case minor == 12:
		return loopForm{loops: []byte{93, 62, 63, 64, 65}, unpacks: []byte{92, 161, 166, 167}, loopCaches: 1, unpackCaches: 1,
			locals: []byte{125, 154, 158}, cell: 138, name: 90, end: 4, extended: 144}
	case minor == 13:
		return loopForm{loops: []byte{72, 187, 188, 189, 190}, unpacks: []byte{117, 220, 221, 222}, loopCaches: 1, unpackCaches: 1,
			locals: []byte{110}, cell: 109, name: 114, pairs: 112, withLoad: 111, end: 11, extended: 71}
	case minor == 14:
		return loopForm{loops: []byte{70, 171, 172, 173, 174}, unpacks: []byte{119, 209, 210, 211}, loopCaches: 1, unpackCaches: 1,
			locals: []byte{112}, cell: 111, name: 116, pairs: 114, withLoad: 113, end: 9, extended: 69}
	case minor == 15:
		return loopForm{loops: []byte{68, 174, 175, 176, 177, 178}, unpacks: []byte{118, 216, 217, 218}, loopCaches: 1, unpackCaches: 1,
			locals: []byte{111}, cell: 110, name: 115, pairs: 113, withLoad: 112, end: 9, extended: 67}
	}
	return loopForm{}
}

// loopTargets is the variables of a code object that its for loops assign to, by what they are indices of.
type loopTargets struct {
	locals, cells, names []int
}

// loopTargetsIn reads the variables that for loops assign to.
//
//	for name, task in tasks.items():
//
// is FOR_ITER, UNPACK_SEQUENCE 2 and two stores. A loop over attributes or elements, or over variables beyond the first 256, has none.
func loopTargetsIn(code []byte, f *loopForm) (out loopTargets) {
	for unit := 0; unit < len(code)/2; unit++ {
		if !f.isLoop(code, unit) {
			continue
		}
		unit += f.loopCaches
		if found, ok := f.targets(code, unit+1); ok {
			out.locals = append(out.locals, found.locals...)
			out.cells = append(out.cells, found.cells...)
			out.names = append(out.names, found.names...)
		}
	}
	return out
}

// isLoop reports whether a unit is a FOR_ITER. A word of an inline cache can look like one; its jump does not lead to the end of a loop.
func (f *loopForm) isLoop(code []byte, unit int) bool {
	if !slices.Contains(f.loops, code[2*unit]) || f.end == 0 {
		return slices.Contains(f.loops, code[2*unit])
	}
	jump := int(code[2*unit+1])
	if unit > 0 && code[2*unit-2] == f.extended {
		jump += int(code[2*unit-1]) << 8
	}
	to := 2 * (unit + 1 + f.loopCaches + jump)
	return to < len(code) && code[to] == f.end
}

// targets reads the stores of one value at a unit; ok is false if it is not stored in variables.
func (f *loopForm) targets(code []byte, unit int) (out loopTargets, ok bool) {
	left := 1
	for ; left > 0 && unit < len(code)/2; unit++ {
		op, arg := code[2*unit], int(code[2*unit+1])
		left--
		switch {
		case slices.Contains(f.unpacks, op):
			left += arg
			unit += f.unpackCaches
		case slices.Contains(f.locals, op):
			out.locals = append(out.locals, arg)
		case f.pairs != 0 && op == f.pairs:
			out.locals = append(out.locals, arg>>4, arg&15)
			left--
		case f.withLoad != 0 && op == f.withLoad:
			out.locals = append(out.locals, arg>>4)
		case op == f.cell:
			out.cells = append(out.cells, arg)
		case op == f.name:
			out.names = append(out.names, arg)
		default:
			return out, false
		}
	}
	return out, left == 0
}

// LoopVariables returns the names of the variables that for loops of a frame's code assign to, as addresses of strings: of its local
// variables, and of what it has in a dictionary of its own, such as a module's variables. The objects in them are usually elements of
// what is iterated, and a moment later the variables have others.
func (h *Heap) LoopVariables(img Image, a Activation) (locals, names []uint64) {
	form := loopFormOf(h.Version.Minor)
	found := loopTargetsIn(h.bytecode(img, a.Code), &form)
	l := h.objects
	variables := l.codeVarNames
	if l.codeNames != cpython.NoField {
		variables = l.codeNames
	}
	all := h.elements(img, img.Word(a.Code+uint64(variables)))
	cells := all
	if l.codeNames == cpython.NoField { // to 3.10 cell variables are counted by themselves
		cells = slices.Concat(h.elements(img, img.Word(a.Code+uint64(l.codeCellVars))), h.elements(img, img.Word(a.Code+uint64(l.codeFreeVars))))
	}
	locals = append(namesAt(all, found.locals), namesAt(cells, found.cells)...)
	if len(found.names) > 0 {
		names = namesAt(h.elements(img, codeField(img, a.Code, h.TypeOf(img, a.Code), "co_names")), found.names)
	}
	return locals, names
}

// namesAt returns the names at indices; those beyond the end are left out.
func namesAt(names []uint64, indices []int) (out []uint64) {
	for _, i := range indices {
		if i < len(names) {
			out = append(out, names[i])
		}
	}
	return out
}

// LocalsDict returns the address of the dictionary that has the variables of a frame of a module or a class; 0: it has none.
func (h *Heap) LocalsDict(img Image, a Activation) uint64 {
	return img.Word(a.Addr + uint64(h.objects.frameLocals))
}
