// SPDX-License-Identifier: Apache-2.0

//go:build linux

package holders

import (
	"encoding/binary"
	"fmt"
	"path/filepath"
	"slices"
	"sort"
	"strings"
)

// place is what contains an address.
type place struct {
	what string // a class or library; empty for plain memory
	rank placeRank
	base uint64 // where the memory or object begins; 0 when it is not known
}

// placeRank orders places by how much they say.
type placeRank uint8

const (
	placeNowhere placeRank = iota
	placeMemory            // memory that malloc gave, without a class
	placeStack             // a stack of native code
	placeStatic            // data of a library
	placePython            // a Python object whose inside is not known
	placeObject            // an object of C++
)

const (
	maxInside   = 0x2000 // how far into an object or memory an address is believed to be, bytes
	maxPyInside = 0x200
	// maxLevels is how many pointers are followed backwards from a tensor to an object of C++.
	maxLevels = 4
	// maxSought bounds the addresses that are looked for at once.
	maxSought = 1 << 16
	sharedPtr = 0x10 // std::make_shared puts the object behind its count
)

// contains finds what an address lies in.
func (r *reading) contains(at uint64) place {
	reg := r.im.regionAt(at)
	switch {
	case reg == nil:
		return place{}
	case reg.file != "":
		return place{what: "static data of " + filepath.Base(reg.file), rank: placeStatic}
	case reg.stack:
		return place{what: "stack of native code", rank: placeStack}
	}
	if lib := r.staticOf(reg, at); lib != "" {
		return place{what: "static data of " + filepath.Base(lib), rank: placeStatic}
	}
	for back := uint64(0); back <= maxInside && back <= at-reg.start; back += 8 {
		x := at - back
		if c := r.torch.of(x); c != nil && (r.covers(x, at) || r.covers(x-sharedPtr, at)) {
			return place{what: title(c), rank: placeObject, base: x}
		}
		if back <= maxPyInside && r.torch.heap != nil {
			if t := r.torch.heap.TypeOf(r.im, x); t != nil && back < r.torch.heap.Size(r.im, x, t) && r.torch.heap.Plausible(r.im, x) {
				return place{what: "Python " + t.Name, rank: placePython, base: x}
			}
		}
		if r.covers(x, at) {
			return place{rank: placeMemory, base: x}
		}
	}
	return place{}
}

// covers reports whether memory from malloc begins at an address and reaches to another: the header of the next piece
// must be one too.
func (r *reading) covers(start, at uint64) bool {
	size := r.torch.chunk(start)
	if size == 0 || at-start >= size {
		return false
	}
	next := r.im.Word(start + size) // header of the next piece, its size
	const inUse = 1
	return next&inUse != 0 && next&^7 >= 0x20 && next < 1<<40
}

// staticOf is the library whose zeroed data an address is in: memory without a file behind the library's last mapping, as far
// as its program headers say. The mapping may go on with something else.
func (r *reading) staticOf(reg *region, at uint64) string {
	before := r.im.regionAt(reg.start - 1)
	if before == nil || !before.heap || before.file == "" || before.end != reg.start || at >= r.dataEnd(before.file) {
		return ""
	}
	return before.file
}

// Fields of an ELF file's header and program headers, 64 bits (elf(5)).
const (
	elfMagic      = 0x464c457f
	elfProgram    = 0x20 // e_phoff
	elfPrograms   = 0x38 // e_phnum
	programSize   = 0x38
	programLoad   = 1
	programAddr   = 0x10 // p_vaddr
	programMemory = 0x28 // p_memsz
)

