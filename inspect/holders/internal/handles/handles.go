// SPDX-License-Identifier: Apache-2.0

// Package handles finds the blocks that the arrays of TensorFlow and JAX use. Such an array is a Python object with a pointer to objects of
// C++, which lead to the memory in several steps, and whose layout changes from release to release. No layout is assumed: the way from the
// Python object to the memory is searched for among all arrays at once. It is believed if it leads many arrays to the first byte of a block,
// and different arrays to different blocks.
package handles

import (
	"slices"

	"github.com/gputrace/gputrace/cpython/pyobject"
	"github.com/gputrace/gputrace/inspect/holders/internal/instances"
)

// classes are the classes of arrays. A variable of TensorFlow is an EagerTensor, too, from which the way is longer.
var classes = []instances.Class{
	{Module: "tensorflow.python.framework.ops", Name: "EagerTensor"},
	{Module: "jax._src.array", Name: "ArrayImpl"},
}

// Reader reads arrays. It is not safe for concurrent use.
type Reader struct {
	*instances.Finder
	ways   [][]way // of each class, in the order in which they were found
	onward []way   // of each class, from an array whose own memory is a handle; nil: none is known
}

// way leads from an object to its memory: at each step the pointer at an offset is followed, bytes. The last word is the address.
type way []uint64

// New returns a reader, or nil if the program has imported neither framework.
func New(h *pyobject.Heap, im pyobject.Image) *Reader {
	f, missing := instances.New(h, im, classes)
	if missing == len(classes) {
		return nil
	}
	return &Reader{Finder: f, ways: make([][]way, len(classes)), onward: make([]way, len(classes))}
}

// Known reports whether a way from arrays to blocks was found.
func (r *Reader) Known() bool {
	return slices.ContainsFunc(r.ways, func(w []way) bool { return len(w) > 0 })
}

// Visit calls visit with each array that leads to the start of a block, and this address.
func (r *Reader) Visit(im pyobject.Image, isBlock func(addr uint64) bool, visit func(object, data uint64)) {
	for k, ways := range r.ways {
		rest := r.Live(im, k)
		if w := r.onward[k]; w != nil {
			own := newClaims(isBlock)
			for _, x := range ways {
				own.take(im, x, rest, nil)
			}
			rest = own.take(im, w, rest, visit)
		}
		own := newClaims(isBlock)
		for _, w := range ways {
			rest = own.take(im, w, rest, visit)
		}
	}
}

// InBlock reports whether the memory of an array begins in a range of addresses.
func (r *Reader) InBlock(im pyobject.Image, object, from, size uint64) bool {
	leads := func(w way) bool { return w.from(im, object)-from < size }
	k := r.Class(im, object)
	return k >= 0 && (slices.ContainsFunc(r.ways[k], leads) || leads(r.onward[k]))
}
