// SPDX-License-Identifier: Apache-2.0

package torchlayout

import (
	"github.com/gputrace/gputrace/cpython/pyobject"
	"github.com/gputrace/gputrace/inspect/holders/internal/memory"
)

// The kinds of reference between objects of PyTorch, beside those between Python objects. Ref.Aux is what each says.
const (
	RefGrad     pyobject.RefKind = 64 + iota // .grad; 0
	RefGradFn                                // .grad_fn; 0
	RefBase                                  // ._base; 0
	RefNext                                  // next_functions; position, or Inside
	RefSaved                                 // saved for backward; offset in the node, and position in a list << 32, from 1 on
	RefVariable                              // .variable of an AccumulateGrad; 0
	RefHook                                  // Python object of a hook; offset
	RefContext                               // Python object of a custom function; 0
	RefNode                                  // node behind a Python object; 0
	RefStorage                               // storage behind a Python object; 0
	RefInner                                 // tensor within another one: values of a sparse one; offset
)

// Inside is the position of a node that another one keeps for itself: the function that a CopySlices applies to the part of a tensor that
// was written in place (torch/csrc/autograd/functions/tensor.h, its fn). Python cannot see it.
const Inside = 1<<64 - 1

// savedPosition is where Ref.Aux of RefSaved and RefHook has a position.
const savedPosition = 32

// SavedAt splits Ref.Aux of RefSaved: the offset in the node, and the position in a list, -1 when it is none.
func SavedAt(aux uint64) (offset uint64, position int64) {
	return aux & (1<<savedPosition - 1), int64(aux>>savedPosition) - 1
}

// pythonRole is what a Python type stands for.
type pythonRole uint8

const (
	pythonOther    pythonRole = iota
	pythonTensor              // a tensor: torch._C.TensorBase
	pythonStorage             // torch._C.StorageBase
	pythonNode                // a node made in C++: torch._C._FunctionBase's sibling, one type for each class of node
	pythonFunction            // the ctx of a custom function: torch._C._FunctionBase
	pythonSaved               // a SavedVariable that Python has taken over, as in torch.utils.checkpoint
)

// sides are the Python types of PyTorch's own, by what their name contains; a type has the role of the first base that is
// one of these.
func (t *Reader) pythonRole(p *pyobject.Type) pythonRole {
	if r, ok := t.types[p]; ok {
		return r
	}
	r := pythonOther
	for b, n := p, 0; b != nil && n < 32 && r == pythonOther; b, n = b.Base, n+1 {
		switch b.Name {
		case "torch._C.TensorBase", "torch._C._TensorBase":
			r = pythonTensor
		case "torch._C.StorageBase", "torch._C._StorageBase":
			r = pythonStorage
		case "torch._C._FunctionBase":
			r = pythonFunction
		case "torch._C._autograd.SavedTensor", "SavedTensor":
			r = pythonSaved
		}
	}
	t.types[p] = r
	return r
}

// findPython finds where tensors, and storages, and their Python objects point at each other: both ways must fit.
func (l *layout) findPython(n *Objects) {
	l.pythonObject, l.cdata = n.roundTrip(n.byRole[roleTensor], 0x20, 0x60)
	if l.storageSize != 0 {
		l.storageObject, l.storageCdata = n.roundTrip(n.byRole[roleStorage], l.storageSize+8, l.storageSize+0x40)
	}
}

// roundTrip votes for a pair of offsets: where an object of C++ has its Python object, and where that has it.
func (n *Objects) roundTrip(objects []uint64, from, to uint64) (slot, cdata uint64) {
	type pair struct{ slot, cdata uint64 }
	votes := map[pair]int{}
	for _, a := range sample(objects) {
		for at := from; at < to; at += 8 {
			p := n.im.Word(a+at) &^ ownsBit
			if p < memory.PageSize {
				continue
			}
			for back := uint64(0x10); back <= 0x30; back += 8 { // behind the head of a Python object, 0x10 or 0x20
				if n.im.Word(p+back) == a {
					votes[pair{at, back}]++
				}
			}
		}
	}
	most := 0
	for p, v := range votes {
		if v > most || v == most && (p.slot < slot || p.slot == slot && p.cdata < cdata) {
			most, slot, cdata = v, p.slot, p.cdata
		}
	}
	return slot, cdata
}

// Object is the Python object of a tensor; 0 when it has none.
func (t *Reader) Object(impl uint64) uint64 { return t.pythonOf(impl, t.pythonObject, t.cdata) }