// dataEnd is where the memory of a library ends, by its headers in the process; 0 when they cannot be read.
func (r *reading) dataEnd(file string) uint64 {
	var base, end uint64
	for _, reg := range r.regions {
		if reg.file == file {
			base = reg.start
			break
		}
	}
	var head [0x40]byte
	if _, err := r.im.ReadAt(head[:], base); err != nil || binary.LittleEndian.Uint32(head[:]) != elfMagic {
		return 0
	}
	at, first := binary.LittleEndian.Uint64(head[elfProgram:]), ^uint64(0)
	for range binary.LittleEndian.Uint16(head[elfPrograms:]) {
		var p [programSize]byte
		if _, err := r.im.ReadAt(p[:], base+at); err != nil {
			return 0
		}
		if binary.LittleEndian.Uint32(p[:]) == programLoad {
			addr := binary.LittleEndian.Uint64(p[programAddr:])
			first = min(first, addr&^(pageSize-1))
			end = max(end, addr+binary.LittleEndian.Uint64(p[programMemory:]))
		}
		at += programSize
	}
	return base + end - first
}

// sought is an address that is looked for, and the lost objects that it stands for.
type sought struct {
	lost []uint64
	// typed: the address is that of an object of a known class. Of plain memory there must be one pointer only: an old
	// pointer in memory that was given back would lead anywhere.
	typed bool
}

// natively says for lost objects what of C++ holds them: the class of the object that their address is found in, directly,
// through memory without a class, or through a tensor's autograd data.
func (r *reading) natively(lost []uint64) map[uint64]place {
	best := map[uint64]place{}
	next := map[uint64]sought{}
	for _, a := range lost {
		next[a] = sought{lost: []uint64{a}, typed: true}
	}
	for range maxLevels {
		if len(next) == 0 || len(next) > maxSought {
			break
		}
		next = r.level(next, best)
	}
	return best
}

// hit is an address that was looked for, where it was found.
type hit struct {
	at, word uint64
	place
}

// level looks for addresses, improves what is known of the objects that they stand for, and gives the addresses of the memory
// that they were found in.
func (r *reading) level(now map[uint64]sought, best map[uint64]place) map[uint64]sought {
	wanted := newTable()
	for a := range now {
		wanted.set(a, 1)
	}
	byWord := map[uint64][]hit{}
	n := 0
	r.words(wanted, func(at, word uint64) {
		if n++; n > maxSought || r.ownHalf(at, word) {
			return
		}
		if p := r.contains(at); p.base != word && (p.rank > placeStack || p.rank == placeMemory) {
			byWord[word] = append(byWord[word], hit{at, word, p})
		}
	})
	next := map[uint64]sought{}
	for _, word := range sortedKeys(byWord) {
		from, hits := now[word], byWord[word]
		if !from.typed {
			hits = certain(hits)
		}
		for _, h := range hits {
			r.follow(h, from, best, next)
		}
	}
	return next
}

// certain keeps of the pointers to plain memory the one in an object of a class or, if there is none in any, the only one.
func certain(hits []hit) []hit {
	objects := slices.DeleteFunc(slices.Clone(hits), func(h hit) bool { return h.rank != placeObject })
	switch {
	case len(objects) == 1:
		return objects
	case len(hits) == 1:
		return hits
	}
	return nil
}

// follow takes in one hit.
func (r *reading) follow(h hit, from sought, best map[uint64]place, next map[uint64]sought) {
	if h.rank == placeStatic && !from.typed {
		return // where a pointer may be an old one
	}
	role := r.torch.role(h.base)
	through := role == roleMeta || role == roleTensor // the tensor that this is part of is held by something
	for _, o := range from.lost {
		if !through && h.rank > best[o].rank {
			best[o] = h.place
		}
		if (through || h.rank == placeMemory) && best[o].rank < placeStatic {
			n := next[h.base]
			next[h.base] = sought{append(n.lost, o), through}
		}
	}
}

// ownHalf reports whether a word is the link between a tensor and its own Python object.
func (r *reading) ownHalf(at, word uint64) bool {
	t := r.torch
	if t.storageObject != 0 && (t.storageOf(word) == at-t.storageCdata || t.storageOf(at-t.storageObject) == word) {
		return true
	}
	return t.pythonObject != 0 && (t.object(word) == at-t.cdata || t.impl(word) == at-t.pythonObject)
}

