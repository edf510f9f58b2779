// SPDX-License-Identifier: Apache-2.0

// Package instances finds the instances of some classes among all objects of a Python program.
package instances

import (
	"encoding/binary"
	"slices"

	"github.com/gputrace/gputrace/cpython/pyobject"
)

// Class is where a program finds a class.
type Class struct{ Module, Name string }

// Finder finds the instances of classes, which are numbered from 0. It is not safe for concurrent use.
type Finder struct {
	Heap    *pyobject.Heap
	Types   []uint64   // addresses of the classes; 0: the program has not imported the class
	Objects [][]uint64 // where instances of each class were when the memory was read; some were freed before
	low     uint64     // all types are in between
	span    uint64
}

// New returns a finder. Missing is the number of classes that the program has not imported.
func New(h *pyobject.Heap, im pyobject.Image, classes []Class) (f *Finder, missing int) {
	f = &Finder{Heap: h, Types: make([]uint64, len(classes)), Objects: make([][]uint64, len(classes)), low: ^uint64(0)}
	high := uint64(0)
	for k, c := range classes {
		var t *pyobject.Type
		if module := h.ModuleNamed(im, c.Module); module != 0 {
			t = h.TypeAt(im, h.Attribute(im, module, c.Name))
		}
		if t == nil {
			missing++
			continue
		}
		f.Types[k] = t.Addr
		f.low, high = min(f.low, t.Addr), max(high, t.Addr)
	}
	f.span = high - f.low
	return f, missing
}

// Scan notes the instances in a page, by the addresses of their classes, and reports whether it has any. Objects begin at multiples of
// 16 bytes. At least one class must have been imported.
func (f *Finder) Scan(addr uint64, page []byte) (found bool) {
	field := f.Heap.TypeField()
	for i := int(field & 15); i+8 <= len(page); i += 16 {
		w := binary.LittleEndian.Uint64(page[i:])
		if w-f.low > f.span {
			continue
		}
		if k := slices.Index(f.Types, w); k >= 0 {
			f.Objects[k] = append(f.Objects[k], addr+uint64(i)-field)
			found = true
		}
	}
	return found
}

// MinAddress is below all memory that a process can map (vm.mmap_min_addr).
const MinAddress = 0x1000

// Class returns the class of the live instance at an address; -1: there is none.
func (f *Finder) Class(im pyobject.Image, object uint64) int {
	if object&7 != 0 || object < MinAddress {
		return -1
	}
	t := im.Word(object + f.Heap.TypeField())
	k := slices.Index(f.Types, t)
	if k < 0 || t == 0 {
		return -1
	}
	if _, ok := f.Heap.ReferenceCount(im, object); !ok {
		return -1
	}
	return k
}

// Live lists the instances of a class that are alive.
func (f *Finder) Live(im pyobject.Image, class int) []uint64 {
	return slices.DeleteFunc(slices.Clone(f.Objects[class]), func(o uint64) bool { return f.Class(im, o) != class })
}
