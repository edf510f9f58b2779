// SPDX-License-Identifier: Apache-2.0

package handles

import (
	"cmp"
	"slices"

	"github.com/gputrace/gputrace/cpython/pyobject"
)

const (
	// maxSample is the number of arrays that are searched at once, and leastFound how many of them a way must lead to blocks.
	maxSample, leastFound = 48, 3
	// mostShare and restShare are the parts of the arrays that the first way, and a further one, must lead to blocks: 1/mostShare.
	mostShare, restShare = 2, 4
	// maxSteps is the length of a way: from TensorFlow's variable it is 6, from JAX's array 8 through its interface for plugins.
	maxSteps = 10
	// maxFollowed bounds the pointers that one search follows, of all arrays together.
	maxFollowed = 8 << 20
	// nodeBytes is how much of an object of C++ is searched at most, and maxWays how many ways are followed further.
	nodeBytes, maxWays = 0x200, 512
	// maxOfClass is the number of ways of one class.
	maxOfClass = 4
	minAddress = 0x1000  // below all memory that a process can map (vm.mmap_min_addr)
	maxAddress = 1 << 47 // above all memory of a process on x86-64 and arm64
)

// from follows a way from an object; 0: it breaks off.
func (w way) from(im pyobject.Image, object uint64) uint64 {
	at := object
	for _, offset := range w {
		if at < minAddress || at >= maxAddress || at&7 != 0 {
			return 0
		}
		at = im.Word(at + offset)
	}
	return at
}

// Find searches for the ways from the arrays that Scan has noted to blocks. After one is found, arrays that it does not lead to a block are
// searched again, for blocks to which it leads no other array: a variable is an array whose memory has a handle, which leads on to the
// variable's. The shortest way counts, because arrays can also lead to each other.
func (r *Reader) Find(im pyobject.Image, isBlock func(addr uint64) bool) {
	for k := range classes {
		rest, taken, share := r.live(im, k), map[uint64]bool{}, mostShare
		open := func(addr uint64) bool { return isBlock(addr) && !taken[addr] }
		for len(r.ways[k]) < maxOfClass && len(rest) >= leastFound {
			w := r.search(im, k, sample(rest), share, open)
			if w == nil {
				break
			}
			r.ways[k], share = append(r.ways[k], w), restShare
			rest = take(im, w, rest, open, func(_, data uint64) { taken[data] = true })
		}
		if all := r.holding(im, k, isBlock); len(all) >= leastFound {
			r.onward[k] = r.search(im, k, sample(all), restShare, open)
		}
	}
}

// maxHolding bounds the arrays that are looked at for pointers in their memory.
const maxHolding = 1 << 14

// holding lists the arrays that have a pointer in the memory to which they lead: on a processor, the handle of a variable is in a block
// too.
func (r *Reader) holding(im pyobject.Image, k int, isBlock func(addr uint64) bool) (out []uint64) {
	if len(r.ways[k]) == 0 {
		return nil
	}
	all := r.live(im, k)
	for _, o := range all[:min(len(all), maxHolding)] {
		data := r.ways[k][0].from(im, o)
		if !isBlock(data) {
			continue
		}
		for offset := uint64(0); offset < unknownBytes; offset += 8 {
			if at := im.Word(data + offset); at >= minAddress && at < maxAddress && at&7 == 0 && im.Word(at) != 0 {
				out = append(out, o)
				break
			}
		}
	}
	return out
}

// take calls visit with the objects that a way leads to blocks, and these, and returns the other objects.
func take(im pyobject.Image, w way, objects []uint64, isBlock func(addr uint64) bool, visit func(object, data uint64)) (rest []uint64) {
	var found [][2]uint64
	for _, o := range objects {
		if data := w.from(im, o); isBlock(data) {
			found = append(found, [2]uint64{o, data})
		} else {
			rest = append(rest, o)
		}
	}
	for _, f := range found { // several arrays can share one block
		visit(f[0], f[1])
	}
	return rest
}

// sample returns some of the objects, from everywhere.
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

// branch is a way with the nodes to which it leads, one for each object; 0: none.
type branch struct {
	way   way
	nodes []uint64
}

