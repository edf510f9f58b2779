// SPDX-License-Identifier: Apache-2.0

package torchlayout

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gputrace/gputrace/inspect/holders/internal/memory"
)

// layout is where PyTorch's classes keep what is read of them: offsets in bytes. 0 is an offset that was not found, or not
// proved; none of them is 0, where an object's table is. There is no table of versions behind it: each offset is found by
// search among the objects of the process and proved by what must hold.
type layout struct {
	storageData, storageSize uint64 // StorageImpl: address of the memory, and how much of it, bytes

	tensorStorage, tensorMeta uint64 // TensorImpl: its StorageImpl, its AutogradMeta
	tensorSizes               uint64 // sizes_and_strides_; offset, number of elements and type lie behind it
	pythonObject, cdata       uint64 // TensorImpl: its Python object; in that, the TensorImpl

	storageObject, storageCdata uint64 // the same of StorageImpl

	grad, gradFn uint64 // AutogradMeta
	requiresGrad uint64

	nextEdges, edgeSize uint64 // Node: vector of edges, and the size of one
	nodeSize            uint64 // sizeof(Node): where the fields of its subclasses begin
}

// Offsets within sizes_and_strides_ (c10/core/impl/SizesAndStrides.h) and behind it in TensorImpl (c10/core/TensorImpl.h):
// the number of dimensions, then five sizes and five strides or a pointer to them all.
const (
	inlineDims     = 5
	sizesAt        = 8
	stridesAt      = sizesAt + 8*inlineDims
	tensorOffset   = 0x58 // storage_offset_
	tensorElements = 0x60 // numel_
	tensorType     = 0x68 // data_type_: 16 bits
	maxDims        = 64
)

// countAt is where an object that counts its references keeps the count: behind its table, strong references in the lower
// 32 bits (c10/util/intrusive_ptr.h).
const countAt = 8

// tally counts votes for an offset.
type tally map[uint64]int

// best is the offset with the most votes, the lowest of equals. of is how many could vote; it is taken when more than half
// of them did. Otherwise nothing is proved and it is 0.
func (t tally) best(of int) uint64 {
	offset, votes := uint64(0), 0
	for o, n := range t {
		if n > votes || n == votes && o < offset {
			offset, votes = o, n
		}
	}
	if 2*votes <= of {
		return 0
	}
	return offset
}

// sampled bounds how many objects vote.
const sampled = 4096

func sample(list []uint64) []uint64 { return list[:min(len(list), sampled)] }

// vote counts, for each offset in [from, to), the objects whose word there fulfils a condition.
func (n *Objects) vote(objects []uint64, from, to uint64, fits func(object, word uint64) bool) tally {
	t := tally{}
	for _, o := range sample(objects) {
		for at := from; at < to; at += 8 {
			if fits(o, n.im.Word(o+at)) {
				t[at]++
			}
		}
	}
	return t
}

// findLayout searches what can be found without Python.
func (n *Objects) findLayout(live Blocks) (l layout, notes []string) {
	l.findStorage(n, live)
	if l.storageData == 0 {
		return l, []string{"layout of c10::StorageImpl not found: no storage begins where a live block does"}
	}
	l.findTensor(n)
	if l.tensorStorage == 0 {
		return l, []string{fmt.Sprintf("layout of c10::TensorImpl not found: %d tensors, and none with a storage at one place",
			len(n.byRole[roleTensor]))}
	}
	if l.tensorSizes == 0 {
		notes = append(notes, "shapes of tensors are not known: no place where the product of the sizes is the number of elements")
	}
	l.findMeta(n)
	if l.grad == 0 && len(n.byRole[roleMeta]) > 0 {
		notes = append(notes, "layout of torch::autograd::AutogradMeta not found: gradients and graphs are not followed")
	}
	l.findNode(n)
	if (l.nodeSize == 0 || l.nextEdges == 0) && n.graphs(&l) {
		notes = append(notes, "layout of torch::autograd::Node not found: graphs are not followed")
	}
	return l, notes
}

