// SPDX-License-Identifier: Apache-2.0

package handles

import (
	"cmp"
	"slices"

	"github.com/gputrace/gputrace/cpython/pyobject"
	"github.com/gputrace/gputrace/inspect/holders/internal/instances"
)

const (
	// maxSample is the number of arrays that are searched at once, and leastFound how many of them a way must lead to blocks.
	maxSample, leastFound = 48, 3
	// mostShare and restShare are the parts of the arrays that the first way, and a further one, must lead to blocks: 1/mostShare.
	mostShare, restShare = 2, 4
	// maxSteps is the maximum length of a way. From a variable of TensorFlow it is 6, from an array of JAX 8, through its plugin interface.
	maxSteps = 10
	// maxFollowed is the maximum number of pointers that one search follows, for all arrays together.
	maxFollowed = 8 << 20
	// nodeBytes is how much of an object of C++ is searched at most, and maxBranches how many ways are followed further.
	nodeBytes, maxBranches = 0x200, 512
	// maxOfClass is the maximum number of ways of one class.
	maxOfClass = 4
	maxAddress = 1 << 48 // above all memory of a process on x86-64 and arm64
)

// isPointer reports whether a word can be the address of an object.
func isPointer(word uint64) bool {
	return word >= instances.MinAddress && word < maxAddress && word&7 == 0
}

// from follows a way from an object; 0: it breaks off.
func (w way) from(im pyobject.Image, object uint64) uint64 {
	if len(w) == 0 {
		return 0
	}
	at := object
	for _, offset := range w {
		if !isPointer(at) {
			return 0
		}
		at = im.Word(at + offset)
	}
	return at
}

// claims are the blocks to which arrays lead.
type claims struct {
	isBlock func(addr uint64) bool
	taken   map[uint64]bool
}

func newClaims(isBlock func(addr uint64) bool) *claims { return &claims{isBlock, map[uint64]bool{}} }

// isOpen reports whether a block that no array has claimed begins at an address.
func (c *claims) isOpen(addr uint64) bool { return c.isBlock(addr) && !c.taken[addr] }

// take claims the blocks to which a way leads objects, and calls visit with each; visit may be nil. Several objects can share a block. It
// returns the objects that the way leads to no block.
func (c *claims) take(im pyobject.Image, w way, objects []uint64, visit func(object, data uint64)) (rest []uint64) {
	claimed := map[uint64]bool{}
	for _, o := range objects {
		data := w.from(im, o)
		if !c.isOpen(data) {
			rest = append(rest, o)
			continue
		}
		claimed[data] = true
		if visit != nil {
			visit(o, data)
		}
	}
	for data := range claimed {
		c.taken[data] = true
	}
	return rest
}

// Find searches for the ways from the arrays that Scan has noted to blocks. After one is found, it searches again from the arrays that this
// way leads to no block, for blocks that no array has claimed: the memory of a variable is a handle, which leads on to the variable's memory.
// The shortest way is taken, because arrays also lead to each other.
func (r *Reader) Find(im pyobject.Image, isBlock func(addr uint64) bool) {
	for k := range classes {
		all, own, share := r.Live(im, k), newClaims(isBlock), mostShare
		for rest := all; len(r.ways[k]) < maxOfClass && len(rest) >= leastFound; share = restShare {
			w := r.search(im, k, sample(rest), share, own.isOpen)
			if w == nil {
				break
			}
			r.ways[k] = append(r.ways[k], w)
			rest = own.take(im, w, rest, nil)
		}
		if holding := r.holding(im, k, all, isBlock); len(holding) >= leastFound {
			r.onward[k] = r.search(im, k, sample(holding), restShare, own.isOpen)
		}
	}
}

// maxHolding is the maximum number of arrays that are looked at for pointers in their memory.
const maxHolding = 1 << 14

// holding returns the arrays that have a pointer in the memory to which the first way leads. If TensorFlow computes on the processor, the
// handle of a variable is in a block, too.
func (r *Reader) holding(im pyobject.Image, k int, all []uint64, isBlock func(addr uint64) bool) (out []uint64) {
	if len(r.ways[k]) == 0 {
		return nil
	}
	for _, o := range all[:min(len(all), maxHolding)] {
		if data := r.ways[k][0].from(im, o); isBlock(data) && hasPointer(im, data) {
			out = append(out, o)
		}
	}
	return out
}

func hasPointer(im pyobject.Image, data uint64) bool {
	for offset := uint64(0); offset < unknownBytes; offset += 8 {
		if at := im.Word(data + offset); isPointer(at) && im.Word(at) != 0 {
			return true
		}
	}
	return false
}

