// SPDX-License-Identifier: Apache-2.0

package cpython

import (
	"encoding/binary"
	"fmt"

	"github.com/gputrace/gputrace/process"
)

// NoField marks an offset of a field that the version does not have.
const NoField = 0xffff

// EntryKind says how one activation of the eval loop (one native frame) ends in the chain of Python frames.
type EntryKind uint8

// The kinds of entry. The kernel side uses the same numbers.
const (
	EntryEach EntryKind = 1 // 3.10: every frame is an activation of its own
	EntryFlag EntryKind = 2 // 3.11: the frame whose byte at FrameOwner is 1 is the last of its run, and belongs to it
	EntryShim EntryKind = 3 // 3.12+: a frame whose byte at FrameOwner is >= OwnerShim ends the run, and is no frame itself
	EntryCode EntryKind = 4 // 3.8, 3.9: as EntryEach, but only its pc, in Runtime.Eval, tells which native frame is an activation
)

// MaxFrameSize bounds Descriptor.FrameSize, bytes.
const MaxFrameSize = 128

// Descriptor is what the kernel side needs to walk the Python frames of a thread. Offsets and sizes are in bytes; an
// offset of NoField means that the version has no such field.
type Descriptor struct {
	// TLSOffset is the offset of the slot that holds this thread's PyThreadState*, from the thread pointer (the fs base, TPIDR_EL0). When
	// TLSBlock is not NoField, the slot holds a pointer, and the state lies that far behind where it points.
	TLSOffset int64
	TLSBlock  uint16
	// PthreadBytes is how far pthread_self() lies below the thread pointer: 0 on x86-64, where they are equal with glibc.
	PthreadBytes uint16
	// TStateThreadID is PyThreadState.thread_id: pthread_self(). It validates the slot.
	TStateThreadID uint16
	// TStateFrame is the pointer to the innermost frame in PyThreadState. NoField when the cframe leads to it, 3.11 and 3.12.
	TStateFrame uint16
	// TStateCFrame is the cframe pointer in PyThreadState, 3.10 to 3.12. The cframe is a local variable of the eval loop, so
	// its address tells which native frame is an activation. The outermost cframe lies in the thread state itself, belongs
	// to no activation, and its own link is not set: stop there.
	TStateCFrame   uint16
	CFrameFrame    uint16 // the innermost frame in a cframe; NoField in 3.10
	CFramePrevious uint16 // the next outer cframe
	FrameCode      uint16 // the code object, in a frame
	FramePrevious  uint16 // the next outer frame, in a frame
	FrameInstr     uint16 // the last instruction, in a frame: InstrSize says what it is
	FrameOwner     uint16 // the byte that Entry speaks of, in a frame
	FrameSize      uint16 // how much of a frame must be read to have all of these; at most MaxFrameSize
	// FrameCopy is the int32 in a frame that says which copy of the bytecode it runs; 0: the one in the code object. CodeCopies
	// is the pointer to the list of copies in the code object: a word, then pointers. NoField but for 3.14t and 3.15t.
	FrameCopy  uint16
	CodeCopies uint16
	CodeStart  uint16 // the bytecode, in the code object; NoField when it is an object of its own
	ObjectHead uint16 // sizeof(PyObject): 16, or 32 in a build without a GIL
	InstrSize  uint8  // 8: a pointer (prev_instr, instr_ptr). 4: f_lasti, an int: bytes to 3.9, 2-byte units in 3.10
	Entry      EntryKind
	OwnerShim  uint8 // for EntryShim: the lowest owner that marks a shim
}

// lineFormat says how a version codes lines.
type lineFormat uint8

const (
	linePairs     lineFormat = iota + 1 // 3.10, Objects/lnotab_notes.txt
	lineLocations                       // 3.11+, Objects/locations.md
	lineOldPairs                        // to 3.9, Objects/lnotab_notes.txt there
)

