// SPDX-License-Identifier: Apache-2.0

// Package event defines the events of GPU memory. Every source (the Linux tracer, the macOS backend, a recording)
// produces these values, and all other packages consume only them.
package event

import "fmt"

// Unknown marks a size, stream or total that was not observed. It differs from 0, which is a real value.
const Unknown = ^uint64(0)

// Kind is the kind of an event.
type Kind uint8

// The kinds are written to files: never renumber.
const (
	KindAlloc       Kind = 1 // Size bytes were allocated at Addr
	KindFree        Kind = 2 // memory at Addr was freed; applied when the call is entered
	KindFreeFailed  Kind = 3 // this thread's last KindFree, KindUnmap or KindReset of Addr failed: undo it
	KindOutOfMemory Kind = 4 // a request for Size bytes was refused
	KindMap         Kind = 5 // the physical memory Handle was mapped at Addr; Size bytes
	KindUnmap       Kind = 6 // Size bytes from Addr were unmapped; applied when the call is entered
	KindRetain      Kind = 7 // the handle Addr got one more reference and needs one more free
	// KindReset: the context Addr was destroyed with all memory in it; applied when the call is entered. Addr 0
	// means the primary context of the device and the memory of its pools.
	KindReset Kind = 8
	KindTrim  Kind = 9 // the pool Addr returned all but Size unused bytes to the driver. Addr 0: the graphs' pool
	// KindMark marks a possible beginning of a step and changes no memory. Stack is its call stack, Call the function.
	KindMark Kind = 10
	// KindMemoryInfo: the driver reported to the program that Size bytes of the device are free, of Handle bytes in all. It
	// changes no memory. PyTorch asks before it reports that it is out of memory.
	KindMemoryInfo Kind = 11
)

var kindNames = map[Kind]string{
	KindAlloc: "alloc", KindFree: "free", KindFreeFailed: "free_failed", KindOutOfMemory: "oom", KindMap: "map",
	KindUnmap: "unmap", KindRetain: "retain", KindReset: "reset", KindTrim: "trim",
	KindMark: "mark", KindMemoryInfo: "memory_info",
}

func (k Kind) String() string { return name(kindNames, k, "kind") }

// Layer says who counts the memory. Layers nest: a block of an allocator lies inside a device allocation (a segment).
type Layer uint8

// The layers are written to files: never renumber.
const (
	LayerAllocator Layer = 1 // blocks of a framework's allocator; Device.Allocator says which
	LayerDevice    Layer = 2 // memory obtained from the GPU driver
	LayerHost      Layer = 3 // pinned host memory
	LayerShared    Layer = 4 // memory that belongs to another process or API and was opened or imported here
	LayerVirtual   Layer = 5 // addresses without memory of their own: reserved ranges, graph nodes, multicast objects
	LayerHolder    Layer = 6 // objects that contain memory but are none: contexts, pools, imported external memory
)

// layerNames are written to files; an allocator's layer has the name of the first framework.
var layerNames = map[Layer]string{
	LayerAllocator: "torch", LayerDevice: "device", LayerHost: "host", LayerShared: "shared", LayerVirtual: "virtual",
	LayerHolder: "holder",
}

func (l Layer) String() string { return name(layerNames, l, "layer") }

// Object is the type of Addr: an address, or a kind of handle. Handles of different types can have the same number.
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

// DeviceType is PyTorch's c10::DeviceType (torch/headeronly/core/DeviceType.h) in the low five bits, and the
// Allocator above them. Only types that the tracer can see have constants; PrivateUse1 moved from 19 (PyTorch 1.13)
// to 20 (2.x).
type DeviceType uint8

// Backends whose caching allocator reports through c10::reportMemoryUsageToProfiler.
const (
	DeviceCPU  DeviceType = 0
	DeviceCUDA DeviceType = 1
	DeviceHIP  DeviceType = 6
	DeviceXPU  DeviceType = 12
)

var deviceTypeNames = map[DeviceType]string{
	DeviceCPU: "cpu", DeviceCUDA: "cuda", DeviceHIP: "hip", DeviceXPU: "xpu", deviceMPS: "mps", deviceUnplaced: "unknown",
}

// deviceMPS is the GPU of a Mac. Its allocator does not report to PyTorch's profiler; a library in the process records
// the calls instead.
const deviceMPS DeviceType = 13

// deviceUnplaced is the type of memory of which its allocator does not report the device. c10 uses numbers below 22.
const deviceUnplaced DeviceType = 31

// MPS reports whether the device is the GPU of a Mac.
func (t DeviceType) MPS() bool { return t == deviceMPS }

