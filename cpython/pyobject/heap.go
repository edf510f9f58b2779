// SPDX-License-Identifier: Apache-2.0

// Package pyobject reads the objects of a CPython interpreter from outside: what an object refers to, by the rules of its type, and
// the frames that refer to objects.
package pyobject

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/gputrace/gputrace/cpython"
	"github.com/gputrace/gputrace/process"
)

// ErrObjects: the interpreter's objects are not where this version should have them. It is wrapped by errors that say
// what did not fit.
var ErrObjects = errors.New("objects not as expected")

// ErrCollecting reports that no list of the cycle collector has objects: a full collection moves all of them to a list of its own, for
// as long as it runs (deduce_unreachable in Modules/gcmodule.c, later Python/gc.c). Where it holds on, the program is ending.
var ErrCollecting = errors.New("the cycle collector was running")

// ErrEnding reports an interpreter without a loaded module: Python takes them out when it ends.
var ErrEnding = errors.New("the interpreter was ending")

// Image is memory of a process that is read word by word, mostly from a copy.
type Image interface {
	process.Memory
	// Word is the little-endian word at an address. It is 0 where nothing can be read, and at addresses that are no
	// multiple of 8.
	Word(addr uint64) uint64
	// View returns n bytes, of a copy where there is one: they must not be changed. nil when not all can be read.
	View(addr uint64, n int) []byte
}

// Heap reads the objects of an interpreter: what an object refers to, by the rules of its type. It holds no memory of the
// process: each method takes the image that it reads. It is not safe for concurrent use.
type Heap struct {
	Version cpython.Version
	// Module is the file that defines the interpreter, as the process's own mount namespace names it.
	Module string

	runtime  uint64 // address of _PyRuntime
	typeType uint64 // address of PyType_Type
	objects  *objectLayout
	code     *cpython.Runtime // reads str and code objects
	types    map[uint64]*Type
	recent   [recentTypes]*Type // by recentSlot
	// typeDicts are the dictionaries of types: their values are read as attributes of the type, and once.
	typeDicts map[uint64]bool
}

// FindHeap finds the interpreter of a process, CPython 3.8 to 3.15, from 3.13 on without a GIL too. What it finds is to be proved with
// Prove before it is used. Errors: cpython.ErrNoPython, *cpython.UnknownVersionError, and the errors of package process.
func FindHeap(p *process.Process) (*Heap, error) {
	found, err := cpython.FindInterpreter(p)
	if err != nil {
		return nil, err
	}
	h, err := heapOf(p, found)
	if err != nil {
		return nil, fmt.Errorf("find python of pid %d in %s: %w", p.PID, found.Module, err)
	}
	return h, nil
}

func heapOf(mem process.Memory, found *cpython.Interpreter) (*Heap, error) {
	if found.Type == 0 {
		return nil, fmt.Errorf("%w: no symbol PyType_Type", ErrObjects)
	}
	h, err := HeapAt(mem, found.Version, found.Runtime, found.Type)
	if err != nil {
		return nil, err
	}
	h.Module = found.Module
	return h, nil
}

// HeapAt reads an interpreter of which it is known where _PyRuntime and PyType_Type are: an image without a process. Module
// stays empty. The error is a *cpython.UnknownVersionError, or says what mem did not have; what is found is to be proved with Prove.
func HeapAt(mem process.Memory, v cpython.Version, runtime, typeType uint64) (*Heap, error) {
	objects, ok := objectLayoutOf(v)
	if !ok {
		return nil, &cpython.UnknownVersionError{Version: v}
	}
	if v.Minor >= 13 {
		if err := objects.takeDebugOffsets(mem, runtime); err != nil {
			return nil, err
		}
	}
	code, err := cpython.RuntimeOf(v)
	if err != nil {
		return nil, err
	}
	return &Heap{
		Version: v, runtime: runtime, typeType: typeType, objects: objects, code: code,
		types: map[uint64]*Type{}, typeDicts: map[uint64]bool{},
	}, nil
}

