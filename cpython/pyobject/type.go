// SPDX-License-Identifier: Apache-2.0

package pyobject

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	"github.com/gputrace/gputrace/cpython"
	"github.com/gputrace/gputrace/internal/words"
)

// kind is how an object's references are read.
type kind uint8

const (
	kindGeneric kind = iota // fields that look like references
	kindLeaf                // refers to nothing of interest, or does not own what it refers to
	kindModule
	kindFunction
	kindMethod
	kindBuiltin
	kindCell
	kindFrame
	kindGenerator
	kindTraceback
	kindException
	kindList
	kindTuple
	kindDict
	kindSet
	kindDeque
	kindType
	kindWeak  // a weak reference: its callback is owned
	kindCache // functools.lru_cache
	kindHAMT  // nodes of the tree of a contextvars.Context
	kindContextVar
	kindQueue // queue.SimpleQueue from 3.13 on; before, its items are in a list
	kindBound // an instance of a C++ class: only its dictionary is known
)

// kindNames are types by their tp_name. What is not here is known by a flag, or is generic.
var kindNames = map[string]kind{
	"module": kindModule, "function": kindFunction, "method": kindMethod, "builtin_function_or_method": kindBuiltin,
	"cell": kindCell, "frame": kindFrame, "generator": kindGenerator, "coroutine": kindGenerator,
	"async_generator": kindGenerator, "traceback": kindTraceback, "frozendict": kindDict, "set": kindSet, "frozenset": kindSet,
	"collections.deque": kindDeque, "functools._lru_cache_wrapper": kindCache,
	"hamt_bitmap_node": kindHAMT, "hamt_collision_node": kindHAMT, "ContextVar": kindContextVar,
	"_contextvars.ContextVar": kindContextVar, "contextvars.ContextVar": kindContextVar,
	"weakref": kindWeak, "weakref.ReferenceType": kindWeak, "weakproxy": kindWeak, "weakcallableproxy": kindWeak,
	"weakref.ProxyType": kindWeak, "weakref.CallableProxyType": kindWeak,
	"pybind11_object": kindBound, "pybind11_builtins.pybind11_object": kindBound,

	"str": kindLeaf, "bytes": kindLeaf, "bytearray": kindLeaf, "int": kindLeaf, "float": kindLeaf, "complex": kindLeaf,
	"bool": kindLeaf, "NoneType": kindLeaf, "ellipsis": kindLeaf, "NotImplementedType": kindLeaf, "range": kindLeaf,
	"code": kindLeaf, "getset_descriptor": kindLeaf, "member_descriptor": kindLeaf, "method_descriptor": kindLeaf,
	"wrapper_descriptor": kindLeaf, "classmethod_descriptor": kindLeaf, "PyCapsule": kindLeaf,
	"functools._lru_list_elem": kindLeaf, // their cache reads them
	"_thread.lock":             kindLeaf, "_thread.RLock": kindLeaf,
}

// Type is a type object, as far as reading its instances needs it.
type Type struct {
	Addr  uint64
	Name  string // tp_name: with the module for types written in C, without for others
	Base  *Type  // nil for object and where it cannot be read
	Flags uint64 // Py_TPFLAGS_*
	Size  uint64 // tp_basicsize, bytes

	kind       kind
	item       uint64 // tp_itemsize
	dictOffset int64
	weakOffset uint64
	cachedKeys uint64
	front      uint64   // bytes of an instance that its kind accounts for
	members    []member // sorted by offset
}

// member is a field that the type itself describes as a reference.
type member struct {
	offset, name uint64 // in an instance; address of the name
}

// Is reports whether the type, or one of those that it derives from in the first place, has a name.
func (t *Type) Is(name string) bool {
	for range maxBases {
		if t == nil {
			return false
		}
		if t.Name == name {
			return true
		}
		t = t.Base
	}
	return false
}

// Short is the name without the module; empty if the type is nil, that is unknown.
func (t *Type) Short() string {
	if t == nil {
		return ""
	}
	return t.Name[strings.LastIndexByte(t.Name, '.')+1:]
}

// Heap reports that the type was made while the program ran: by a class statement, mostly.
func (t *Type) Heap() bool { return t.Flags&flagHeapType != 0 }

// Collected reports that the cycle collector knows the instances.
func (t *Type) Collected() bool { return t.Flags&flagCollected != 0 }

// Meta reports that the instances are classes.
func (t *Type) Meta() bool { return t.Flags&flagType != 0 }

// Leaf reports that an instance refers to nothing that it owns, or to nothing of interest: text, numbers, code.
func (t *Type) Leaf() bool { return t.kind == kindLeaf }

// TypeOf is the type of the object at an address; nil when there is no object.
func (h *Heap) TypeOf(img Image, object uint64) *Type {
	if object&7 != 0 || object < minAddress {
		return nil
	}
	at := h.word(img, object, objectType)
	recent := &h.recent[recentSlot(at)]
	if t := *recent; t != nil && t.Addr == at {
		return t
	}
	t := h.TypeAt(img, at)
	if t != nil {
		*recent = t
	}
	return t
}

// recentTypes is how many types are found without a map; a power of two. Nearly all objects are of a few.
const recentTypes = 256

