// SPDX-License-Identifier: Apache-2.0

package pyobject

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/gputrace/gputrace/cpython"
)

// Text is a str as UTF-8, cut at 4,096 code points; empty when there is none at the address.
func (h *Heap) Text(img Image, object uint64) string {
	t := h.TypeOf(img, object)
	if t == nil || t.Flags&flagStr == 0 {
		return ""
	}
	s, err := h.code.Text(img, object)
	if err != nil {
		return ""
	}
	return s
}

// IsText reports whether an object is a str.
func (h *Heap) IsText(img Image, object uint64) bool {
	t := h.TypeOf(img, object)
	return t != nil && t.Flags&flagStr != 0
}

// Int is the value of an int. ok is false for another object, and beyond 62 bits.
func (h *Heap) Int(img Image, object uint64) (v int64, ok bool) {
	t := h.TypeOf(img, object)
	if t == nil || t.Flags&flagInt == 0 {
		return 0, false
	}
	size := int64(h.word(img, object, objectSize))
	n, negative := max(size, -size), size < 0
	if h.objects.taggedInt { // digits << 3, and the sign: 0 positive, 1 zero, 2 negative (Include/cpython/longintrepr.h)
		n, negative = size>>3, size&3 == 2
	}
	if n < 0 || n > 2 {
		return 0, false
	}
	for i := n - 1; i >= 0; i-- {
		const digitBits = 30
		v = v<<digitBits | int64(word32(img, object+h.objects.shift()+longDigits+4*uint64(i)))
	}
	if negative {
		v = -v
	}
	return v, true
}

// RefName is what a reference is called: the name of an attribute, variable or field, the text of a key. Empty where it has
// none.
func (h *Heap) RefName(img Image, r Ref) string {
	switch r.Kind {
	case RefAttribute, RefLocal, RefKey:
		return h.Text(img, r.Aux)
	case RefMember:
		return cText(img, r.Aux)
	case RefField:
		return FieldName(r.Aux).String()
	case RefIndex, RefTemporary:
		return strconv.FormatUint(r.Aux, 10)
	}
	return ""
}

// CodeAt reads the code object at an address: its names, file and lines.
func (h *Heap) CodeAt(img Image, addr uint64) (*cpython.Code, error) {
	return h.code.Code(img, addr)
}

// maxWrapped bounds how often a callable may wrap another one.
const maxWrapped = 3

// CodeOf reads the code that a callable runs: a function, a method, or what wraps one, such as a functools.partial; nil: it is not known.
func (h *Heap) CodeOf(img Image, callable uint64) *cpython.Code {
	for range maxWrapped {
		t := h.TypeOf(img, callable)
		if t == nil {
			return nil
		}
		if t.kind == kindFunction {
			c, _ := h.CodeAt(img, img.Word(callable+uint64(h.objects.functionCode)))
			return c
		}
		refs := h.References(img, nil, callable, t)
		at := slices.IndexFunc(refs, func(r Ref) bool {
			to := h.TypeOf(img, r.Target)
			return to != nil && (to.kind == kindFunction || to.kind == kindMethod)
		})
		if at < 0 {
			return nil
		}
		callable = refs[at].Target
	}
	return nil
}

// Repr is how Python writes a simple value: text, numbers, None, tuples of them, and the name of a
// context variable. Empty for anything else, and for what is
// nested deeper than three tuples.
func (h *Heap) Repr(img Image, object uint64) string { return h.repr(img, object, 3) }

func (h *Heap) repr(img Image, object uint64, depth int) string {
	t := h.TypeOf(img, object)
	if t == nil || depth == 0 {
		return ""
	}
	v, isInt := h.Int(img, object)
	switch {
	case t.Flags&flagStr != 0:
		return quoted(h.Text(img, object))
	case t.Name == "NoneType":
		return "None"
	case t.Name == "bool" && isInt:
		return [...]string{"False", "True"}[v&1]
	case isInt:
		return strconv.FormatInt(v, 10)
	case t.Name == "float":
		return strconv.FormatFloat(math.Float64frombits(h.word(img, object, objectSize)), 'g', -1, 64)
	case t.Name == "tuple":
		return h.reprTuple(img, object, depth)
	case t.kind == kindContextVar:
		return h.Text(img, h.word(img, object, objectSize)) // var_name
	}
	return ""
}

// maxReprElements bounds the elements of a tuple that are written.
const maxReprElements = 16

func (h *Heap) reprTuple(img Image, object uint64, depth int) string {
	var parts []string
	all := h.elements(img, object)
	if len(all) > maxReprElements {
		return ""
	}
	for _, e := range all {
		s := h.repr(img, e, depth-1)
		if s == "" {
			return ""
		}
		parts = append(parts, s)
	}
	if len(parts) == 1 {
		return "(" + parts[0] + ",)"
	}
	return "(" + strings.Join(parts, ", ") + ")"
}

