// SPDX-License-Identifier: Apache-2.0

// Package made builds the memory of a small process of CPython 3.11 with PyTorch 2.15 word by word, as their headers have it, for
// tests of what reads such memory.
package made

import (
	"context"
	"encoding/binary"
	"io"
	"os"

	"github.com/gputrace/gputrace/cpython"
	"github.com/gputrace/gputrace/cpython/pyobject"
	"github.com/gputrace/gputrace/inspect/holders/internal/memory"
)

// Where the parts of a made-up process are: a library's constants, memory that malloc gave, and memory of the device, which
// nobody can read.
const (
	Library = uint64(0x7f0000000000)
	Heap    = uint64(0x7f0010000000)
	Device  = uint64(0x7e0000000000)
	Pages   = 16      // of the library; the heap has twice as many
	Block   = 0x10000 // bytes of each block of the device
)

// Process is the memory of a process. It has little of CPython and PyTorch, and one of each thing that a reader follows.
type Process struct {
	LibraryBytes, HeapBytes []byte            // from Library and Heap on
	Runtime                 uint64            // address of _PyRuntime
	Types                   map[string]uint64 // Python's, by name
	Modules                 uint64            // sys.modules
	Text                    uint64            // the last str
	Blocks                  int               // of the device, each with a storage of its own

	libraryAt, heapAt uint64
	collected         []uint64
	classes           map[string]uint64 // tables of C++ classes, by their mangled name
	infos             map[string]uint64
	undefined         uint64 // the tensor that stands for none
	main              uint64 // dictionary of __main__
	prev, data        uint64 // names of attributes
}

// What the headers have, beside what is written where it is used.
const (
	pageSize        = 4096
	singleBaseType  = "N10__cxxabiv120__si_class_type_infoE"
	accumulateClass = "N5torch8autograd14AccumulateGradE"
	nodeClass       = "N5torch8autograd4NodeE"
	destructors     = 12   // entries of a table of functions
	stridesAt       = 0x30 // in c10::impl::SizesAndStrides
	tensorOffset    = 0x58 // storage_offset_, from there on
	ownsBit         = 1    // of the address of a Python object: the tensor owns it
)

// Copied returns a copy of the process's memory, and its interpreter in it. The image is to be closed.
func (m *Process) Copied(ctx context.Context) (*memory.Image, *pyobject.Heap, error) {
	regions, runs := m.Regions()
	im, err := memory.New(ctx, m, regions, 2*Pages)
	if err != nil {
		return nil, nil, err
	}
	im.Reset(regions, runs)
	im.CopyHeap(runs, func() bool { return false })
	h, err := pyobject.HeapAt(m, cpython.Version{Major: 3, Minor: 11}, m.Runtime, m.Types["type"])
	return im, h, err
}

// ReadAt implements process.Memory.
func (m *Process) ReadAt(b []byte, addr uint64) (int, error) {
	for _, part := range []struct {
		at    uint64
		bytes []byte
	}{{Library, m.LibraryBytes}, {Heap, m.HeapBytes}} {
		if addr >= part.at && addr < part.at+uint64(len(part.bytes)) {
			n := copy(b, part.bytes[addr-part.at:])
			if n < len(b) {
				return n, io.ErrUnexpectedEOF
			}
			return n, nil
		}
	}
	return 0, io.ErrUnexpectedEOF
}

func (m *Process) bytesAt(addr uint64) []byte {
	if addr >= Heap {
		return m.HeapBytes[addr-Heap:]
	}
	return m.LibraryBytes[addr-Library:]
}

// Regions are the parts of its memory, and the pages that are there of the heap.
func (m *Process) Regions() ([]memory.Region, []memory.Run) {
	return []memory.Region{
		{Start: Library, End: Library + uint64(len(m.LibraryBytes)), File: "libtorch.so"},
		{Start: Heap, End: Heap + uint64(len(m.HeapBytes)), Heap: true},
	}, []memory.Run{{Addr: Heap, Pages: uint64(len(m.HeapBytes)) / pageSize}}
}

// Word is the word at an address.
func (m *Process) Word(addr uint64) uint64 { return binary.LittleEndian.Uint64(m.bytesAt(addr)) }

// Put writes words from an address on.
func (m *Process) Put(addr uint64, words ...uint64) { m.put(addr, words...) }

