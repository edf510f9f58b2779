// SPDX-License-Identifier: Apache-2.0

package torchlayout

import (
	"github.com/gputrace/gputrace/inspect/internal/machinecode"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/symbolize"
)

// How large the objects of a class are is in the code of its deleting destructor, which is among its virtual functions: it
// passes the size to operator delete
//
//	mov $0x328,%esi ; ... ; jmp operator delete(void*, unsigned long)
//	mov x1, 0x330 ; ... ; br x16
//
// (C++14, sized deallocation). What malloc gave is a little larger, and what is behind the object there is old. On macOS malloc is asked
// (malloc.go).

const (
	// destructors is how many entries of a table are looked at; those of AutogradMeta are the seventh and eighth.
	destructors = 12
	// maxDestructor bounds the code of a destructor that is decoded, bytes.
	maxDestructor = 0x4000
	// sizedCall is how many instructions further the call must be.
	sizedCall = 8
	// slack bounds how much larger than an object its memory is: malloc rounds up to 16, keeps 8 of the next header, and adds
	// a rest that is too small to be of use (malloc/malloc.c: MALLOC_ALIGNMENT, MINSIZE).
	slack = 0x30
)

// sizeOf is the size of the object at an address, bytes. What its class's code says must fit the memory that malloc gave;
// where the code says nothing, it is what is certain of that memory. 0 when nothing is known.
func (n *Objects) sizeOf(object uint64) uint64 {
	c := n.of(object)
	if c == nil {
		return 0
	}
	if n.abi.malloc != nil {
		return n.askedSize(c)
	}
	memory, best := n.chunk(object), uint64(0)
	sizes := n.classSizes(c)
	for _, size := range sizes {
		if memory == 0 || size <= memory && memory-size < slack {
			best = max(best, size)
		}
	}
	if best == 0 && memory > slack {
		return memory - slack
	}
	return best
}

// classSizes are the sizes that the first virtual functions of a class give to operator delete.
func (n *Objects) classSizes(c *class) []uint64 {
	if c.sized {
		return c.sizes
	}
	c.sized = true
	for i := range uint64(destructors) {
		c.sizes = n.sizedDeletes(c.sizes, n.im.Word(c.vtable+8*i))
	}
	return c.sizes
}

// sizedDeletes appends the numbers that a function passes as second argument to the functions that it calls.
func (n *Objects) sizedDeletes(out []uint64, function uint64) []uint64 {
	machine, end, ok := n.code.function(function)
	if !ok || end-function > maxDestructor {
		return out
	}
	b := make([]byte, end-function)
	got, _ := n.im.ReadAt(b, function)
	return secondArguments(out, machine, b[:got])
}

// secondArguments appends the numbers that code passes as second argument to what it calls.
func secondArguments(out []uint64, machine *machinecode.Machine, code []byte) []uint64 {
	pending, left := uint64(0), 0
	for inst := range machine.Instructions(code, 0) {
		left--
		switch {
		case inst.Op == machinecode.Constant && inst.To == machine.Arguments[1]:
			pending, left = inst.Value, sizedCall
		case (inst.Op == machinecode.Call || inst.Op == machinecode.Jump) && left > 0:
			out = append(out, pending)
			left = 0
		}
	}
	return out
}

// Code is the libraries whose functions were asked for.
type Code struct {
	p     *process.Process
	maps  []process.Mapping
	files map[string]*codeFile
}

// NewCode opens nothing yet. SetMaps comes before the first question.
func NewCode(p *process.Process) *Code { return &Code{p: p, files: map[string]*codeFile{}} }

// SetMaps says what is mapped.
func (c *Code) SetMaps(maps []process.Mapping) { c.maps = maps }

type codeFile struct {
	*symbolize.File
	bias uint64
}

// function returns the machine of the function at an address, and where it ends, by its library's frame descriptions.
func (c *Code) function(addr uint64) (machine *machinecode.Machine, end uint64, ok bool) {
	if c == nil {
		return nil, 0, false
	}
	for i := range c.maps {
		m := &c.maps[i]
		if addr < m.Start || addr >= m.End || !m.Exec || m.Inode == 0 {
			continue
		}
		f := c.open(m)
		if f == nil {
			return nil, 0, false
		}
		machine := machinecode.For(f.Machine())
		start, end, ok := f.Frames().Bounds(addr - f.bias)
		return machine, end + f.bias, ok && machine != nil && start+f.bias == addr
	}
	return nil, 0, false
}

// open opens a library's file; nil when it cannot be read.
func (c *Code) open(m *process.Mapping) *codeFile {
	if f, ok := c.files[m.Path]; ok {
		return f
	}
	c.files[m.Path] = nil
	file, err := c.p.OpenFile(m)
	if err != nil {
		return nil
	}
	defer file.Close()
	f, err := symbolize.Open(file, m.Path)
	if err != nil {
		return nil
	}
	bias, ok := f.Bias(m.Start, m.Offset)
	if !ok {
		f.Close()
		return nil
	}
	c.files[m.Path] = &codeFile{f, bias}
	return c.files[m.Path]
}

// Close closes the files.
func (c *Code) Close() {
	for _, f := range c.files {
		if f != nil {
			f.Close()
		}
	}
}
