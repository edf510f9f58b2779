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
)

// MaxFrameSize bounds Descriptor.FrameSize, bytes.
const MaxFrameSize = 128

// Descriptor is what the kernel side needs to walk the Python frames of a thread. Offsets and sizes are in bytes; an
// offset of NoField means that the version has no such field.
type Descriptor struct {
	// TLSOffset is that of the slot that holds this thread's PyThreadState*, from the thread pointer (the fs base).
	TLSOffset int64
	// TStateThreadID is PyThreadState.thread_id: pthread_self(), which is the fs base with glibc. It validates the slot.
	TStateThreadID uint16
	// TStateFrame is the pointer to the innermost frame in PyThreadState. NoField when the cframe leads to it.
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
	InstrSize      uint8  // 8: a pointer (prev_instr, instr_ptr). 4: f_lasti, an int that counts 2-byte units (3.10)
	Entry          EntryKind
	OwnerShim      uint8 // for EntryShim: the lowest owner that marks a shim
}

// lineFormat says how a version codes lines.
type lineFormat uint8

const (
	linePairs     lineFormat = iota + 1 // 3.10, Objects/lnotab_notes.txt
	lineLocations                       // 3.11+, Objects/locations.md
	lineOldPairs                        // to 3.9, Objects/lnotab_notes.txt there
)

// layout is what differs between versions. The offsets are those of the headers that each release installs; a test
// compiles them and compares. 64-bit builds with a GIL.
type layout struct {
	minor        int
	desc         Descriptor // without TLSOffset
	debugOffsets bool       // _PyRuntime starts with _Py_DebugOffsets

	runtimeInterpreters uint32 // _PyRuntimeState.interpreters.head
	runtimeKey          uint32 // _PyRuntimeState...autoTSSkey
	interpNext          uint32 // PyInterpreterState.next
	interpThreads       uint32 // PyInterpreterState.tstate_head, .threads.head
	tstatePrev          uint16 // PyThreadState.prev
	tstateNext          uint16
	tstateInterp        uint16
	tstateNativeID      uint16 // PyThreadState.native_thread_id, 3.11+

	codeFilename  uint16 // PyCodeObject.co_filename
	codeName      uint16
	codeQualname  uint16 // 3.11+
	codeFirstLine uint16
	codeLineTable uint16
	codeStart     uint16 // co_code_adaptive: where the bytecode is; NoField when it is an object of its own
	asciiSize     uint16 // sizeof(PyASCIIObject)
	compactSize   uint16 // sizeof(PyCompactUnicodeObject)
	lines         lineFormat
}

// layouts has a row for every version that is known.
var layouts = []layout{
	{
		minor: 10,
		desc: Descriptor{
			TStateThreadID: 176, TStateFrame: 24, TStateCFrame: 48, CFrameFrame: NoField, CFramePrevious: 8,
			FrameCode: 32, FramePrevious: 24, FrameInstr: 96, FrameOwner: NoField, FrameSize: 104, InstrSize: 4, Entry: EntryEach,
		},
		runtimeInterpreters: 32, runtimeKey: 584, interpNext: 0, interpThreads: 8,
		tstatePrev: 0, tstateNext: 8, tstateInterp: 16, tstateNativeID: NoField,
		codeFilename: 104, codeName: 112, codeQualname: NoField, codeFirstLine: 40, codeLineTable: 120, codeStart: NoField,
		asciiSize: 48, compactSize: 72, lines: linePairs,
	},
	{
		minor: 11,
		desc: Descriptor{
			TStateThreadID: 152, TStateFrame: NoField, TStateCFrame: 56, CFrameFrame: 8, CFramePrevious: 16,
			FrameCode: 32, FramePrevious: 48, FrameInstr: 56, FrameOwner: 68, FrameSize: 72, InstrSize: 8, Entry: EntryFlag,
		},
		runtimeInterpreters: 40, runtimeKey: 592, interpNext: 0, interpThreads: 16,
		tstatePrev: 0, tstateNext: 8, tstateInterp: 16, tstateNativeID: 160,
		codeFilename: 112, codeName: 120, codeQualname: 128, codeFirstLine: 72, codeLineTable: 136, codeStart: 184,
		asciiSize: 48, compactSize: 72, lines: lineLocations,
	},
	{
		minor: 12,
		desc: Descriptor{
			TStateThreadID: 136, TStateFrame: NoField, TStateCFrame: 56, CFrameFrame: 0, CFramePrevious: 8,
			FrameCode: 0, FramePrevious: 8, FrameInstr: 56, FrameOwner: 70, FrameSize: 72, InstrSize: 8, Entry: EntryShim, OwnerShim: 3,
		},
		runtimeInterpreters: 40, runtimeKey: 1544, interpNext: 0, interpThreads: 72,
		tstatePrev: 0, tstateNext: 8, tstateInterp: 16, tstateNativeID: 144,
		codeFilename: 112, codeName: 120, codeQualname: 128, codeFirstLine: 68, codeLineTable: 136, codeStart: 192,
		asciiSize: 40, compactSize: 56, lines: lineLocations,
	},
	{
		minor: 13,
		desc: Descriptor{
			TStateThreadID: 152, TStateFrame: 72, TStateCFrame: NoField, CFrameFrame: NoField, CFramePrevious: NoField,
			FrameCode: 0, FramePrevious: 8, FrameInstr: 56, FrameOwner: 70, FrameSize: 72, InstrSize: 8, Entry: EntryShim, OwnerShim: 3,
		},
		debugOffsets:        true,
		runtimeInterpreters: 632, runtimeKey: 2160, interpNext: 7264, interpThreads: 7344,
		tstatePrev: 0, tstateNext: 8, tstateInterp: 16, tstateNativeID: 160,
		codeFilename: 112, codeName: 120, codeQualname: 128, codeFirstLine: 68, codeLineTable: 136, codeStart: 200,
		asciiSize: 40, compactSize: 56, lines: lineLocations,
	},
}