// debugObjects ties words of _Py_DebugOffsets (Include/internal/pycore_runtime.h of 3.13, pycore_debug_offsets.h from 3.14 on) to fields of
// objectLayout: those of the structures of the runtime, which a build may have moved.
var debugObjects = []struct {
	in13, in14 int
	name       string
	field      func(*objectLayout) *uint32
}{
	{5, 5, "runtime_state.interpreters_head", func(l *objectLayout) *uint32 { return &l.runtimeInterpreters }},
	{8, 8, "interpreter_state.next", func(l *objectLayout) *uint32 { return &l.interpNext }},
	{9, 9, "interpreter_state.threads_head", func(l *objectLayout) *uint32 { return &l.interpThreads }},
	{11, 12, "interpreter_state.imports_modules", func(l *objectLayout) *uint32 { return &l.interpModules }},
}

// The words of interpreter_state.gc.
const (
	debugCollector13 = 10
	debugCollector14 = 11
)

// takeDebugOffsets takes from the running interpreter what it says of itself.
func (l *objectLayout) takeDebugOffsets(mem process.Memory, runtime uint64) error {
	table := make([]byte, 8*13)
	if _, err := mem.ReadAt(table, runtime); err != nil {
		return fmt.Errorf("read debug offsets: read %d bytes at %#x: %w", len(table), runtime, err)
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(table[8*i:]) }
	for _, d := range debugObjects {
		v := word(l.debugWord(d.in13, d.in14))
		if v >= maxLargeOffset {
			return fmt.Errorf("debug offset of %s is %d: out of bounds", d.name, v)
		}
		*d.field(l) = uint32(v)
	}
	if v := word(l.debugWord(debugCollector13, debugCollector14)); v < maxLargeOffset {
		permanent := l.collectorPermanent - l.interpCollector
		l.interpCollector = uint32(v) + l.collectorFirst
		l.collectorPermanent = l.interpCollector + permanent
	}
	return nil
}

// debugWord is the one of its version.
func (l *objectLayout) debugWord(in13, in14 int) int {
	if l.minor == 13 {
		return in13
	}
	return in14
}

// Prove checks that the objects are where this version should have them: the type of type is type, sys.modules has a
// module builtins, and the collector's rings close. The error wraps ErrObjects, ErrCollecting too where it is only the rings, or ErrEnding
// for an interpreter that has no module any more.
func (h *Heap) Prove(img Image) error {
	wrong := func(what string) error {
		return fmt.Errorf("python %s: %w: %s", h.Version, ErrObjects, what)
	}
	if h.word(img, h.typeType, objectType) != h.typeType {
		return wrong("the type of type is another one")
	}
	if t := h.TypeAt(img, h.typeType); t == nil || t.Name != "type" {
		return wrong("type has no name")
	}
	interps := h.interpreters(img)
	if len(interps) == 0 {
		return wrong("no interpreter")
	}
	if !h.objects.threaded && !slices.ContainsFunc(h.rings(interps[0]), func(head uint64) bool { return closes(img, head) }) {
		return fmt.Errorf("python %s: %w: %w", h.Version, ErrObjects, ErrCollecting)
	}
	ending := true
	for e := range h.loaded(img) {
		ending = false
		if h.Text(img, e.Aux) != "builtins" {
			continue
		}
		if t := h.TypeOf(img, e.Target); t != nil && t.kind == kindModule {
			return nil
		}
	}
	if ending {
		return fmt.Errorf("python %s: %w", h.Version, ErrEnding)
	}
	return wrong("no module builtins")
}

// closes reports whether a list of the collector has objects, whose first or last points back at its head. Those of a running
// program are torn, but not all of them: old objects stay where they are, while others are added behind them.
func closes(img Image, head uint64) bool {
	next, prev := img.Word(head)&^3, img.Word(head+8)&^3
	return next != 0 && next != head && (img.Word(next+8)&^3 == head || img.Word(prev)&^3 == head)
}

// interpreters lists the interpreters of the process, the main one last, as the runtime does.
func (h *Heap) interpreters(img Image) []uint64 {
	var out []uint64
	seen := map[uint64]bool{0: true}
	for at := img.Word(h.runtime + uint64(h.objects.runtimeInterpreters)); !seen[at] && len(out) < maxInterpreters; {
		seen[at] = true
		out = append(out, at)
		at = img.Word(at + uint64(h.objects.interpNext))
	}
	return out
}

