// SPDX-License-Identifier: Apache-2.0

package pyobject

import "github.com/gputrace/gputrace/cpython"

// Offsets that all versions from 3.8 to 3.15 share, in 64-bit builds with a GIL (Include/object.h, Include/cpython/object.h and
// the headers of each type; a test compiles those from 3.13 on). Bytes. Without a GIL an object has a longer head, and its fields lie
// further on by as much: see Heap.word.
const (
	objectType       = cpython.ObjectType
	objectSize       = cpython.ObjectSize
	bytesData        = 0x20 // PyBytesObject.ob_sval
	typeItemSize     = 0x28 // PyTypeObject.tp_itemsize
	typeWeakOffset   = 0xd0 // tp_weaklistoffset
	typeGetSet       = 0xf8 // tp_getset
	getSetSize       = 0x28 // sizeof(PyGetSetDef): name, get, set, doc, closure
	typeBase         = 0x100
	typeDict         = 0x108
	typeDictOffset   = 0x120
	typeMRO          = 0x158
	listItems        = 0x18
	dictUsed         = 0x10
	dictKeys         = 0x20
	dictValues       = 0x28
	setMask          = 0x20
	setTable         = 0x28
	moduleDict       = 0x10
	cellContents     = 0x10
	tracebackNext    = 0x10
	tracebackFrame   = 0x18
	methodFunction   = 0x10
	methodSelf       = 0x18
	builtinSelf      = 0x18 // PyCFunctionObject.m_self
	exceptionDict    = 0x10
	exceptionArgs    = 0x18
	longDigits       = 0x18
	collectorHead    = 0x10 // sizeof(PyGC_Head): it lies before the object
	generationSize   = 0x18 // sizeof(struct gc_generation): head, threshold, count
	generations      = 3
	managedDict      = 0x18 // the dictionary of an instance with Py_TPFLAGS_MANAGED_DICT is that much before it (3.11+)
	managedValues    = 0x20 // the same of its values (3.11)
	memberType       = 0x08
	memberObject     = 6  // T_OBJECT
	memberObjectEx   = 16 // T_OBJECT_EX
	dequeLeft        = 0x18
	dequeLeftIndex   = 0x28
	dequeMost        = 0x40 // maxlen; -1: none
	dequeBlock       = 64   // BLOCKLEN of Modules/_collectionsmodule.c; the links are around it
	lruFirst         = 0x18 // lru_list_elem.next of Modules/_functoolsmodule.c: a cache begins with the head of its list
	lruKey           = 0x28
	lruResult        = 0x30
	lruFront         = 0x38 // sizeof(lru_list_elem)
	lruMost          = 0x18 // lru_cache_object.maxsize, behind its cache
	weakCallback     = 0x18 // PyWeakReference.wr_callback
	contextDefault   = 0x18 // PyContextVar.var_default; var_cached behind it is not owned
	generalEntry     = 3    // words of an entry of a dictionary: hash, key, value
	unicodeEntry     = 2    // key, value (3.11+)
	inlineValidByte  = 3    // PyDictValues.valid (3.13)
	maxInterpreters  = 1024
	maxThreads       = 65536
	maxLargeOffset   = 1 << 20
	maxObjectSize    = 4096 // tp_basicsize that is looked through
	maxDictEntries   = 1 << 26
	maxSequence      = 1 << 27
	maxLocals        = 1 << 14
	maxMembers       = 256
	maxBases         = 64
	maxTypeText      = 256
	maxCollected     = 1 << 27
	implausibleCount = 1 << 31 // reference counts from here on are not those of an object, but for immortal ones
)

// The head of an object in a build without a GIL (Include/object.h, struct _object), and other fields that have moved there. Bytes.
const (
	threadedShift       = 0x10 // by which the head is longer
	threadedGCBits      = 0x0b // ob_gc_bits, a byte
	threadedLocal       = 0x0c // ob_ref_local, 4 bytes
	threadedSharedCount = 0x10 // ob_ref_shared
	threadedDict        = 0x08 // managedDict: there is no head of the collector before an object
	sharedFlags         = 2    // bits of ob_ref_shared below the count
	gcTracked           = 1    // _PyGC_BITS_TRACKED of ob_gc_bits (Include/internal/pycore_gc.h)
	gcDeferred          = 1 << 6
	localImmortal       = 1<<32 - 1
)