// findStorage: the first word of a storage that is where a live block begins is its data; its size is behind that, not
// above the block's, and for most what was asked for.
func (l *layout) findStorage(n *Objects, live Blocks) {
	data := tally{}
	voters := 0
	for _, s := range sample(n.byRole[roleStorage]) {
		voted := false
		for at := uint64(0x10); at < 0x40; at += 8 {
			if _, ok := live.Requested(n.im.Word(s + at)); ok {
				data[at]++
				voted = true
			}
		}
		if voted {
			voters++
		}
	}
	l.storageData = data.best(voters)
	if l.storageData == 0 {
		return
	}
	size := tally{}
	for _, s := range sample(n.byRole[roleStorage]) {
		requested, ok := live.Requested(n.im.Word(s + l.storageData))
		if !ok {
			continue
		}
		for at := l.storageData + 8; at < l.storageData+0x40; at += 8 {
			if w := n.im.Word(s + at); w > 0 && w == requested {
				size[at]++
			}
		}
	}
	l.storageSize = size.best(voters)
}

// findTensor finds the storage and the autograd data of a tensor by their class, and its sizes by their product.
func (l *layout) findTensor(n *Objects) {
	tensors := n.byRole[roleTensor]
	withStorage := 0
	votes := n.vote(tensors, 0x10, 0x40, func(_, w uint64) bool { return n.role(w) == roleStorage })
	for _, v := range votes {
		withStorage = max(withStorage, v)
	}
	l.tensorStorage = votes.best(withStorage)
	if l.tensorStorage == 0 {
		return
	}
	with := func(kind role) tally {
		return n.vote(tensors, 0x10, 0x40, func(_, w uint64) bool { return n.role(w) == kind })
	}
	l.tensorMeta = with(roleMeta).best(0)
	l.tensorSizes = n.findSizes(l, tensors)
}

// findSizes wants tensors of more than one element, whose sizes multiply to that number and whose elements lie within the
// storage.
func (n *Objects) findSizes(l *layout, tensors []uint64) uint64 {
	votes := tally{}
	for _, t := range sample(tensors) {
		for at := l.tensorStorage + 8; at < 0x80; at += 8 {
			l.tensorSizes = at
			if g, ok := n.geometry(l, t); ok && len(g.sizes) > 0 && g.elements > 1 && n.fitsStorage(l, t, &g) {
				votes[at]++
			}
		}
	}
	best := 0
	for _, v := range votes {
		best = max(best, v)
	}
	return votes.best(best)
}

// geometry is a tensor's shape in its storage.
type geometry struct {
	sizes, strides   []int64
	offset, elements int64
	dtype            uint16
}

// geometry reads sizes, strides and type. ok is false when they are none: more dimensions than any tensor has, a product
// that is not the number of elements, an unknown type.
func (n *Objects) geometry(l *layout, tensor uint64) (g geometry, ok bool) {
	at := tensor + l.tensorSizes
	dims := n.im.Word(at)
	if l.tensorSizes == 0 || dims > maxDims {
		return g, false
	}
	sizes, strides := at+sizesAt, at+stridesAt
	if dims > inlineDims {
		sizes = n.im.Word(at + sizesAt)
		strides = sizes + 8*dims
	}
	g.offset, g.elements = int64(n.im.Word(at+tensorOffset)), int64(n.im.Word(at+tensorElements))
	g.dtype = uint16(n.im.Word(at + tensorType))
	product := int64(1)
	g.sizes, g.strides = make([]int64, dims), make([]int64, dims)
	for i := range dims {
		g.sizes[i], g.strides[i] = int64(n.im.Word(sizes+8*i)), int64(n.im.Word(strides+8*i))
		if g.sizes[i] < 0 || g.sizes[i] > 0 && product > 1<<62/max(g.sizes[i], 1) {
			return g, false
		}
		product *= g.sizes[i]
	}
	return g, product == g.elements && g.offset >= 0 && int(g.dtype) < len(dtypes)
}

// fitsStorage checks that a tensor's last element lies within its storage.
func (n *Objects) fitsStorage(l *layout, tensor uint64, g *geometry) bool {
	storage := n.im.Word(tensor + l.tensorStorage)
	size := n.im.Word(storage + l.storageSize)
	if l.storageSize == 0 || n.role(storage) != roleStorage {
		return true // nothing to compare with
	}
	last := g.offset
	for i, s := range g.sizes {
		last += (s - 1) * g.strides[i]
	}
	return last >= 0 && uint64(last+1)*dtypes[g.dtype].size <= size
}