// layout is what differs between versions. The offsets are those of the headers that each release installs; a test
// compiles them and compares. 64-bit builds.
type layout struct {
	minor        int
	freeThreaded bool       // built without a GIL
	desc         Descriptor // without TLSOffset and TLSBlock
	debugOffsets bool       // _PyRuntime starts with _Py_DebugOffsets

	runtimeInterpreters uint32 // _PyRuntimeState.interpreters.head
	runtimeKey          uint32 // _PyRuntimeState...autoTSSkey; NoField from 3.15 on: a thread-local variable has its place
	interpNext          uint32 // PyInterpreterState.next
	interpThreads       uint32 // PyInterpreterState.tstate_head, .threads.head
	tstatePrev          uint16 // PyThreadState.prev
	tstateNext          uint16
	tstateInterp        uint16
	tstateNativeID      uint16 // PyThreadState.native_thread_id, 3.11+

	codeFilename   uint16 // PyCodeObject.co_filename
	codeName       uint16
	codeQualname   uint16 // 3.11+
	codeFirstLine  uint16
	codeLineTable  uint16 // co_linetable; co_lnotab to 3.9
	codeBasic      uint16 // tp_basicsize of code, to 3.10: then it is desc.CodeStart
	frameBasic     uint16 // tp_basicsize of frame, to 3.10: then frames are no objects
	generatorBasic uint16 // tp_basicsize of generator, from 3.11 on: it ends with the fixed part of its frame
	asciiSize      uint16 // sizeof(PyASCIIObject)
	compactSize    uint16 // sizeof(PyCompactUnicodeObject)
	textKind       uint8  // lowest bit of kind in PyASCIIObject.state; compact and ascii are behind it
	lines          lineFormat
}

