// SPDX-License-Identifier: Apache-2.0

package pyobject

import "strconv"

// RefKind says how an object refers to another.
type RefKind uint8

// The kinds of reference, and what Ref.Aux is.
const (
	RefIndex      RefKind = iota + 1 // element of a list, tuple or deque; Aux: its position
	RefKey                           // value of a dictionary; Aux: address of the key
	RefKeyItself                     // key of a dictionary, element of a set; Aux: 0
	RefAttribute                     // attribute of an instance or module; Aux: address of its name, a str
	RefMember                        // field that the type describes; Aux: address of its name, a C string
	RefField                         // field of a type of the interpreter; Aux: its FieldName
	RefDict                          // __dict__ of an instance; Aux: 0
	RefLocal                         // local variable of a frame; Aux: address of its name, a str
	RefTemporary                     // value on a frame's stack; Aux: its position
	RefActivation                    // a frame, of a frame object, generator or coroutine: Target is for Activation; Aux: 0
	RefSlot                          // another field that holds an object; Aux: its offset
	RefCached                        // result that a functools cache keeps; Aux: address of the key
)

// FieldName is a field of a type of the interpreter.
type FieldName uint8

// The fields, by the attribute that shows them to Python.
const (
	FieldClosure FieldName = iota + 1
	FieldDefaults
	FieldKeywordDefaults
	FieldGlobals
	FieldCellContents
	FieldTraceback
	FieldContext
	FieldCause
	FieldArgs
	FieldNext  // tb_next
	FieldFrame // tb_frame
	FieldSelf
	FieldFunction
	FieldBase
	FieldMRO
	FieldLocals   // f_locals
	FieldClass    // __class__
	FieldCache    // results that a functools cache keeps
	FieldCallback // of a weak reference
	FieldDefault  // of a context variable
)

var fieldNames = [...]string{
	FieldClosure: "__closure__", FieldDefaults: "__defaults__", FieldKeywordDefaults: "__kwdefaults__", FieldGlobals: "__globals__",
	FieldCellContents: "cell_contents", FieldTraceback: "__traceback__", FieldContext: "__context__", FieldCause: "__cause__",
	FieldArgs: "args", FieldNext: "tb_next", FieldFrame: "tb_frame", FieldSelf: "__self__", FieldFunction: "__func__",
	FieldBase: "__base__", FieldMRO: "__mro__", FieldLocals: "f_locals", FieldClass: "__class__", FieldCache: "cache",
	FieldCallback: "__callback__", FieldDefault: "default",
}

// String is the attribute's name.
func (f FieldName) String() string {
	if int(f) < len(fieldNames) && fieldNames[f] != "" {
		return fieldNames[f]
	}
	return "field(" + strconv.Itoa(int(f)) + ")"
}

// Ref is one reference from an object to another.
type Ref struct {
	Target uint64
	Aux    uint64 // see RefKind
	Kind   RefKind
	// Doubtful marks a value on the stack of a running frame, above which its height is not known: what is there may be
	// dead.
	Doubtful bool
}

// References appends what an object refers to, in no particular order. t is the object's type. Weak and borrowed
// references are left out, and so are those to code. Targets are not checked: each may be anything in a damaged image.
func (h *Heap) References(img Image, dst []Ref, object uint64, t *Type) []Ref {
	switch t.kind {
	case kindLeaf:
		return dst
	case kindModule:
		return appendOwned(dst, Ref{Target: h.word(img, object, moduleDict), Kind: RefDict})
	case kindFunction:
		return h.function(img, dst, object)
	case kindMethod:
		dst = h.field(img, dst, object, methodFunction, FieldFunction)
		return h.field(img, dst, object, methodSelf, FieldSelf)
	case kindBuiltin:
		return h.field(img, dst, object, builtinSelf, FieldSelf)
	case kindCell:
		return h.field(img, dst, object, cellContents, FieldCellContents)
	case kindFrame:
		return h.frameObject(img, dst, object)
	case kindGenerator:
		return h.generator(img, dst, object)
	case kindTraceback:
		dst = h.field(img, dst, object, tracebackFrame, FieldFrame)
		return h.field(img, dst, object, tracebackNext, FieldNext)
	case kindWeak:
		dst = h.field(img, dst, object, weakCallback, FieldCallback)
	case kindContextVar:
		return h.field(img, dst, object, contextDefault, FieldDefault)
	case kindHAMT:
		return h.hamt(img, dst, object)
	case kindCache:
		dst = h.cache(img, dst, object)
	case kindQueue:
		return h.queue(img, dst, object)
	case kindType:
		return h.class(img, dst, object, t)
	case kindException:
		dst = h.exception(img, dst, object)
	case kindList:
		dst = sequence(img, dst, h.word(img, object, listItems), h.word(img, object, objectSize))
	case kindTuple:
		dst = sequence(img, dst, object+uint64(h.objects.tupleItems), h.word(img, object, objectSize))
	case kindDict:
		if h.typeDicts[object] {
			return dst
		}
		dst = h.dict(img, dst, object)
	case kindSet:
		dst = h.set(img, dst, object)
	case kindDeque:
		dst = h.deque(img, dst, object)
	}
	if t.Flags&flagHeapType != 0 {
		dst = append(dst, Ref{Target: t.Addr, Aux: uint64(FieldClass), Kind: RefField})
	}
	dst = h.instance(img, dst, object, t)
	return h.fields(img, dst, object, t)
}

// appendOwned adds a reference unless it is null.
func appendOwned(dst []Ref, r Ref) []Ref {
	if r.Target == 0 {
		return dst
	}
	return append(dst, r)
}