// Module is an entry of sys.modules.
type Module struct {
	Name string
	File string // __file__; empty when it has none
	// Object is the address of the module: mostly a module object, but a program may put anything there.
	Object uint64
}

// Modules lists sys.modules of all interpreters.
func (h *Heap) Modules(img Image) []Module {
	var out []Module
	names := fileNames{}
	for e := range h.loaded(img) {
		m := Module{Name: h.Text(img, e.Aux), Object: e.Target}
		if t := h.TypeOf(img, e.Target); t != nil {
			m.File = h.moduleFile(img, e.Target, t, names)
		}
		out = append(out, m)
	}
	return out
}

// ModuleObjects lists what is in sys.modules of all interpreters, by address.
func (h *Heap) ModuleObjects(img Image) []uint64 {
	var out []uint64
	for e := range h.loaded(img) {
		out = append(out, e.Target)
	}
	return out
}

// ModuleNamed is the address of what sys.modules has under a name; 0: nothing.
func (h *Heap) ModuleNamed(img Image, name string) uint64 {
	for e := range h.loaded(img) {
		if h.Text(img, e.Aux) == name {
			return e.Target
		}
	}
	return 0
}

// loaded lists the entries of sys.modules.
func (h *Heap) loaded(img Image) iter.Seq[Ref] {
	return func(yield func(Ref) bool) {
		for _, interp := range h.interpreters(img) {
			for _, e := range h.dict(img, nil, img.Word(interp+uint64(h.objects.interpModules))) {
				if e.Kind == RefKey && !yield(e) {
					return
				}
			}
		}
	}
}

// fileNames says of texts, by their address, whether they are "__file__": nearly all modules share the keys.
type fileNames map[uint64]bool

func (n fileNames) has(h *Heap, img Image, text uint64) bool {
	is, known := n[text]
	if !known {
		is = h.Text(img, text) == "__file__"
		n[text] = is
	}
	return is
}

func (h *Heap) moduleFile(img Image, module uint64, t *Type, names fileNames) string {
	if t.kind != kindModule {
		return ""
	}
	for _, e := range h.dict(img, nil, h.word(img, module, moduleDict)) {
		if e.Kind == RefKey && names.has(h, img, e.Aux) {
			return h.Text(img, e.Target)
		}
	}
	return ""
}

// rings are the heads of the collector's lists of an interpreter.
func (h *Heap) rings(interp uint64) []uint64 {
	base := interp
	if h.objects.collectorInRuntime {
		base = h.runtime
	}
	var out []uint64
	for g := range uint64(generations) {
		out = append(out, base+uint64(h.objects.interpCollector)+generationSize*g)
	}
	return append(out, base+uint64(h.objects.collectorPermanent))
}

// Collected calls visit with every object that the cycle collector knows, until visit returns false. A list that changed
// while it was copied ends where it does not fit; complete is false then.
func (h *Heap) Collected(img Image, visit func(object uint64) bool) (complete bool) {
	complete = true
	budget := maxCollected
	for _, interp := range h.interpreters(img) {
		for _, head := range h.rings(interp) {
			prev := head
			for at := img.Word(head) &^ 3; at != head; at = img.Word(at) &^ 3 {
				if budget--; at == 0 || img.Word(at+8)&^3 != prev || budget <= 0 {
					complete = false // a ring whose links point back cannot lead in circles
					break
				}
				if !visit(at + collectorHead) {
					return complete
				}
				prev = at
			}
		}
		if h.objects.collectorInRuntime {
			break
		}
	}
	return complete
}

// HeadShift is how much longer the head of an object is than in a build with a GIL, bytes.
func (h *Heap) HeadShift() uint64 { return h.objects.shift() }

// TypeField is where an object has its class, bytes from its start.
func (h *Heap) TypeField() uint64 { return h.objects.shift() + objectType }

// MetaType is the address of the class type, which classes are instances of.
func (h *Heap) MetaType() uint64 { return h.typeType }

