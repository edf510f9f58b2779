// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/gputrace/gputrace/inspect/internal/machinecode"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/symbolize"
)

// The functions of libtorch_cpu.so whose code says where autograd keeps what it is at. The first three are exported in every
// version from 2.1 on (ATen/SequenceNumber.h, ATen/record_function.h, torch/csrc/autograd/function.h); the constructor is in
// the symbol table.
const (
	peekFunction    = "_ZN2at15sequence_number4peekEv"
	threadFunction  = "_ZN2at14RecordFunction15currentThreadIdEv"
	nodeFunction    = "_ZN5torch8autograd16get_current_nodeEv"
	nodeConstructor = "_ZN5torch8autograd4NodeC2EmOSt6vectorINS0_4EdgeE"
)

const (
	maxAccessor = 32 // instructions of an accessor of a thread-local variable
	// fromNumberToThread is where a node keeps the thread that made it: behind its number are its topological number and a flag
	// (class Node of torch/csrc/autograd/function.h).
	fromNumberToThread = 0x18
	maxNodeOffset      = 0x80
	maxTLSOffset       = 1 << 24
)

// Autograd is where a process keeps where autograd is: the first four in the thread-local memory of libtorch_cpu, the others in a
// node. All are bytes but Module.
type Autograd struct {
	Module     uint64 // the number of that memory in the dtv of a thread (glibc)
	Next       uint32 // the number that the thread's next node gets, 8 bytes
	Thread     uint32 // PyTorch's own number of the thread, 8 bytes; 0: it has none yet
	Node       uint32 // the address of the node that runs, 8 bytes; 0: none does
	NodeNumber uint16 // the number of a node, 8 bytes
	NodeThread uint16 // PyTorch's number of the thread that made it, 8 bytes
}

// FindAutograd reads the code of libtorch_cpu.so, and of a process the words that the dynamic linker and the library's constructors
// have filled in. It needs no table of versions. The error wraps ErrUnknownLayout when the code is not as it is known, or nothing
// is filled in yet.
func FindAutograd(f *symbolize.File, m process.Memory, bias uint64) (*Autograd, error) {
	a, err := findAutograd(f, m, bias)
	if err != nil {
		return nil, fmt.Errorf("find where autograd is: %w: %w", ErrUnknownLayout, err)
	}
	return a, nil
}

func findAutograd(f *symbolize.File, m process.Memory, bias uint64) (*Autograd, error) {
	machine := machinecode.For(f.Machine())
	if machine == nil {
		return nil, fmt.Errorf("code of %s", f.Machine())
	}
	names := []string{peekFunction, threadFunction, nodeFunction, nodeConstructor}
	found := f.FindPrefixes(names)
	for i, name := range names {
		if len(found[i]) == 0 {
			return nil, fmt.Errorf("no function %s", name)
		}
	}
	code := accessors{file: f, machine: machine, memory: m, bias: bias}
	out := &Autograd{Next: code.variable(found[0][0].Addr, false), Thread: code.variable(found[1][0].Addr, false)}
	out.Node = code.variable(code.pointedTo(found[2][0].Addr), true)
	out.Module = code.module
	out.NodeNumber = code.nodeNumber(found[3][0].Addr)
	out.NodeThread = out.NodeNumber + fromNumberToThread
	return out, code.err
}

// accessors reads functions that give thread-local variables. After the first error everything is 0.
type accessors struct {
	file    *symbolize.File
	machine *machinecode.Machine
	memory  process.Memory
	bias    uint64
	module  uint64 // of the variables so far, which must be of one library; 0: of none yet
	err     error
}

func (c *accessors) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

// opening decodes the first instructions of a function, up to its first return.
func (c *accessors) opening(start uint64, most int) machinecode.Path {
	p := c.machine.Decode(c.text(start, most*16), start, most)
	end := slices.IndexFunc(p, func(i machinecode.Inst) bool { return i.Op == machinecode.Return })
	return p[:min(uint(end), uint(len(p)))]
}

// variable is the offset of the variable that a function returns or, with isAddress, the address of:
//
//	lea index(%rip),%rdi ; call __tls_get_addr ; mov offset(%rax),%rax
//	lea index(%rip),%rdi ; call __tls_get_addr ; add $offset,%rax ; ret
//	mrs x1, tpidr_el0 ; adrp x0, index ; ldr x2, [x0, index] ; add x0, x0, index ; blr x2 ; ldr x0, [x1, x0]
//
// The index is a word with the number of the library and one with an offset, to which the one in the code is added (ELF Handling
// For Thread-Local Storage, general and local dynamic model). On arm64 it is a descriptor (the same, TLS descriptors): a function that
// returns how far from the thread pointer the variable is, and what it needs for that. Before that, a function that returns an address
// may have asked in the same way whether the variable has been initialised.
func (c *accessors) variable(function uint64, isAddress bool) uint32 {
	var index uint64
	called, descriptor := false, false
	sum, result := machinecode.Reg(0), c.machine.Result // sum: of what a descriptor has returned and the thread pointer
	for _, inst := range c.opening(function, maxAccessor) {
		uses := inst.Op == machinecode.Load || inst.Op == machinecode.Add
		ofSum := sum != 0 && inst.Base == sum && inst.Index == 0 && inst.Op != machinecode.Load == isAddress
		ofDescriptor := descriptor && (inst.Index == result || inst.Base == result && inst.Index != 0)
		switch {
		case inst.Op == machinecode.Constant && inst.To == c.machine.Arguments[0]:
			index, called = inst.Value, false
		case inst.Op == machinecode.Call && index != 0 && !called:
			called, descriptor = true, inst.InMemory && inst.Base == 0 && uint64(inst.Offset) == index
		case !called || !uses:
		case ofSum, !descriptor && inst.Base == result && inst.Index == 0:
			return c.resolve(index, inst.Offset, descriptor)
		case ofDescriptor && inst.Op == machinecode.Load && !isAddress:
			return c.resolve(index, 0, true)
		case ofDescriptor && inst.Op == machinecode.Add:
			sum = inst.To
			continue
		}
		if sum != 0 && inst.Writes(sum) {
			sum = 0
		}
	}
	if isAddress && sum == result {
		return c.resolve(index, 0, true)
	}
	c.fail("no thread-local variable in the function at %#x", function)
	return 0
}

