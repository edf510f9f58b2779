// SPDX-License-Identifier: Apache-2.0

package pyobject

import (
	"slices"
	"strings"
)

// removers are methods that take elements out of a container, and a function that finds the first one.
var removers = []string{"clear", "discard", "move_to_end", "next", "pop", "popitem", "popleft", "remove"}

// limitWords are in the names that programs give to a limit, capacityWords in those that can mean nothing else. A function that removes
// nothing, as one that overwrites the oldest element, must use one of the latter: max_steps is no limit of what is kept.
var (
	limitWords    = []string{"bound", "cap", "limit", "max"}
	capacityWords = []string{"capacity", "max_size", "maxlen", "maxsize"}
	// otherWords are in the names of limits of something else: MAXIMUM_SELECT_TIMEOUT of asyncio.
	otherWords = []string{"delay", "epoch", "interval", "retries", "seconds", "time", "ttl", "worker"}
)

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
	values    []Ref // its attributes; nil if no function asks for len()
	functions []limitFunction
}

// limitFunction is a function that asks for len().
type limitFunction struct {
	names   []uint64 // that it uses, but for its local variables (co_names): the interpreter has one string of each
	texts   []string // of the names
	globals uint64   // the dictionary of its module
	removes bool     // it uses a remover
	lengths []bool   // by name: it calls len() of what has the name, an attribute of its first argument or a global variable
	trims   []trim
}

// measures reports whether it calls len() of something by its name.
func (f *limitFunction) measures(name string) bool {
	i := slices.Index(f.texts, name)
	return i >= 0 && f.lengths[i]
}

// NewLimits reads classes and modules from an image.
func (h *Heap) NewLimits(img Image) *Limits {
	return &Limits{heap: h, image: img, scopes: map[uint64]*limitScope{}, found: map[uint64]limitFound{}}
}

// Find returns the number of elements of a list, deque or dictionary that is an attribute of an object or a global variable of a module,
// and the number up to which the functions there let it grow. Such a function asks for len() of the container, and names a number above
// its length by a word for a limit or in capitals: an attribute of the object or of its class, or a global variable. A number that is
// called otherwise can be a counter, and a growing list would be taken for one that fills.
//
//	if len(self.cache) > self.capacity:
//	    self.cache.popitem(last=False)
//
// If elements are taken out only where len() of the container is found to exceed the number, this may be called anything, and may have been
// reached.
//
// The state of an optimizer, self.state, has no more keys than self.param_groups has parameters.
//
// ok is false if no function does so, or it is not clear which number is meant.
func (l *Limits) Find(owner, container uint64, name string) (length, most uint64, ok bool) {
	f, known := l.found[container]
	if !known {
		f.length, f.most, f.ok = l.search(owner, container, name)
		l.found[container] = f
	}
	return f.length, f.most, f.ok
}

func (l *Limits) search(owner, container uint64, name string) (length, most uint64, ok bool) {
	class := l.heap.TypeOf(l.image, owner)
	length, ok = l.length(container)
	if class == nil || name == "" || !ok {
		return 0, 0, false
	}
	if name == stateName && isOptimizer(class) {
		most = l.parameters(owner, class)
		return length, most, most > 0
	}
	s := limitSearch{Limits: l, container: container, length: length}
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
	if most = s.trimmed(name); most > 0 {
		return min(length, most), most, true
	}
	if most = s.best(); most == 0 {
		return 0, 0, false
	}
	return length, most, true
}