// Flags of a type (Include/object.h, Py_TPFLAGS_*).
const (
	flagInlineValues = 1 << 2 // 3.13
	flagManagedDict  = 1 << 4 // 3.11
	flagHeapType     = 1 << 9
	flagCollected    = 1 << 14 // HAVE_GC
	flagInt          = 1 << 24
	flagList         = 1 << 25
	flagTuple        = 1 << 26
	flagStr          = 1 << 28
	flagDict         = 1 << 29
	flagException    = 1 << 30
	flagType         = 1 << 31
)

// valuesKind says where an instance keeps its attributes when it has no dictionary of its own.
type valuesKind uint8

const (
	valuesNone   valuesKind = iota + 1 // 3.8 to 3.10
	valuesBefore                       // 3.11: a pointer before the object
	valuesTagged                       // 3.12: the pointer to the dictionary or, with its low bit set, to the values
	valuesInline                       // 3.13+: behind the object, as the type's flag says
)

// objectLayout is what a reader of the heap needs beside layout, and what differs between versions. Bytes.
type objectLayout struct {
	minor    int
	threaded bool // built without a GIL

	runtimeInterpreters uint32
	interpNext          uint32
	interpThreads       uint32
	interpModules       uint32
	interpCollector     uint32 // generations of the collector, in the interpreter; in _PyRuntime (3.8)
	collectorPermanent  uint32 // the same of the permanent generation
	collectorInRuntime  bool   // 3.8
	// collectorFirst is where the generations begin in struct _gc_runtime_state, 3.13+. 3.14.0 to 3.14.4 have the young and the two old ones
	// of a collector that works in steps there, as many and as large.
	collectorFirst uint32

	tstateNext    uint16
	tstatePrev    uint16
	tstateInterp  uint16
	tstateThread  uint16 // thread_id
	tstateNative  uint16 // native_thread_id, 3.11+
	tstateFrame   uint16
	tstateCFrame  uint16 // 3.11, 3.12
	cframeFrame   uint16
	tstateExc     uint16 // exc_info
	tstateDict    uint16
	tstateContext uint16
	excValue      uint16
	excPrevious   uint16

	frameCode     uint16
	framePrevious uint16
	frameInstr    uint16 // f_lasti, prev_instr, instr_ptr
	frameLocals   uint16 // f_locals: a dictionary or null
	frameValues   uint16 // localsplus
	frameTop      uint16 // f_stacktop (3.8, 3.9: a pointer), f_stackdepth (3.10), stacktop, stackpointer (3.14+)
	frameStack    uint16 // f_valuestack, to 3.10
	frameOwner    uint16 // 3.11+
	frameFunction uint16 // 3.11+
	frameOfObject uint16 // PyFrameObject.f_frame, 3.11+: before, the object is the frame

	codeVarNames  uint16 // to 3.10
	codeCellVars  uint16
	codeFreeVars  uint16
	codeNames     uint16 // co_localsplusnames, 3.11+
	codeKinds     uint16 // co_localspluskinds
	codeLocals    uint16 // co_nlocals; co_nlocalsplus from 3.11 on
	codeStackSize uint16
	codeArguments uint16 // co_argcount

	functionGlobals  uint16
	functionCode     uint16
	functionDefaults uint16
	functionKeywords uint16 // func_kwdefaults
	functionClosure  uint16
	functionDict     uint16

	generatorFrame uint16 // a pointer to 3.10, then the frame itself
	generatorState uint16 // gi_frame_state, 3.11+
	generatorRuns  int8   // FRAME_EXECUTING; what is above has ended

	tupleItems  uint16
	keysCount   uint16 // dk_nentries
	keysIndices uint16
	keysKind    uint16 // dk_kind, 3.11+

	typeCachedKeys uint16 // PyHeapTypeObject.ht_cached_keys
	valuesStart    uint16 // PyDictValues.values
	values         valuesKind

	exceptionTraceback uint16 // context and cause lie behind it
	taggedInt          bool   // PyLongObject.lv_tag (3.12+) in the place of a signed size
	immortal           bool   // 3.12+: a saturated count says nothing
	// stackRefs: what a frame has are tagged (_PyStackRef of Include/internal/pycore_stackref.h, 3.14+): the low bits are 0 of an object that
	// the frame owns a reference to, 1 of a borrowed or immortal one and of none, 3 of a number.
	stackRefs bool
}

