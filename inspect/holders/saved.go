// SPDX-License-Identifier: Apache-2.0

//go:build linux

package holders

import (
	"strings"

	"golang.org/x/arch/x86/x86asm"

	"github.com/gputrace/gputrace/cpython"
)

// A node of the autograd graph shows what it saved as attributes: _saved_self, _saved_weight. Which field each of them
// reads is in the code of the function that computes it, which takes the field's address: its offset is an operand there.
// The attributes of a class of nodes are those of the Python type of the same name in torch._C._functions.

// savedField is a field of a class of nodes, by its table, or of a Python type, by its address.
type savedField struct {
	class, offset uint64
}

const (
	maxGetter   = 0x400 // bytes of a function that are decoded
	maxJumps    = 3
	savedPrefix = "_saved_"
)

// savedName is the name of the attribute that shows a field of a node, without its prefix; empty when it is not known.
func (r *reading) savedName(node, offset uint64) string {
	c := r.torch.of(node)
	if c == nil || r.torch.heap == nil {
		return ""
	}
	k := savedField{c.vtable, offset}
	if name, ok := r.saved[k]; ok {
		return name
	}
	name := ""
	if typ := r.nodeTypes()[c.short()]; typ != 0 {
		name = r.getterOf(typ, offset)
	}
	r.remember(k, name)
	return name
}

// nodeTypes are the Python types of the classes of nodes, by name.
func (r *reading) nodeTypes() map[string]uint64 {
	if r.nodeClasses != nil {
		return r.nodeClasses
	}
	r.nodeClasses = map[string]uint64{}
	h := r.torch.heap
	for _, m := range r.walk.modules {
		if m.Name != "torch._C" {
			continue
		}
		for _, ref := range h.Namespace(r.im, h.Attribute(r.im, m.Object, "_functions")) {
			r.nodeClasses[h.RefName(r.im, ref)] = ref.Target
		}
	}
	return r.nodeClasses
}

// getterOf is the one attribute whose function has an offset among its operands.
func (r *reading) getterOf(typ, offset uint64) string {
	found := ""
	for _, g := range r.torch.heap.Getters(r.im, typ) {
		name, ok := strings.CutPrefix(g.Name, savedPrefix)
		if !ok || !r.hasOperand(g.Function, offset) {
			continue
		}
		if found != "" {
			return ""
		}
		found = name
	}
	return found
}

// attributeOf is the one attribute of an object of a C type, or of its bases, whose function reads a field.
func (r *reading) attributeOf(t *cpython.Type, offset uint64) string {
	k := savedField{t.Addr, offset}
	if name, ok := r.saved[k]; ok {
		return name
	}
	found := map[string]bool{}
	for base, n := t, 0; base != nil && n < maxClassDepth; base, n = base.Base, n+1 {
		for _, g := range r.torch.heap.Getters(r.im, base.Addr) {
			if r.hasOperand(g.Function, offset) {
				found[g.Name] = true
			}
		}
	}
	name := ""
	if r.torch.pythonRole(t) == pythonTensor && offset > r.torch.cdata { // they lie behind the tensor (torch/csrc/autograd/python_variable.h)
		switch offset - r.torch.cdata {
		case 8:
			name = "_backward_hooks"
		case 16:
			name = "_post_accumulate_grad_hooks"
		}
	} else if len(found) == 1 {
		for name = range found {
		}
	}
	r.remember(k, name)
	return name
}

func (r *reading) remember(k savedField, name string) {
	if r.saved == nil {
		r.saved = map[savedField]string{}
	}
	r.saved[k] = name
}

// hasOperand decodes a function, and looks for memory at an offset from a register. A function that only jumps to another one,
// with which the linker has merged it, is that one.
func (r *reading) hasOperand(function, offset uint64) bool {
	for range maxJumps {
		end, ok := r.code.end(function)
		if !ok {
			return false
		}
		b := make([]byte, min(end-function, maxGetter))
		n, _ := r.im.ReadAt(b, function)
		first, err := x86asm.Decode(b[:n], 64)
		if to, ok := first.Args[0].(x86asm.Rel); err == nil && first.Op == x86asm.JMP && ok {
			function += uint64(first.Len) + uint64(int64(to))
			continue
		}
		return codeHasOperand(b[:n], offset)
	}
	return false
}

func codeHasOperand(code []byte, offset uint64) bool {
	for len(code) > 0 {
		inst, err := x86asm.Decode(code, 64)
		if err != nil || inst.Len == 0 {
			code = code[1:]
			continue
		}
		code = code[inst.Len:]
		for _, arg := range inst.Args {
			m, isMemory := arg.(x86asm.Mem)
			i, isNumber := arg.(x86asm.Imm)
			if isMemory && m.Base != x86asm.RIP && m.Base != x86asm.RSP && uint64(m.Disp) == offset ||
				isNumber && inst.Op == x86asm.ADD && uint64(i) == offset {
				return true
			}
		}
	}
	return false
}