// StorageObject is the Python object of a storage; 0 when it has none.
func (t *Reader) StorageObject(storage uint64) uint64 {
	return t.pythonOf(storage, t.storageObject, t.storageCdata)
}

func (t *Reader) pythonOf(native, slot, cdata uint64) uint64 {
	if slot == 0 || t.heap == nil {
		return 0
	}
	p := t.im.Word(native+slot) &^ ownsBit
	if p < memory.PageSize || t.im.Word(p+cdata) != native || t.heap.TypeOf(t.im, p) == nil {
		return 0
	}
	return p
}

// Impl is the tensor of a Python object; 0 when it is none.
func (t *Reader) Impl(object uint64) uint64 {
	if t.pythonObject == 0 {
		return 0
	}
	a := t.im.Word(object + t.cdata)
	if t.role(a) != roleTensor || t.im.Word(a+t.pythonObject)&^ownsBit != object {
		return 0
	}
	return a
}

// IsPythonTensor reports whether a Python object is a tensor by its class, whatever it stands for.
func (t *Reader) IsPythonTensor(object uint64) bool {
	if t.heap == nil || object&7 != 0 {
		return false
	}
	p := t.heap.TypeOf(t.im, object)
	return p != nil && t.pythonRole(p) == pythonTensor
}

// Memory returns the tensor of a Python object, or the tensor that itself is at the address, with its storage and the address
// and size of the storage's memory; ok is false if there is no tensor.
func (t *Reader) Memory(object uint64) (impl, storage, data, size uint64, ok bool) {
	if impl = object; t.role(object) != roleTensor {
		impl = t.Impl(object)
	}
	if impl == 0 {
		return 0, 0, 0, 0, false
	}
	data, size, ok = t.MemoryOf(impl)
	return impl, t.im.Word(impl + t.tensorStorage), data, size, ok
}

// MemoryOf is the address and the size of the memory of a tensor's storage; ok is false where it has none.
func (t *Reader) MemoryOf(impl uint64) (data, size uint64, ok bool) {
	if t.role(impl) != roleTensor || t.storageSize == 0 {
		return 0, 0, false
	}
	storage := t.im.Word(impl + t.tensorStorage)
	if t.role(storage) != roleStorage {
		return 0, 0, false
	}
	return t.im.Word(storage + t.storageData), t.im.Word(storage + t.storageSize), true
}

// GradFn is the node of the autograd graph that made a tensor; 0: there is none.
func (t *Reader) GradFn(impl uint64) uint64 {
	meta := t.meta(impl)
	if meta == 0 {
		return 0
	}
	if f := t.im.Word(meta + t.gradFn); t.role(f) == roleNode {
		return f
	}
	return 0
}

// meta returns the address of a tensor's AutogradMeta; 0: it has none, or where its fields lie is not known.
func (t *Reader) meta(impl uint64) uint64 {
	if t.tensorMeta == 0 || t.grad == 0 {
		return 0
	}
	if meta := t.im.Word(impl + t.tensorMeta); t.role(meta) == roleMeta {
		return meta
	}
	return 0
}

// GraphSeen reports whether everything that leads from a tensor to its node could be read. If not, GradFn is 0 even for a
// tensor that has a node.
func (t *Reader) GraphSeen(impl uint64) bool {
	meta := t.im.Word(impl + t.tensorMeta)
	if t.tensorMeta == 0 || t.grad == 0 || meta == 0 {
		return t.im.Has(impl + t.tensorMeta)
	}
	f := t.im.Word(meta + t.gradFn)
	return t.im.Has(meta+t.gradFn) && (f == 0 || t.im.Has(f))
}

// HasGrad reports whether a tensor, or the Python object of one, has a gradient. The gradient itself need not be readable:
// it may have been freed since.
func (t *Reader) HasGrad(at uint64) bool {
	if t.role(at) != roleTensor {
		at = t.Impl(at)
	}
	if at == 0 {
		return false
	}
	meta := t.meta(at)
	if meta == 0 {
		return false
	}
	grad := t.im.Word(meta + t.grad)
	return grad != 0 && t.role(grad) != roleUndefined
}

// Known is the address under which a tensor is reached: that of its Python object, if it has one.
func (t *Reader) Known(impl uint64) uint64 {
	if o := t.Object(impl); o != 0 {
		return o
	}
	return impl
}

func appendRef(dst []pyobject.Ref, target, aux uint64, kind pyobject.RefKind) []pyobject.Ref {
	return append(dst, pyobject.Ref{Target: target, Aux: aux, Kind: kind})
}