// sample returns up to maxSample of the objects, evenly spread.
func sample(all []uint64) []uint64 {
	if len(all) <= maxSample {
		return all
	}
	out := make([]uint64, 0, maxSample)
	for i := range maxSample {
		out = append(out, all[i*len(all)/maxSample])
	}
	return out
}

// branch is a way with the node to which it leads each object; 0: none.
type branch struct {
	way      way
	nodes    []uint64
	distinct int // number of different nodes
}

// search returns the shortest way that leads 1/share of the objects to blocks, and of several the one that leads the most; nil: there is
// none.
func (r *Reader) search(im pyobject.Image, k int, objects []uint64, share int, isBlock func(addr uint64) bool) (best way) {
	size := uint64(nodeBytes)
	if t := r.Heap.TypeAt(im, r.Types[k]); t != nil {
		size = min(size, t.Size)
	}
	extents := slices.Repeat([]uint64{size}, len(objects))
	ends := []branch{{nodes: objects}}
	seen, followed := map[uint64]bool{}, 0
	for step := 0; step < maxSteps && best == nil; step++ {
		var next []branch
		most := max(leastFound, len(objects)/share) - 1
		for i := range ends {
			if step > 0 {
				extents = extentsOf(im, ends[i].nodes)
			}
			bytes := slices.Max(extents)
			for offset := uint64(0); offset < bytes && followed < maxFollowed; offset += 8 {
				followed += len(objects)
				to := ends[i].follow(im, offset, extents)
				if n := blocks(to.nodes, isBlock); n > most {
					best, most = to.way, n
				}
				if to.isApart() && !seen[to.mark()] {
					seen[to.mark()] = true
					next = append(next, to)
				}
			}
		}
		slices.SortStableFunc(next, func(x, y branch) int { return cmp.Compare(y.distinct, x.distinct) })
		ends = next[:min(len(next), maxBranches)]
	}
	return best
}

// Chunks of glibc's malloc begin with their size, in front of the memory; its lowest three bits are flags (malloc/malloc.c). An object of
// std::make_shared has two words of the counts in front.
const (
	chunkHead, chunkFlags, sharedHead = 8, 7, 16
	leastChunk, mostChunk             = 0x20, 0x10000
	// unknownBytes is searched of memory of unknown size.
	unknownBytes = 0x100
)

// extentsOf returns how much of the memory at each node belongs to the object, as far as malloc says: what follows is another object's.
func extentsOf(im pyobject.Image, nodes []uint64) []uint64 {
	out := make([]uint64, len(nodes))
	for i, at := range nodes {
		if at == 0 {
			continue
		}
		out[i] = unknownBytes
		for _, head := range []uint64{0, sharedHead} {
			size := im.Word(at-head-chunkHead) &^ chunkFlags
			if size >= leastChunk && size <= mostChunk && size%16 == 0 {
				out[i] = min(nodeBytes, size-chunkHead-head)
				break
			}
		}
	}
	return out
}

// follow follows the pointer at an offset of each node, if it lies within the node's extent.
func (b *branch) follow(im pyobject.Image, offset uint64, extents []uint64) branch {
	to := branch{way: append(slices.Clone(b.way), offset), nodes: make([]uint64, len(b.nodes))}
	all := map[uint64]bool{}
	for i, at := range b.nodes {
		if at == 0 || offset+8 > extents[i] {
			continue
		}
		if word := im.Word(at + offset); isPointer(word) {
			to.nodes[i] = word
			all[word] = true
		}
	}
	to.distinct = len(all)
	return to
}

// isApart reports whether a branch leads several objects to nodes of their own: a device or a context is shared by all.
func (b *branch) isApart() bool {
	n := 0
	for _, at := range b.nodes {
		if at != 0 {
			n++
		}
	}
	return n >= leastFound && 2*b.distinct > n
}

// mark identifies the nodes of a branch: another way to the same nodes leads nowhere else.
func (b *branch) mark() (sum uint64) {
	for _, at := range b.nodes {
		sum = sum*0x9e3779b97f4a7c15 + at
	}
	return sum
}

// blocks returns how many different blocks begin at the nodes; 0 if most of the nodes that are blocks are the same ones.
func blocks(nodes []uint64, isBlock func(addr uint64) bool) int {
	found, all := map[uint64]bool{}, 0
	for _, at := range nodes {
		if at != 0 && isBlock(at) {
			found[at] = true
			all++
		}
	}
	if 2*len(found) <= all {
		return 0
	}
	return len(found)
}