// objectLayouts has a row for every version whose objects can be read.
var objectLayouts = []objectLayout{
	{
		minor: 8, runtimeInterpreters: 0x20, interpNext: 0, interpThreads: 8, interpModules: 0x38,
		interpCollector: 0x170, collectorPermanent: 0x1c0, collectorInRuntime: true,
		tstateNext: 8, tstatePrev: 0, tstateInterp: 0x10, tstateThread: 0xb0, tstateNative: cpython.NoField, tstateFrame: 0x18,
		tstateCFrame: cpython.NoField, cframeFrame: cpython.NoField, tstateExc: 0x90, tstateDict: 0x98, tstateContext: 0xf0, excValue: 8,
		excPrevious: 0x18,
		frameCode:   0x20, framePrevious: 0x18, frameInstr: 0x68, frameLocals: 0x38, frameValues: 0x168, frameTop: 0x48,
		frameStack: 0x40, frameOwner: cpython.NoField, frameFunction: cpython.NoField, frameOfObject: cpython.NoField,
		codeVarNames: 0x48, codeCellVars: 0x58, codeFreeVars: 0x50, codeNames: cpython.NoField, codeKinds: cpython.NoField,
		codeLocals: 0x1c, codeStackSize: 0x20, codeArguments: 0x10,
		functionGlobals: 0x18, functionCode: 0x10, functionDefaults: 0x20, functionKeywords: 0x28, functionClosure: 0x30,
		functionDict: 0x48, generatorFrame: 0x10, generatorState: cpython.NoField,
		tupleItems: 0x18, keysCount: 0x20, keysIndices: 0x28, keysKind: cpython.NoField, typeCachedKeys: 0x368, valuesStart: cpython.NoField,
		values:             valuesNone,
		exceptionTraceback: 0x20,
	},
	{
		minor: 9, runtimeInterpreters: 0x20, interpNext: 0, interpThreads: 8, interpModules: 0x358,
		interpCollector: 0x280, collectorPermanent: 0x2d0,
		tstateNext: 8, tstatePrev: 0, tstateInterp: 0x10, tstateThread: 0xb0, tstateNative: cpython.NoField, tstateFrame: 0x18,
		tstateCFrame: cpython.NoField, cframeFrame: cpython.NoField, tstateExc: 0x90, tstateDict: 0x98, tstateContext: 0xf0, excValue: 8,
		excPrevious: 0x18,
		frameCode:   0x20, framePrevious: 0x18, frameInstr: 0x68, frameLocals: 0x38, frameValues: 0x168, frameTop: 0x48,
		frameStack: 0x40, frameOwner: cpython.NoField, frameFunction: cpython.NoField, frameOfObject: cpython.NoField,
		codeVarNames: 0x48, codeCellVars: 0x58, codeFreeVars: 0x50, codeNames: cpython.NoField, codeKinds: cpython.NoField,
		codeLocals: 0x1c, codeStackSize: 0x20, codeArguments: 0x10,
		functionGlobals: 0x18, functionCode: 0x10, functionDefaults: 0x20, functionKeywords: 0x28, functionClosure: 0x30,
		functionDict: 0x48, generatorFrame: 0x10, generatorState: cpython.NoField,
		tupleItems: 0x18, keysCount: 0x20, keysIndices: 0x28, keysKind: cpython.NoField, typeCachedKeys: 0x360, valuesStart: cpython.NoField,
		values:             valuesNone,
		exceptionTraceback: 0x20,
	},
	{
		minor: 10, runtimeInterpreters: 0x20, interpNext: 0, interpThreads: 8, interpModules: 0x358,
		interpCollector: 0x280, collectorPermanent: 0x2d0,
		tstateNext: 8, tstatePrev: 0, tstateInterp: 0x10, tstateThread: 0xb0, tstateNative: cpython.NoField, tstateFrame: 0x18,
		tstateCFrame: cpython.NoField, cframeFrame: cpython.NoField, tstateExc: 0x90, tstateDict: 0x98, tstateContext: 0xf0, excValue: 8,
		excPrevious: 0x18,
		frameCode:   0x20, framePrevious: 0x18, frameInstr: 0x60, frameLocals: 0x38, frameValues: 0x160, frameTop: 0x50,
		frameStack: 0x40, frameOwner: cpython.NoField, frameFunction: cpython.NoField, frameOfObject: cpython.NoField,
		codeVarNames: 0x48, codeCellVars: 0x58, codeFreeVars: 0x50, codeNames: cpython.NoField, codeKinds: cpython.NoField,
		codeLocals: 0x1c, codeStackSize: 0x20, codeArguments: 0x10,
		functionGlobals: 0x10, functionCode: 0x30, functionDefaults: 0x38, functionKeywords: 0x40, functionClosure: 0x48,
		functionDict: 0x58, generatorFrame: 0x10, generatorState: cpython.NoField,
		tupleItems: 0x18, keysCount: 0x20, keysIndices: 0x28, keysKind: cpython.NoField, typeCachedKeys: 0x368, valuesStart: cpython.NoField,
		values:             valuesNone,
		exceptionTraceback: 0x20,
	},
	{
		minor: 11, runtimeInterpreters: 0x28, interpNext: 0, interpThreads: 0x10, interpModules: 0x378,
		interpCollector: 0x2a0, collectorPermanent: 0x2f0,
		tstateNext: 8, tstatePrev: 0, tstateInterp: 0x10, tstateThread: 0x98, tstateNative: 0xa0, tstateFrame: cpython.NoField,
		tstateCFrame: 0x38, cframeFrame: 8, tstateExc: 0x78, tstateDict: 0x80, tstateContext: 0xe0, excValue: 0, excPrevious: 8,
		frameCode: 0x20, framePrevious: 0x30, frameInstr: 0x38, frameLocals: 0x18, frameValues: 0x48, frameTop: 0x40,
		frameStack: cpython.NoField, frameOwner: 0x45, frameFunction: 0, frameOfObject: 0x18,
		codeVarNames: cpython.NoField, codeCellVars: cpython.NoField, codeFreeVars: cpython.NoField, codeNames: 0x60, codeKinds: 0x68,
		codeLocals: 0x4c, codeStackSize: 0x44, codeArguments: 0x38,
		functionGlobals: 0x10, functionCode: 0x30, functionDefaults: 0x38, functionKeywords: 0x40, functionClosure: 0x48,
		functionDict: 0x58, generatorFrame: 0x50, generatorState: 0x4b,
		tupleItems: 0x18, keysCount: 0x18, keysIndices: 0x20, keysKind: 0xa, typeCachedKeys: 0x368, valuesStart: 0, values: valuesBefore,
		exceptionTraceback: 0x28,
	},
	{
		minor: 12, runtimeInterpreters: 0x28, interpNext: 0, interpThreads: 0x48, interpModules: 0x3b0,
		interpCollector: 0x88, collectorPermanent: 0xd8,
		tstateNext: 8, tstatePrev: 0, tstateInterp: 0x10, tstateThread: 0x88, tstateNative: 0x90, tstateFrame: cpython.NoField,
		tstateCFrame: 0x38, cframeFrame: 0, tstateExc: 0x68, tstateDict: 0x70, tstateContext: 0xd0, excValue: 0, excPrevious: 8,
		frameCode: 0, framePrevious: 8, frameInstr: 0x38, frameLocals: 0x28, frameValues: 0x48, frameTop: 0x40,
		frameStack: cpython.NoField, frameOwner: 0x46, frameFunction: 0x10, frameOfObject: 0x18,
		codeVarNames: cpython.NoField, codeCellVars: cpython.NoField, codeFreeVars: cpython.NoField, codeNames: 0x60, codeKinds: 0x68,
		codeLocals: 0x48, codeStackSize: 0x40, codeArguments: 0x34,
		functionGlobals: 0x10, functionCode: 0x30, functionDefaults: 0x38, functionKeywords: 0x40, functionClosure: 0x48,
		functionDict: 0x58, generatorFrame: 0x48, generatorState: 0x43,
		tupleItems: 0x18, keysCount: 0x18, keysIndices: 0x20, keysKind: 0xa, typeCachedKeys: 0x370, valuesStart: 0, values: valuesTagged,
		exceptionTraceback: 0x28, taggedInt: true, immortal: true,
	},
	{
		minor: 13, runtimeInterpreters: 0x278, interpNext: 0x1c60, interpThreads: 0x1cb0, interpModules: 0x1de8,
		interpCollector: 0x1d00, collectorPermanent: 0x1d50, collectorFirst: 0x18,
		tstateNext: 8, tstatePrev: 0, tstateInterp: 0x10, tstateThread: 0x98, tstateNative: 0xa0, tstateFrame: 0x48,
		tstateCFrame: cpython.NoField, cframeFrame: cpython.NoField, tstateExc: 0x78, tstateDict: 0x80, tstateContext: 0xd0, excValue: 0,
		excPrevious: 8,
		frameCode:   0, framePrevious: 8, frameInstr: 0x38, frameLocals: 0x28, frameValues: 0x48, frameTop: 0x40,
		frameStack: cpython.NoField, frameOwner: 0x46, frameFunction: 0x10, frameOfObject: 0x18,
		codeVarNames: cpython.NoField, codeCellVars: cpython.NoField, codeFreeVars: cpython.NoField, codeNames: 0x60, codeKinds: 0x68,
		codeLocals: 0x48, codeStackSize: 0x40, codeArguments: 0x34,
		functionGlobals: 0x10, functionCode: 0x30, functionDefaults: 0x38, functionKeywords: 0x40, functionClosure: 0x48,
		functionDict: 0x58, generatorFrame: 0x48, generatorState: 0x43,
		tupleItems: 0x18, keysCount: 0x18, keysIndices: 0x20, keysKind: 0xa, typeCachedKeys: 0x370, valuesStart: 8, values: valuesInline,
		exceptionTraceback: 0x28, taggedInt: true, immortal: true,
	},
	{
		minor: 14, runtimeInterpreters: 0x328, interpNext: 0x1c68, interpThreads: 0x1cb0, interpModules: 0x1e08,
		interpCollector: 0x1d08, collectorPermanent: 0x1d50, collectorFirst: 0x18,
		tstateNext: 8, tstatePrev: 0, tstateInterp: 0x10, tstateThread: 0x98, tstateNative: 0xa0, tstateFrame: 0x48,
		tstateCFrame: cpython.NoField, cframeFrame: cpython.NoField, tstateExc: 0x78, tstateDict: 0x80, tstateContext: 0xd0, excValue: 0,
		excPrevious: 8,
		frameCode:   0, framePrevious: 8, frameInstr: 0x38, frameLocals: 0x28, frameValues: 0x50, frameTop: 0x40,
		frameStack: cpython.NoField, frameOwner: 0x4a, frameFunction: 0x10, frameOfObject: 0x18,
		codeVarNames: cpython.NoField, codeCellVars: cpython.NoField, codeFreeVars: cpython.NoField, codeNames: 0x60, codeKinds: 0x68,
		codeLocals: 0x48, codeStackSize: 0x40, codeArguments: 0x34,
		functionGlobals: 0x10, functionCode: 0x30, functionDefaults: 0x38, functionKeywords: 0x40, functionClosure: 0x48,
		functionDict: 0x58, generatorFrame: 0x48, generatorState: 0x43,
		tupleItems: 0x20, keysCount: 0x18, keysIndices: 0x20, keysKind: 0xa, typeCachedKeys: 0x370, valuesStart: 8, values: valuesInline,
		exceptionTraceback: 0x28, taggedInt: true, immortal: true, stackRefs: true,
	},
	{
		minor: 15, runtimeInterpreters: 0x3a8, interpNext: 0x1c60, interpThreads: 0x1ca8, interpModules: 0x1da8,
		interpCollector: 0x1cf0, collectorPermanent: 0x1d38, collectorFirst: 8,
		tstateNext: 8, tstatePrev: 0, tstateInterp: 0x10, tstateThread: 0xb0, tstateNative: 0xb8, tstateFrame: 0x48,
		tstateCFrame: cpython.NoField, cframeFrame: cpython.NoField, tstateExc: 0x90, tstateDict: 0x98, tstateContext: 0xe8, excValue: 0,
		excPrevious: 8,
		frameCode:   0, framePrevious: 8, frameInstr: 0x38, frameLocals: 0x28, frameValues: 0x50, frameTop: 0x40,
		frameStack: cpython.NoField, frameOwner: 0x4a, frameFunction: 0x10, frameOfObject: 0x18,
		codeVarNames: cpython.NoField, codeCellVars: cpython.NoField, codeFreeVars: cpython.NoField, codeNames: 0x60, codeKinds: 0x68,
		codeLocals: 0x48, codeStackSize: 0x40, codeArguments: 0x34,
		functionGlobals: 0x10, functionCode: 0x30, functionDefaults: 0x38, functionKeywords: 0x40, functionClosure: 0x48,
		functionDict: 0x58, generatorFrame: 0x48, generatorState: 0x43, generatorRuns: 4,
		tupleItems: 0x20, keysCount: 0x18, keysIndices: 0x20, keysKind: 0xa, typeCachedKeys: 0x378, valuesStart: 8, values: valuesInline,
		exceptionTraceback: 0x28, taggedInt: true, immortal: true, stackRefs: true,
	},
}

