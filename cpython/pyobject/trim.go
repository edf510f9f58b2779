// SPDX-License-Identifier: Apache-2.0

package pyobject

import "slices"

// trim is a number that a function does not let the length of a container exceed: if it does, elements are taken out.
//
//	while len(self.entries) > self.size:
//	    self.entries.pop(0)
type trim struct {
	operand
	container int    // index of the container's name
	object    uint64 // the constant
}

// operand is what a length is compared with.
type operand struct {
	name     int // index of a name; -1: none
	constant int // index of a constant of the function; -1: none
	number   int // itself; -1: none
}

// bytecode is the instructions of a function.
type bytecode struct {
	instructionForm
	code   []byte
	names  []string // co_names
	global bool     // its containers are global variables, not attributes of its first argument
	minor  int      // of the version
}

// argument returns the argument of the instruction at a unit; -1: the code ends before it.
func (b *bytecode) argument(unit int) int {
	if unit < 0 || 2*unit+1 >= len(b.code) {
		return -1
	}
	return int(b.code[2*unit+1])
}

// variable reads a unit that loads an attribute of the first argument, or a global variable: the index of its name, and the unit after
// it. name is -1 if it does not.
func (b *bytecode) variable(unit int) (name, next int) {
	if b.global {
		return b.globalVariable(unit)
	}
	return b.attribute(unit)
}

func (b *bytecode) attribute(unit int) (name, next int) {
	if b.argument(unit) != 0 {
		return -1, 0
	}
	return b.named(unit+1, b.attributeShift), unit + 2 + b.attributeCaches
}

func (b *bytecode) globalVariable(unit int) (name, next int) {
	if b.minor <= 10 && b.argument(unit) >= 0 && b.code[2*unit] != loadGlobal {
		return -1, 0
	}
	return b.named(unit, b.globalShift), unit + 1 + b.globalCaches
}

// named returns the index of a name that is an argument, shifted; -1: there is no such name.
func (b *bytecode) named(unit, shift int) int {
	n := b.argument(unit)
	if n < 0 || n>>shift<<shift != n || n>>shift >= len(b.names) {
		return -1
	}
	return n >> shift
}

// compares returns the operator of a COMPARE_OP, specialised or not, an index of cmpOps (Lib/opcode.py); -1: the unit is another one.
func (b *bytecode) compares(unit int) int {
	if b.argument(unit) < 0 || !slices.Contains(b.comparisons, b.code[2*unit]) {
		return -1
	}
	return b.argument(unit) >> b.compareShift
}

// Operators that COMPARE_OP names by their place in cmpOps.
const (
	opLess, opLessEqual, opEqual, opGreater, opGreaterEqual = 0, 1, 2, 4, 5
)

// exceeds reports whether an operator is true of a length that has reached a limit, with the length on its left or right.
func exceeds(operator int, left bool) bool {
	if left {
		return operator == opGreater || operator == opGreaterEqual || operator == opEqual
	}
	return operator == opLess || operator == opLessEqual || operator == opEqual
}

// comparedWith returns what a call of len() from one unit to another is compared with, to find whether it is too large: what is loaded
// after it, or before. at is the unit of the comparison.
func (b *bytecode) comparedWith(unit, after int) (o operand, at int, ok bool) {
	o = operand{-1, -1, -1}
	if op := b.compares(after + 1); op >= 0 && b.argument(after) >= 0 {
		switch load := b.code[2*after]; {
		case slices.Contains(b.constants, load):
			o.constant = b.argument(after)
			return o, after + 1, exceeds(op, true)
		case load == b.small && load != 0:
			o.number = b.argument(after)
			return o, after + 1, exceeds(op, true)
		}
	}
	if name, next := b.attribute(after); name >= 0 && b.compares(next) >= 0 {
		o.name = name
		return o, next, exceeds(b.compares(next), true)
	}
	if name, next := b.globalVariable(after); name >= 0 && b.compares(next) >= 0 {
		o.name = name
		return o, next, exceeds(b.compares(next), true)
	}
	if op := b.compares(after); op >= 0 {
		if name, next := b.attribute(unit - 2 - b.attributeCaches); name >= 0 && next == unit {
			o.name = name
			return o, after, exceeds(op, false)
		}
	}
	return o, 0, false
}

// branch returns the units that run only if a comparison is true: from the jump that follows it to where that leads.
func (b *bytecode) branch(comparison int) (from, to int) {
	unit, target := comparison+1+b.compareCaches, 0
	for b.argument(unit) >= 0 && b.code[2*unit] == b.extended {
		target = (target | b.argument(unit)) << 8
		unit++
	}
	if b.argument(unit) < 0 || b.code[2*unit] != b.jump {
		return 0, 0
	}
	target |= b.argument(unit)
	from = unit + 1 + b.jumpCaches
	switch {
	case b.minor <= 9:
		return from, target / 2
	case b.minor == 10:
		return from, target
	}
	return from, from + target
}

// takes are the removers that take an element out themselves.
var takes = slices.DeleteFunc(slices.Clone(removers), func(name string) bool { return name == "next" || name == "move_to_end" })

// takesFrom reports whether units call a remover of the container with a name.
func (b *bytecode) takesFrom(container, from, to int) bool {
	for unit := from; unit < min(to, len(b.code)/2); unit++ {
		name, next := b.variable(unit)
		if name != container {
			continue
		}
		method := b.argument(next)
		if b.attributeShift > 0 && method&1 == 0 {
			continue
		}
		if method >>= b.attributeShift; method >= 0 && method < len(b.names) && slices.Contains(takes, b.names[method]) {
			return true
		}
	}
	return false
}

// trimmed is the number at which the functions take elements out of the container, if it is not yet exceeded;
// 0 if they give no number, or several.
func (s *limitSearch) trimmed(name string) uint64 {
	var found []uint64
	for _, f := range s.functions {
		for _, t := range f.trims {
			if f.texts[t.container] != name {
				continue
			}
			n := int64(t.number)
			if n < 0 {
				object := t.object
				if t.name >= 0 {
					object = s.value(&f, t.name)
				}
				n, _ = s.heap.Int(s.image, object)
			}
			if n > 0 && uint64(n)+1 >= s.length && n <= maxSequence { // an element may be on its way
				found = append(found, uint64(n))
			}
		}
	}
	slices.Sort(found)
	if found = slices.Compact(found); len(found) != 1 {
		return 0
	}
	return found[0]
}
