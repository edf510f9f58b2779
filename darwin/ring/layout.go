// SPDX-License-Identifier: Apache-2.0

// Package ring reads what the shim for macOS writes: a file that it and gputrace share, with a header and a ring of records. The
// layout is that of darwin/shim/ring.h. Nothing here depends on macOS: a test reads the rings of the shim on Linux.
package ring

// The file and its header, as in ring.h; a test compares them. Sizes and offsets are bytes.
const (
	magic       = 0x67707472
	version     = 4
	headerBytes = 16384

	offMagic    = 0
	offVersion  = 4
	offArch     = 6
	offPID      = 8
	offStarted  = 12
	offCapacity = 16
	offTime     = 24
	offClosed   = 32
	offReader   = 40
	offHead     = 64
	offTail     = 128
	offStacks   = 192
	offNames    = 200
	offCounters = 208
	offPending  = offCounters + int(hookCount)*counterBytes
	offAsked    = offPending + pendingSlots*pendingBytes
	offAnswered = offAsked + 8
	offKind     = offAsked + 16
	offGot      = offAsked + 40
	offTook     = offAsked + 48
	offName     = offAsked + 56

	counterBytes = 64
	pendingBytes = 32
	pendingSlots = 64
	answerBytes  = 1 << 20
	nameBytes    = 64
	pageBytes    = 4096
	maxPages     = 255
	maxSizes     = 1 << 16
	sizeBytes    = 16
	regionBytes  = 32
	imageBytes   = 24

	recordBytes  = 8
	eventBytes   = 88
	stackBytes   = 24
	frameBytes   = 24
	codeBytes    = 64
	symbolBytes  = 40
	countersSize = 56
	wordsBytes   = 16
)

// Hook is a function that the shim replaces, or a group of them that is counted together.
type Hook uint16

// The hooks, in the order of ring.h.
const (
	HookAllocate Hook = iota // a request of PyTorch's allocator
	HookRelease              // a block is given back to it
	HookHeap                 // a MTLHeap is made
	HookResource             // a buffer or texture is made
	HookDealloc              // a heap or a resource is freed
	HookPurge                // memory is given back before its object is freed
	HookCounters             // the device's own figures were read
	hookCount
)

var hookNames = [hookCount]string{
	"MPSAllocator allocate", "MPSAllocator Delete", "MTLDevice newHeap", "Metal newBuffer, newTexture", "Metal dealloc",
	"Metal setPurgeableState", "MTLDevice currentAllocatedSize",
}

func (h Hook) String() string {
	if h < hookCount {
		return hookNames[h]
	}
	return "unknown hook"
}

// Reasons, in the order of ring.h.
var (
	quietNames = [...]string{"within another", "nothing changed", "foreign memory"}
	dropNames  = [...]string{"ring full", "too many threads"}
)

// Type is what a record is.
type Type uint16

// The types, as in ring.h.
const (
	TypeEvent   Type = 1
	TypeStack   Type = 2
	TypeCode    Type = 3
	TypeSymbol  Type = 4
	TypeCounter Type = 5
	TypeWords   Type = 6
)

// Python says how the Python part of a stack was read.
type Python uint16

// As in ring.h.
const (
	PythonNone    Python = iota // none runs
	PythonRead                  // to the outermost frame
	PythonCut                   // more frames than fit
	PythonUnknown               // of a version that is not known
	PythonBroken                // the chain of frames made no sense
)

// Flags of an event, as in ring.h.
const (
	FlagFailed   = 1 // the request was refused
	FlagImported = 2 // it has no memory of its own
)

// Event is something that happened. Unknown figures are event.Unknown.
type Event struct {
	Hook         Hook
	Time, Thread uint64
	Object       uint64 // the MTLBuffer, MTLHeap ...
	Requested    uint64 // bytes that were asked for
	Size         uint64 // bytes of the object
	Heap         uint64 // the MTLHeap that it is in; 0: none
	Offset       uint64 // in the heap
	Stack        uint64 // 0: none
	Flags        uint64
	Allocated    uint64 // the allocator's own total
}

// Frame is a Python frame.
type Frame struct {
	Code  uint64 // as in Code.ID
	Instr uint64 // the raw word of the frame
	Entry bool   // the last frame of one activation of the eval loop
}

// Stack is a stack, leaf first.
type Stack struct {
	Python Python
	ID     uint64
	Native []uint64 // pcs
	Frames []Frame
}

// Code is a code object.
type Code struct {
	ID, Address          uint64
	FirstLine            int
	Qualname, Name, File string // empty: not read
	LineTable            []byte
	Minor                int // of Python 3
	FreeThreaded         bool
}

// Symbol says what is at a native pc.
type Symbol struct {
	PC, Base, Start uint64 // of the image, of the function; 0: not known
	Path, Name      string
}

// Counters are a device's own figures, bytes.
type Counters struct {
	Time, Thread, Device            uint64
	Allocated, Recommended, Largest uint64
}

// Words is something that the shim found.
type Words struct{ Key, Value string }

// Pending is a request that was entered and has not returned.
type Pending struct{ Thread, Time, Size, Stack uint64 }
