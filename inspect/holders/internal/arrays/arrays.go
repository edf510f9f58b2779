// SPDX-License-Identifier: Apache-2.0

// Package arrays finds the arrays of CuPy among Python's objects, and the blocks of its pool that they use. CuPy's classes are
// written in Cython: their fields have no names outside of the module. So each offset is found by search among the objects of the
// process, and proved by what must be true: an array leads to a pointer, the pointer to an address within a block, and the
// blocks of a pool add up to the pool's own count.
package arrays

import (
	"github.com/gputrace/gputrace/cpython/pyobject"
	"github.com/gputrace/gputrace/inspect/holders/internal/instances"
)

// role is what a class of CuPy is here for.
type role uint8

const (
	roleArray   role = iota // cupy.ndarray: shape, dtype, the pointer to its first element, and of a view the array that it is part of
	rolePointer             // MemoryPointer: a device address, and the memory that it keeps
	roleMemory              // PooledMemory: one block of a pool
	rolePool                // SingleDeviceMemoryPool
	rolePools               // MemoryPool: a tuple with the pool of each device
)

// classes are where a program finds the class of each role.
var classes = []instances.Class{
	roleArray:   {Module: "cupy._core.core", Name: "ndarray"},
	rolePointer: {Module: memoryModule, Name: "MemoryPointer"},
	roleMemory:  {Module: memoryModule, Name: "PooledMemory"},
	rolePool:    {Module: memoryModule, Name: "SingleDeviceMemoryPool"},
	rolePools:   {Module: memoryModule, Name: "MemoryPool"},
}

const memoryModule = "cupy.cuda.memory"

// Reader reads CuPy's objects. It is not safe for concurrent use.
type Reader struct {
	*instances.Finder
	layout
}

// New returns a reader, or nil if the program has not imported CuPy.
func New(h *pyobject.Heap, im pyobject.Image) *Reader {
	f, missing := instances.New(h, im, classes)
	if missing > 0 {
		return nil
	}
	return &Reader{Finder: f}
}

// is reports whether a live object of a class is at an address.
func (r *Reader) is(im pyobject.Image, object uint64, k role) bool {
	return r.Class(im, object) == int(k)
}

// live lists the objects of a class that are alive.
func (r *Reader) live(im pyobject.Image, k role) []uint64 { return r.Live(im, int(k)) }

// Visit calls visit with each array, the memory that it keeps, and the device address of its first element. Then it calls visit with
// each pointer that no array has: cupy.cuda.alloc returned it, or it belongs to an array of a derived class.
func (r *Reader) Visit(im pyobject.Image, visit func(object, memory, data uint64)) {
	if !r.Known() {
		return
	}
	of := map[uint64]bool{}
	for _, a := range r.live(im, roleArray) {
		if p := im.Word(a + r.data); r.is(im, p, rolePointer) {
			of[p] = true
			visit(a, im.Word(p+r.memory), im.Word(p+r.address))
		}
	}
	for _, p := range r.live(im, rolePointer) {
		if !of[p] {
			visit(p, im.Word(p+r.memory), im.Word(p+r.address))
		}
	}
}

// Field is the attribute of an array, of a class derived from it, or of a pointer that is a field at an offset; empty: it is not known.
func (r *Reader) Field(t *pyobject.Type, offset uint64) string {
	for ; t != nil && offset != 0; t = t.Base {
		switch {
		case t.Addr == r.Types[roleArray] && offset == r.base:
			return "base"
		case t.Addr == r.Types[roleArray] && offset == r.data:
			return "data"
		case t.Addr == r.Types[rolePointer] && offset == r.memory:
			return "mem"
		}
	}
	return ""
}

// IsArray reports whether an array is at an address.
func (r *Reader) IsArray(im pyobject.Image, object uint64) bool { return r.is(im, object, roleArray) }

// pointer returns the pointer of an array, or the pointer that itself is at the address; 0: neither is there.
func (r *Reader) pointer(im pyobject.Image, object uint64) uint64 {
	if r.is(im, object, roleArray) {
		object = im.Word(object + r.data)
	}
	if r.is(im, object, rolePointer) {
		return object
	}
	return 0
}

// InBlock reports whether the first element of an array, or what a pointer points to, is in a range of addresses.
func (r *Reader) InBlock(im pyobject.Image, object, from, size uint64) bool {
	p := r.pointer(im, object)
	return p != 0 && im.Word(p+r.address)-from < size
}