// shift is how much longer the head of an object is than in a build with a GIL, bytes.
func (l *objectLayout) shift() uint64 {
	if l.threaded {
		return threadedShift
	}
	return 0
}

// managedDict is how far before an instance its dictionary is.
func (l *objectLayout) managedDict() uint64 {
	if l.threaded {
		return threadedDict
	}
	return managedDict
}

// threadedMoves are the offsets, in a row of a build with a GIL, that count from the start of an object.
var threadedMoves = []func(*objectLayout) *uint16{
	func(l *objectLayout) *uint16 { return &l.frameOfObject }, func(l *objectLayout) *uint16 { return &l.codeNames },
	func(l *objectLayout) *uint16 { return &l.codeKinds }, func(l *objectLayout) *uint16 { return &l.codeLocals },
	func(l *objectLayout) *uint16 { return &l.codeStackSize }, func(l *objectLayout) *uint16 { return &l.codeArguments },
	func(l *objectLayout) *uint16 { return &l.functionGlobals }, func(l *objectLayout) *uint16 { return &l.functionCode },
	func(l *objectLayout) *uint16 { return &l.functionDefaults }, func(l *objectLayout) *uint16 { return &l.functionKeywords },
	func(l *objectLayout) *uint16 { return &l.functionClosure }, func(l *objectLayout) *uint16 { return &l.functionDict },
	func(l *objectLayout) *uint16 { return &l.generatorFrame }, func(l *objectLayout) *uint16 { return &l.generatorState },
	func(l *objectLayout) *uint16 { return &l.tupleItems }, func(l *objectLayout) *uint16 { return &l.typeCachedKeys },
	func(l *objectLayout) *uint16 { return &l.exceptionTraceback },
}

// withoutGIL is the row of the same version built without a GIL. The structures of the runtime are where the interpreter says.
func (l objectLayout) withoutGIL() objectLayout {
	l.threaded = true
	for _, field := range threadedMoves {
		*field(&l) += threadedShift
	}
	if l.minor >= 14 {
		l.frameOwner += 4 // tlbc_index is before it
	}
	return l
}

func objectLayoutOf(v cpython.Version) (*objectLayout, bool) {
	for i := range objectLayouts {
		if v.Major == 3 && v.Minor == objectLayouts[i].minor {
			row := objectLayouts[i]
			if v.FreeThreaded && row.minor < 13 {
				continue
			}
			if v.FreeThreaded {
				row = row.withoutGIL()
			}
			return &row, true
		}
	}
	return nil, false
}