// length is the number of elements of a list, deque or dictionary; ok is false for other objects.
func (l *Limits) length(container uint64) (n uint64, ok bool) {
	switch t := l.heap.TypeOf(l.image, container); {
	case t == nil:
	case t.kind == kindList || t.kind == kindDeque:
		return l.heap.word(l.image, container, objectSize), true
	case t.kind == kindDict:
		return l.heap.word(l.image, container, dictUsed), true
	}
	return 0, false
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
	t := l.heap.TypeOf(l.image, at)
	module := t != nil && t.kind == kindModule
	seen := 0
	for _, r := range all {
		if t := l.heap.TypeOf(l.image, r.Target); t == nil || t.kind != kindFunction {
			continue
		}
		if seen++; seen > maxFunctions {
			break
		}
		f := limitFunction{globals: l.image.Word(r.Target + uint64(l.heap.objects.functionGlobals))}
		f.names = l.heap.codeNames(l.image, r.Target)
		for _, n := range f.names {
			f.texts = append(f.texts, l.heap.Text(l.image, n))
		}
		if slices.Contains(f.texts, "len") {
			f.removes = slices.ContainsFunc(f.texts, func(n string) bool { return slices.Contains(removers, n) })
			f.lengths, f.trims = l.heap.lengthsIn(l.image, r.Target, f.texts, module)
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

// The attributes and keys of a torch.optim.Optimizer (torch/optim/optimizer.py).
const (
	stateName  = "state"
	groupsName = "param_groups"
	paramsName = "params"

	optimizerName = "Optimizer"
	// maxGroups bounds the groups of an optimizer that are looked at.
	maxGroups = 4096
)

// isOptimizer reports whether a class is derived from one that is called Optimizer.
func isOptimizer(t *Type) bool {
	for ; t != nil; t = t.Base {
		if t.Short() == optimizerName {
			return true
		}
	}
	return false
}

// parameters returns the number of parameters of an optimizer, in all of its groups; 0: the object is no optimizer, or some group
// could not be read.
func (l *Limits) parameters(object uint64, t *Type) (n uint64) {
	named := func(all []Ref, name string) uint64 {
		for _, r := range all {
			if l.heap.Text(l.image, r.Aux) == name {
				return r.Target
			}
		}
		return 0
	}
	groups := named(l.instance(object, t), groupsName)
	if c := l.heap.TypeOf(l.image, groups); c == nil || c.kind != kindList {
		return 0
	}
	if count, _ := l.length(groups); count > maxGroups {
		return 0
	}
	for _, r := range l.heap.References(l.image, nil, groups, l.heap.TypeOf(l.image, groups)) {
		group := l.heap.TypeOf(l.image, r.Target)
		if group == nil || group.kind != kindDict {
			return 0
		}
		params := named(l.heap.dict(l.image, nil, r.Target), paramsName)
		if c := l.heap.TypeOf(l.image, params); c == nil || c.kind != kindList {
			return 0
		}
		count, _ := l.length(params)
		n += count
	}
	return n
}

// limitSearch looks for the limit of one container.
type limitSearch struct {
	*Limits
	container uint64
	length    uint64
	values    []Ref           // attributes of the object, its class and the module; the first of a name counts
	functions []limitFunction // that ask for the container's length
}

// add takes the functions of a class or module that ask for the container's length.
func (s *limitSearch) add(at uint64, name string) {
	scope := s.scope(at)
	for _, f := range scope.functions {
		if f.measures(name) {
			s.functions = append(s.functions, f)
		}
	}
	s.values = append(s.values, scope.values...)
}

// best is the limit; 0 if no function tells one, or several do.
func (s *limitSearch) best() uint64 {
	var found []uint64
	for _, f := range s.functions {
		for i := range f.names {
			if !f.isLimit(i) {
				continue
			}
			if v := s.above(s.value(&f, i)); v > 0 && s.isLongest(&f, v) {
				found = append(found, v)
			}
		}
	}
	slices.Sort(found)
	if found = slices.Compact(found); len(found) != 1 {
		return 0
	}
	return found[0]
}

// isLongest reports whether no other container of which a function asks for the length, and that has not grown beyond a limit, is longer.
// A cache and the order of its keys have the same length, but for what is under way.
func (s *limitSearch) isLongest(f *limitFunction, limit uint64) bool {
	for _, r := range s.values {
		i := slices.Index(f.names, r.Aux)
		if r.Target == s.container || i < 0 || !f.lengths[i] {
			continue
		}
		if n, ok := s.Limits.length(r.Target); ok && n <= limit+1 && n > s.length+1 {
			return false
		}
	}
	return true
}

// isLimit reports whether a name means a limit.
func (f *limitFunction) isLimit(name int) bool {
	text := f.texts[name]
	lower := strings.ToLower(text)
	in := func(words []string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(lower, w) })
	}
	return in(capacityWords) || f.removes && !in(otherWords) && (in(limitWords) || text != lower && text == strings.ToUpper(text))
}

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

// lengthsIn finds the names of which a function calls len(), in its bytecode: of attributes of its first argument, or of global variables.
//
//	LOAD_GLOBAL len   LOAD_FAST 0   LOAD_ATTR name   CALL 1
//	LOAD_GLOBAL len   LOAD_GLOBAL name   CALL 1
//
// An instruction is two bytes, the second of which is its argument: the index of the name in co_names, shifted by one for LOAD_GLOBAL from
// 3.11 and for LOAD_ATTR from 3.12 on. From 3.11 on, inline caches follow some instructions (Lib/opcode.py, Lib/_opcode_metadata.py). What
// the instructions are is not looked at, since those are replaced by specialised ones: arguments at these distances are enough.
//
// It also finds the numbers that such a length is found to exceed where elements are taken out of the container.
func (h *Heap) lengthsIn(img Image, function uint64, names []string, global bool) (lengths []bool, trims []trim) {
	lengths = make([]bool, len(names))
	called := slices.Index(names, "len")
	code := img.Word(function + uint64(h.objects.functionCode))
	b := bytecode{formOf(h.Version.Minor), h.bytecode(img, code), names, global, h.Version.Minor}
	for unit := range len(b.code) / 2 {
		if b.argument(unit) != called<<b.globalShift|b.null {
			continue
		}
		i, call := b.variable(unit + 1 + b.globalCaches)
		if i < 0 || i == called || b.argument(call) != 1 {
			continue
		}
		lengths[i] = true
		if by, at, ok := b.comparedWith(unit, call+b.callUnits); ok {
			if from, to := b.branch(at); b.takesFrom(i, from, to) {
				trims = append(trims, trim{container: i, operand: by})
			}
		}
	}
	for i := range trims {
		if t := &trims[i]; t.constant >= 0 {
			if all := h.elements(img, codeField(img, code, h.TypeOf(img, code), "co_consts")); t.constant < len(all) {
				t.object = all[t.constant]
			}
		}
	}
	return lengths, trims
}

// loadGlobal is the instruction LOAD_GLOBAL up to 3.10, which has no specialised forms.
const loadGlobal = 116

// instructionForm is how the instructions of a version are encoded that call len() of something, and compare what it returns.
type instructionForm struct {
	globalCaches, attributeCaches int    // units after LOAD_GLOBAL and LOAD_ATTR
	globalShift, attributeShift   int    // of the index of a name
	null                          int    // what LOAD_GLOBAL of a function to call adds
	callUnits                     int    // of the call of len(), from the first unit with its number of arguments
	comparisons, constants        []byte // COMPARE_OP and LOAD_CONST, and their specialised forms (Include/opcode.h, Include/opcode_ids.h)
	small                         byte   // LOAD_SMALL_INT; 0: the version lacks it
	compareShift                  int    // of the operator in the argument of COMPARE_OP
	compareCaches, jumpCaches     int    // units after COMPARE_OP and a jump
	jump, extended                byte   // POP_JUMP_IF_FALSE and EXTENDED_ARG
}

func formOf(minor int) instructionForm {
	f := instructionForm{globalCaches: 4, attributeCaches: 9, globalShift: 1, attributeShift: 1, null: 1, callUnits: 4, compareShift: 5,
		compareCaches: 1, jumpCaches: 1}
	switch {
	case minor <= 10:
		return instructionForm{callUnits: 1, comparisons: []byte{107}, constants: []byte{100}, jump: 114, extended: 144}
	case minor == 11:
		return instructionForm{globalCaches: 5, attributeCaches: 4, globalShift: 1, null: 1, callUnits: 7, compareCaches: 2,
			comparisons: []byte{107, 26, 27, 28, 29}, constants: []byte{100}, jump: 114, extended: 144}
	case minor == 12:
		f.comparisons, f.constants, f.jump, f.extended = []byte{107, 57, 58, 59}, []byte{100}, 114, 144
		f.compareShift, f.jumpCaches = 4, 0
	case minor == 13:
		f.comparisons, f.constants, f.jump, f.extended = []byte{58, 182, 183, 184}, []byte{83}, 97, 71
	case minor == 14:
		f.comparisons, f.constants, f.jump, f.extended = []byte{56, 166, 167, 168}, []byte{82, 190, 191}, 100, 69
		f.small = 94
	case minor == 15:
		f.comparisons, f.constants, f.jump, f.extended = []byte{54, 169, 170, 171}, []byte{81}, 99, 67
		f.small = 93
	}
	return f
}

// maxCode bounds the bytecode of a function that is looked at, bytes.
const maxCode = 1 << 16

// bytecode reads the instructions of a code object: from 3.11 on they are behind its fields (co_code_adaptive), before in co_code.
func (h *Heap) bytecode(img Image, code uint64) []byte {
	t := h.TypeOf(img, code)
	if t == nil || t.Name != "code" {
		return nil
	}
	at, n := code+t.Size, 2*h.word(img, code, objectSize)
	if h.Version.Minor <= 10 {
		at, n = 0, 0
		if object := codeField(img, code, t, "co_code"); object != 0 {
			at, n = object+h.objects.shift()+bytesData, h.word(img, object, objectSize)
		}
	}
	if at == 0 || n > maxCode {
		return nil
	}
	return img.View(at, int(n))
}

// codeNames lists the names that a function uses, but for its local variables (co_names).
func (h *Heap) codeNames(img Image, function uint64) []uint64 {
	code := img.Word(function + uint64(h.objects.functionCode))
	t := h.TypeOf(img, code)
	if t == nil || t.Name != "code" {
		return nil
	}
	return h.elements(img, codeField(img, code, t, "co_names"))
}

// codeField returns the object in a field of a code object; 0: there is no such field.
func codeField(img Image, code uint64, t *Type, name string) uint64 {
	for _, m := range t.members {
		if cText(img, m.name) == name {
			return img.Word(code + m.offset)
		}
	}
	return 0
}
