// SPDX-License-Identifier: Apache-2.0

package pyobject

import "slices"

// trim is a number with which a function compares the length of a container, out of which it takes elements.
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

// compares reports whether a unit is a COMPARE_OP, specialised or not.
func (b *bytecode) compares(unit int) bool {
	return b.argument(unit) >= 0 && slices.Contains(b.comparisons, b.code[2*unit])
}

// comparedWith returns what a call of len() from one unit to another is compared with: what is loaded after it, or before.
func (b *bytecode) comparedWith(unit, after int) (o operand, ok bool) {
	o = operand{-1, -1, -1}
	if name, next := b.attribute(after); name >= 0 && b.compares(next) {
		o.name = name
		return o, true
	}
	if name, next := b.globalVariable(after); name >= 0 && b.compares(next) {
		o.name = name
		return o, true
	}
	if b.compares(after+1) && b.argument(after) >= 0 {
		switch op := b.code[2*after]; {
		case slices.Contains(b.constants, op):
			o.constant = b.argument(after)
			return o, true
		case op == b.small && op != 0:
			o.number = b.argument(after)
			return o, true
		}
	}
	if !b.compares(after) {
		return o, false
	}
	if name, next := b.attribute(unit - 2 - b.attributeCaches); name >= 0 && next == unit {
		o.name = name
		return o, true
	}
	return o, false
}

// takesFrom reports whether the function calls a remover of the container with a name.
func (b *bytecode) takesFrom(container int) bool {
	for unit := range len(b.code) / 2 {
		name, next := b.variable(unit)
		if name != container {
			continue
		}
		method := b.argument(next)
		if b.attributeShift > 0 && method&1 == 0 {
			continue
		}
		if method >>= b.attributeShift; method >= 0 && method < len(b.names) && slices.Contains(removers, b.names[method]) {
			return true
		}
	}
	return false
}

// trimmed is the number that the functions compare the container's length with as they take elements out of it, if it is not yet exceeded;
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
