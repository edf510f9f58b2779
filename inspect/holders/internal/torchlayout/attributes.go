// SPDX-License-Identifier: Apache-2.0

package torchlayout

import (
	"strings"

	"github.com/gputrace/gputrace/cpython/pyobject"
	"github.com/gputrace/gputrace/inspect/internal/machinecode"
)

// A node of the autograd graph shows what it saved as attributes: _saved_self, _saved_weight. Which field each of them
// reads is in the code of the function that computes it, which takes the field's address: its offset is an operand there.
// The attributes of a class of nodes are those of the Python type of the same name in torch._C._functions.

// Attributes names fields by the attributes that show them. It remembers what it found.
type Attributes struct {
	t       *Reader
	module  uint64 // address of the module torch._C; 0: it is not there
	names   map[savedField]string
	classes map[string]uint64 // see nodeTypes
}

// NewAttributes makes one. module is the address of the module torch._C, or 0.
func NewAttributes(t *Reader, module uint64) *Attributes {
	return &Attributes{t: t, module: module, names: map[savedField]string{}}
}

// savedField is a field of a class of nodes, by its table, or of a Python type, by its address.
type savedField struct {
	class, offset uint64
}

const (
	maxGetter   = 0x400 // bytes of a function that are decoded
	maxJumps    = 3
	savedPrefix = "_saved_"
)

// Saved is the name of the attribute that shows a field of a node, without its prefix; empty when it is not known.
func (a *Attributes) Saved(node, offset uint64) string {
	c := a.t.of(node)
	if c == nil || a.t.heap == nil {
		return ""
	}
	k := savedField{c.vtable, offset}
	if name, ok := a.names[k]; ok {
		return name
	}
	name := ""
	if typ := a.nodeTypes()[c.short()]; typ != 0 {
		name = a.getterOf(typ, offset)
	}
	a.names[k] = name
	return name
}

// nodeTypes are the Python types of the classes of nodes, by name.
func (a *Attributes) nodeTypes() map[string]uint64 {
	if a.classes != nil {
		return a.classes
	}
	a.classes = map[string]uint64{}
	if h := a.t.heap; a.module != 0 {
		for _, ref := range h.Namespace(a.t.im, h.Attribute(a.t.im, a.module, "_functions")) {
			a.classes[h.RefName(a.t.im, ref)] = ref.Target
		}
	}
	return a.classes
}

// getterOf is the one attribute whose function has an offset among its operands.
func (a *Attributes) getterOf(typ, offset uint64) string {
	found := ""
	for _, g := range a.t.heap.Getters(a.t.im, typ) {
		name, ok := strings.CutPrefix(g.Name, savedPrefix)
		if !ok || !a.hasOperand(g.Function, offset) {
			continue
		}
		if found != "" {
			return ""
		}
		found = name
	}
	return found
}

// Of returns the one attribute of a C type, or of its bases, whose function reads a field of the object.
func (a *Attributes) Of(t *pyobject.Type, offset uint64) string {
	k := savedField{t.Addr, offset}
	if name, ok := a.names[k]; ok {
		return name
	}
	found := map[string]bool{}
	for base, n := t, 0; base != nil && n < maxClassDepth; base, n = base.Base, n+1 {
		for _, g := range a.t.heap.Getters(a.t.im, base.Addr) {
			if a.hasOperand(g.Function, offset) {
				found[g.Name] = true
			}
		}
	}
	name := ""
	if a.t.pythonRole(t) == pythonTensor && offset > a.t.cdata { // they lie behind the tensor (torch/csrc/autograd/python_variable.h)
		switch offset - a.t.cdata {
		case 8:
			name = "_backward_hooks"
		case 16:
			name = "_post_accumulate_grad_hooks"
		}
	} else if len(found) == 1 {
		for name = range found {
		}
	}
	a.names[k] = name
	return name
}

// hasOperand decodes a function, and looks for memory at an offset from a register. A function that only jumps to another one,
// with which the linker has merged it, is that one.
func (a *Attributes) hasOperand(function, offset uint64) bool {
	for range maxJumps {
		machine, end, ok := a.t.code.function(function)
		if !ok {
			return false
		}
		b := make([]byte, min(end-function, maxGetter))
		n, _ := a.t.im.ReadAt(b, function)
		first := machine.Decode(b[:n], function, 1)
		if len(first) == 1 && first[0].Op == machinecode.Jump && first[0].Target != 0 {
			function = first[0].Target
			continue
		}
		return codeHasOperand(machine, b[:n], offset)
	}
	return false
}

func codeHasOperand(machine *machinecode.Machine, code []byte, offset uint64) bool {
	for inst := range machine.Instructions(code, 0) {
		if inst.Base == 0 || inst.Base == machine.Stack || !inst.InMemory && inst.Op != machinecode.Add {
			continue
		}
		if uint64(inst.Offset) == offset || inst.Second != 0 && uint64(inst.Offset)+8 == offset {
			return true
		}
	}
	return false
}
