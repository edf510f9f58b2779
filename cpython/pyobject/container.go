// SPDX-License-Identifier: Apache-2.0

package pyobject

import (
	"encoding/binary"

	"github.com/gputrace/gputrace/cpython"
)

// keyTable is the keys of a dictionary (Include/internal/pycore_dict.h, PyDictKeysObject), and the values of most.
type keyTable struct {
	raw    []byte // the entries
	stride int    // words of one
	key    int    // word of the key in an entry; the value is behind it
	index  int    // bytes between the header and the entries
	text   bool   // all keys are str
}

func (k *keyTable) len() int { return len(k.raw) / (8 * k.stride) }

func (k *keyTable) entry(i int) (key, value uint64) {
	at := 8 * (i*k.stride + k.key)
	return binary.LittleEndian.Uint64(k.raw[at:]), binary.LittleEndian.Uint64(k.raw[at+8:])
}

// keyTable reads a table: a header, a hash index of entries, and the entries in the order in which they were added.
func (h *Heap) keyTable(img Image, keys uint64) (k keyTable, ok bool) {
	k, entries, n, ok := h.keyHeader(img, keys)
	if !ok {
		return k, false
	}
	k.raw = img.View(entries, n*8*k.stride)
	return k, k.raw != nil
}

// keyHeader reads the header of a table: where its entries are, and how many.
func (h *Heap) keyHeader(img Image, keys uint64) (k keyTable, entries uint64, n int, ok bool) {
	if keys < minAddress || keys&7 != 0 {
		return k, 0, 0, false
	}
	l := h.objects
	count := img.Word(keys + uint64(l.keysCount))
	k = keyTable{stride: generalEntry, key: 1}
	var index uint64
	if l.keysKind == cpython.NoField {
		index = oldIndexSize(img.Word(keys + 8)) // dk_size
	} else {
		// dk_log2_size, dk_log2_index_bytes, dk_kind: a byte each
		head := img.Word(keys + 8)
		log := head >> 8 & 0xff
		if log > 40 {
			return k, 0, 0, false
		}
		index = 1 << log
		if head>>16&0xff != 0 {
			k = keyTable{stride: unicodeEntry, text: true}
		}
	}
	if index == 0 || count > maxDictEntries {
		return k, 0, 0, false
	}
	k.index = int(index)
	return k, keys + uint64(l.keysIndices) + index, int(count), true
}

// Element reads one element of a list, a tuple or a dictionary by its position, and nothing beside it: of a dictionary, whose values are
// in the table of its keys, the position is that in the table, and key is its key. ok is false where there is no such element.
func (h *Heap) Element(img Image, object, position uint64) (key, value uint64, ok bool) {
	t := h.TypeOf(img, object)
	if t == nil {
		return 0, 0, false
	}
	n, at := h.word(img, object, objectSize), uint64(0)
	switch t.kind {
	case kindList:
		at = h.word(img, object, listItems)
	case kindTuple:
		at = object + uint64(h.objects.tupleItems)
	case kindDict:
		return h.entry(img, object, position)
	}
	if at == 0 || at&7 != 0 || n > maxSequence || position >= n {
		return 0, 0, false
	}
	return 0, img.Word(at + 8*position), true
}

// entry reads one entry of a dictionary's table.
func (h *Heap) entry(img Image, dict, position uint64) (key, value uint64, ok bool) {
	k, entries, n, ok := h.keyHeader(img, h.word(img, dict, dictKeys))
	if !ok || h.word(img, dict, dictValues) != 0 || position >= uint64(n) {
		return 0, 0, false
	}
	at := entries + 8*(position*uint64(k.stride)+uint64(k.key))
	return img.Word(at), img.Word(at + 8), true
}

// Positions is where a dictionary's table has each key, by its address; nil where the values are elsewhere, and where there are fewer than
// least.
func (h *Heap) Positions(img Image, dict uint64, least int) map[uint64]uint32 {
	if t := h.TypeOf(img, dict); t == nil || t.kind != kindDict || h.word(img, dict, dictValues) != 0 {
		return nil
	}
	k, ok := h.keyTable(img, h.word(img, dict, dictKeys))
	if !ok || k.len() < least {
		return nil
	}
	out := make(map[uint64]uint32, k.len())
	for i := range k.len() {
		if key, value := k.entry(i); value != 0 {
			out[key] = uint32(i)
		}
	}
	return out
}

// oldIndexSize is the size of the index of a table with that many slots, to 3.10.
func oldIndexSize(slots uint64) uint64 {
	switch {
	case slots == 0 || slots&(slots-1) != 0 || slots > 1<<40:
		return 0
	case slots <= 0xff:
		return slots
	case slots <= 0xffff:
		return 2 * slots
	case slots <= 0xffffffff:
		return 4 * slots
	}
	return 8 * slots
}

