// SPDX-License-Identifier: Apache-2.0

package arrays

import (
	"strconv"
	"strings"

	"github.com/gputrace/gputrace/cpython/pyobject"
)

// layout is where CuPy's classes keep what is read of them: offsets in bytes. 0 is an offset that was not found.
type layout struct {
	data    uint64 // array: its pointer
	memory  uint64 // pointer: its memory
	address uint64 // pointer: a device address
	start   uint64 // memory: device address of the block
	size    uint64 // memory: bytes of the block
	pool    uint64 // memory: a weak reference to its pool, or the pool

	base                            uint64 // array: the array that it is a view of
	elements, shape, strides, dtype uint64 // array: number of elements, two std::vectors of 64-bit numbers, a NumPy dtype

	counts []uint64 // pool: where its count of bytes in use can be; empty: no reading has added up yet
}

// Unit is what the starts and the sizes of blocks are multiples of, bytes (ALLOCATION_UNIT_SIZE in cupy/cuda/memory.pyx).
const Unit = 512

const (
	maxSample = 4096 // objects of a class that vote
	maxFields = 0x200
	maxDims   = 64
	// maxBlock is more than a GPU has, bytes: an address of Python's is larger.
	maxBlock = 1 << 40
)

// Known reports that it was proved how arrays lead to blocks.
func (r *Reader) Known() bool { return r.data != 0 && r.memory != 0 && r.size != 0 && r.pool != 0 }

// Find searches for the offsets among the objects that Scan has noted.
func (r *Reader) Find(im pyobject.Image) {
	l := &r.layout
	arrays, pointers, memories := sample(r.live(im, roleArray)), sample(r.live(im, rolePointer)), sample(r.live(im, roleMemory))
	l.data = r.vote(im, arrays, roleArray, func(w uint64) bool { return r.is(im, w, rolePointer) })
	l.memory = r.vote(im, pointers, rolePointer, func(w uint64) bool { return r.is(im, w, roleMemory) })
	l.pool = r.vote(im, memories, roleMemory, func(w uint64) bool { return r.poolAt(im, w) != 0 })
	if l.memory != 0 {
		r.findBlocks(im, pointers)
	}
	l.base = r.vote(im, arrays, roleArray, func(w uint64) bool { return r.is(im, w, roleArray) })
	l.dtype = r.vote(im, arrays, roleArray, func(w uint64) bool { return r.dtypeName(im, w) != "" })
	r.findShape(im, arrays)
}

func sample(all []uint64) []uint64 { return all[:min(len(all), maxSample)] }

// fields are the offsets of the words behind the head of an object of a class.
func (r *Reader) fields(im pyobject.Image, k role) (out []uint64) {
	t := r.Heap.TypeAt(im, r.Types[k])
	for at := r.Heap.TypeField() + 8; t != nil && at+8 <= min(t.Size, maxFields); at += 8 {
		out = append(out, at)
	}
	return out
}

// vote returns the offset at which a condition is true for the most objects; 0: no offset, or two with equally many.
func (r *Reader) vote(im pyobject.Image, objects []uint64, k role, fits func(word uint64) bool) uint64 {
	votes := map[uint64]int{}
	fields := r.fields(im, k)
	for _, o := range objects {
		for _, at := range fields {
			if fits(im.Word(o + at)) {
				votes[at]++
			}
		}
	}
	return winner(votes)
}

// winner returns the candidate with the most votes; the zero value if two have equally many.
func winner[K comparable](votes map[K]int) K {
	var best, none K
	most, tied := 0, false
	for k, n := range votes {
		if n >= most {
			best, most, tied = k, n, n == most
		}
	}
	if tied {
		return none
	}
	return best
}

// poolAt returns the pool at an address, or the pool that a weak reference there leads to; 0: neither is there.
func (r *Reader) poolAt(im pyobject.Image, at uint64) uint64 {
	if r.is(im, at, rolePool) {
		return at
	}
	t := r.Heap.TypeOf(im, at)
	if t == nil || !strings.HasPrefix(t.Name, "weakref") {
		return 0
	}
	if at = im.Word(at + r.Heap.TypeField() + 8); r.is(im, at, rolePool) { // wr_object (Include/cpython/weakrefobject.h)
		return at
	}
	return 0
}

