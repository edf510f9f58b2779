// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"bytes"
	"cmp"
	"debug/elf"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/arch/x86/x86asm"

	"github.com/gputrace/gputrace/inspect/internal/machinecode"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/symbolize"
)

// libraries are where an allocator can be, the variables that hold a pointer to it, and the beginning of the mangled names
// of the functions that use it. ROCm's is the same code, renamed.
var libraries = []allocatorLibrary{
	{"libc10_cuda.so", []string{"_ZN3c104cuda20CUDACachingAllocator9allocatorE"}, "_ZN3c104cuda20CUDACachingAllocator"},
	{"libc10_hip.so", []string{"_ZN3c103hip19HIPCachingAllocator9allocatorE", "_ZN3c104cuda20CUDACachingAllocator9allocatorE"},
		"_ZN3c103hip19HIPCachingAllocator"},
}

type allocatorLibrary struct {
	prefix    string // of the file's name
	variables []string
	namespace string
}

// nativeClass ends the names of the classes whose layout is known.
const nativeClass = "22NativeCachingAllocatorE"

const (
	maxVirtuals = 96     // entries of the vtable that are looked at; PyTorch 2.15 has 50
	maxTypeName = 512    // bytes of a class's name
	maxNative   = 0x8000 // bytes of the allocator in which the list of devices is searched
	usualTotal  = 0x1a8  // allocated bytes in a device's object: wheels 1.13.1 to 2.15.0
	wordSize    = 8
)

// Find looks for the caching allocator of a process. The error wraps ErrNoAllocator, ErrOtherBackend, ErrUnknownLayout or
// those of package process. It reads the allocator's library, which takes a few milliseconds.
func Find(p *process.Process) (*Allocator, error) {
	maps, err := p.Maps()
	if err != nil {
		return nil, err
	}
	for i := range libraries {
		for j := range maps {
			m := &maps[j]
			if !m.Exec || m.Inode == 0 || !strings.HasPrefix(m.Base(), libraries[i].prefix) {
				continue
			}
			a, err := libraries[i].find(p, maps, m)
			if a != nil || err != nil {
				return a, err
			}
		}
	}
	return nil, fmt.Errorf("find the allocator of pid %d: %w: no %s among its mappings", p.PID, ErrNoAllocator, libraries[0].prefix)
}