// dict appends the values of a dictionary and those keys that may be more than text.
func (h *Heap) dict(img Image, dst []Ref, object uint64) []Ref {
	return h.mapping(img, dst, object, RefKey)
}

// attributes appends the values of a dictionary of attributes.
func (h *Heap) attributes(img Image, dst []Ref, object uint64) []Ref {
	return h.mapping(img, dst, object, RefAttribute)
}

func (h *Heap) mapping(img Image, dst []Ref, object uint64, kind RefKind) []Ref {
	k, ok := h.keyTable(img, h.word(img, object, dictKeys))
	if !ok {
		return dst
	}
	if values := h.word(img, object, dictValues); values != 0 {
		return h.split(img, dst, k, values, kind)
	}
	for i := range k.len() {
		key, value := k.entry(i)
		if value == 0 {
			continue
		}
		dst = append(dst, Ref{Target: value, Aux: key, Kind: kind})
		if !k.text && key != 0 {
			dst = append(dst, Ref{Target: key, Kind: RefKeyItself})
		}
	}
	return dst
}

// split appends values that lie apart from their keys.
func (h *Heap) split(img Image, dst []Ref, k keyTable, values uint64, kind RefKind) []Ref {
	n := k.len()
	if values&7 != 0 || n == 0 {
		return dst
	}
	raw := img.View(values+uint64(h.splitStart()), 8*n)
	if raw == nil {
		return dst
	}
	for i := range n {
		if v := binary.LittleEndian.Uint64(raw[8*i:]); v != 0 {
			key, _ := k.entry(i)
			dst = append(dst, Ref{Target: v, Aux: key, Kind: kind})
		}
	}
	return dst
}

func (h *Heap) splitStart() uint16 {
	if h.objects.valuesStart == cpython.NoField {
		return 0
	}
	return h.objects.valuesStart
}

// sequence appends the elements of a list or tuple.
func sequence(img Image, dst []Ref, items, n uint64) []Ref {
	if n == 0 || n > maxSequence {
		return dst
	}
	raw := img.View(items, 8*int(n))
	for i := range len(raw) / 8 {
		if v := binary.LittleEndian.Uint64(raw[8*i:]); v != 0 {
			dst = append(dst, Ref{Target: v, Aux: uint64(i), Kind: RefIndex})
		}
	}
	return dst
}

// set appends the elements of a set: its table has a key and a hash in each entry (Include/cpython/setobject.h).
func (h *Heap) set(img Image, dst []Ref, object uint64) []Ref {
	mask := h.word(img, object, setMask)
	if mask&(mask+1) != 0 || mask > maxSequence {
		return dst
	}
	raw := img.View(h.word(img, object, setTable), 16*int(mask+1))
	for ; len(raw) >= 16; raw = raw[16:] {
		if key := binary.LittleEndian.Uint64(raw); key != 0 {
			dst = append(dst, Ref{Target: key, Kind: RefKeyItself})
		}
	}
	return dst
}

// deque appends the elements of a deque: blocks of 64 between a link to the left and one to the right
// (Modules/_collectionsmodule.c).
func (h *Heap) deque(img Image, dst []Ref, object uint64) []Ref {
	n, block, at := h.word(img, object, objectSize), h.word(img, object, dequeLeft), h.word(img, object, dequeLeftIndex)
	if n > maxSequence || at >= dequeBlock {
		return dst
	}
	left := img.Word(block)
	for i := uint64(0); i < n; {
		raw := img.View(block, 8*(dequeBlock+2))
		if raw == nil || binary.LittleEndian.Uint64(raw) != left {
			return dst // changed while it was copied
		}
		for ; at < dequeBlock && i < n; at, i = at+1, i+1 {
			if v := binary.LittleEndian.Uint64(raw[8*(1+at):]); v != 0 {
				dst = append(dst, Ref{Target: v, Aux: i, Kind: RefIndex})
			}
		}
		left, block, at = block, binary.LittleEndian.Uint64(raw[8*(dequeBlock+1):]), 0
	}
	return dst
}

// Bounded returns how many elements a deque with a maxlen, or a functools cache with a maxsize, has and may have. ok is false for other
// objects, and where there is no bound.
func (h *Heap) Bounded(img Image, object uint64) (length, most uint64, ok bool) {
	t := h.TypeOf(img, object)
	if t == nil {
		return 0, 0, false
	}
	switch t.kind {
	case kindDeque:
		length, most = h.word(img, object, objectSize), h.word(img, object, dequeMost)
	case kindCache:
		if dict, at := h.cacheDict(img, object); dict != 0 {
			length, most = h.word(img, dict, dictUsed), img.Word(at+lruMost)
		}
	}
	return length, most, most <= maxSequence && length <= most && most > 0
}

