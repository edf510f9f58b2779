// SPDX-License-Identifier: Apache-2.0

// Package handles finds the blocks that the arrays of TensorFlow and JAX use. An array of theirs is a Python object with a pointer to
// objects
// of C++, several steps from the memory, whose layout changes from release to release. No layout is assumed: the way from the object to the
// memory is searched among all arrays at once, and believed if it leads many of them to the first byte of a block each, and different
// arrays
// to different blocks.
package handles

import (
	"encoding/binary"
	"slices"

	"github.com/gputrace/gputrace/cpython/pyobject"
)

// classes are where a program finds the classes of arrays. TensorFlow's also stands for a variable, from which the way is longer.
var classes = []struct{ module, name string }{
	{"tensorflow.python.framework.ops", "EagerTensor"},
	{"jax._src.array", "ArrayImpl"},
}

// Reader reads arrays. It is not safe for concurrent use.
type Reader struct {
	h       *pyobject.Heap
	types   []uint64 // of classes; 0: the program has not imported it
	low     uint64   // all types are in between
	span    uint64
	objects [][]uint64 // where objects of each class were when the memory was read; some were freed before
	ways    [][]way    // of each class, those that lead most arrays first
	onward  []way      // of each class, from an array whose own memory is a handle; nil: none is known
}

// way leads from an object to its memory: at each step the pointer at an offset is followed, bytes. The last word is the address.
type way []uint64

// New returns a reader, or nil if the program has imported neither framework.
func New(h *pyobject.Heap, im pyobject.Image) *Reader {
	r := &Reader{h: h, low: ^uint64(0)}
	high := uint64(0)
	for _, c := range classes {
		at := uint64(0)
		if module := h.ModuleNamed(im, c.module); module != 0 {
			if t := h.TypeAt(im, h.Attribute(im, module, c.name)); t != nil {
				at = t.Addr
				r.low, high = min(r.low, at), max(high, at)
			}
		}
		r.types = append(r.types, at)
	}
	if high == 0 {
		return nil
	}
	r.span = high - r.low
	r.objects, r.ways, r.onward = make([][]uint64, len(classes)), make([][]way, len(classes)), make([]way, len(classes))
	return r
}

// Scan notes the objects of a page, by the addresses of their classes, and reports whether it has any. Objects begin at multiples of
// 16 bytes.
func (r *Reader) Scan(addr uint64, page []byte) (found bool) {
	field := r.h.TypeField()
	for i := int(field & 15); i+8 <= len(page); i += 16 {
		w := binary.LittleEndian.Uint64(page[i:])
		if w-r.low > r.span {
			continue
		}
		if k := slices.Index(r.types, w); k >= 0 && w != 0 {
			r.objects[k] = append(r.objects[k], addr+uint64(i)-field)
			found = true
		}
	}
	return found
}

// class returns the class of a live array at an address; -1: there is none.
func (r *Reader) class(im pyobject.Image, object uint64) int {
	if object&7 != 0 || object < minAddress {
		return -1
	}
	k := slices.Index(r.types, im.Word(object+r.h.TypeField()))
	if k < 0 || r.types[k] == 0 {
		return -1
	}
	if n, ok := r.h.ReferenceCount(im, object); !ok || n == 0 {
		return -1
	}
	return k
}

// live lists the arrays of a class that are alive.
func (r *Reader) live(im pyobject.Image, k int) []uint64 {
	return slices.DeleteFunc(slices.Clone(r.objects[k]), func(o uint64) bool { return r.class(im, o) != k })
}

// Known reports that a way from arrays to blocks was found.
func (r *Reader) Known() bool {
	return slices.ContainsFunc(r.ways, func(w []way) bool { return len(w) > 0 })
}

// Visit calls visit with each array that leads to the start of a block, and this address.
func (r *Reader) Visit(im pyobject.Image, isBlock func(addr uint64) bool, visit func(object, data uint64)) {
	for k := range r.ways {
		rest, taken := r.live(im, k), map[uint64]bool{}
		if r.onward[k] != nil {
			for _, w := range r.ways[k] {
				take(im, w, rest, isBlock, func(_, data uint64) { taken[data] = true })
			}
			rest = take(im, r.onward[k], rest, func(addr uint64) bool { return isBlock(addr) && !taken[addr] }, visit)
			clear(taken)
		}
		for _, w := range r.ways[k] {
			rest = take(im, w, rest, func(addr uint64) bool { return isBlock(addr) && !taken[addr] }, func(object, data uint64) {
				taken[data] = true
				visit(object, data)
			})
		}
	}
}

// InBlock reports whether the memory of an array begins in a range of addresses.
func (r *Reader) InBlock(im pyobject.Image, object, from, size uint64) bool {
	k := r.class(im, object)
	return k >= 0 && slices.ContainsFunc(append(slices.Clip(r.ways[k]), r.onward[k]),
		func(w way) bool { return w.from(im, object)-from < size })
}