// recentSlot mixes the address of a type, which is a multiple of 16.
func recentSlot(typ uint64) uint64 { return (typ>>4 ^ typ>>12) & (recentTypes - 1) }

// minAddress is below all memory that a process can map (vm.mmap_min_addr).
const minAddress = 0x1000

// TypeAt reads the type object at an address, once; nil when there is none.
func (h *Heap) TypeAt(img Image, addr uint64) *Type {
	if addr&7 != 0 || addr < minAddress {
		return nil
	}
	t, known := h.types[addr]
	if known {
		return t
	}
	if !h.isType(img, addr) {
		if len(h.types) < maxTypes {
			h.types[addr] = nil
		}
		return nil
	}
	if len(h.types) >= maxTypes {
		return nil
	}
	h.types[addr] = nil // ends a circle of bases
	t = h.readType(img, addr)
	h.types[addr] = t
	return t
}

// maxTypes bounds what is remembered, types and addresses that are none.
const maxTypes = 1 << 20

// isType follows the metatypes up to type.
func (h *Heap) isType(img Image, addr uint64) bool {
	meta := h.word(img, addr, objectType)
	for range 4 {
		if meta == h.typeType {
			return true
		}
		if meta&7 != 0 || meta < minAddress {
			return false
		}
		meta = h.word(img, meta, typeBase)
	}
	return false
}

func (h *Heap) readType(img Image, addr uint64) *Type {
	t := &Type{
		Addr: addr, Name: cText(img, h.word(img, addr, cpython.TypeName)), Flags: h.word(img, addr, cpython.TypeFlags),
		Size: h.word(img, addr, cpython.TypeBasicSize), item: h.word(img, addr, typeItemSize),
		dictOffset: int64(h.word(img, addr, typeDictOffset)), weakOffset: h.word(img, addr, typeWeakOffset),
	}
	if t.Name == "" || t.Size > 1<<20 {
		return nil
	}
	if t.Flags&flagHeapType != 0 {
		t.cachedKeys = img.Word(addr + uint64(h.objects.typeCachedKeys))
	}
	if base := h.word(img, addr, typeBase); base != 0 {
		t.Base = h.TypeAt(img, base)
		if base == addr {
			t.Base = nil
		}
	}
	if d := h.word(img, addr, typeDict); d != 0 {
		h.typeDicts[d] = true
	}
	h.setKind(img, t)
	h.readMembers(img, t)
	return t
}

// flagKinds are the kinds that a type's flags tell.
var flagKinds = []struct {
	flag uint64
	kind kind
}{
	{flagType, kindType}, {flagList, kindList}, {flagTuple, kindTuple}, {flagDict, kindDict}, {flagException, kindException},
}

// setKind inherits the kind of the base type. A subclass of a leaf may have a dictionary or fields of its own.
func (h *Heap) setKind(img Image, t *Type) {
	if t.Name == "_queue.SimpleQueue" && h.Version.Minor >= 13 {
		t.kind, t.front = kindQueue, t.Size
		return
	}
	if k, ok := kindNames[t.Name]; ok && (t.Flags&flagHeapType == 0 || k != kindModule && k != kindFunction) {
		t.kind, t.front = k, t.Size
		return
	}
	for _, f := range flagKinds {
		if t.Flags&f.flag == 0 {
			continue
		}
		t.kind, t.front = f.kind, t.Size
		if t.Base != nil && t.Base.Flags&f.flag != 0 {
			t.front = t.Base.front
		}
		return
	}
	b := t.Base
	switch {
	case b == nil:
		t.front = min(t.Size, h.objects.shift()+objectType+8)
	case b.kind == kindLeaf:
		t.kind, t.front = kindGeneric, b.Size
	default:
		t.kind, t.front = b.kind, b.front
	}
}

// readMembers collects the references that the type and its bases describe (tp_members): __slots__, and fields of C types.
func (h *Heap) readMembers(img Image, t *Type) {
	at := h.word(img, t.Addr, cpython.TypeMembers)
	for n := 0; at != 0 && n < maxMembers; n++ {
		name := img.Word(at)
		if name == 0 {
			break
		}
		typ, offset := uint32(img.Word(at+memberType)), img.Word(at+cpython.MemberOffset)
		if (typ == memberObject || typ == memberObjectEx) && offset >= objectSize && offset < maxObjectSize && offset%8 == 0 {
			t.members = append(t.members, member{offset, name})
		}
		at += cpython.MemberSize
	}
	if t.Base != nil {
		for _, m := range t.Base.members {
			if _, own := t.memberAt(m.offset); !own {
				t.members = append(t.members, m)
			}
		}
	}
	slices.SortFunc(t.members, func(a, b member) int { return cmp.Compare(a.offset, b.offset) })
}

func (t *Type) memberAt(offset uint64) (name uint64, ok bool) {
	for _, m := range t.members {
		if m.offset == offset {
			return m.name, true
		}
	}
	return 0, false
}

// cText reads a C string, cut at maxTypeText bytes; empty when it cannot be read.
func cText(img Image, addr uint64) string {
	if addr < minAddress {
		return ""
	}
	var b [maxTypeText]byte
	n, _ := img.ReadAt(b[:], addr)
	n = max(0, min(n, len(b)))
	if end := bytes.IndexByte(b[:n], 0); end >= 0 {
		n = end
	}
	return words.Valid(string(b[:n]))
}