// workspaces says for blocks without a storage what they are, by the object that owns their memory: a c10::DataPtr holds
// the address twice, around the function that frees it.
func (r *reading) workspaces(blocks []*Block) {
	wanted, byAddr := newTable(), map[uint64]*Block{}
	for _, b := range blocks {
		wanted.set(b.Addr, 1)
		byAddr[b.Addr] = b
	}
	var hits []hit
	r.words(wanted, func(at, word uint64) {
		if len(hits) < maxSought && r.im.Word(at+16) == word && r.im.executable(r.im.Word(at+8)) {
			hits = append(hits, hit{at: at, word: word})
		}
	})
	for _, h := range hits {
		if b := byAddr[h.word]; b.Class == "" {
			b.Class = r.ownerOfMemory(h.at, b)
		}
	}
}

// A node of a std::map (bits/stl_tree.h): color, parent, left, right, then key and value.
const (
	treeParent = 8
	treeLeft   = 16
	treeRight  = 24
	treeValue  = 32
	maxTree    = 64 // steps up to its root
)

// ownerOfMemory names what owns a c10::DataPtr. PyTorch keeps the workspaces that it gives to cuBLAS in a std::map from a
// handle and a stream (aten/src/ATen/cuda/CublasHandlePool.cpp): two words of key.
func (r *reading) ownerOfMemory(at uint64, b *Block) string {
	node := at - treeValue - 16
	if r.treeNode(node) {
		if cublasSizes[b.Requested] || r.workspaceSize(b.Requested) {
			return "cuBLAS workspace"
		}
		return "workspace of a library, by handle and stream"
	}
	p := r.contains(at)
	if p.rank >= placeStatic {
		return p.what
	}
	return ""
}

// treeNode reports whether a node of a std::map is at an address: its parent knows it, or is the head of the map.
func (r *reading) treeNode(node uint64) bool {
	if color := r.im.Word(node); color&0xff > 1 {
		return false
	}
	parent := r.im.Word(node + treeParent)
	if parent == 0 || parent&7 != 0 {
		return false
	}
	return r.im.Word(parent+treeLeft) == node || r.im.Word(parent+treeRight) == node || r.im.Word(parent+treeParent) == node
}

// cublasSizes are the sizes of workspace that PyTorch asks for by itself, bytes (CublasHandlePool.cpp,
// parseChosenWorkspaceSize: 4096 KiB twice and 16 KiB eight times; 32 MiB on Hopper, and more from Blackwell on).
var cublasSizes = map[uint64]bool{
	2*4096<<10 + 8*16<<10: true, 8 * 4096 << 10: true, 8*4096<<10 + 512: true, 32<<20 + 1<<20: true,
}

// workspaceSize reports whether a size is the one that the program's environment asks for: pairs of a size in KiB and how
// many of it, as in CUBLAS_WORKSPACE_CONFIG=:4096:8.
func (r *reading) workspaceSize(size uint64) bool {
	environ, _ := r.p.Environ()
	for _, e := range environ {
		value, ok := strings.CutPrefix(e, "CUBLAS_WORKSPACE_CONFIG=")
		if !ok {
			continue
		}
		var total, kib, count uint64
		for rest := value; rest != ""; {
			if n, _ := fmt.Sscanf(rest, ":%d:%d", &kib, &count); n < 2 {
				break
			}
			total += kib << 10 * count
			rest = strings.TrimPrefix(rest, fmt.Sprintf(":%d:%d", kib, count))
		}
		return total == size
	}
	return false
}

// sortedKeys gives the addresses of a set in their order: results must not depend on that of a map.
func sortedKeys[V any](m map[uint64]V) []uint64 {
	out := make([]uint64, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	sort.Slice(out, func(i, j int) bool { return out[i] < out[j] })
	return out
}