// findMeta finds where an AutogradMeta keeps its gradient, grad_, and its node, grad_fn_. grad_ is never null: the undefined
// tensor stands for a missing gradient. It is followed by grad_fn_, which is a node or null. Two things can mislead. Freed
// memory was read: so the word need not be a tensor in each AutogradMeta, but must differ from null in more than half. And
// name_, in front of grad_, has a word that is never written and may still hold an older grad_: so offsets count first that
// are followed by a node or null, and only where no offset is, those that are followed by anything but a tensor.
func (l *layout) findMeta(n *Objects) {
	metas := sample(n.byRole[roleMeta])
	isTensor := func(w uint64) bool {
		r := n.role(w)
		return r == roleTensor || r == roleUndefined
	}
	present := n.vote(metas, 0x10, 0x60, func(_, w uint64) bool { return w != 0 })
	sure, likely := tally{}, tally{}
	for _, m := range metas {
		for at, votes := range present {
			if 2*votes <= len(metas) || !isTensor(n.im.Word(m+at)) {
				continue
			}
			switch next := n.im.Word(m + at + 8); {
			case next == 0 || n.role(next) == roleNode:
				sure[at]++
			case !isTensor(next):
				likely[at]++
			}
		}
	}
	if l.grad = cmp.Or(sure.best(0), likely.best(0)); l.grad != 0 {
		l.gradFn = l.grad + 8
		l.findRequiresGrad(n)
	}
}

// minLeaves is how many leaves tell enough without a result: one byte of all is 1 in each of them.
const minLeaves = 8

// findRequiresGrad looks for the byte of an AutogradMeta that is 1 in that of every leaf of a graph, and 0 in that of every
// result of one. It is found only when there is one such byte.
func (l *layout) findRequiresGrad(n *Objects) {
	const first, last = 0x18, 0xa0 // from grad_fn_ on; what is behind it in all versions
	leaf := map[uint64]bool{}
	for _, a := range sample(n.byRole[roleNode]) {
		if !n.of(a).is(accumulateClass) {
			continue
		}
		for at := uint64(0x100); at < 0x280; at += 8 {
			if t := n.im.Word(a + at); n.role(t) == roleTensor {
				leaf[n.im.Word(t+l.tensorMeta)] = true
			}
		}
	}
	var ones, zeros int
	candidates := make([]bool, last)
	for i := range candidates {
		candidates[i] = uint64(i) >= l.gradFn+first
	}
	for _, m := range sample(n.byRole[roleMeta]) {
		isLeaf, isResult := leaf[m], n.role(n.im.Word(m+l.gradFn)) == roleNode
		raw := n.im.View(m, last)
		if raw == nil || isLeaf == isResult {
			continue
		}
		want := byte(0)
		if isLeaf {
			want = 1
			ones++
		} else {
			zeros++
		}
		for i := range candidates {
			candidates[i] = candidates[i] && raw[i] == want
		}
	}
	enough := ones > 0 && zeros > 0 || ones >= minLeaves
	if i := slices.Index(candidates, true); i >= 0 && enough && !slices.Contains(candidates[i+1:], true) {
		l.requiresGrad = uint64(i)
	}
}

// findNode: next_edges_ is a vector of which each element begins with a node or null; the first field behind Node in an
// AccumulateGrad is its tensor.
func (l *layout) findNode(n *Objects) {
	nodes := n.byRole[roleNode]
	type shape struct{ at, size uint64 }
	votes := map[shape]int{}
	for _, a := range sample(nodes) {
		for at := uint64(0x10); at < 0x120; at += 8 {
			for _, size := range []uint64{16, 24} {
				if n.isEdges(a+at, size) {
					votes[shape{at, size}]++
				}
			}
		}
	}
	most := 0
	for s, v := range votes {
		if v > most || v == most && (s.at < l.nextEdges || s.at == l.nextEdges && s.size < l.edgeSize) {
			most, l.nextEdges, l.edgeSize = v, s.at, s.size
		}
	}
	l.nodeSize = n.accumulatorSize(nodes)
}

// accumulatorSize is where an AccumulateGrad has its first field of its own, behind the fields of a node; 0: that is not known.
// They are few among the nodes of a job that keeps its graphs.
func (n *Objects) accumulatorSize(nodes []uint64) uint64 {
	sizes := tally{}
	of := sample(slices.DeleteFunc(slices.Clone(nodes), func(a uint64) bool { return !n.of(a).is(accumulateClass) }))
	for _, a := range of {
		for at := uint64(0x100); at < 0x300; at += 8 { // a released one has the undefined tensor
			if r := n.role(n.im.Word(a + at)); r == roleTensor || r == roleUndefined {
				sizes[at]++
				break
			}
		}
	}
	if len(of) == 0 {
		return 0
	}
	return sizes.best(len(of))
}