// findBlocks finds where a pointer has its address, and where its memory has the start and the size of the block: the address is
// in the block.
func (r *Reader) findBlocks(im pyobject.Image, pointers []uint64) {
	type places struct{ address, start, size uint64 }
	votes := map[places]int{}
	fields, own := r.fields(im, roleMemory), r.fields(im, rolePointer)
	for _, p := range pointers {
		m := im.Word(p + r.layout.memory)
		if !r.is(im, m, roleMemory) {
			continue
		}
		for _, s := range fields {
			start := im.Word(m + s)
			if start == 0 || start%Unit != 0 {
				continue
			}
			for _, n := range fields {
				size := im.Word(m + n)
				if n == s || size == 0 || size%Unit != 0 || size > maxBlock {
					continue
				}
				for _, a := range own {
					if im.Word(p+a)-start < size {
						votes[places{a, s, n}]++
					}
				}
			}
		}
	}
	best := winner(votes)
	r.address, r.start, r.size = best.address, best.start, best.size
}

// findShape finds two vectors of equally many numbers, the product of the first of which is a number in front of it.
func (r *Reader) findShape(im pyobject.Image, arrays []uint64) {
	type places struct{ elements, shape, strides uint64 }
	votes := map[places]int{}
	const vector = 24
	fields := r.fields(im, roleArray)
	for _, a := range arrays {
		for _, s := range fields {
			shape, ok := vectorAt(im, a+s)
			strides, also := vectorAt(im, a+s+vector)
			if !ok || !also || len(shape) != len(strides) || len(shape) == 0 {
				continue
			}
			n := product(shape)
			for _, e := range fields {
				if e < s && n > 1 && int64(im.Word(a+e)) == n {
					votes[places{e, s, s + vector}]++
				}
			}
		}
	}
	best := winner(votes)
	r.elements, r.shape, r.strides = best.elements, best.shape, best.strides
}

func product(list []int64) int64 {
	n := int64(1)
	for _, d := range list {
		if d < 0 || d > 0 && n > 1<<62/d {
			return -1
		}
		n *= d
	}
	return n
}

// vectorAt reads a std::vector of 64-bit numbers; ok is false if the words are no vector, or it has more than maxDims elements.
func vectorAt(im pyobject.Image, at uint64) (list []int64, ok bool) {
	begin, end, memory := im.Word(at), im.Word(at+8), im.Word(at+16)
	if begin&7 != 0 || end < begin || memory < end || end-begin > 8*maxDims || (end-begin)%8 != 0 {
		return nil, false
	}
	list = make([]int64, 0, (end-begin)/8)
	for ; begin < end; begin += 8 {
		list = append(list, int64(im.Word(begin)))
	}
	return list, true
}

// dtypeName returns the name of a NumPy dtype by its class: numpy.dtypes.Float32DType, before NumPy 1.25 numpy.dtype[float32]. It is
// empty for another object.
func (r *Reader) dtypeName(im pyobject.Image, at uint64) string {
	t := r.Heap.TypeOf(im, at)
	if t == nil || !strings.HasPrefix(t.Name, "numpy.dtype") {
		return ""
	}
	if name, ok := strings.CutPrefix(t.Name, "numpy.dtype["); ok {
		return strings.TrimSuffix(name, "]")
	}
	name, ok := strings.CutSuffix(t.Short(), "DType")
	if !ok {
		return ""
	}
	return strings.ToLower(name)
}

// itemSize returns the bytes of an element of a dtype; 0: unknown.
func itemSize(dtype string) int64 {
	if dtype == "bool" {
		return 1
	}
	bits, err := strconv.Atoi(strings.TrimLeft(dtype, "abcdefghijklmnopqrstuvwxyz"))
	if err != nil || bits%8 != 0 {
		return 0
	}
	return int64(bits / 8)
}

// Geometry is the shape of an array in its block.
type Geometry struct {
	Shape, Strides []int64 // elements
	Offset         int64   // of the first element, from the start of the block, elements
	DType          string  // as in numpy.dtype.name
}

// Geometry reads the shape of an array in the block that begins at an address; ok is false if it is not known.
func (r *Reader) Geometry(im pyobject.Image, object, block uint64) (g Geometry, ok bool) {
	p := r.pointer(im, object)
	if p == 0 || r.shape == 0 || r.dtype == 0 || !r.is(im, object, roleArray) {
		return g, false
	}
	g.DType = r.dtypeName(im, im.Word(object+r.dtype))
	item := itemSize(g.DType)
	g.Shape, ok = vectorAt(im, object+r.shape)
	strides, also := vectorAt(im, object+r.strides)
	if item == 0 || !ok || !also || product(g.Shape) != int64(im.Word(object+r.elements)) {
		return Geometry{}, false
	}
	for _, s := range strides {
		g.Strides = append(g.Strides, s/item)
	}
	g.Offset = int64(im.Word(p+r.address)-block) / item
	return g, true
}
