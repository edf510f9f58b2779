// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"bytes"
	"debug/elf"
	"fmt"
	"strings"

	"golang.org/x/arch/x86/x86asm"

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
	if f.Machine() != elf.EM_X86_64 {
		return nil, fmt.Errorf("code of %s", f.Machine())
	}
	names := []string{peekFunction, threadFunction, nodeFunction, nodeConstructor}
	found := f.FindPrefixes(names)
	for i, name := range names {
		if len(found[i]) == 0 {
			return nil, fmt.Errorf("no function %s", name)
		}
	}
	code := accessors{file: f, memory: m, bias: bias}
	out := &Autograd{Next: code.variable(found[0][0].Addr), Thread: code.variable(found[1][0].Addr)}
	out.Node = code.variable(code.pointedTo(found[2][0].Addr))
	out.Module = code.module
	out.NodeNumber = code.nodeNumber(found[3][0].Addr)
	out.NodeThread = out.NodeNumber + fromNumberToThread
	return out, code.err
}

// accessors reads functions that give thread-local variables. After the first error everything is 0.
type accessors struct {
	file   *symbolize.File
	memory process.Memory
	bias   uint64
	module uint64 // of the variables so far, which must be of one library; 0: of none yet
	err    error
}

func (c *accessors) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

// instruction is one of a function, with the link-time address behind it.
type instruction struct {
	x86asm.Inst
	end uint64
}

// rip is the link-time address of an operand relative to the instruction.
func (i *instruction) rip(arg int) (uint64, bool) {
	m, ok := i.Args[arg].(x86asm.Mem)
	return i.end + uint64(machinecode.Displacement(m)), ok && m.Base == x86asm.RIP && m.Index == 0
}

// opening decodes the first instructions of a function, up to its first return.
func (c *accessors) opening(start uint64, most int) []instruction {
	code, ok := c.file.Text(start, most*16)
	if c.err != nil || !ok {
		c.fail("no code at %#x", start)
		return nil
	}
	var out []instruction
	at := start
	for len(out) < most && len(code) > 0 {
		inst, n := machinecode.Decode(code)
		at += uint64(n)
		code = code[min(n, len(code)):]
		out = append(out, instruction{inst, at})
		if inst.Op == x86asm.RET {
			break
		}
	}
	return out
}

// variable is the offset of the variable that a function returns, or the address of:
//
//	lea index(%rip),%rdi ; call __tls_get_addr ; mov offset(%rax),%rax
//	lea index(%rip),%rdi ; call __tls_get_addr ; add $offset,%rax ; ret
//
// The index is a word with the number of the library and one with an offset, to which the one in the code is added (ELF Handling
// For Thread-Local Storage, general and local dynamic model).
func (c *accessors) variable(function uint64) uint32 {
	var index uint64
	offset := int64(-1)
	for _, inst := range c.opening(function, maxAccessor) {
		switch {
		case inst.Op == x86asm.LEA && inst.Args[0] == x86asm.RDI:
			index, _ = inst.rip(1)
			offset = -1
		case inst.Op == x86asm.CALL && index != 0 && offset < 0:
			offset = 0
		case offset >= 0:
			if added, last := fromResult(inst.Inst); last {
				return c.resolve(index, added)
			}
		}
	}
	c.fail("no thread-local variable in the function at %#x", function)
	return 0
}

// fromResult reads what an instruction adds to the address in RAX, if it uses it to load a variable or to return its address.
func fromResult(inst x86asm.Inst) (offset int64, ok bool) {
	if len(inst.Args) < 2 {
		return 0, false
	}
	switch from := inst.Args[1].(type) {
	case x86asm.Mem:
		return machinecode.Displacement(from), (inst.Op == x86asm.MOV || inst.Op == x86asm.LEA) && from.Base == x86asm.RAX && from.Index == 0
	case x86asm.Imm:
		return int64(from), inst.Op == x86asm.ADD && inst.Args[0] == x86asm.RAX
	}
	return 0, false
}

// resolve adds what the dynamic linker has put into an index.
func (c *accessors) resolve(index uint64, added int64) uint32 {
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
		if inst.Op != x86asm.CALL {
			continue
		}
		pointer, ok := inst.rip(0)
		if !ok {
			break
		}
		target := c.word(pointer)
		if target < c.bias {
			c.fail("the pointer at %#x is not filled in", pointer)
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
func (c *accessors) nodeNumber(constructor uint64) uint16 {
	_, end, ok := c.file.Frames().Bounds(constructor)
	if !ok {
		c.fail("no frame description of the constructor at %#x", constructor)
		return 0
	}
	number, called := int64(0), false
	for _, inst := range c.body(constructor, end) {
		to, isMemory := inst.Args[0].(x86asm.Mem)
		switch {
		case inst.Op == x86asm.CALL:
			called = true
			continue
		case inst.Op == x86asm.MOV && isMemory && number == 0 && inst.Args[1] == x86asm.RSI && to.Base == x86asm.RDI:
			number = machinecode.Displacement(to)
		case inst.Op == x86asm.MOV && isMemory && called && inst.Args[1] == x86asm.RAX && number > 0 && machinecode.Displacement(to) == number+
			fromNumberToThread:
			if number%wordSize == 0 && number < maxNodeOffset {
				return uint16(number)
			}
		}
		called = false
	}
	c.fail("the constructor of nodes at %#x does not keep a number and a thread", constructor)
	return 0
}

// body decodes a whole function.
func (c *accessors) body(start, end uint64) []instruction {
	code, ok := c.file.Text(start, int(min(end-start, machinecode.MaxFunction)))
	if c.err != nil || !ok {
		c.fail("no code at %#x", start)
		return nil
	}
	var out []instruction
	for at := start; len(code) > 0; {
		inst, n := machinecode.Decode(code)
		at += uint64(n)
		code = code[min(n, len(code)):]
		out = append(out, instruction{inst, at})
	}
	return out
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
