// SPDX-License-Identifier: Apache-2.0

// Package event is the model of what happens to GPU memory: every source (the live Linux tracer, the macOS backend, a
// recording) produces these values, and everything downstream consumes nothing else.
package event

import "fmt"

// Unknown marks a size, stream or total that was not observed. It is never 0: 0 is a real value.
const Unknown = ^uint64(0)

// Kind is what happened.
type Kind uint8

// The kinds are written to files: never renumber.
const (
	KindAlloc       Kind = 1 // memory was allocated: Addr, Size
	KindFree        Kind = 2 // memory was freed: Addr; applied when the call is entered
	KindFreeFailed  Kind = 3 // this thread's last KindFree, KindUnmap or KindReset of Addr failed: undo it
	KindOutOfMemory Kind = 4 // a request of Size bytes was refused
	KindMap         Kind = 5 // the physical memory Handle was mapped at Addr: Size
	KindUnmap       Kind = 6 // Size bytes from Addr on were unmapped; applied when the call is entered
	KindRetain      Kind = 7 // the handle Addr has one more reference: it takes one more free to free it
	// KindReset: the context Addr was destroyed with all memory in it; applied when the call is entered. Addr 0: the
	// primary context of the device, and the memory of its pools.
	KindReset Kind = 8
	KindTrim  Kind = 9 // the pool Addr returned unused memory to the driver, except Size bytes. Addr 0: the graphs' pool
	// KindMark is no change of memory: a step may begin here, as Stack says by what it was called. Call is the function.
	KindMark Kind = 10
)

var kindNames = map[Kind]string{
	KindAlloc: "alloc", KindFree: "free", KindFreeFailed: "free_failed", KindOutOfMemory: "oom", KindMap: "map",
	KindUnmap: "unmap", KindRetain: "retain", KindReset: "reset", KindTrim: "trim",
	KindMark: "mark",
}

func (k Kind) String() string { return name(kindNames, k, "kind") }

// Layer is who counts the memory. Layers nest: a torch block lies inside a device allocation (a segment).
type Layer uint8

// The layers are written to files: never renumber.
const (
	LayerTorch   Layer = 1 // blocks of a framework's allocator: PyTorch's, or another one, as Device.Allocator says
	LayerDevice  Layer = 2 // memory obtained from the GPU driver
	LayerHost    Layer = 3 // pinned host memory
	LayerShared  Layer = 4 // memory that another process or API owns, and that was opened or imported here
	LayerVirtual Layer = 5 // addresses without memory of their own: reserved ranges, graph nodes, multicast objects
	LayerHolder  Layer = 6 // what contains memory and is none itself: contexts, pools, imported external memory
)

var layerNames = map[Layer]string{
	LayerTorch: "torch", LayerDevice: "device", LayerHost: "host", LayerShared: "shared", LayerVirtual: "virtual",
	LayerHolder: "holder",
}

func (l Layer) String() string { return name(layerNames, l, "layer") }

// Object is what Addr is: an address, or a handle of some sort. Handles of different sorts can have the same number.
type Object uint8

// The objects are written to files: never renumber.
const (
	ObjectMemory   Object = 0 // an address
	ObjectPhysical Object = 1 // physical memory, which is mapped and unmapped (cuMemCreate)
	ObjectArray    Object = 2 // an array or mipmapped array
	ObjectPool     Object = 3 // a pool of stream-ordered memory
	ObjectContext  Object = 4
	ObjectExternal Object = 5 // imported memory of a graphics API
)

var objectNames = map[Object]string{
	ObjectMemory: "memory", ObjectPhysical: "physical", ObjectArray: "array", ObjectPool: "pool", ObjectContext: "context",
	ObjectExternal: "external",
}

func (o Object) String() string { return name(objectNames, o, "object") }

// DeviceType is the number c10::DeviceType gives to a backend (torch/headeronly/core/DeviceType.h), and above it the
// Allocator. The numbers that the tracer can see are named; PrivateUse1 moved from 19 (PyTorch 1.13) to 20 (2.x).
type DeviceType uint8

// Backends whose caching allocator reports through c10::reportMemoryUsageToProfiler.
const (
	DeviceCPU  DeviceType = 0
	DeviceCUDA DeviceType = 1
	DeviceHIP  DeviceType = 6
	DeviceXPU  DeviceType = 12
)

var deviceTypeNames = map[DeviceType]string{DeviceCPU: "cpu", DeviceCUDA: "cuda", DeviceHIP: "hip", DeviceXPU: "xpu", deviceMPS: "mps"}