// cacheDict returns the dictionary of a functools cache, and where the cache refers to it.
func (h *Heap) cacheDict(img Image, object uint64) (dict, at uint64) {
	front := object + lruFront + h.objects.shift()
	for at = front; at < front+0x20; at += 8 {
		dict = img.Word(at)
		if t := h.TypeOf(img, dict); t != nil && t.kind == kindDict {
			return dict, at
		}
	}
	return 0, 0
}

// cache appends what a functools cache keeps: a dictionary of results or, where their number is limited, of elements of a
// list of its own, which hold key and result and are no objects that Python shows.
func (h *Heap) cache(img Image, dst []Ref, object uint64) []Ref {
	if dict, _ := h.cacheDict(img, object); dict != 0 {
		dst = appendOwned(dst, Ref{Target: dict, Aux: uint64(FieldCache), Kind: RefField})
	}
	seen := map[uint64]bool{}
	next := func(at uint64) uint64 { return h.word(img, at, lruFirst) }
	for at := next(object); at != object && at != 0 && !seen[at] && len(seen) < maxDictEntries; at = next(at) {
		seen[at] = true
		dst = appendOwned(dst, Ref{Target: h.word(img, at, lruResult), Aux: h.word(img, at, lruKey), Kind: RefCached})
	}
	return dst
}

// hamt appends the pairs of a node of a contextvars.Context: a variable and its value or, with a null in the variable's place,
// a further node (Include/internal/pycore_hamt.h). Arrays of nodes, for more than 16 pairs, are read as any other object.
func (h *Heap) hamt(img Image, dst []Ref, object uint64) []Ref {
	const (
		pairs    = 0x20 // behind a bitmap or a hash
		maxPairs = 32
	)
	for i := range min(h.word(img, object, objectSize)/2, maxPairs) {
		key, value := h.word(img, object, pairs+16*i), h.word(img, object, pairs+16*i+8)
		if key == 0 {
			dst = appendOwned(dst, Ref{Target: value, Aux: pairs + 16*i + 8, Kind: RefSlot})
			continue
		}
		dst = appendOwned(dst, Ref{Target: value, Aux: key, Kind: RefKey})
		dst = append(dst, Ref{Target: key, Kind: RefKeyItself})
	}
	return dst
}

// queue appends the items of a queue.SimpleQueue from 3.13 on: a ring of which some slots are used (Modules/_queuemodule.c). They
// have no position that Python could ask for.
func (h *Heap) queue(img Image, dst []Ref, object uint64) []Ref {
	const first, items, slots, used = 0x20, 0x28, 0x30, 0x38 // RingBuf.get_idx, items, items_cap, num_items
	at, n, count := h.word(img, object, first), h.word(img, object, slots), h.word(img, object, used)
	if n > maxSequence || at >= n || count > n {
		return dst
	}
	raw := img.View(h.word(img, object, items), 8*int(n))
	for i := range count {
		if slot := 8 * ((at + i) % n); slot+8 <= uint64(len(raw)) {
			dst = appendOwned(dst, Ref{Target: binary.LittleEndian.Uint64(raw[slot:]), Aux: i, Kind: RefSlot})
		}
	}
	return dst
}

// Apart is the memory apart from a list, dictionary or set in which its elements are: it is somewhere else once they were many more or
// fewer. bytes is 0 where there is none.
func (h *Heap) Apart(img Image, object uint64) (at uint64, bytes int) {
	t := h.TypeOf(img, object)
	if t == nil {
		return 0, 0
	}
	switch t.kind {
	case kindList:
		if n := h.word(img, object, objectSize); n <= maxSequence {
			return h.word(img, object, listItems), 8 * int(n)
		}
	case kindSet:
		if mask := h.word(img, object, setMask); mask <= maxSequence {
			return h.word(img, object, setTable), 16 * int(mask+1)
		}
	case kindDict:
		keys := h.word(img, object, dictKeys)
		if k, _, n, ok := h.keyHeader(img, keys); ok {
			return keys, int(h.objects.keysIndices) + k.index + n*8*k.stride
		}
		return keys, 0
	}
	return 0, 0
}

// Torn reports whether a dictionary counts more elements than its table has, or its table cannot be read. Then the two were
// read at different moments, and the dictionary got another table in between.
func (h *Heap) Torn(img Image, object uint64) bool {
	t := h.TypeOf(img, object)
	if t == nil || t.kind != kindDict {
		return false
	}
	used := h.word(img, object, dictUsed)
	if used == 0 || used > maxDictEntries {
		return false
	}
	k, ok := h.keyTable(img, h.word(img, object, dictKeys))
	return !ok || used > uint64(k.len())
}