// tensorRefs appends what a tensor refers to through its autograd data.
func (t *Reader) tensorRefs(dst []pyobject.Ref, impl uint64) []pyobject.Ref {
	if c := t.of(impl); t.tensorSizes != 0 && c != nil && c.name != tensorClass {
		dst = t.innerRefs(dst, impl)
	}
	meta := t.meta(impl)
	if meta == 0 {
		return dst
	}
	if g := t.im.Word(meta + t.grad); t.role(g) == roleTensor {
		dst = appendRef(dst, t.Known(g), 0, RefGrad)
	}
	if f := t.im.Word(meta + t.gradFn); t.role(f) == roleNode {
		dst = appendRef(dst, f, 0, RefGradFn)
	}
	for at := t.gradFn + 8; at < t.gradFn+maxMetaHooks; at += 8 {
		dst = t.hookRefs(dst, meta+at, at)
	}
	if t.of(meta).is(viewMetaClass) {
		dst = t.baseRefs(dst, impl, meta)
	}
	return dst
}

// innerRefs appends the tensors in the fields of a class that derives from TensorImpl: sparse, nested, batched ones.
func (t *Reader) innerRefs(dst []pyobject.Ref, impl uint64) []pyobject.Ref {
	end := min(t.sizeOf(impl), maxTensor)
	for at := t.tensorSizes + tensorType + 8; at+8 <= end; at += 8 {
		if w := t.im.Word(impl + at); w != impl && t.role(w) == roleTensor {
			dst = appendRef(dst, t.Known(w), at, RefInner)
		}
	}
	return dst
}

const (
	tensorClass  = "N3c1010TensorImplE"
	maxTensor    = 0x400 // bytes of a class that derives from TensorImpl
	maxMetaHooks = 0x60  // bytes behind grad_fn_ in which the vectors of hooks lie
	maxMeta      = 0x180 // sizeof(DifferentiableViewMeta), at most
	maxHooks     = 1024
)

// baseRefs: the base of a view has the same storage. There may be one for each direction of differentiation, and one more in
// the function that makes the base from the view.
func (t *Reader) baseRefs(dst []pyobject.Ref, impl, meta uint64) []pyobject.Ref {
	end := min(t.sizeOf(meta), maxMeta)
	storage := t.im.Word(impl + t.tensorStorage)
	isBase := func(b uint64) bool {
		return b != impl && t.role(b) == roleTensor && t.im.Word(b+t.tensorStorage) == storage
	}
	first := len(dst)
	for at := t.gradFn + maxMetaHooks; at+8 <= end; at += 8 {
		w := t.im.Word(meta + at)
		if isBase(w) {
			dst = appendRef(dst, t.Known(w), at, RefBase)
			continue
		}
		for from, to := t.captured(meta, meta+at); from < to; from += 8 {
			if b := t.im.Word(from); isBase(b) {
				dst = appendRef(dst, t.Known(b), at|(from-w)<<savedPosition, RefBase)
			}
		}
	}
	for i := first + 1; i < len(dst); i++ {
		dst[i].Doubtful = true // an optional without a value may have an old one in it
	}
	return dst
}

// isFunction reports whether a std::function may be at an address: 16 bytes for what it captured, or a pointer to that, then
// the addresses of two functions (libstdc++, bits/std_function.h).
func (n *Objects) isFunction(at uint64) bool {
	return n.im.Executable(n.im.Word(at+16)) && n.im.Executable(n.im.Word(at+24))
}

const maxCaptured = 0x80 // bytes

// hookRefs appends the Python objects that a vector of hooks holds (torch/csrc/autograd/python_hook.h).
func (t *Reader) hookRefs(dst []pyobject.Ref, at, offset uint64) []pyobject.Ref {
	begin, count, ok := t.vector(at, 8, maxHooks)
	if !ok || t.heap == nil {
		return dst
	}
	for i := range count {
		hook := t.im.Word(begin + 8*i)
		if t.role(hook) != roleHook {
			return dst
		}
		if o := t.im.Word(hook + 8); t.heap.Plausible(t.im, o) {
			dst = appendRef(dst, o, offset, RefHook)
		}
	}
	return dst
}

