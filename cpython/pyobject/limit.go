// SPDX-License-Identifier: Apache-2.0

package pyobject

import (
	"slices"
	"strings"
)

// changers are names of methods that change a container, and of functions that find its first element. A method of a class that asks for
// the length of a container and uses one of them keeps the container within a limit, or at least can.
var changers = []string{
	"add", "append", "appendleft", "clear", "discard", "extend", "insert", "move_to_end", "next", "pop", "popitem", "popleft", "remove",
}

// limitWords are in the names that programs give to a limit.
var limitWords = []string{"bound", "cap", "keep", "len", "limit", "max", "size", "window"}

// maxFunctions bounds the functions of a class or module that are looked at.
const maxFunctions = 512

// Limit returns the number of elements of a list or dictionary that is an attribute of an object or a global variable of a module, and
// the number up to which the functions there let it grow. Such a function asks for len(), names the container, changes one, and names
// a number above its length, as an attribute of the object, of its class, or of the module, or as a constant:
//
//	if len(self.cache) > self.capacity:
//	    self.cache.popitem(last=False)
//
// ok is false if no function does so, or it is not clear which number is meant.
func (h *Heap) Limit(img Image, owner, container uint64, name string) (length, most uint64, ok bool) {
	t, class := h.TypeOf(img, container), h.TypeOf(img, owner)
	switch {
	case t == nil || class == nil || name == "":
		return 0, 0, false
	case t.kind == kindList:
		length = h.word(img, container, objectSize)
	case t.kind == kindDict:
		length = h.word(img, container, dictUsed)
	default:
		return 0, 0, false
	}
	s := &limitSearch{h: h, img: img, name: name, length: length}
	if class.kind == kindModule {
		s.scope(owner)
	} else {
		s.instance(owner, class)
		for c := class; c != nil && c.Heap(); c = c.Base {
			s.scope(c.Addr)
		}
	}
	if most = s.best(); most == 0 {
		return 0, 0, false
	}
	return length, most, true
}

// limitSearch looks for the limit of a container.
type limitSearch struct {
	h         *Heap
	img       Image
	name      string // of the container
	length    uint64
	values    []Ref    // attributes of the object, its class and the module; the first of a name counts
	functions []uint64 // of the class or module
}

// instance takes the attributes of an object.
func (s *limitSearch) instance(object uint64, t *Type) {
	for _, r := range s.h.References(s.img, nil, object, t) {
		switch r.Kind {
		case RefAttribute:
			s.values = append(s.values, r)
		case RefDict:
			s.values = append(s.values, s.h.dict(s.img, nil, r.Target)...)
		}
	}
}

// scope takes the attributes of a class or module, and its functions.
func (s *limitSearch) scope(at uint64) {
	all := s.h.Namespace(s.img, at)
	s.values = append(s.values, all...)
	for _, r := range all {
		if t := s.h.TypeOf(s.img, r.Target); t != nil && t.kind == kindFunction && len(s.functions) < maxFunctions {
			s.functions = append(s.functions, r.Target)
		}
	}
}

// best is the limit; 0 if no function tells one, or several do.
func (s *limitSearch) best() uint64 {
	var hinted, named, constant []uint64
	for _, f := range s.functions {
		names, constants := s.h.codeNames(s.img, f)
		if !slices.Contains(names, "len") || !slices.Contains(names, s.name) || !slices.ContainsFunc(names, isChanger) {
			continue
		}
		for _, n := range names {
			v := s.above(s.value(f, n))
			switch {
			case v == 0:
			case slices.ContainsFunc(limitWords, func(w string) bool { return strings.Contains(strings.ToLower(n), w) }):
				hinted = append(hinted, v)
			default:
				named = append(named, v)
			}
		}
		for _, c := range constants {
			if v := s.above(c); v > 0 {
				constant = append(constant, v)
			}
		}
	}
	for _, found := range [][]uint64{hinted, named, constant} {
		slices.Sort(found)
		switch found = slices.Compact(found); len(found) {
		case 0:
		case 1:
			return found[0]
		default:
			return 0
		}
	}
	return 0
}

func isChanger(name string) bool { return slices.Contains(changers, name) }

// value is what a name means in a function: an attribute, or a global variable of its module. 0: nothing that is known.
func (s *limitSearch) value(function uint64, name string) uint64 {
	is := func(r Ref) bool { return s.h.Text(s.img, r.Aux) == name }
	if i := slices.IndexFunc(s.values, is); i >= 0 {
		return s.values[i].Target
	}
	if !strings.ContainsFunc(name, func(r rune) bool { return r >= 'A' && r <= 'Z' }) { // a method, mostly; constants are in capitals
		return 0
	}
	globals := s.h.dict(s.img, nil, s.img.Word(function+uint64(s.h.objects.functionGlobals)))
	if i := slices.IndexFunc(globals, is); i >= 0 {
		return globals[i].Target
	}
	return 0
}

// above is an int that a container may grow up to, else 0.
func (s *limitSearch) above(object uint64) uint64 {
	if object == 0 {
		return 0
	}
	v, ok := s.h.Int(s.img, object)
	if !ok || v <= int64(s.length) || v > maxSequence {
		return 0
	}
	return uint64(v)
}

// codeNames lists the names that a function uses, but for its local variables, and its constants (co_names, co_consts).
func (h *Heap) codeNames(img Image, function uint64) (names []string, constants []uint64) {
	code := img.Word(function + uint64(h.objects.functionCode))
	t := h.TypeOf(img, code)
	if t == nil || t.Name != "code" {
		return nil, nil
	}
	for _, m := range t.members {
		switch cText(img, m.name) {
		case "co_names":
			for _, e := range h.elements(img, img.Word(code+m.offset)) {
				names = append(names, h.Text(img, e))
			}
		case "co_consts":
			constants = h.elements(img, img.Word(code+m.offset))
		}
	}
	return names, constants
}