// deviceMPS is macOS's, whose allocator does not report so: its calls are seen by a library in the process.
const deviceMPS DeviceType = 13

// MPS reports whether it is the GPU of a Mac.
func (t DeviceType) MPS() bool { return t == deviceMPS }

func (t DeviceType) String() string { return name(deviceTypeNames, t.Physical(), "device") }

// Device is one device as the program numbers it. Index -1 means that the ordinal is not known.
type Device struct {
	Type  DeviceType
	Index int8
}

// String returns PyTorch's spelling, "cuda:0"; a device whose ordinal is not known is "cuda:?".
func (d Device) String() string {
	if d.Index < 0 {
		return d.Type.String() + ":?"
	}
	return fmt.Sprintf("%s:%d", d.Type, d.Index)
}

// Event is one thing that happened to memory.
type Event struct {
	Time   uint64 // CLOCK_BOOTTIME, nanoseconds
	PID    uint32 // process, as the tracer's PID namespace numbers it
	TID    uint32 // thread
	Kind   Kind
	Layer  Layer
	Object Object // what Addr is
	Device Device
	Addr   uint64
	// Size is bytes: of the block (torch), as passed to the call or computed from its dimensions (other layers). Unknown
	// for a free of another layer than torch's, for one of an allocator whose frees do not say it, and for memory that was
	// opened or imported without a size.
	Size uint64
	// Handle is the physical memory (KindMap) or the pool (KindAlloc) that the memory is from, of the BFC allocator which one
	// it is; Unknown when not known.
	Handle uint64
	// Context is the context that was current, as far as the thread was seen to choose one; Unknown otherwise.
	Context uint64

	Requested uint64 // torch: bytes the program asked for; Unknown when not observed
	Stream    uint64 // torch: raw stream handle, 0 = default; Unknown when not observed
	// Allocated is, on the torch layer, the allocator's own total after this event, bytes; Unknown elsewhere. An allocator for MPS
	// reports none: there it is the sum of the blocks that were seen, if that is all of them.
	Allocated uint64
	Reserved  uint64 // torch: the allocator's segments after this event, bytes; Unknown elsewhere

	Call  string  // the function that the program called: "cudaMalloc"; empty on the torch layer, but for a mark
	Stack StackID // 0: no stack was captured

	Autograd Autograd // torch: where autograd was at an allocation
}

// Autograd is where PyTorch's autograd was when a thread allocated. Forward numbers the nodes of the graph, backward runs them; an
// operator makes its node before it allocates. The zero value: nothing is known.
type Autograd struct {
	Next       uint64 // the number that the thread's next node gets; means nothing when Thread is 0
	Node       uint64 // when Running, the number of the node that runs; Unknown: it has none, as those that add up gradients
	Thread     uint32 // the thread, as PyTorch numbers it; 0: not known, or it has made no node
	NodeThread uint32 // the thread that made the node that runs: numbers are of a thread
	Running    bool   // a node runs: the allocation is one of the backward pass
	Class      string // of the node that runs: "AddmmBackward0", "PyNode"; empty: not known
}

// StackID identifies a stack within a process: a hash made in the kernel from the process and its frames.
type StackID uint64

// StackOverLimit is the stack of events whose own stack was not kept, because the source had as many different ones as it may
// keep. It has one frame, with the name OverLimit.
const (
	StackOverLimit StackID = 1<<64 - 1
	OverLimit              = "[over the limit]"
)

// StackStatus is how complete a stack is.
type StackStatus uint8

// Why a stack does not reach the outermost frame, or how it does. The numbers are written to files: never renumber.
const (
	StatusOK          StackStatus = 0
	StatusNoMapping   StackStatus = 1 // a pc in no known executable mapping
	StatusNoRow       StackStatus = 2 // a pc without unwind information
	StatusBadRule     StackStatus = 3 // unwind information that the kernel cannot evaluate
	StatusUnreadable  StackStatus = 4 // a stack page that could not be read
	StatusOrder       StackStatus = 5 // a frame that does not lie above its callee
	StatusTooDeep     StackStatus = 6 // more frames than fit; the root side is cut
	StatusPythonState StackStatus = 7 // native frames complete, Python frames not readable, or more or fewer than eval loops ran (3.8, 3.9)
	StatusNoScratch   StackStatus = 8 // the kernel had no memory for the unwinder
	StatusLost        StackStatus = 9 // the stack record did not fit the ring
	// StatusUnwound is complete: the kernel could not unwind it, and it was unwound from a copy.
	StatusUnwound StackStatus = 10
	// StatusGuessed was unwound from a copy to the outermost frame, partly by frame pointers: code without unwind information,
	// such as a JIT compiler's, lies in between. A frame next to it may be missing.
	StatusGuessed  StackStatus = 11
	StatusCopyEnds StackStatus = 12 // it was unwound from a copy that ends before the outermost frame
	// StatusOverLimit is the status of StackOverLimit.
	StatusOverLimit StackStatus = 13
)