// layouts has a row for every version that is known.
var layouts = []layout{
	{
		minor: 8,
		desc: Descriptor{
			TStateThreadID: 176, TStateFrame: 24, TStateCFrame: NoField, CFrameFrame: NoField, CFramePrevious: NoField,
			FrameCode: 32, FramePrevious: 24, FrameInstr: 104, FrameOwner: NoField, FrameSize: 112, InstrSize: 4, Entry: EntryCode,
			FrameCopy: NoField, CodeCopies: NoField, CodeStart: NoField, ObjectHead: 16,
		},
		runtimeInterpreters: 32, runtimeKey: 1392, interpNext: 0, interpThreads: 8,
		tstatePrev: 0, tstateNext: 8, tstateInterp: 16, tstateNativeID: NoField,
		codeFilename: 104, codeName: 112, codeQualname: NoField, codeFirstLine: 40, codeLineTable: 120,
		codeBasic: 176, frameBasic: 368, generatorBasic: NoField, asciiSize: 48, compactSize: 72, textKind: 2, lines: lineOldPairs,
	},
	{
		minor: 9,
		desc: Descriptor{
			TStateThreadID: 176, TStateFrame: 24, TStateCFrame: NoField, CFrameFrame: NoField, CFramePrevious: NoField,
			FrameCode: 32, FramePrevious: 24, FrameInstr: 104, FrameOwner: NoField, FrameSize: 112, InstrSize: 4, Entry: EntryCode,
			FrameCopy: NoField, CodeCopies: NoField, CodeStart: NoField, ObjectHead: 16,
		},
		runtimeInterpreters: 32, runtimeKey: 584, interpNext: 0, interpThreads: 8,
		tstatePrev: 0, tstateNext: 8, tstateInterp: 16, tstateNativeID: NoField,
		codeFilename: 104, codeName: 112, codeQualname: NoField, codeFirstLine: 40, codeLineTable: 120,
		codeBasic: 176, frameBasic: 368, generatorBasic: NoField, asciiSize: 48, compactSize: 72, textKind: 2, lines: lineOldPairs,
	},
	{
		minor: 10,
		desc: Descriptor{
			TStateThreadID: 176, TStateFrame: 24, TStateCFrame: 48, CFrameFrame: NoField, CFramePrevious: 8,
			FrameCode: 32, FramePrevious: 24, FrameInstr: 96, FrameOwner: NoField, FrameSize: 104, InstrSize: 4, Entry: EntryEach,
			FrameCopy: NoField, CodeCopies: NoField, CodeStart: NoField, ObjectHead: 16,
		},
		runtimeInterpreters: 32, runtimeKey: 584, interpNext: 0, interpThreads: 8,
		tstatePrev: 0, tstateNext: 8, tstateInterp: 16, tstateNativeID: NoField,
		codeFilename: 104, codeName: 112, codeQualname: NoField, codeFirstLine: 40, codeLineTable: 120,
		codeBasic: 176, frameBasic: 360, generatorBasic: NoField, asciiSize: 48, compactSize: 72, textKind: 2, lines: linePairs,
	},
	{
		minor: 11,
		desc: Descriptor{
			TStateThreadID: 152, TStateFrame: NoField, TStateCFrame: 56, CFrameFrame: 8, CFramePrevious: 16,
			FrameCode: 32, FramePrevious: 48, FrameInstr: 56, FrameOwner: 68, FrameSize: 72, InstrSize: 8, Entry: EntryFlag,
			FrameCopy: NoField, CodeCopies: NoField, CodeStart: 184, ObjectHead: 16,
		},
		runtimeInterpreters: 40, runtimeKey: 592, interpNext: 0, interpThreads: 16,
		tstatePrev: 0, tstateNext: 8, tstateInterp: 16, tstateNativeID: 160,
		codeFilename: 112, codeName: 120, codeQualname: 128, codeFirstLine: 72, codeLineTable: 136,
		codeBasic: NoField, frameBasic: NoField, generatorBasic: 152, asciiSize: 48, compactSize: 72, textKind: 2, lines: lineLocations,
	},
	{
		minor: 12,
		desc: Descriptor{
			TStateThreadID: 136, TStateFrame: NoField, TStateCFrame: 56, CFrameFrame: 0, CFramePrevious: 8,
			FrameCode: 0, FramePrevious: 8, FrameInstr: 56, FrameOwner: 70, FrameSize: 72, InstrSize: 8, Entry: EntryShim, OwnerShim: 3,
			FrameCopy: NoField, CodeCopies: NoField, CodeStart: 192, ObjectHead: 16,
		},
		runtimeInterpreters: 40, runtimeKey: 1544, interpNext: 0, interpThreads: 72,
		tstatePrev: 0, tstateNext: 8, tstateInterp: 16, tstateNativeID: 144,
		codeFilename: 112, codeName: 120, codeQualname: 128, codeFirstLine: 68, codeLineTable: 136,
		codeBasic: NoField, frameBasic: NoField, generatorBasic: 144, asciiSize: 40, compactSize: 56, textKind: 2, lines: lineLocations,
	},
	{
		minor: 13,
		desc: Descriptor{
			TStateThreadID: 152, TStateFrame: 72, TStateCFrame: NoField, CFrameFrame: NoField, CFramePrevious: NoField,
			FrameCode: 0, FramePrevious: 8, FrameInstr: 56, FrameOwner: 70, FrameSize: 72, InstrSize: 8, Entry: EntryShim, OwnerShim: 3,
			FrameCopy: NoField, CodeCopies: NoField, CodeStart: 200, ObjectHead: 16,
		},
		debugOffsets:        true,
		runtimeInterpreters: 632, runtimeKey: 2160, interpNext: 7264, interpThreads: 7344,
		tstatePrev: 0, tstateNext: 8, tstateInterp: 16, tstateNativeID: 160,
		codeFilename: 112, codeName: 120, codeQualname: 128, codeFirstLine: 68, codeLineTable: 136,
		codeBasic: NoField, frameBasic: NoField, generatorBasic: 144, asciiSize: 40, compactSize: 56, textKind: 2, lines: lineLocations,
	},
	{
		minor: 13, freeThreaded: true,
		desc: Descriptor{
			TStateThreadID: 152, TStateFrame: 72, TStateCFrame: NoField, CFrameFrame: NoField, CFramePrevious: NoField,
			FrameCode: 0, FramePrevious: 8, FrameInstr: 56, FrameOwner: 70, FrameSize: 72, InstrSize: 8, Entry: EntryShim, OwnerShim: 3,
			FrameCopy: NoField, CodeCopies: NoField, CodeStart: 216, ObjectHead: 32,
		},
		debugOffsets:        true,
		runtimeInterpreters: 632, runtimeKey: 2160, interpNext: 7264, interpThreads: 7344,
		tstatePrev: 0, tstateNext: 8, tstateInterp: 16, tstateNativeID: 160,
		codeFilename: 128, codeName: 136, codeQualname: 144, codeFirstLine: 84, codeLineTable: 152,
		codeBasic: NoField, frameBasic: NoField, generatorBasic: 160, asciiSize: 56, compactSize: 72, textKind: 2, lines: lineLocations,
	},
	{
		minor: 14,
		desc: Descriptor{
			TStateThreadID: 152, TStateFrame: 72, TStateCFrame: NoField, CFrameFrame: NoField, CFramePrevious: NoField,
			FrameCode: 0, FramePrevious: 8, FrameInstr: 56, FrameOwner: 74, FrameSize: 80, InstrSize: 8, Entry: EntryShim, OwnerShim: 3,
			FrameCopy: NoField, CodeCopies: NoField, CodeStart: 208, ObjectHead: 16,
		},
		debugOffsets:        true,
		runtimeInterpreters: 808, runtimeKey: 2336, interpNext: 7272, interpThreads: 7344,
		tstatePrev: 0, tstateNext: 8, tstateInterp: 16, tstateNativeID: 160,
		codeFilename: 112, codeName: 120, codeQualname: 128, codeFirstLine: 68, codeLineTable: 136,
		codeBasic: NoField, frameBasic: NoField, generatorBasic: 152, asciiSize: 40, compactSize: 56, textKind: 2, lines: lineLocations,
	},
	{
		minor: 14, freeThreaded: true,
		desc: Descriptor{
			TStateThreadID: 152, TStateFrame: 72, TStateCFrame: NoField, CFrameFrame: NoField, CFramePrevious: NoField,
			FrameCode: 0, FramePrevious: 8, FrameInstr: 56, FrameOwner: 78, FrameSize: 80, InstrSize: 8, Entry: EntryShim, OwnerShim: 3,
			FrameCopy: 72, CodeCopies: 224, CodeStart: 232, ObjectHead: 32,
		},
		debugOffsets:        true,
		runtimeInterpreters: 808, runtimeKey: 2336, interpNext: 7272, interpThreads: 7344,
		tstatePrev: 0, tstateNext: 8, tstateInterp: 16, tstateNativeID: 160,
		codeFilename: 128, codeName: 136, codeQualname: 144, codeFirstLine: 84, codeLineTable: 152,
		codeBasic: NoField, frameBasic: NoField, generatorBasic: 168, asciiSize: 56, compactSize: 72, textKind: 8, lines: lineLocations,
	},
	{
		minor: 15,
		desc: Descriptor{
			TStateThreadID: 176, TStateFrame: 72, TStateCFrame: NoField, CFrameFrame: NoField, CFramePrevious: NoField,
			FrameCode: 0, FramePrevious: 8, FrameInstr: 56, FrameOwner: 74, FrameSize: 80, InstrSize: 8, Entry: EntryShim, OwnerShim: 3,
			FrameCopy: NoField, CodeCopies: NoField, CodeStart: 208, ObjectHead: 16,
		},
		debugOffsets:        true,
		runtimeInterpreters: 936, runtimeKey: NoField, interpNext: 7264, interpThreads: 7336,
		tstatePrev: 0, tstateNext: 8, tstateInterp: 16, tstateNativeID: 184,
		codeFilename: 112, codeName: 120, codeQualname: 128, codeFirstLine: 68, codeLineTable: 136,
		codeBasic: NoField, frameBasic: NoField, generatorBasic: 152, asciiSize: 40, compactSize: 56, textKind: 2, lines: lineLocations,
	},
	{
		minor: 15, freeThreaded: true,
		desc: Descriptor{
			TStateThreadID: 176, TStateFrame: 72, TStateCFrame: NoField, CFrameFrame: NoField, CFramePrevious: NoField,
			FrameCode: 0, FramePrevious: 8, FrameInstr: 56, FrameOwner: 78, FrameSize: 80, InstrSize: 8, Entry: EntryShim, OwnerShim: 3,
			FrameCopy: 72, CodeCopies: 224, CodeStart: 232, ObjectHead: 32,
		},
		debugOffsets:        true,
		runtimeInterpreters: 936, runtimeKey: NoField, interpNext: 7264, interpThreads: 7336,
		tstatePrev: 0, tstateNext: 8, tstateInterp: 16, tstateNativeID: 184,
		codeFilename: 128, codeName: 136, codeQualname: 144, codeFirstLine: 84, codeLineTable: 152,
		codeBasic: NoField, frameBasic: NoField, generatorBasic: 168, asciiSize: 56, compactSize: 72, textKind: 8, lines: lineLocations,
	},
}