// search returns the shortest way that leads 1/share of the objects to blocks, and of several the one that leads the most; nil: there is
// none.
func (r *Reader) search(im pyobject.Image, k int, objects []uint64, share int, isBlock func(addr uint64) bool) way {
	size := uint64(nodeBytes)
	if t := r.h.TypeAt(im, r.types[k]); t != nil {
		size = min(size, max(t.Size, r.h.TypeField()+16))
	}
	ends := []branch{{nil, objects}}
	seen, followed := map[uint64]bool{}, 0
	for step := range maxSteps {
		var next []branch
		var best way
		most := max(leastFound, len(objects)/share) - 1
		for i := range ends {
			b := &ends[i]
			first, bytes := uint64(0), uint64(nodeBytes)
			if step == 0 {
				first, bytes = r.h.TypeField()+8, size
			}
			var extents []uint64
			if step > 0 {
				extents = extentsOf(im, b.nodes)
			}
			for offset := first; offset < bytes && followed < maxFollowed; offset += 8 {
				followed += len(objects)
				to := b.follow(im, offset, extents)
				if n := blocks(to.nodes, isBlock); n > most {
					best, most = to.way, n
				}
				if to.isApart() && !seen[to.mark()] {
					seen[to.mark()] = true
					next = append(next, to)
				}
			}
		}
		if best != nil {
			return best
		}
		slices.SortStableFunc(next, func(x, y branch) int { return cmp.Compare(distinct(y.nodes), distinct(x.nodes)) })
		ends = next[:min(len(next), maxWays)]
	}
	return nil
}

// Chunks of glibc's malloc begin with their size, in front of the memory; its lowest three bits are flags (malloc/malloc.c). An object of
// std::make_shared has two words of the counts in front.
const (
	chunkHead, chunkFlags, sharedHead = 8, 7, 16
	leastChunk, mostChunk             = 0x20, 0x10000
	// unknownBytes is searched of memory of unknown size.
	unknownBytes = 0x100
)

// extentsOf returns how much of the memory at each node is the object's own, as far as malloc says: what follows is another object's.
func extentsOf(im pyobject.Image, nodes []uint64) []uint64 {
	out := make([]uint64, len(nodes))
	for i, at := range nodes {
		if at == 0 {
			continue
		}
		out[i] = unknownBytes
		for _, head := range []uint64{0, sharedHead} {
			size := im.Word(at - head - chunkHead)
			if bytes := size &^ chunkFlags; bytes >= leastChunk && bytes <= mostChunk && bytes%16 == 0 {
				out[i] = min(nodeBytes, bytes-chunkHead-head)
				break
			}
		}
	}
	return out
}

// follow follows the pointer at an offset of each node, if it lies within the node's extent; extents is nil if they have no end.
func (b *branch) follow(im pyobject.Image, offset uint64, extents []uint64) branch {
	to := branch{append(slices.Clone(b.way), offset), make([]uint64, len(b.nodes))}
	for i, at := range b.nodes {
		if at != 0 && (extents == nil || offset+8 <= extents[i]) {
			to.nodes[i] = im.Word(at + offset)
		}
	}
	for i, at := range to.nodes {
		if at < minAddress || at >= maxAddress {
			to.nodes[i] = 0
		}
	}
	return to
}

// isApart reports whether a branch leads several objects to nodes of their own, at which something can be: a device or a context is
// shared by all.
func (b *branch) isApart() bool {
	n := 0
	for i, at := range b.nodes {
		if at&7 != 0 {
			b.nodes[i] = 0
		} else if at != 0 {
			n++
		}
	}
	return n >= leastFound && 2*distinct(b.nodes) > n
}

// mark identifies the nodes of a branch: another way to the same ones leads nowhere else.
func (b *branch) mark() (sum uint64) {
	for _, at := range b.nodes {
		sum = sum*0x9e3779b97f4a7c15 + at
	}
	return sum
}

func distinct(nodes []uint64) int {
	all := map[uint64]bool{}
	for _, at := range nodes {
		if at != 0 {
			all[at] = true
		}
	}
	return len(all)
}

// blocks returns how many different blocks nodes are the starts of; 0 if more than half of them share one.
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