// NewClass makes a C++ class without a base, by its mangled name, and returns the address of its table.
func (m *Process) NewClass(name string) (table uint64) {
	m.newClass(name, "")
	return m.classes[name]
}

// put writes words from an address on.
func (m *Process) put(addr uint64, words ...uint64) {
	for i, w := range words {
		binary.LittleEndian.PutUint64(m.bytesAt(addr+8*uint64(i)), w)
	}
}

// alloc allocates as glibc's malloc does: its size is before it, with the mark that the piece before is in use.
func (m *Process) alloc(size uint64) uint64 {
	chunk := (size + 8 + 15) &^ 15
	m.put(m.heapAt+8, chunk|1)
	at := m.heapAt + 16
	m.heapAt += chunk
	m.put(m.heapAt+8, 0x21)
	return at
}

// constant allocates in the library.
func (m *Process) constant(size uint64) uint64 {
	at := m.libraryAt
	m.libraryAt += (size + 15) &^ 15
	return at
}

func (m *Process) cString(s string) uint64 {
	at := m.constant(uint64(len(s)) + 1)
	copy(m.bytesAt(at), s)
	return at
}

// newObject makes a Python object with one reference; one that the collector knows has its links before it.
func (m *Process) newObject(typ string, size uint64, collected bool) uint64 {
	at := uint64(0)
	if collected {
		at = m.alloc(size+16) + 16
		m.collected = append(m.collected, at-16)
	} else {
		at = m.alloc(size)
	}
	m.put(at, 1, m.Types[typ])
	return at
}

// Flags of types (Include/object.h).
const (
	madeCollected = 1 << 14
	madeHeapType  = 1 << 9
	madeInt       = 1 << 24
	madeList      = 1 << 25
	madeTuple     = 1 << 26
	madeBytes     = 1 << 27
	madeStr       = 1 << 28
	madeDict      = 1 << 29
	madeType      = 1 << 31
)

func (m *Process) newType(name, base string, flags, size uint64) {
	at := m.alloc(0x400)
	m.Types[name] = at
	m.put(at, 1, m.Types["type"])
	m.put(at+24, m.cString(name), size)
	m.put(at+168, flags)
	m.put(at+0x100, m.Types[base])
}

func (m *Process) str(s string) uint64 {
	const ascii = 1<<2 | 1<<5 | 1<<6
	at := m.newObject("str", 48+uint64(len(s))+1, false)
	m.put(at+16, uint64(len(s)), 0, ascii)
	copy(m.bytesAt(at+48), s)
	m.Text = at
	return at
}

func (m *Process) list(items ...uint64) uint64 {
	at, memory := m.newObject("list", 40, true), m.alloc(8*uint64(len(items)))
	m.put(at+16, uint64(len(items)), memory)
	m.put(memory, items...)
	return at
}

func (m *Process) tuple(items ...uint64) uint64 {
	at := m.newObject("tuple", 24+8*uint64(len(items)), true)
	m.put(at+16, uint64(len(items)))
	m.put(at+24, items...)
	return at
}

type pair struct {
	key   string
	value uint64
}

// dict makes a dictionary with text for keys: a table of eight indices, 16 bytes an entry.
func (m *Process) dict(pairs ...pair) uint64 {
	at, keys := m.newObject("dict", 48, true), m.alloc(32+16+16*16)
	m.put(at+0x10, uint64(len(pairs)))
	m.put(at+0x20, keys)
	m.put(keys, 1, 4|4<<8|1<<16, 0, uint64(len(pairs)))
	for i, p := range pairs {
		m.put(keys+32+16+16*uint64(i), m.str(p.key), p.value)
	}
	return at
}

func (m *Process) module(dict uint64) uint64 {
	at := m.newObject("module", 56, true)
	m.put(at+16, dict)
	return at
}

// newClass makes the typeinfo and the table of a C++ class with at most one base.
func (m *Process) newClass(name, base string) {
	info := m.constant(24)
	kind := m.classes[singleBaseType]
	if kind == 0 {
		kind = info // the first: it describes itself
	}
	m.put(info, kind, m.cString(name), m.infos[base])
	table := m.constant(16+8*destructors) + 16
	m.put(table-8, info)
	m.classes[name], m.infos[name] = table, info
}

// oneWeak is a weak count of one, beside the strong one (c10/util/intrusive_ptr.h of 2.15).
const oneWeak = 1 << 32