var statusNames = map[StackStatus]string{
	StatusOK: "complete", StatusNoMapping: "no mapping", StatusNoRow: "no unwind row", StatusBadRule: "unsupported rule",
	StatusUnreadable: "unreadable", StatusOrder: "frames out of order", StatusTooDeep: "too deep",
	StatusPythonState: "no Python state", StatusNoScratch: "no scratch", StatusLost: "lost",
	StatusUnwound: "complete, unwound from a copy", StatusGuessed: "partly guessed", StatusCopyEnds: "copy too short",
	StatusOverLimit: "over the limit",
}

func (s StackStatus) String() string { return name(statusNames, s, "status") }

// Complete reports whether the stack reaches the outermost frame and nothing in it is a guess.
func (s StackStatus) Complete() bool { return s == StatusOK || s == StatusUnwound }

// FrameKind is the kind of a frame's code.
type FrameKind uint8

// A native frame has a Module and an Addr, a Python frame a File and a Line.
const (
	FrameNative FrameKind = 1
	FramePython FrameKind = 2
)

// Frame is one frame of a stack, with its names.
type Frame struct {
	Kind FrameKind
	// Func is the qualified name of a Python function, or the simplified demangled name of a native one. Empty for a
	// native frame without a symbol.
	Func      string
	Linkage   string // native: the mangled name as the symbol table has it; empty for Python
	File      string // Python: co_filename; native: the source, empty without debug information
	Line      int    // 0: unknown
	StartLine int    // first line of the function; 0: unknown

	Module *Module // native: the object file; nil when the pc is in none, and for Python
	Addr   uint64  // native: the pc in the process. Of a caller, the return address
	// Offset is Addr relative to the module's link-time addresses (what addr2line takes), bytes.
	Offset uint64
	// Eval: a native frame is the interpreter's own loop. The Python frames that it runs follow it, rootward.
	Eval bool
	// Inlined: the compiler put this native frame's code into the next one, rootward, which has the same Addr: Line is
	// in this function, that of the next frame is the line of the call. Such frames are known where there is debug information.
	Inlined bool
}

// Unread reports whether a Python frame could not be read: its file and its function both say why.
func (f *Frame) Unread() bool { return f.Kind == FramePython && f.Func != "" && f.Func == f.File }

// Label is a name for people: the frame's function, or "lib+0xoffset", or the bare address.
func (f *Frame) Label() string {
	switch {
	case f.Func != "":
		return f.Func
	case f.Module != nil:
		return fmt.Sprintf("%s+%#x", f.Module.Name(), f.Offset)
	default:
		return fmt.Sprintf("%#x", f.Addr)
	}
}

// Module is one object file as it is mapped into a process.
type Module struct {
	Path    string // as the process sees it; "[vdso]" for the vdso
	BuildID string // GNU build-id, hex; empty when it has none
	Start   uint64 // first address of its executable mapping
	Limit   uint64 // first address behind it
	Offset  uint64 // file offset of Start
}

// Name is the last element of the path.
func (m *Module) Name() string {
	for i := len(m.Path) - 1; i >= 0; i-- {
		if m.Path[i] == '/' {
			return m.Path[i+1:]
		}
	}
	return m.Path
}

// Stack is a resolved stack, leaf first.
type Stack struct {
	ID     StackID
	Status StackStatus
	Frames []Frame
}

// Source produces events in the order in which they happened.
type Source interface {
	// Read appends up to cap(buf)-len(buf) events to buf. It blocks until there is at least one, a short time has passed
	// (then it may return none), or the source is exhausted: io.EOF, after the last event.
	Read(buf []Event) ([]Event, error)
	// Stack resolves an id. The result is shared: do not change it. It is nil for 0 and for an unknown id.
	Stack(id StackID) *Stack
}

// Resolve returns the frames of a stack, as Source.Stack does. It returns nil for an id that it does not know, perhaps not yet.
type Resolve func(StackID) *Stack

func name[T ~uint8](names map[T]string, v T, what string) string {
	if s, ok := names[v]; ok {
		return s
	}
	return fmt.Sprintf("%s(%d)", what, v)
}
