// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

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
	maxNative   = 0x9000 // bytes of the allocator in which the list of devices is searched
	wordSize    = 8

	// fromStatsToTotal is the place of the allocated bytes in the statistics, which lie behind the mutex: wheels 1.13.1 to 2.15.0.
	fromStatsToTotal = statAllocatedBytes * statSize
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
	if machinecode.For(f.Machine()) == nil {
		return nil, fmt.Errorf("find the allocator of pid %d: %w: code of %s is not read", p.PID, ErrUnknownLayout, f.Machine())
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
	l := layout{mutexSize: mutexSizes[f.Machine()]}
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
		l.totals, l.guessedTotals = []uint64{l.mutexSize + fromStatsToTotal}, true
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
// that is, the vector is not empty. The same in the wheels of 2.0.1 to 2.15.0. On arm64, V is in two parts:
//
//	add x0, x0, FRONT ; ldr x1, [x0, V - FRONT] ; ldr x0, [x0, V - FRONT + 8] ; cmp x1, x0 ; cset w0, ne ; ret
func vectorOffsets(f *symbolize.File, m process.Memory, native, bias uint64) []uint64 {
	vtable, err := process.Uint64(m, native)
	if err != nil {
		return nil
	}
	var out []uint64
	for _, function := range readable(m, vtable, 8*maxVirtuals) {
		if b, ok := f.Text(function-bias, 32); ok {
			if off, ok := notEmpty(machinecode.For(f.Machine()), b); ok {
				out = appendNew(out, off)
			}
		}
	}
	return out
}

// notEmptyForms are what it does: the second word is compared in memory, or loaded first.
var notEmptyForms = [][]machinecode.Op{
	{machinecode.Load, machinecode.Compare, machinecode.SetNotEqual, machinecode.Return},
	{machinecode.Load, machinecode.Load, machinecode.Compare, machinecode.SetNotEqual, machinecode.Return},
}

// notEmpty recognises that function and returns V.
func notEmpty(m *machinecode.Machine, b []byte) (offset uint64, ok bool) {
	object := m.Arguments[0]
	var front int64
	var words []int64
	var done []machinecode.Op
	for _, inst := range m.Decode(b, 0, len(b)) {
		ofObject := inst.Base == object && inst.Index == 0
		switch {
		case inst.Op == machinecode.Nop:
			continue
		case inst.Op == machinecode.Add && ofObject && inst.To == object && words == nil:
			front += inst.Offset
			continue
		case !inst.InMemory:
		case ofObject && inst.Size == wordSize:
			words = append(words, front+inst.Offset)
		case ofObject && inst.Op == machinecode.Load && inst.Size == 2*wordSize:
			words = append(words, front+inst.Offset, front+inst.Offset+wordSize)
			done = append(done, inst.Op)
		default:
			return 0, false
		}
		if done = append(done, inst.Op); inst.Op == machinecode.Return {
			break
		}
	}
	if len(words) != 2 || !slices.ContainsFunc(notEmptyForms, func(form []machinecode.Op) bool { return slices.Equal(form, done) }) {
		return 0, false
	}
	low, high := min(words[0], words[1]), max(words[0], words[1])
	return uint64(low), high-low == wordSize && low >= wordSize
}
