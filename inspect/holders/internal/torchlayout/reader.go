// SPDX-License-Identifier: Apache-2.0

package torchlayout

import (
	"github.com/gputrace/gputrace/cpython/pyobject"
	"github.com/gputrace/gputrace/inspect/holders/internal/memory"
)

// Reader reads PyTorch's objects, and with them Python's. It is not safe for concurrent use.
type Reader struct {
	*Objects
	layout
	heap *pyobject.Heap // nil: there is no interpreter that can be read
	// types are Python types that stand for objects of C++.
	types map[*pyobject.Type]pythonRole
}

// Blocks are the live blocks of the allocator.
type Blocks interface {
	// Requested is what was asked for of the block that begins at an address, bytes; ok is false when none does.
	Requested(addr uint64) (bytes uint64, ok bool)
}

// NewReader finds the layouts. heap is nil when there is no interpreter that can be read; without code, sizes of classes are
// not known. notes say what was not found.
func NewReader(n *Objects, heap *pyobject.Heap, code *Code, blocks Blocks) (t *Reader, notes []string) {
	n.code = code
	l, notes := n.findLayout(blocks)
	l.findPython(n)
	return &Reader{Objects: n, layout: l, heap: heap, types: map[*pyobject.Type]pythonRole{}}, notes
}

// On reads another image by the same layouts.
func (t *Reader) On(im *memory.Image) *Reader {
	n := *t.Objects
	n.classes = &classes{im: im, fixed: im.Fixed(), classTable: t.classTable}
	out := *t
	out.Objects = &n
	return &out
}

// Image is what is read.
func (t *Reader) Image() *memory.Image { return t.im }

// Heap reads the objects of the interpreter; nil when there is none that can be read.
func (t *Reader) Heap() *pyobject.Heap { return t.heap }

// KnowsTensors reports that the layouts of tensors and storages were found.
func (t *Reader) KnowsTensors() bool { return t.tensorStorage != 0 }

// KnowsNodes reports that the layout of nodes of the autograd graph was found.
func (t *Reader) KnowsNodes() bool { return t.nodeSize != 0 }

// Tensors calls visit with every tensor that is alive and has a storage that is, and the address of its memory.
func (t *Reader) Tensors(visit func(impl, storage, data uint64)) {
	for _, a := range t.byRole[roleTensor] {
		s := t.im.Word(a + t.tensorStorage)
		if t.role(s) == roleStorage && t.alive(a) && t.alive(s) {
			visit(a, s, t.im.Word(s+t.storageData))
		}
	}
}

// Storages calls visit with every storage that is alive, and the address of its memory.
func (t *Reader) Storages(visit func(storage, data uint64)) {
	for _, s := range t.byRole[roleStorage] {
		if data := t.im.Word(s + t.storageData); t.alive(s) {
			visit(s, data)
		}
	}
}

// Nodes calls visit with every node of the autograd graph that is alive, as far as that is known: a node that counts its own
// references says so; to 2.14 the count is apart from it, and what is known is that its table is still there.
func (t *Reader) Nodes(visit func(node uint64)) {
	for _, a := range t.byRole[roleNode] {
		if t.edgeSize != 16 || t.alive(a) {
			visit(a)
		}
	}
}

// IsNative reports whether an object of a C++ class that matters is at an address.
func (t *Reader) IsNative(at uint64) bool { return t.role(at) != roleOther }

// IsNode reports whether a node of the autograd graph is at an address.
func (t *Reader) IsNode(at uint64) bool { return t.role(at) == roleNode }

// ClassName is the class of the C++ object at an address without its namespaces, as Python shows that of a node; empty when
// there is none.
func (t *Reader) ClassName(at uint64) string {
	if c := t.of(at); c != nil {
		return c.short()
	}
	return ""
}

// TensorClass is the class of the tensor at an address, or of the one that the Python object there stands for; empty when there
// is none.
func (t *Reader) TensorClass(at uint64) string {
	if t.role(at) != roleTensor {
		at = t.Impl(at)
	}
	return t.ClassName(at)
}

// InBlock reports whether a tensor's storage, or a storage when impl is 0, still has its memory in a range of addresses and the
// same Python object; object is 0 when it has none.
func (t *Reader) InBlock(impl, storage, object, from, size uint64) bool {
	data := t.im.Word(storage + t.storageData)
	if t.role(storage) != roleStorage || data < from || data >= from+size {
		return false
	}
	if impl == 0 {
		return t.StorageObject(storage) == object
	}
	return t.role(impl) == roleTensor && t.im.Word(impl+t.tensorStorage) == storage && t.Object(impl) == object
}