func (t DeviceType) String() string { return name(deviceTypeNames, t.Physical(), "device") }

// Device is one device, numbered as the program numbers it. Index -1 means that the ordinal is not known.
type Device struct {
	Type  DeviceType
	Index int8
}

// String returns PyTorch's spelling, "cuda:0", or "cuda:?" when the ordinal is not known.
func (d Device) String() string {
	if d.Index < 0 {
		return d.Type.String() + ":?"
	}
	return fmt.Sprintf("%s:%d", d.Type, d.Index)
}

// Event is one change of memory, or one refused request.
type Event struct {
	Time   uint64 // CLOCK_BOOTTIME, nanoseconds
	PID    uint32 // process ID in the tracer's PID namespace
	TID    uint32 // thread
	Kind   Kind
	Layer  Layer
	Object Object // type of Addr
	Device Device
	Addr   uint64
	// Size is in bytes: the size of the block (torch), or the size passed to the call or computed from its dimensions
	// (other layers). It is Unknown for a free outside the torch layer, for a free of an allocator that does not report
	// the size, and for memory opened or imported without a size.
	Size uint64
	// Handle is the physical memory (KindMap) or the pool (KindAlloc) that the memory comes from; for the BFC allocator, the
	// allocator instance; for KindMemoryInfo, the bytes of the device. Unknown when not known.
	Handle uint64
	// Context is the current context, if the thread was seen to choose one; otherwise Unknown.
	Context uint64

	Requested uint64 // torch: bytes the program asked for; Unknown when not observed
	Stream    uint64 // torch: raw stream handle, 0 = default; Unknown when not observed
	// Allocated is, on the torch layer, the allocator's own total after this event, in bytes; Unknown elsewhere. MPS allocators
	// report no total, so theirs is the sum of the blocks seen, if all were seen.
	Allocated uint64
	Reserved  uint64 // torch: the allocator's segments after this event, bytes; Unknown elsewhere

	Call  string  // the function that the program called: "cudaMalloc"; empty on the torch layer, except for a mark
	Stack StackID // 0: no stack was captured

	Autograd Autograd // torch: the state of autograd at an allocation
}

// Autograd is the state of PyTorch's autograd when a thread allocated. Forward creates and numbers the nodes of the graph,
// backward runs them; an operator creates its node before it allocates. The zero value means that nothing is known.
type Autograd struct {
	Next       uint64 // the number of the thread's next node; meaningless when Thread is 0
	Node       uint64 // when Running, the number of the running node; Unknown if it has none, as nodes that accumulate gradients
	Thread     uint32 // the thread's number in PyTorch; 0: not known, or the thread has created no node
	NodeThread uint32 // the thread that created the running node; numbers are unique only within a thread
	Running    bool   // a node is running: the allocation belongs to the backward pass
	Class      string // class of the running node: "AddmmBackward0", "PyNode"; empty: not known
}

// StackID identifies a stack within a process. The kernel computes it as a hash of the process and its frames.
type StackID uint64

// The stacks of events whose own stack was not kept. Placeholder returns them.
const (
	// StackOverLimit is used when the source already has its maximum number of different stacks.
	StackOverLimit StackID = 1<<64 - 1
	// StackLeftOut is used when the source takes no stack, to stay within its CPU budget.
	StackLeftOut StackID = 1<<64 - 2
)

var placeholders = map[StackID]*Stack{
	StackOverLimit: placeholder(StackOverLimit, statusOverLimit, "[over the limit]"),
	StackLeftOut:   placeholder(StackLeftOut, statusLeftOut, "[no stack: CPU budget]"),
}

func placeholder(id StackID, status StackStatus, name string) *Stack {
	return &Stack{ID: id, Status: status, Frames: []Frame{{Kind: FrameNative, Func: name}}}
}

// Placeholder returns the stack of StackOverLimit or StackLeftOut, which has one frame; nil for the stacks of programs.
func (id StackID) Placeholder() *Stack {
	if id < StackLeftOut {
		return nil
	}
	return placeholders[id]
}

// StackStatus says how complete a stack is.
type StackStatus uint8