func (m *Process) native(class string, size uint64) uint64 {
	at := m.alloc(size)
	m.put(at, m.classes[class], oneWeak|1)
	return at
}

// tensor makes a tensor of 4 x 8 float32 with its storage, in a block of its own, and its Python object; the TensorImpl's
// address comes with it.
func (m *Process) tensor(typ string) (object, impl uint64) {
	storage := m.native("N3c1011StorageImplE", 0x60)
	m.put(storage+0x10, Device+Block*uint64(m.Blocks))
	m.put(storage+0x30, 128)
	m.Blocks++
	impl = m.native("N3c1010TensorImplE", 0xc0)
	m.put(impl+0x10, storage, 0)
	m.put(impl+0x38, 2, 4, 8)
	m.put(impl+0x38+stridesAt, 8, 1)
	m.put(impl+0x38+tensorOffset, 0, 32, 6)
	object = m.newObject(typ, 0x30, true)
	m.put(object+0x10, impl)
	m.put(impl+0x30, object)
	return object, impl
}

// owns makes a tensor the owner of its Python object.
func (m *Process) owns(impl uint64) {
	m.put(impl+0x30, binary.LittleEndian.Uint64(m.bytesAt(impl+0x30))|ownsBit)
}

// meta makes the autograd data of a tensor.
func (m *Process) meta(impl, grad, gradFn uint64) {
	at := m.native("N5torch8autograd12AutogradMetaE", 0xd0)
	if grad == 0 {
		grad = m.undefined
	}
	m.put(at+0x28, grad, gradFn)
	m.put(impl+0x18, at)
}

// node makes a node of the graph with one edge; saved is its first field.
func (m *Process) node(class string, next, saved uint64) uint64 {
	at := m.native(class, 0x230)
	edges := m.alloc(16)
	m.put(edges, next)
	m.put(at+0x58, edges, edges+16, edges+16)
	m.put(at+0x1d0, saved)
	return at
}

// code makes a code object with one variable.
func (m *Process) code(name, variable string) uint64 {
	at := m.newObject("code", 0xe0, false)
	kinds := m.newObject("bytes", 48, false)
	m.put(kinds+16, 1)
	m.put(kinds+32, 0x20)
	m.put(at+0x60, m.tuple(m.str(variable)), kinds)
	m.put(at+0x40, 4<<32)   // co_stacksize is at 0x44
	m.put(at+0x48, 7|1<<32) // co_firstlineno, co_nlocalsplus
	m.put(at+112, m.str("train.py"), m.str(name), m.str(name))
	m.put(at+136, kinds)
	return at
}

// frame makes a frame whose variable has a value.
func (m *Process) frame(code, previous, value uint64) uint64 {
	at := m.alloc(0x48 + 8*5)
	m.put(at+0x20, code)
	m.put(at+0x30, previous, code+184, 0xffffffff)
	m.put(at+0x48, value)
	return at
}

// Classes and types are made before what has them; a base before what derives from it.
var (
	madeClasses = [][2]string{
		{singleBaseType, ""}, {"N3c1011StorageImplE", ""}, {"N3c1010TensorImplE", ""},
		{"N3c1019UndefinedTensorImplE", "N3c1010TensorImplE"},
		{"N5torch8autograd12AutogradMetaE", ""}, {nodeClass, ""}, {accumulateClass, nodeClass},
		{"N5torch8autograd12MulBackward0E", nodeClass},
	}
	madeTypes = []struct {
		name, base  string
		flags, size uint64
	}{
		{"object", "", 0, 16}, {"str", "object", madeStr, 80}, {"bytes", "object", madeBytes, 33}, {"int", "object", madeInt, 24},
		{"list", "object", madeList | madeCollected, 40}, {"tuple", "object", madeTuple | madeCollected, 24},
		{"dict", "object", madeDict | madeCollected, 48}, {"module", "object", madeCollected, 56}, {"code", "object", 0, 184},
		{"torch._C.TensorBase", "object", madeCollected, 0x30}, {"Tensor", "torch._C.TensorBase", madeHeapType | madeCollected, 0x30},
		{"Parameter", "Tensor", madeHeapType | madeCollected, 0x30},
	}
	// madeOdd are types of which there is one object, empty: what an object becomes whose type is damaged.
	madeOdd = []string{
		"set", "collections.deque", "function", "cell", "method", "generator", "frame", "traceback", "functools._lru_cache_wrapper",
		"hamt_bitmap_node", "hamt_collision_node", "_queue.SimpleQueue", "ContextVar", "weakref", "pybind11_object",
		"torch._C.StorageBase", "torch._C._FunctionBase", "torch._C._autograd.SavedTensor",
	}
)