// graphs reports whether some tensor is the result of a graph.
func (n *Objects) graphs(l *layout) bool {
	for _, t := range sample(n.byRole[roleTensor]) {
		meta := n.im.Word(t + l.tensorMeta)
		if l.tensorMeta == 0 || l.gradFn == 0 || !n.alive(t) || n.role(meta) != roleMeta {
			continue
		}
		if n.role(n.im.Word(meta+l.gradFn)) == roleNode {
			return true
		}
	}
	return false
}

// isEdges reports whether a vector of edges may be at an address: of one at least, each of which begins with a node or
// null, and one of them with a node.
func (n *Objects) isEdges(at, size uint64) bool {
	begin, count, ok := n.vector(at, size, 256)
	if !ok || count == 0 {
		return false
	}
	some := false
	for i := range count {
		w := n.im.Word(begin + i*size)
		if w != 0 && n.role(w) != roleNode {
			return false
		}
		some = some || w != 0
	}
	return some
}

// vector reads a std::vector: begin, end, end of its memory. ok is false when it is none with elements of that size, or one
// with more than a limit.
func (n *Objects) vector(at, size, limit uint64) (begin, count uint64, ok bool) {
	begin, end, memory := n.im.Word(at), n.im.Word(at+8), n.im.Word(at+16)
	if begin == 0 || begin&7 != 0 || end < begin || memory < end || (end-begin)%size != 0 || (end-begin)/size > limit || !n.im.Has(begin) {
		return 0, 0, false
	}
	return begin, (end - begin) / size, true
}

// Values of the first word of a SavedVariable.
const (
	savedNothing = iota // it is none
	savedEmpty          // null, or the undefined tensor
	savedTensor
)

func (n *Objects) savedFirst(w uint64) int {
	switch {
	case w == 0:
		return savedEmpty
	case w&7 != 0 || w < memory.PageSize:
		return savedNothing
	}
	switch n.role(w) {
	case roleTensor:
		return savedTensor
	case roleUndefined:
		return savedEmpty
	}
	return savedNothing
}

// maxNode bounds the size of a node, bytes.
const maxNode = 0x4000

// extra is how many bytes of a node lie behind its base class: the fields of its own class. 0 when it is not known.
func (n *Objects) extra(l *layout, node uint64) uint64 {
	if size := n.sizeOf(node); size > l.nodeSize && size < maxNode {
		return size - l.nodeSize
	}
	return 0
}

// chunk is the usable size of the memory that malloc gave for the object at an address, by the header that glibc keeps
// before it (malloc/malloc.c, struct malloc_chunk); 0 when there is none, as with other allocators.
func (n *Objects) chunk(object uint64) uint64 {
	const flags, mapped = 7, 2
	if object&15 != 0 || n.abi.malloc != nil {
		return 0
	}
	head := n.im.Word(object - 8)
	size := head &^ flags
	if size < 32 || size > 1<<30 || size&15 != 0 || head&mapped != 0 && size < memory.PageSize {
		return 0
	}
	return size - 8
}

// dtype is one of c10::ScalarType.
type dtype struct {
	name string
	size uint64 // bytes; 0 for those that hold less than one, or have no elements
}

// dtypes are the types by their number (c10/core/ScalarType.h), to which new ones are only appended.
var dtypes = []dtype{
	{"uint8", 1}, {"int8", 1}, {"int16", 2}, {"int32", 4}, {"int64", 8}, {"float16", 2}, {"float32", 4}, {"float64", 8},
	{"complex32", 4}, {"complex64", 8}, {"complex128", 16}, {"bool", 1}, {"qint8", 1}, {"quint8", 1}, {"qint32", 4},
	{"bfloat16", 2}, {"quint4x2", 1}, {"quint2x4", 1}, {"bits1x8", 1}, {"bits2x4", 1}, {"bits4x2", 1}, {"bits8", 1},
	{"bits16", 2}, {"float8_e5m2", 1}, {"float8_e4m3fn", 1}, {"float8_e5m2fnuz", 1}, {"float8_e4m3fnuz", 1},
	{"uint16", 2}, {"uint32", 4}, {"uint64", 8}, {"uint1", 1}, {"uint2", 1}, {"uint3", 1}, {"uint4", 1}, {"uint5", 1},
	{"uint6", 1}, {"uint7", 1}, {"int1", 1}, {"int2", 1}, {"int3", 1}, {"int4", 1}, {"int5", 1}, {"int6", 1}, {"int7", 1},
	{"float8_e8m0fnu", 1}, {"float4_e2m1fn_x2", 1},
}