// The reasons why a stack does or does not reach the outermost frame. The numbers are written to files: never renumber.
const (
	StatusOK          StackStatus = 0
	StatusNoMapping   StackStatus = 1 // a pc in no known executable mapping
	StatusNoRow       StackStatus = 2 // a pc without unwind information
	StatusBadRule     StackStatus = 3 // unwind information that the kernel cannot evaluate
	StatusUnreadable  StackStatus = 4 // a stack page that could not be read
	StatusOrder       StackStatus = 5 // a frame that is not above its callee in memory
	StatusTooDeep     StackStatus = 6 // more frames than fit; the outermost ones are missing
	StatusPythonState StackStatus = 7 // native frames complete; Python frames unreadable, or not as many as eval loops (3.8, 3.9)
	StatusNoScratch   StackStatus = 8 // the kernel had no memory for the unwinder
	StatusLost        StackStatus = 9 // the stack record did not fit the ring
	// StatusUnwound is complete: user space unwound it from a copy because the kernel could not.
	StatusUnwound StackStatus = 10
	// StatusGuessed was unwound from a copy to the outermost frame, partly by frame pointers, because some code, such as a
	// JIT compiler's, has no unwind information. A frame next to that code may be missing.
	StatusGuessed  StackStatus = 11
	StatusCopyEnds StackStatus = 12 // unwound from a copy that ends before the outermost frame
	// statusOverLimit and statusLeftOut are the statuses of placeholders.
	statusOverLimit StackStatus = 13
	statusLeftOut   StackStatus = 14
)

var statusNames = map[StackStatus]string{
	StatusOK: "complete", StatusNoMapping: "no mapping", StatusNoRow: "no unwind row", StatusBadRule: "unsupported rule",
	StatusUnreadable: "unreadable", StatusOrder: "frames out of order", StatusTooDeep: "too deep",
	StatusPythonState: "no Python state", StatusNoScratch: "no scratch", StatusLost: "lost",
	StatusUnwound: "complete, unwound from a copy", StatusGuessed: "partly guessed", StatusCopyEnds: "copy too short",
	statusOverLimit: "over the limit", statusLeftOut: "CPU budget",
}

func (s StackStatus) String() string { return name(statusNames, s, "status") }

// Complete reports whether the stack reaches the outermost frame without a guess.
func (s StackStatus) Complete() bool { return s == StatusOK || s == StatusUnwound }

// FrameKind is the kind of a frame's code.
type FrameKind uint8

// A native frame has a Module and an Addr; a Python frame has a File and a Line.
const (
	FrameNative FrameKind = 1
	FramePython FrameKind = 2
)

// Frame is one frame of a stack, with its names.
type Frame struct {
	Kind FrameKind
	// Func is the qualified name of a Python function, or the simplified demangled name of a native one. It is empty
	// for a native frame without a symbol.
	Func      string
	Linkage   string // native: the mangled name from the symbol table; empty for Python
	File      string // Python: co_filename; native: the source file, empty without debug information
	Line      int    // 0: unknown
	StartLine int    // first line of the function; 0: unknown

	Module *Module // native: the object file; nil when the pc is in none, and for Python
	Addr   uint64  // native: the pc in the process; for a caller, the return address
	// Offset is Addr relative to the module's link-time addresses (the argument of addr2line), bytes.
	Offset uint64
	// Eval marks a native frame of the interpreter's own loop. The Python frames that it runs follow it, rootward.
	Eval bool
	// Inlined means that the compiler inlined this native function into the next frame, rootward, which has the same Addr: Line
	// is in this function, and the next frame's Line is the call. Inlined frames are known only with debug information.
	Inlined bool
}

// Unread reports whether a Python frame could not be read. Its file and its function then give the reason.
func (f *Frame) Unread() bool { return f.Kind == FramePython && f.Func != "" && f.Func == f.File }

// Label returns a name for people: the frame's function, "lib+0xoffset", or the bare address.
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

// Module is one object file that is mapped into a process.
type Module struct {
	Path    string // path as the process sees it; "[vdso]" for the vdso
	BuildID string // GNU build ID, hex; empty when it has none
	Start   uint64 // first address of its executable mapping
	Limit   uint64 // first address after it
	Offset  uint64 // file offset of Start
}

// Name returns the last element of the path.
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
	// Read appends up to cap(buf)-len(buf) events to buf. It blocks until there is at least one, or for a short time,
	// after which it may return none. It returns io.EOF after the last event.
	Read(buf []Event) ([]Event, error)
	// Stack returns the stack with an id, or nil for 0 and for an unknown id. The result is shared: do not change it.
	Stack(id StackID) *Stack
}

// Resolve returns the stack with an id, as Source.Stack does, or nil if the id is not known, or not yet.
type Resolve func(StackID) *Stack

func name[T ~uint8](names map[T]string, v T, what string) string {
	if s, ok := names[v]; ok {
		return s
	}
	return fmt.Sprintf("%s(%d)", what, v)
}