// find reads the library at a mapping; nil without an error when it has no allocator.
func (l *allocatorLibrary) find(p *process.Process, maps []process.Mapping, m *process.Mapping) (*Allocator, error) {
	file, err := p.OpenFile(m)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	f, err := symbolize.Open(file, m.Path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if f.Machine() != elf.EM_X86_64 {
		return nil, fmt.Errorf("find the allocator of pid %d: %w: code of %s, only x86-64's is read", p.PID, ErrUnknownLayout, f.Machine())
	}
	bias, ok := f.Bias(m.Start, m.Offset)
	if !ok {
		return nil, nil
	}
	for _, name := range l.variables {
		if variable, ok := f.Find(name); ok {
			return findAt(p, maps, f, variable, bias)
		}
	}
	return l.findStatic(p, f, bias), nil
}

// findAt follows the variable that holds a pointer to the allocator.
func findAt(p *process.Process, maps []process.Mapping, f *symbolize.File, variable symbolize.Symbol, bias uint64) (*Allocator, error) {
	native, err := process.Uint64(p, variable.Addr+bias)
	if err != nil {
		return nil, err
	}
	if !pointer(native) {
		return nil, fmt.Errorf("find the allocator of pid %d: %w: %s is set to none", p.PID, ErrNoAllocator, symbolize.Demangle(variable.Name))
	}
	if err := checkBackend(p, maps, native); err != nil {
		return nil, fmt.Errorf("find the allocator of pid %d: %w", p.PID, err)
	}
	l := layoutOf(f)
	l.vectors = vectorOffsets(f, p, native, bias)
	if l.vectors == nil {
		l.guessedVectors = true
		for off := uint64(wordSize); off < maxNative; off += wordSize {
			l.vectors = append(l.vectors, off)
		}
	}
	return &Allocator{memory: p, native: native, layout: l}, nil
}

// checkBackend tells PyTorch's own allocator from others by the name of its class. It is read through the vtable, behind
// which C++ keeps it (Itanium C++ ABI, 2.5.2 and 2.9.5): no symbol is needed.
func checkBackend(m process.Memory, maps []process.Mapping, object uint64) error {
	name, vtable, err := className(m, object)
	if err != nil {
		return fmt.Errorf("class of the allocator at %#x: %w: %w", object, ErrUnknownLayout, err)
	}
	if strings.HasSuffix(name, nativeClass) {
		return nil
	}
	return fmt.Errorf("%w: it is %s of %s", ErrOtherBackend, symbolize.Demangle("_Z"+name), fileAt(maps, vtable))
}

func className(m process.Memory, object uint64) (name string, vtable uint64, err error) {
	if vtable, err = process.Uint64(m, object); err != nil {
		return "", 0, err
	}
	info, err := process.Uint64(m, vtable-8)
	if err != nil {
		return "", 0, err
	}
	at, err := process.Uint64(m, info+8)
	if err != nil {
		return "", 0, err
	}
	b := make([]byte, maxTypeName)
	n, _ := m.ReadAt(b, at) // what could be read is enough when the name ends in it
	end := bytes.IndexByte(b[:n], 0)
	if end <= 0 || bytes.ContainsFunc(b[:end], func(r rune) bool { return r <= ' ' || r > '~' }) { // it is shown
		return "", 0, fmt.Errorf("no name at %#x", at)
	}
	return string(b[:end]), vtable, nil
}

func fileAt(maps []process.Mapping, addr uint64) string {
	i, _ := slices.BinarySearchFunc(maps, addr, func(m process.Mapping, a uint64) int { return cmp.Compare(m.End, a+1) })
	if i < len(maps) && maps[i].Start <= addr && maps[i].Path != "" {
		return maps[i].Path
	}
	return "no file"
}

// layoutOf asks the code where things are in the objects of devices and in blocks, and falls back to searching.
func layoutOf(f *symbolize.File) layout {
	var l layout
	calls, _ := reportCalls(f)
	for i := range calls {
		if s, ok := calls[i].shape(); ok {
			l.shapes = appendNew(l.shapes, s)
		}
		if allocated, reserved, ok := calls[i].totals(); ok && reserved == allocated+statSize && allocated >= statAllocatedBytes*statSize {
			l.totals = appendNew(l.totals, allocated)
		}
	}
	for _, requested := range []bool{true, false} {
		for s := uint64(minSizeOffset); s <= maxSizeOffset; s += 8 {
			l.shapes = appendNew(l.shapes, shape{size: s, requested: requested})
		}
	}
	if l.totals == nil {
		l.totals, l.guessedTotals = []uint64{usualTotal}, true
	}
	return l
}

func appendNew[T comparable](list []T, v T) []T {
	if slices.Contains(list, v) {
		return list
	}
	return append(list, v)
}

// vectorOffsets finds where the allocator keeps the list of devices: its virtual function initialized() is
//
//	mov V(%rdi),%rax ; cmp %rax,V+8(%rdi) ; setne %al ; ret
//
// that is, the vector is not empty. The same in the wheels of 2.0.1 to 2.15.0.
func vectorOffsets(f *symbolize.File, m process.Memory, native, bias uint64) []uint64 {
	vtable, err := process.Uint64(m, native)
	if err != nil {
		return nil
	}
	var out []uint64
	for _, function := range readable(m, vtable, 8*maxVirtuals) {
		if b, ok := f.Text(function-bias, 32); ok {
			if off, ok := notEmpty(b); ok {
				out = appendNew(out, off)
			}
		}
	}
	return out
}

// notEmpty recognises that function and returns V.
func notEmpty(b []byte) (offset uint64, ok bool) {
	p := machinecode.Straight(b, 5)
	if p[0].Op == x86asm.NOP { // endbr64
		p = p[1:]
	}
	if p[0].Op != x86asm.MOV || p[1].Op != x86asm.CMP || p[2].Op != x86asm.SETNE || p[3].Op != x86asm.RET {
		return 0, false
	}
	from, ok1 := p[0].Args[1].(x86asm.Mem)
	with, ok2 := p[1].Args[0].(x86asm.Mem)
	if !ok2 {
		with, ok2 = p[1].Args[1].(x86asm.Mem)
	}
	x, y := machinecode.Displacement(from), machinecode.Displacement(with)
	if !ok1 || !ok2 || from.Base != x86asm.RDI || with.Base != x86asm.RDI || x-y != wordSize && y-x != wordSize || min(x, y) < wordSize {
		return 0, false
	}
	return uint64(min(x, y)), true
}