// quoted writes text in Python's quotes.
func quoted(s string) string {
	q, s := Quotes(s)
	return q + s + q
}

// Quotes returns the quotes in which Python's repr writes a str, and the str with what they need escaped.
func Quotes(s string) (quote, escaped string) {
	quote = "'"
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		quote = `"`
	}
	s = strings.ReplaceAll(s, `\`, `\\`)
	if quote == "'" {
		s = strings.ReplaceAll(s, "'", `\'`)
	}
	return quote, s
}

// FreeVariable is the name of a function's closure variable, by its number in __closure__. Empty when it is not known.
func (h *Heap) FreeVariable(img Image, function uint64, n int) string {
	const free = 0x80 // CO_FAST_FREE
	l := h.objects
	code := img.Word(function + uint64(l.functionCode))
	if l.codeFreeVars != cpython.NoField {
		return h.elementText(img, img.Word(code+uint64(l.codeFreeVars)), n)
	}
	names := h.elements(img, img.Word(code+uint64(l.codeNames)))
	kinds := img.View(img.Word(code+uint64(l.codeKinds))+l.shift()+cpython.BytesHeader, len(names))
	for i := range kinds {
		if kinds[i]&free == 0 {
			continue
		}
		if n == 0 {
			return h.Text(img, names[i])
		}
		n--
	}
	return ""
}

// Default is the name of the parameter that an element of a function's __defaults__ belongs to. Empty when it is not known.
func (h *Heap) Default(img Image, function uint64, n int) string {
	l := h.objects
	code := img.Word(function + uint64(l.functionCode))
	arguments := int(int32(word32(img, code+uint64(l.codeArguments))))
	defaults := len(h.elements(img, img.Word(function+uint64(l.functionDefaults))))
	names := l.codeNames
	if names == cpython.NoField {
		names = l.codeVarNames
	}
	return h.elementText(img, img.Word(code+uint64(names)), arguments-defaults+n)
}

// TupleField is the name of a field of a named tuple. Empty when the type has none.
func (h *Heap) TupleField(img Image, t *Type, n int) string {
	if t.Flags&flagHeapType == 0 || t.kind != kindTuple {
		return ""
	}
	for _, e := range h.dict(img, nil, h.word(img, t.Addr, typeDict)) {
		if e.Kind == RefKey && h.Text(img, e.Aux) == "_fields" {
			return h.elementText(img, e.Target, n)
		}
	}
	return ""
}

func (h *Heap) elementText(img Image, tuple uint64, n int) string {
	if all := h.elements(img, tuple); n >= 0 && n < len(all) {
		return h.Text(img, all[n])
	}
	return ""
}

// Attribute is the value of an attribute in a module or class, by name; 0 when there is none.
func (h *Heap) Attribute(img Image, object uint64, name string) uint64 {
	for _, e := range h.Namespace(img, object) {
		if h.Text(img, e.Aux) == name {
			return e.Target
		}
	}
	return 0
}

// Namespace lists what a module or class has in its dictionary, as attributes. nil for another object.
func (h *Heap) Namespace(img Image, object uint64) []Ref {
	t := h.TypeOf(img, object)
	switch {
	case t != nil && t.kind == kindModule:
		return h.attributes(img, nil, h.word(img, object, moduleDict))
	case t != nil && t.kind == kindType:
		return h.attributes(img, nil, h.word(img, object, typeDict))
	}
	return nil
}

// Getters lists the computed attributes of a class that is written in C (tp_getset): name, and address of the function.
func (h *Heap) Getters(img Image, class uint64) []Getter {
	var out []Getter
	at := h.word(img, class, typeGetSet)
	for range maxMembers {
		name := img.Word(at)
		if at == 0 || name == 0 {
			break
		}
		out = append(out, Getter{Name: cText(img, name), Function: img.Word(at + 8)})
		at += getSetSize
	}
	return out
}

// Getter is a computed attribute.
type Getter struct {
	Name     string
	Function uint64
}

// LeafTypes lists the addresses of those of the builtin types whose instances refer to nothing of interest (Type.Leaf): nearly
// all objects of a large heap are of them. The most frequent come first.
func (h *Heap) LeafTypes(img Image) []uint64 {
	var out []uint64
	add := func(t *Type) {
		if t != nil && t.Leaf() && !slices.Contains(out, t.Addr) {
			out = append(out, t.Addr)
		}
	}
	frequent := []string{"int", "str", "float", "bytes"}
	for e := range h.loaded(img) {
		if h.Text(img, e.Aux) != "builtins" {
			continue
		}
		for _, name := range frequent {
			add(h.TypeAt(img, h.Attribute(img, e.Target, name)))
		}
		for _, r := range h.Namespace(img, e.Target) {
			add(h.TypeAt(img, r.Target)) // a type
			add(h.TypeOf(img, r.Target)) // that of None, of True
		}
	}
	return out
}