// resolve adds what the dynamic linker has put into an index.
func (c *accessors) resolve(index uint64, added int64, descriptor bool) uint32 {
	if descriptor {
		index = c.word(index+wordSize) - c.bias // the loader's own words, of which the first two are as above
		if c.err == nil && !pointer(index+c.bias) {
			c.fail("a variable has a fixed place, %#x", index+c.bias)
		}
	}
	module := c.word(index)
	offset := c.word(index+wordSize) + uint64(added)
	switch {
	case c.err != nil:
		return 0
	case module == 0 || module > maxTLSOffset || c.module != 0 && module != c.module:
		c.fail("the variables are of the libraries %d and %d", c.module, module)
		return 0
	case offset >= maxTLSOffset || offset%wordSize != 0:
		c.fail("a variable at %#x", offset)
		return 0
	}
	c.module = module
	return uint32(offset)
}

func (c *accessors) word(vaddr uint64) uint64 {
	if c.err != nil {
		return 0
	}
	v, err := process.Uint64(c.memory, vaddr+c.bias)
	if err != nil {
		c.fail("%w", err)
	}
	return v
}

// pointedTo is the link-time address of the function that another one calls through a pointer, which is filled in when the library
// is loaded.
func (c *accessors) pointedTo(function uint64) uint64 {
	for _, inst := range c.opening(function, maxAccessor) {
		if inst.Op != machinecode.Call {
			continue
		}
		if !inst.InMemory || inst.Base != 0 || inst.Index != 0 {
			break
		}
		target := c.word(uint64(inst.Offset))
		if target < c.bias {
			c.fail("the pointer at %#x is not filled in", inst.Offset)
			return 0
		}
		return target - c.bias
	}
	c.fail("no call through a pointer in the function at %#x", function)
	return 0
}

// nodeNumber is where the constructor of a node puts its second argument, the number. It must put the number of the thread where
// that is known to be, too:
//
//	mov %rsi,number(%rdi) ; ... ; call at::RecordFunction::currentThreadId ; mov %rax,thread(%rbx)
//	mov x19, x0 ; ... ; stp x1, xzr, [x19, number] ; ... ; blr x0 ; ... ; str x0, [x19, thread]
func (c *accessors) nodeNumber(constructor uint64) uint16 {
	number, called := int64(0), false
	node := []machinecode.Reg{c.machine.Arguments[0]} // the registers that have the node's address
	argument := c.machine.Arguments[1]                // 0: it is overwritten
	for _, inst := range c.body(constructor) {
		isStore := inst.Op == machinecode.Store && inst.Index == 0
		switch {
		case isStore && number == 0 && argument != 0 && inst.From == argument && slices.Contains(node, inst.Base):
			number = inst.Offset
		case isStore && called && inst.From == c.machine.Result && number > 0 && inst.Offset == number+fromNumberToThread:
			if number%wordSize == 0 && number < maxNodeOffset {
				return uint16(number)
			}
		}
		isCopy := inst.Op == machinecode.Copy && slices.Contains(node, inst.From)
		node = slices.DeleteFunc(node, func(r machinecode.Reg) bool { return inst.Writes(r) })
		if isCopy {
			node = append(node, inst.To)
		}
		if inst.Writes(argument) {
			argument = 0
		}
		called = inst.Op == machinecode.Call || called && !inst.Writes(c.machine.Result)
	}
	c.fail("the constructor of nodes at %#x does not keep a number and a thread", constructor)
	return 0
}

// body decodes a whole function.
func (c *accessors) body(start uint64) machinecode.Path {
	_, end, ok := c.file.Frames().Bounds(start)
	if !ok {
		c.fail("no frame description of the function at %#x", start)
		return nil
	}
	return c.machine.Decode(c.text(start, int(min(end-start, machinecode.MaxFunction))), start, machinecode.MaxFunction)
}

// text is the code at a link-time address, as far as it may be read at once.
func (c *accessors) text(start uint64, most int) []byte {
	code, ok := c.file.Text(start, most)
	if c.err != nil || !ok {
		c.fail("no code at %#x", start)
		return nil
	}
	return code
}

// maxClassName bounds the mangled name of a class, bytes.
const maxClassName = 512

// NodeClass is the name of the class of a node, without the namespaces of autograd: "AddmmBackward0"; empty when it cannot be read.
// vtable is the first word of the node: the word before what it points to leads to the class's type_info, the second word of which
// is the mangled name (Itanium C++ ABI, 2.5.2 and 2.9.4).
func NodeClass(m process.Memory, vtable uint64) string {
	info, err := process.Uint64(m, vtable-wordSize)
	if err != nil {
		return ""
	}
	at, err := process.Uint64(m, info+wordSize)
	if err != nil {
		return ""
	}
	name := make([]byte, maxClassName)
	n, _ := m.ReadAt(name, at) // its front is enough
	end := bytes.IndexByte(name[:n], 0)
	if end <= 0 {
		return ""
	}
	class := symbolize.Demangle("_Z" + string(name[:end]))
	for _, namespace := range []string{"torch::autograd::generated::", "torch::autograd::"} {
		if short, ok := strings.CutPrefix(class, namespace); ok {
			return short
		}
	}
	return class
}