// word is a field of an object, at an offset that builds with a GIL have.
func (h *Heap) word(img Image, object, offset uint64) uint64 {
	return img.Word(object + h.objects.shift() + offset)
}

func (h *Heap) field(img Image, dst []Ref, object, offset uint64, name FieldName) []Ref {
	return appendOwned(dst, Ref{Target: h.word(img, object, offset), Aux: uint64(name), Kind: RefField})
}

func (h *Heap) function(img Image, dst []Ref, object uint64) []Ref {
	l := h.objects
	for _, f := range [...]struct {
		offset uint16
		name   FieldName
	}{
		{l.functionClosure, FieldClosure}, {l.functionDefaults, FieldDefaults}, {l.functionKeywords, FieldKeywordDefaults},
		{l.functionGlobals, FieldGlobals},
	} {
		dst = appendOwned(dst, Ref{Target: img.Word(object + uint64(f.offset)), Aux: uint64(f.name), Kind: RefField})
	}
	return appendOwned(dst, Ref{Target: img.Word(object + uint64(l.functionDict)), Kind: RefDict})
}

func (h *Heap) class(img Image, dst []Ref, object uint64, t *Type) []Ref {
	dst = h.attributes(img, dst, h.word(img, object, typeDict))
	dst = h.field(img, dst, object, typeBase, FieldBase)
	dst = h.field(img, dst, object, typeMRO, FieldMRO)
	return h.instance(img, dst, object, t)
}

func (h *Heap) exception(img Image, dst []Ref, object uint64) []Ref {
	at := uint64(h.objects.exceptionTraceback) - h.objects.shift()
	dst = appendOwned(dst, Ref{Target: h.word(img, object, exceptionDict), Kind: RefDict})
	dst = h.field(img, dst, object, exceptionArgs, FieldArgs)
	dst = h.field(img, dst, object, at, FieldTraceback)
	dst = h.field(img, dst, object, at+8, FieldContext)
	return h.field(img, dst, object, at+16, FieldCause)
}

// instance appends the attributes of an instance, or the dictionary that holds them.
func (h *Heap) instance(img Image, dst []Ref, object uint64, t *Type) []Ref {
	if t.Flags&flagManagedDict != 0 && h.objects.values != valuesNone {
		return h.managed(img, dst, object, t)
	}
	if t.dictOffset == 0 || t.kind == kindException || t.Flags&flagManagedDict != 0 && t.dictOffset == -1 {
		return dst
	}
	offset := t.dictOffset
	if offset < 0 { // behind the elements (Objects/object.c, _PyObject_ComputedDictPointer)
		n := int64(h.word(img, object, objectSize))
		if h.objects.taggedInt && t.Flags&flagInt != 0 {
			n >>= 3
		}
		if n = max(n, -n); n < 0 || n > maxSequence {
			return dst
		}
		offset += int64((t.Size + uint64(n)*t.item + 7) &^ 7)
	}
	return appendOwned(dst, Ref{Target: img.Word(object + uint64(offset)), Kind: RefDict})
}

// managed reads the attributes of an instance whose dictionary the interpreter makes when it is asked for.
func (h *Heap) managed(img Image, dst []Ref, object uint64, t *Type) []Ref {
	d := img.Word(object - h.objects.managedDict())
	switch h.objects.values {
	case valuesBefore:
		if d == 0 {
			return h.splitValues(img, dst, img.Word(object-managedValues), t)
		}
	case valuesTagged:
		if d&1 != 0 {
			return h.splitValues(img, dst, d+1, t)
		}
	case valuesInline:
		values := object + t.Size
		if valid := img.View(values+inlineValidByte, 1); d == 0 && t.Flags&flagInlineValues != 0 && valid != nil && valid[0] == 1 {
			return h.splitValues(img, dst, values, t)
		}
	}
	return appendOwned(dst, Ref{Target: d, Kind: RefDict})
}

// splitValues reads attributes whose names are with the type.
func (h *Heap) splitValues(img Image, dst []Ref, values uint64, t *Type) []Ref {
	if values == 0 || t.cachedKeys == 0 {
		return dst
	}
	keys, ok := h.keyTable(img, t.cachedKeys)
	if !ok {
		return dst
	}
	return h.split(img, dst, keys, values, RefAttribute)
}

// fields appends the references in the part of an instance that its type's kind does not account for: those that the type
// describes, and words that are addresses of plausible objects.
func (h *Heap) fields(img Image, dst []Ref, object uint64, t *Type) []Ref {
	if t.kind == kindBound || t.kind == kindTuple {
		return dst
	}
	end := min(t.Size, maxObjectSize)
	if t.item == 8 && t.kind == kindGeneric && t.Flags&flagInt == 0 { // elements behind it, as in nodes of contextvars
		if n := h.word(img, object, objectSize); n < maxObjectSize/8 {
			end = min(end+8*n, maxObjectSize)
		}
	}
	for offset := (max(t.front, h.objects.shift()+objectSize) + 7) &^ 7; offset+8 <= end; offset += 8 {
		target := img.Word(object + offset)
		if target < minAddress || target&7 != 0 || int64(offset) == t.dictOffset || offset == t.weakOffset {
			continue
		}
		if name, ok := t.memberAt(offset); ok {
			dst = append(dst, Ref{Target: target, Aux: name, Kind: RefMember})
		} else if h.Plausible(img, target) {
			dst = append(dst, Ref{Target: target, Aux: offset, Kind: RefSlot})
		}
	}
	return dst
}