// odd makes a list of an object of each of these types.
func (m *Process) odd() uint64 {
	const size = 0x80
	var all []uint64
	for _, name := range madeOdd {
		m.newType(name, "object", madeCollected, size)
		all = append(all, m.newObject(name, size, true))
	}
	return m.list(all...)
}

// New builds the process: tensors in a list, a parameter with a gradient, a loss with its graph, a local variable, and a
// cycle that waits for the collector. names says what must be said of each block, in their order.
func New() (m *Process, names []string) {
	m = &Process{
		LibraryBytes: make([]byte, Pages*pageSize), HeapBytes: make([]byte, 2*Pages*pageSize), libraryAt: Library, heapAt: Heap,
		Types: map[string]uint64{}, classes: map[string]uint64{}, infos: map[string]uint64{},
	}
	for _, c := range madeClasses {
		m.newClass(c[0], c[1])
	}
	m.newType("type", "", madeType, 0x380)
	m.put(m.Types["type"]+8, m.Types["type"])
	for _, t := range madeTypes {
		m.newType(t.name, t.base, t.flags, t.size)
	}
	m.undefined = m.native("N3c1019UndefinedTensorImplE", 0xc0)

	first, _ := m.tensor("Tensor")
	second, _ := m.tensor("Tensor")
	names = append(names, "kept[0]", "kept[1]")
	weight, weightImpl := m.tensor("Parameter")
	_, gradImpl := m.tensor("Tensor")
	m.meta(weightImpl, gradImpl, 0)
	m.put(weightImpl+8, oneWeak|2) // its node in the graph has it too
	m.owns(gradImpl)
	names = append(names, "weights['w']", "weights['w'].grad")
	loss, lossImpl := m.tensor("Tensor")
	_, savedImpl := m.tensor("Tensor")
	m.owns(savedImpl)
	graph := m.node("N5torch8autograd12MulBackward0E", m.node(accumulateClass, 0, weightImpl), savedImpl)
	m.meta(lossImpl, 0, graph)
	names = append(names, "loss", "loss.grad_fn saved by MulBackward0")
	local, _ := m.tensor("Tensor")
	garbage, _ := m.tensor("Tensor")
	names = append(names, "train.py:7 train() local batch", "garbage list[1]")
	cycle := m.list(0, garbage)
	m.put(binary.LittleEndian.Uint64(m.bytesAt(cycle+24)), cycle) // its first element is itself

	weights := m.dict(pair{"w", weight})
	m.main = m.dict(pair{"kept", m.list(first, second)}, pair{"weights", weights}, pair{"loss", loss}, pair{"odd", m.odd()})
	main := m.module(m.main)
	m.Modules = m.dict(pair{"builtins", m.module(m.dict(pair{"str", m.Types["str"]}, pair{"list", m.Types["list"]}))}, pair{"__main__", main})
	m.interpreter(m.frame(m.code("train", "batch"), 0, local))
	return m, names
}

// interpreter makes what _PyRuntime leads to: one interpreter, one thread.
func (m *Process) interpreter(frame uint64) {
	m.Runtime = m.alloc(0x300)
	interp := m.alloc(0x400)
	thread, cframe, exc := m.alloc(0x180), m.alloc(0x20), m.alloc(0x10)
	m.put(m.Runtime+0x28, interp)
	m.put(interp+0x10, thread)
	m.put(interp+0x378, m.Modules)
	for _, at := range []uint64{0x2a0, 0x2b8, 0x2d0, 0x2f0} {
		m.put(interp+at, interp+at, interp+at)
	}
	m.put(thread+0x10, interp)
	m.put(thread+0x38, cframe)
	m.put(thread+0x78, exc)
	m.put(thread+0xa0, uint64(os.Getpid()))
	m.put(cframe+8, frame)
	last := interp + 0x2d0
	head := last
	for _, c := range m.collected {
		m.put(last, c)
		m.put(c+8, last)
		last = c
	}
	m.put(last, head)
	m.put(head+8, last)
}