func layoutOf(v Version) (*layout, bool) {
	for i := range layouts {
		if v.Major == 3 && v.Minor == layouts[i].minor && v.FreeThreaded == layouts[i].freeThreaded {
			row := layouts[i]
			return &row, true
		}
	}
	return nil, false
}

// debugWord ties a word of _Py_DebugOffsets to the field of the layout that it describes.
type debugWord struct {
	name string // as the header has it
	// The index of the 8-byte word in the table of a version, from the cookie; 0: it has no such word, or no use for it.
	in13, in14, in15 int
	threaded         bool // of builds without a GIL only
	small            func(*layout) *uint16
	large            func(*layout) *uint32
}

// debugWords is _Py_DebugOffsets (Include/internal/pycore_runtime.h of 3.13, pycore_debug_offsets.h from 3.14 on).
var debugWords = []debugWord{
	{"runtime_state.interpreters_head", 5, 5, 5, false, nil, func(l *layout) *uint32 { return &l.runtimeInterpreters }},
	{"interpreter_state.next", 8, 8, 8, false, nil, func(l *layout) *uint32 { return &l.interpNext }},
	{"interpreter_state.threads_head", 9, 9, 9, false, nil, func(l *layout) *uint32 { return &l.interpThreads }},
	{"thread_state.prev", 20, 23, 23, false, func(l *layout) *uint16 { return &l.tstatePrev }, nil},
	{"thread_state.next", 21, 24, 24, false, func(l *layout) *uint16 { return &l.tstateNext }, nil},
	{"thread_state.interp", 22, 25, 25, false, func(l *layout) *uint16 { return &l.tstateInterp }, nil},
	{"thread_state.current_frame", 23, 26, 26, false, func(l *layout) *uint16 { return &l.desc.TStateFrame }, nil},
	{"thread_state.thread_id", 24, 27, 30, false, func(l *layout) *uint16 { return &l.desc.TStateThreadID }, nil},
	{"thread_state.native_thread_id", 25, 28, 31, false, func(l *layout) *uint16 { return &l.tstateNativeID }, nil},
	{"interpreter_frame.previous", 29, 32, 40, false, func(l *layout) *uint16 { return &l.desc.FramePrevious }, nil},
	{"interpreter_frame.executable", 30, 33, 41, false, func(l *layout) *uint16 { return &l.desc.FrameCode }, nil},
	{"interpreter_frame.instr_ptr", 31, 34, 42, false, func(l *layout) *uint16 { return &l.desc.FrameInstr }, nil},
	{"interpreter_frame.owner", 33, 36, 44, false, func(l *layout) *uint16 { return &l.desc.FrameOwner }, nil},
	{"interpreter_frame.tlbc_index", 0, 38, 46, true, func(l *layout) *uint16 { return &l.desc.FrameCopy }, nil},
	{"code_object.filename", 35, 40, 48, false, func(l *layout) *uint16 { return &l.codeFilename }, nil},
	{"code_object.name", 36, 41, 49, false, func(l *layout) *uint16 { return &l.codeName }, nil},
	{"code_object.qualname", 37, 42, 50, false, func(l *layout) *uint16 { return &l.codeQualname }, nil},
	{"code_object.linetable", 38, 43, 51, false, func(l *layout) *uint16 { return &l.codeLineTable }, nil},
	{"code_object.firstlineno", 39, 44, 52, false, func(l *layout) *uint16 { return &l.codeFirstLine }, nil},
	{"code_object.co_code_adaptive", 43, 48, 56, false, func(l *layout) *uint16 { return &l.desc.CodeStart }, nil},
	{"code_object.co_tlbc", 0, 49, 57, true, func(l *layout) *uint16 { return &l.desc.CodeCopies }, nil},
}