// NodeRefs appends what a node of the autograd graph refers to: the next nodes, the tensors that it saved, the Python object
// of a custom function, hooks. Only fields whose meaning is known are followed: taking any word for a reference gives wrong
// paths.
func (t *Reader) NodeRefs(dst []pyobject.Ref, node uint64) []pyobject.Ref {
	if t.nodeSize == 0 {
		return dst
	}
	c := t.of(node)
	if t.nextEdges != 0 {
		if begin, count, ok := t.vector(node+t.nextEdges, t.edgeSize, maxEdges); ok {
			for i := range count {
				if next := t.im.Word(begin + i*t.edgeSize); t.role(next) == roleNode {
					dst = appendRef(dst, next, i, RefNext)
				}
			}
		}
		for at := t.nextEdges + 0x18; at < t.nodeSize; at += 8 {
			dst = t.hookRefs(dst, node+at, at)
		}
	}
	if o := t.ContextOf(node); o != 0 {
		dst = appendRef(dst, o, 0, RefContext)
	}
	return t.savedRefs(dst, node, c.is(accumulateClass))
}

const maxEdges = 1 << 16

// ContextOf is the Python object of a custom function's node, its ctx; 0 when it is another kind of node. It is the first
// field of the node's own class (to 2.14) or lies behind the edges (2.15), and refers back to the node.
func (t *Reader) ContextOf(node uint64) uint64 {
	if t.heap == nil || t.nextEdges == 0 || !t.of(node).is(pythonNodeClass) {
		return 0
	}
	for _, at := range []uint64{t.nextEdges + 0x18, t.nodeSize} {
		o := t.im.Word(node + at)
		p := t.heap.TypeOf(t.im, o)
		if p == nil || t.pythonRole(p) != pythonFunction {
			continue
		}
		for back := uint64(0x10); back < min(p.Size, maxFunctionObject); back += 8 {
			if t.im.Word(o+back) == node {
				return o
			}
		}
	}
	return 0
}

// savedRefs appends the tensors in the fields of a node's own class: SavedVariables, and vectors of them.
func (t *Reader) savedRefs(dst []pyobject.Ref, node uint64, accumulate bool) []pyobject.Ref {
	if accumulate {
		if v := t.im.Word(node + t.nodeSize); t.role(v) == roleTensor {
			dst = appendRef(dst, t.Known(v), 0, RefVariable)
		}
		return dst
	}
	end, writes := t.nodeSize+t.extra(&t.layout, node), t.of(node).is(copySlicesClass)
	for at := t.nodeSize; at+8 <= end; at += 8 {
		w := t.im.Word(node + at)
		if w < memory.PageSize || w&7 != 0 {
			continue
		}
		switch t.role(w) {
		case roleTensor:
			dst = appendRef(dst, t.Known(w), at, RefSaved)
		case roleNode:
			if writes && w != node {
				dst = appendRef(dst, w, Inside, RefNext)
			}
		case roleSavedHooks:
			dst = t.packedRefs(dst, w, at)
		default:
			if at+24 <= end {
				dst = t.savedList(dst, node+at, at)
			}
		}
	}
	return dst
}

// packedRefs appends what hooks keep in the place of a saved tensor: Python objects, one of which is what pack_hook returned.
func (t *Reader) packedRefs(dst []pyobject.Ref, hooks, offset uint64) []pyobject.Ref {
	for at := uint64(8); at <= maxPacked; at += 8 {
		if o := t.im.Word(hooks + at); t.heap != nil && t.heap.Plausible(t.im, o) {
			dst = appendRef(dst, o, offset|at<<savedPosition, RefHook)
		}
	}
	return dst
}

const maxPacked = 0x18 // of torch::autograd::PySavedVariableHooks: unpack_hook_, data_

// savedList appends the tensors of a vector of SavedVariables: each of its elements must begin with a tensor or null, and one
// with a tensor.
func (t *Reader) savedList(dst []pyobject.Ref, at, offset uint64) []pyobject.Ref {
	size := t.savedSizeOf(at)
	if size == 0 {
		return dst
	}
	begin, count, _ := t.vector(at, size, maxEdges)
	for i := range count {
		if w := t.im.Word(begin + i*size); t.role(w) == roleTensor {
			dst = appendRef(dst, t.Known(w), offset|(i+1)<<savedPosition, RefSaved)
		}
	}
	return dst
}

// savedSizes are sizes that a SavedVariable may have. It holds three or four counted pointers to nodes, of 8 or 16 bytes each
// (torch/csrc/autograd/saved_variable.h).
var savedSizes = []uint64{0x50, 0x68, 0x70, 0x48, 0x58, 0x60, 0x78, 0x80}