// Unlisted reports that the collector keeps no lists of its objects, so that Collected visits nothing: a build without a GIL.
// IsCollected finds out whether the collector knows an object.
func (h *Heap) Unlisted() bool { return h.objects.threaded }

// IsCollected reports whether the collector of a build without a GIL knows the object at an address.
func (h *Heap) IsCollected(img Image, object uint64) bool {
	t := h.TypeOf(img, object)
	return t != nil && t.Flags&flagCollected != 0 && gcBits(img, object)&gcTracked != 0 && h.Plausible(img, object)
}

// ReferenceCount is an object's count. ok is false where it says nothing: an immortal object, or no count at all.
func (h *Heap) ReferenceCount(img Image, object uint64) (n int64, ok bool) {
	if h.objects.threaded {
		return sharedCount(img, object)
	}
	v := img.Word(object)
	if h.objects.immortal {
		v = uint64(uint32(v))
	}
	return int64(v), v > 0 && v < implausibleCount
}

// gcBits is what the collector of a build without a GIL notes in an object.
func gcBits(img Image, object uint64) byte {
	if b := img.View(object+threadedGCBits, 1); b != nil {
		return b[0]
	}
	return 0
}

// sharedCount is the count of an object in a build without a GIL: the thread that made the object has one part, all others have another.
// ok is false if references are not counted: an immortal object, or a function, module or class, which frames use uncounted.
func sharedCount(img Image, object uint64) (n int64, ok bool) {
	local := word32(img, object+threadedLocal)
	n = int64(local) + int64(img.Word(object+threadedSharedCount))>>sharedFlags
	return n, !uncounted(img, object) && n > 0 && n < implausibleCount
}

func uncounted(img Image, object uint64) bool {
	return word32(img, object+threadedLocal) == localImmortal || gcBits(img, object)&gcDeferred != 0
}

// Plausible reports whether an address that was found in memory of an unknown kind is that of an object: its count may be
// one, and where the collector knows it, its neighbours there point back.
func (h *Heap) Plausible(img Image, object uint64) bool {
	t := h.TypeOf(img, object)
	if t == nil {
		return false
	}
	if h.objects.threaded {
		_, ok := sharedCount(img, object)
		return ok || uncounted(img, object)
	}
	count := img.Word(object)
	if h.objects.immortal {
		count = uint64(uint32(count))
		if count >= implausibleCount {
			return true
		}
	}
	if count == 0 || count >= implausibleCount {
		return false
	}
	if t.Flags&flagCollected == 0 || t.Flags&flagType != 0 {
		return true
	}
	next, prev := img.Word(object-collectorHead)&^3, img.Word(object-collectorHead+8)&^3
	if next == 0 { // not tracked
		return t.Flags&(flagTuple|flagDict) != 0 || t.kind == kindFrame || t.kind == kindGenerator
	}
	return img.Word(next+8)&^3 == object-collectorHead && img.Word(prev)&^3 == object-collectorHead
}

// Size is how many bytes an object has, with its elements where they lie behind it.
func (h *Heap) Size(img Image, object uint64, t *Type) uint64 {
	if t.item == 0 || t.Flags&flagInt != 0 {
		return t.Size
	}
	n := h.word(img, object, objectSize)
	if n > maxSequence {
		return t.Size
	}
	return t.Size + n*t.item
}

// IsThreadLocal reports whether an object is a threading.local, or of a class derived from it: from 3.2 to 3.15 a field of it has a
// dictionary with the dictionary of attributes of each thread (struct localobject, Modules/_threadmodule.c).
func (h *Heap) IsThreadLocal(img Image, object uint64) bool {
	for t := h.TypeOf(img, object); t != nil; t = t.Base {
		if t.Name == "_thread._local" {
			return true
		}
	}
	return false
}

// HasMethod reports whether a class that Python code made, or one of its bases, has an attribute.
func (h *Heap) HasMethod(img Image, t *Type, name string) bool {
	for ; t != nil && t.Heap(); t = t.Base {
		if h.Attribute(img, t.Addr, name) != 0 {
			return true
		}
	}
	return false
}