func layoutOf(v Version) (*layout, bool) {
	for i := range layouts {
		if v.Major == 3 && v.Minor == layouts[i].minor && !v.FreeThreaded {
			row := layouts[i]
			return &row, true
		}
	}
	return nil, false
}

// debugWord ties a word of _Py_DebugOffsets to the field of the layout that it describes.
type debugWord struct {
	word  int    // index of the 8-byte word, from the cookie
	name  string // as the header has it
	small func(*layout) *uint16
	large func(*layout) *uint32
}

// debugWords13 is _Py_DebugOffsets of 3.13 (Include/internal/pycore_runtime.h).
var debugWords13 = []debugWord{
	{5, "runtime_state.interpreters_head", nil, func(l *layout) *uint32 { return &l.runtimeInterpreters }},
	{8, "interpreter_state.next", nil, func(l *layout) *uint32 { return &l.interpNext }},
	{9, "interpreter_state.threads_head", nil, func(l *layout) *uint32 { return &l.interpThreads }},
	{20, "thread_state.prev", func(l *layout) *uint16 { return &l.tstatePrev }, nil},
	{21, "thread_state.next", func(l *layout) *uint16 { return &l.tstateNext }, nil},
	{22, "thread_state.interp", func(l *layout) *uint16 { return &l.tstateInterp }, nil},
	{23, "thread_state.current_frame", func(l *layout) *uint16 { return &l.desc.TStateFrame }, nil},
	{24, "thread_state.thread_id", func(l *layout) *uint16 { return &l.desc.TStateThreadID }, nil},
	{25, "thread_state.native_thread_id", func(l *layout) *uint16 { return &l.tstateNativeID }, nil},
	{29, "interpreter_frame.previous", func(l *layout) *uint16 { return &l.desc.FramePrevious }, nil},
	{30, "interpreter_frame.executable", func(l *layout) *uint16 { return &l.desc.FrameCode }, nil},
	{31, "interpreter_frame.instr_ptr", func(l *layout) *uint16 { return &l.desc.FrameInstr }, nil},
	{33, "interpreter_frame.owner", func(l *layout) *uint16 { return &l.desc.FrameOwner }, nil},
	{35, "code_object.filename", func(l *layout) *uint16 { return &l.codeFilename }, nil},
	{36, "code_object.name", func(l *layout) *uint16 { return &l.codeName }, nil},
	{37, "code_object.qualname", func(l *layout) *uint16 { return &l.codeQualname }, nil},
	{38, "code_object.linetable", func(l *layout) *uint16 { return &l.codeLineTable }, nil},
	{39, "code_object.firstlineno", func(l *layout) *uint16 { return &l.codeFirstLine }, nil},
	{43, "code_object.co_code_adaptive", func(l *layout) *uint16 { return &l.codeStart }, nil},
}

// Bounds for what the interpreter says of itself: structures of the runtime are below 1 MiB, objects below 4 KiB.
const (
	maxLargeOffset = 1 << 20
	maxSmallOffset = 4096
)

// withDebugOffsets takes from the running interpreter what it says of itself: a build may have moved fields.
func (l *layout) withDebugOffsets(mem process.Memory, runtime uint64) (*layout, error) {
	words := debugWords13
	table := make([]byte, 8*(words[len(words)-1].word+1))
	if _, err := mem.ReadAt(table, runtime); err != nil {
		return nil, fmt.Errorf("read debug offsets: %w", err)
	}
	out := *l
	for _, w := range words {
		v := binary.LittleEndian.Uint64(table[8*w.word:])
		switch {
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
	if d.FrameSize > MaxFrameSize {
		return nil, fmt.Errorf("debug offsets want %d bytes of a frame: more than %d", d.FrameSize, MaxFrameSize)
	}
	return &out, nil
}
