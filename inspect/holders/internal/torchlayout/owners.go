// SPDX-License-Identifier: Apache-2.0

package torchlayout

import (
	"encoding/binary"
	"fmt"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"github.com/gputrace/gputrace/inspect/holders/internal/memory"
)

// Owners says what of C++ holds objects and blocks that nothing else leads to.
type Owners struct {
	t       *Reader
	environ []string // of the process
}

// NewOwners makes one. environ is the environment of the process.
func NewOwners(t *Reader, environ []string) *Owners { return &Owners{t: t, environ: environ} }

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
func (w *Owners) contains(at uint64) place {
	reg := w.t.im.RegionAt(at)
	switch {
	case reg == nil:
		return place{}
	case reg.File != "":
		return place{what: "static data of " + filepath.Base(reg.File), rank: placeStatic}
	case reg.Stack:
		return place{what: "stack of native code", rank: placeStack}
	}
	if lib := w.staticOf(reg, at); lib != "" {
		return place{what: "static data of " + filepath.Base(lib), rank: placeStatic}
	}
	for back := uint64(0); back <= maxInside && back <= at-reg.Start; back += 8 {
		x := at - back
		if c := w.t.of(x); c != nil && !w.freed(c, x) && (w.covers(x, at) || w.covers(x-sharedPtr, at)) {
			return place{what: strings.TrimPrefix(c.title(), "::"), rank: placeObject, base: x}
		}
		if back <= maxPyInside && w.t.heap != nil {
			if t := w.t.heap.TypeOf(w.t.im, x); t != nil && back < w.t.heap.Size(w.t.im, x, t) && w.t.heap.Plausible(w.t.im, x) {
				return place{what: "Python " + t.Name, rank: placePython, base: x}
			}
		}
		if w.covers(x, at) {
			return place{rank: placeMemory, base: x}
		}
	}
	return place{}
}

// freed reports whether an object counts its references and has none: memory that was given back keeps most of an object, and the pointers
// in it lead anywhere.
func (w *Owners) freed(c *class, object uint64) bool { return c.counted() && !w.t.alive(object) }

// covers reports whether memory from malloc begins at an address and reaches to another: the header of the next piece
// must be one too.
func (w *Owners) covers(start, at uint64) bool {
	size := w.t.chunk(start)
	if size == 0 || at-start >= size {
		return false
	}
	next := w.t.im.Word(start + size) // header of the next piece, its size
	const inUse = 1
	return next&inUse != 0 && next&^7 >= 0x20 && next < 1<<40
}