// savedSizeOf is the size of the elements of a vector, if it is one of SavedVariables; 0 when it is none.
func (t *Reader) savedSizeOf(at uint64) uint64 {
	begin, end := t.im.Word(at), t.im.Word(at+8)
	if begin == 0 || begin&7 != 0 || end <= begin || !t.im.Has(begin) {
		return 0
	}
	for _, size := range savedSizes {
		if t.isSavedList(at, size) {
			return size
		}
	}
	return 0
}

// isSavedList reports whether a vector of SavedVariables of that size, and with a tensor, may be at an address.
func (t *Reader) isSavedList(at, size uint64) bool {
	begin, count, ok := t.vector(at, size, maxEdges)
	if !ok || count == 0 {
		return false
	}
	tensors := 0
	for i := range count {
		switch t.savedFirst(t.im.Word(begin + i*size)) {
		case savedNothing:
			return false
		case savedTensor:
			tensors++
		}
	}
	return tensors > 0
}

// boundRefs appends what a Python object refers to that stands for an object of C++.
func (t *Reader) boundRefs(dst []pyobject.Ref, object uint64, p *pyobject.Type) []pyobject.Ref {
	switch t.pythonRole(p) {
	case pythonTensor:
		if a := t.Impl(object); a != 0 {
			dst = t.tensorRefs(dst, a)
		}
	case pythonStorage:
		for at := uint64(0x10); at < 0x30; at += 8 {
			if s := t.im.Word(object + at); t.role(s) == roleStorage && t.StorageObject(s) != object {
				return appendRef(dst, s, 0, RefStorage)
			}
		}
	case pythonFunction: // its node is a weak reference
		for at := uint64(0x20); at+24 <= min(p.Size, maxFunctionObject); at += 8 {
			dst = t.savedList(dst, object+at, at)
		}
	case pythonSaved:
		if v := t.im.Word(object + 0x10); t.role(t.im.Word(v)) == roleTensor {
			dst = appendRef(dst, t.Known(t.im.Word(v)), 0, RefInner)
		}
	default:
		if p.Size == 0x20 || p.Size == 0x18 { // an object's head and a pointer, shared or intrusive
			if node := t.im.Word(object + 0x10); t.role(node) == roleNode {
				dst = appendRef(dst, node, 0, RefNode)
			}
		}
	}
	return dst
}

const maxFunctionObject = 0x200

// Refs appends all references of what lies at an address of the walk: a frame (with its lowest bit set), a Python object, a
// tensor without one, a node.
func (t *Reader) Refs(dst []pyobject.Ref, at uint64) []pyobject.Ref {
	if at&1 != 0 {
		if a, ok := t.heap.Activation(t.im, at&^1); ok {
			return t.heap.Locals(t.im, dst, a)
		}
		return dst
	}
	switch t.role(at) {
	case roleTensor:
		return t.tensorRefs(dst, at)
	case roleNode:
		return t.NodeRefs(dst, at)
	case roleOther:
	default:
		return dst
	}
	if t.heap == nil {
		return dst
	}
	p := t.heap.TypeOf(t.im, at)
	if p == nil {
		return dst
	}
	dst = t.heap.References(t.im, dst, at, p)
	return t.boundRefs(dst, at, p)
}

const (
	// renewFrom is from which size on, bytes, the elements of a list, dictionary or set are read anew, and renewTries how often, until they
	// are whole: a list that grows is somewhere else after each eighth that it gains, and what was there before is overwritten.
	renewFrom  = 512
	renewTries = 4
	// headerBytes of an object say where its elements are.
	headerBytes = 0x40
)

// Renew reads an object once more, together with its elements, so that both are of one moment: an object that keeps many
// elements apart from itself, or a dictionary that is Torn.
func (t *Reader) Renew(object uint64) {
	if t.heap == nil || object&1 != 0 || t.im.Fixed() {
		return
	}
	_, bytes := t.heap.Apart(t.im, object)
	for n := 0; n < renewTries && (bytes >= renewFrom || t.heap.Torn(t.im, object)); n++ {
		if !t.im.Again(object, headerBytes) {
			return
		}
		var at uint64
		at, bytes = t.heap.Apart(t.im, object)
		if !t.im.Again(at, max(uint64(bytes), headerBytes)) {
			continue
		}
		if now, size := t.heap.Apart(t.im, object); now == at && size > bytes { // its own header says how large it is
			bytes = size
			t.im.Again(at, uint64(bytes))
		}
		if !t.im.Again(object, headerBytes) {
			continue
		}
		if now, size := t.heap.Apart(t.im, object); now == at && size == bytes && !t.heap.Torn(t.im, object) {
			return
		}
	}
}