// word is the index of a word in the table of this version, 0 when it is not there.
func (l *layout) word(w *debugWord) int {
	switch {
	case w.threaded && !l.freeThreaded:
		return 0
	case l.minor == 13:
		return w.in13
	case l.minor == 14:
		return w.in14
	}
	return w.in15
}

// Bounds for what the interpreter says of itself: structures of the runtime are below 1 MiB, objects below 4 KiB.
const (
	maxLargeOffset = 1 << 20
	maxSmallOffset = 4096
)

// withDebugOffsets takes from the running interpreter what it says of itself: a build may have moved fields.
func (l *layout) withDebugOffsets(mem process.Memory, runtime uint64) (*layout, error) {
	last := 0
	for i := range debugWords {
		last = max(last, l.word(&debugWords[i]))
	}
	table := make([]byte, 8*(last+1))
	if _, err := mem.ReadAt(table, runtime); err != nil {
		return nil, fmt.Errorf("read debug offsets: %w", err)
	}
	out := *l
	for i := range debugWords {
		w := &debugWords[i]
		at := l.word(w)
		v := binary.LittleEndian.Uint64(table[8*at:])
		switch {
		case at == 0:
		case w.large != nil && v < maxLargeOffset:
			*w.large(&out) = uint32(v)
		case w.small != nil && v < maxSmallOffset:
			*w.small(&out) = uint16(v)
		default:
			return nil, fmt.Errorf("debug offset of %s is %d: out of bounds", w.name, v)
		}
	}
	d := &out.desc
	d.FrameSize = max(d.FrameCode+8, d.FramePrevious+8, d.FrameInstr+8, (d.FrameOwner+8)&^7)
	if d.FrameCopy != NoField {
		d.FrameSize = max(d.FrameSize, d.FrameCopy+8)
	}
	if d.FrameSize > MaxFrameSize {
		return nil, fmt.Errorf("debug offsets want %d bytes of a frame: more than %d", d.FrameSize, MaxFrameSize)
	}
	return &out, nil
}