// staticOf is the library whose zeroed data an address is in: memory without a file behind the library's last mapping, as far
// as its program headers say. The mapping may go on with something else.
func (w *Owners) staticOf(reg *memory.Region, at uint64) string {
	before := w.t.im.RegionAt(reg.Start - 1)
	if before == nil || !before.Heap || before.File == "" || before.End != reg.Start || at >= w.dataEnd(before.File) {
		return ""
	}
	return before.File
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
func (w *Owners) dataEnd(file string) uint64 {
	var base, end uint64
	for _, reg := range w.t.im.Regions() {
		if reg.File == file {
			base = reg.Start
			break
		}
	}
	var head [0x40]byte
	if _, err := w.t.im.ReadAt(head[:], base); err != nil || binary.LittleEndian.Uint32(head[:]) != elfMagic {
		return 0
	}
	at, first := binary.LittleEndian.Uint64(head[elfProgram:]), ^uint64(0)
	for range binary.LittleEndian.Uint16(head[elfPrograms:]) {
		var p [programSize]byte
		if _, err := w.t.im.ReadAt(p[:], base+at); err != nil {
			return 0
		}
		if binary.LittleEndian.Uint32(p[:]) == programLoad {
			addr := binary.LittleEndian.Uint64(p[programAddr:])
			first = min(first, addr&^(memory.PageSize-1))
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

// Objects says for lost objects what of C++ holds them, where that is known: a class, or data of a library.
func (w *Owners) Objects(lost []uint64) map[uint64]string {
	out := map[uint64]string{}
	for o, p := range w.natively(lost) {
		if p.rank >= placeStatic {
			out[o] = p.what
		}
	}
	return out
}

// natively says for lost objects what of C++ holds them: the class of the object that their address is found in, directly,
// through memory without a class, or through a tensor's autograd data.
func (w *Owners) natively(lost []uint64) map[uint64]place {
	best := map[uint64]place{}
	next := map[uint64]sought{}
	for _, a := range lost {
		next[a] = sought{lost: []uint64{a}, typed: true}
	}
	for range maxLevels {
		if len(next) == 0 || len(next) > maxSought {
			break
		}
		next = w.level(next, best)
	}
	return best
}

// hit is an address that was looked for, where it was found.
type hit struct {
	at, word uint64
	place
}

// level looks for addresses, improves what is known of the objects that they stand for, and returns the addresses of the memory
// that they were found in.
func (w *Owners) level(now map[uint64]sought, best map[uint64]place) map[uint64]sought {
	wanted := memory.NewTable()
	for a := range now {
		wanted.Set(a, 1)
	}
	byWord := map[uint64][]hit{}
	n := 0
	w.t.im.Words(wanted, func(at, word uint64) {
		if n++; n > maxSought || w.ownHalf(at, word) {
			return
		}
		if p := w.contains(at); p.base != word && (p.rank > placeStack || p.rank == placeMemory) {
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
			w.follow(h, from, best, next)
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
func (w *Owners) follow(h hit, from sought, best map[uint64]place, next map[uint64]sought) {
	if h.rank == placeStatic && !from.typed {
		return // where a pointer may be an old one
	}
	role := w.t.role(h.base)
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
func (w *Owners) ownHalf(at, word uint64) bool {
	t := w.t
	if t.storageObject != 0 && (t.StorageObject(word) == at-t.storageCdata || t.StorageObject(at-t.storageObject) == word) {
		return true
	}
	return t.pythonObject != 0 && (t.Object(word) == at-t.cdata || t.Impl(word) == at-t.pythonObject)
}

// Workspaces says for blocks without a storage what they are, by the object that owns their memory: a c10::DataPtr holds
// the address twice, around the function that frees it. requested is what was asked for of each block, bytes.
func (w *Owners) Workspaces(requested map[uint64]uint64) map[uint64]string {
	wanted, out := memory.NewTable(), map[uint64]string{}
	for addr := range requested {
		wanted.Set(addr, 1)
	}
	var hits []hit
	w.t.im.Words(wanted, func(at, word uint64) {
		if len(hits) < maxSought && w.t.im.Word(at+16) == word && w.t.im.Executable(w.t.im.Word(at+8)) {
			hits = append(hits, hit{at: at, word: word})
		}
	})
	for _, h := range hits {
		if out[h.word] == "" {
			out[h.word] = w.ownerOfMemory(h.at, requested[h.word])
		}
	}
	return out
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
func (w *Owners) ownerOfMemory(at, requested uint64) string {
	node := at - treeValue - 16
	if w.treeNode(node) {
		if cublasSizes[requested] || w.workspaceSize(requested) {
			return "cuBLAS workspace"
		}
		return "workspace of a library, by handle and stream"
	}
	p := w.contains(at)
	if p.rank >= placeStatic {
		return p.what
	}
	return ""
}

// treeNode reports whether a node of a std::map is at an address: its parent knows it, or is the head of the map.
func (w *Owners) treeNode(node uint64) bool {
	if color := w.t.im.Word(node); color&0xff > 1 {
		return false
	}
	parent := w.t.im.Word(node + treeParent)
	if parent == 0 || parent&7 != 0 {
		return false
	}
	return w.t.im.Word(parent+treeLeft) == node || w.t.im.Word(parent+treeRight) == node || w.t.im.Word(parent+treeParent) == node
}

// cublasSizes are the sizes of workspace that PyTorch asks for by itself, bytes (CublasHandlePool.cpp,
// parseChosenWorkspaceSize: 4096 KiB twice and 16 KiB eight times; 32 MiB on Hopper, and more from Blackwell on).
var cublasSizes = map[uint64]bool{
	2*4096<<10 + 8*16<<10: true, 8 * 4096 << 10: true, 8*4096<<10 + 512: true, 32<<20 + 1<<20: true,
}

// workspaceSize reports whether a size is the one that the program's environment asks for: pairs of a size in KiB and how
// many of it, as in CUBLAS_WORKSPACE_CONFIG=:4096:8.
func (w *Owners) workspaceSize(size uint64) bool {
	for _, e := range w.environ {
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

// sortedKeys lists the addresses of a set in order: results must not depend on that of a map.
func sortedKeys[V any](m map[uint64]V) []uint64 {
	out := make([]uint64, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	sort.Slice(out, func(i, j int) bool { return out[i] < out[j] })
	return out
}
