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

// Limits finds the limits that the functions of a class or module keep containers within. What it has read is kept: a class can have a
// thousand instances, and a container many elements.
type Limits struct {
	heap   *Heap
	image  Image
	scopes map[uint64]*limitScope
	found  map[uint64]limitFound // by container
}

// limitFound is the length of a container and its limit; ok is false: none is known.
type limitFound struct {
	length, most uint64
	ok           bool
}

// limitScope is what a class or module says about limits.
type limitScope struct {
	values    []Ref // its attributes; nil if no function changes a container by its length
	functions []limitFunction
}

// limitFunction is a function that asks for len() and changes a container.
type limitFunction struct {
	names     []uint64 // that it uses, but for its local variables (co_names): the interpreter has one string of each
	texts     []string // of the names
	constants []uint64 // co_consts
	globals   uint64   // the dictionary of its module
}

// NewLimits reads classes and modules from an image.
func (h *Heap) NewLimits(img Image) *Limits {
	return &Limits{heap: h, image: img, scopes: map[uint64]*limitScope{}, found: map[uint64]limitFound{}}
}

// Of returns the number of elements of a list or dictionary that is an attribute of an object or a global variable of a module, and
// the number up to which the functions there let it grow. Such a function asks for len(), names the container, changes one, and names
// a number above its length, as an attribute of the object, of its class, or of the module, or as a constant:
//
//	if len(self.cache) > self.capacity:
//	    self.cache.popitem(last=False)
//
// ok is false if no function does so, or it is not clear which number is meant.
func (l *Limits) Of(owner, container uint64, name string) (length, most uint64, ok bool) {
	f, known := l.found[container]
	if !known {
		f.length, f.most, f.ok = l.find(owner, container, name)
		l.found[container] = f
	}
	return f.length, f.most, f.ok
}

func (l *Limits) find(owner, container uint64, name string) (length, most uint64, ok bool) {
	t, class := l.heap.TypeOf(l.image, container), l.heap.TypeOf(l.image, owner)
	switch {
	case t == nil || class == nil || name == "":
		return 0, 0, false
	case t.kind == kindList:
		length = l.heap.word(l.image, container, objectSize)
	case t.kind == kindDict:
		length = l.heap.word(l.image, container, dictUsed)
	default:
		return 0, 0, false
	}
	s := limitSearch{Limits: l, length: length}
	if class.kind == kindModule {
		s.add(owner, name)
	} else {
		for c := class; c != nil && c.Heap(); c = c.Base {
			s.add(c.Addr, name)
		}
	}
	if len(s.functions) == 0 {
		return 0, 0, false
	}
	if class.kind != kindModule {
		s.values = append(l.instance(owner, class), s.values...)
	}
	if most = s.best(); most == 0 {
		return 0, 0, false
	}
	return length, most, true
}

// scope reads a class or module, once.
func (l *Limits) scope(at uint64) *limitScope {
	s := l.scopes[at]
	if s != nil {
		return s
	}
	s = &limitScope{}
	l.scopes[at] = s
	all := l.heap.Namespace(l.image, at)
	seen := 0
	for _, r := range all {
		if t := l.heap.TypeOf(l.image, r.Target); t == nil || t.kind != kindFunction {
			continue
		}
		if seen++; seen > maxFunctions {
			break
		}
		f := limitFunction{globals: l.image.Word(r.Target + uint64(l.heap.objects.functionGlobals))}
		f.names, f.constants = l.heap.codeNames(l.image, r.Target)
		for _, n := range f.names {
			f.texts = append(f.texts, l.heap.Text(l.image, n))
		}
		if slices.Contains(f.texts, "len") && slices.ContainsFunc(f.texts, isChanger) {
			s.functions = append(s.functions, f)
		}
	}
	if len(s.functions) > 0 {
		s.values = all
	}
	return s
}

// instance lists the attributes of an object that is no module.
func (l *Limits) instance(object uint64, t *Type) (out []Ref) {
	for _, r := range l.heap.References(l.image, nil, object, t) {
		switch r.Kind {
		case RefAttribute:
			out = append(out, r)
		case RefDict:
			out = append(out, l.heap.dict(l.image, nil, r.Target)...)
		}
	}
	return out
}

// limitSearch looks for the limit of one container.
type limitSearch struct {
	*Limits
	length    uint64
	values    []Ref           // attributes of the object, its class and the module; the first of a name counts
	functions []limitFunction // that name the container
}

// add takes the functions of a class or module that name the container.
func (s *limitSearch) add(at uint64, name string) {
	scope := s.scope(at)
	for _, f := range scope.functions {
		if slices.Contains(f.texts, name) {
			s.functions = append(s.functions, f)
		}
	}
	s.values = append(s.values, scope.values...)
}

// best is the limit; 0 if no function tells one, or several do.
func (s *limitSearch) best() uint64 {
	var hinted, named, constant []uint64
	for _, f := range s.functions {
		for i := range f.names {
			v, text := s.above(s.value(&f, i)), strings.ToLower(f.texts[i])
			switch {
			case v == 0:
			case slices.ContainsFunc(limitWords, func(w string) bool { return strings.Contains(text, w) }):
				hinted = append(hinted, v)
			default:
				named = append(named, v)
			}
		}
		for _, c := range f.constants {
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
func (s *limitSearch) value(f *limitFunction, name int) uint64 {
	is := func(r Ref) bool { return r.Aux == f.names[name] }
	if i := slices.IndexFunc(s.values, is); i >= 0 {
		return s.values[i].Target
	}
	if !strings.ContainsFunc(f.texts[name], func(r rune) bool { return r >= 'A' && r <= 'Z' }) { // a method, mostly; constants are in capitals
		return 0
	}
	globals := s.heap.dict(s.image, nil, f.globals)
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
	v, ok := s.heap.Int(s.image, object)
	if !ok || v <= int64(s.length) || v > maxSequence {
		return 0
	}
	return uint64(v)
}

// codeNames lists the names that a function uses, but for its local variables, and its constants (co_names, co_consts).
func (h *Heap) codeNames(img Image, function uint64) (names, constants []uint64) {
	code := img.Word(function + uint64(h.objects.functionCode))
	t := h.TypeOf(img, code)
	if t == nil || t.Name != "code" {
		return nil, nil
	}
	for _, m := range t.members {
		switch cText(img, m.name) {
		case "co_names":
			names = h.elements(img, img.Word(code+m.offset))
		case "co_consts":
			constants = h.elements(img, img.Word(code+m.offset))
		}
	}
	return names, constants
}
