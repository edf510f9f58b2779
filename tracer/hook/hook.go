// SPDX-License-Identifier: Apache-2.0

// Package hook is the table of traced functions, one row per function. To trace another function, add a row.
package hook

import (
	"path"
	"slices"
	"strings"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/allocator"
)

// Program is the kernel-side program that handles a row. The programs are generic: the row defines the meaning of the arguments.
type Program uint8

const (
	// TorchReport: each call is one event, an allocation or a free by the sign of its size. Entry only.
	TorchReport Program = iota
	// TorchOOM: each call is one refused request. Entry only.
	TorchOOM
	// Mark: each call is one event, a possible beginning of a step, without memory. Entry only. Pointer is the argument with
	// the name of a range, a std::string; only names that marks.h in bpf/ knows are events. With None, each call is one.
	Mark
	// Report is a function whose arguments describe what an allocator has done. Entry only.
	Report
	// Request asks an allocator for memory, the first of Dims in bytes; a Report within the call says which block it gets. No event.
	// Entry only.
	Request
	// Point is a probe that a library defines itself (USDT), at any instruction: its arguments describe what an allocator
	// has done. Symbol is its name without the provider. Operands are arguments of the probe; its note states where they are.
	Point
	// Call is a function that allocates or frees memory, and took effect when it returned 0. Entry and return.
	Call
	// SetContext is a call by which a thread chooses the context for its next allocations. No event.
	SetContext
	// SetDevice is a call by which a thread chooses the device. No event.
	SetDevice
)

// Arg is the index of an argument, from 0.
type Arg uint8

// None marks a value that no argument contains.
const None Arg = 7

// Library names a group of object files that define the same functions.
type Library struct {
	Name  string   // for people
	Globs []string // base names, or ends of paths; every mapped file that matches is hooked
	// Provider is the provider of the probes that the files define themselves. Any file that defines one is hooked, whatever its name.
	Provider string
	// Below is the library whose functions this one calls to do its work; nil: no traced one.
	Below *Library
}

// The libraries. Wheels rename bundled copies (libcudart-e409450e.so.11.0, libcudart.3fc2a6e8.so.13), and the driver is
// mapped under its version (libcuda.so.580.65); hence the patterns.
var (
	Torch   = &Library{Name: "torch allocator", Globs: []string{"libc10.so*", "libc10-*.so*"}}
	Driver  = &Library{Name: "driver", Globs: []string{"libcuda.so*", "libcuda-*.so*"}}
	Runtime = &Library{Name: "runtime", Globs: []string{"libcudart.so*", "libcudart-*.so*", "libcudart.*.so*"}, Below: Driver}
	// HIP is ROCm's runtime, below which nothing is traced; ROCm wheels bundle it without a version.
	HIP = &Library{Name: "HIP", Globs: []string{"libamdhip64.so*", "libamdhip64-*.so*"}}
	// Autograd is PyTorch without its allocators; only functions that mark steps are traced.
	Autograd = &Library{Name: "autograd", Globs: []string{"libtorch_cpu.so*", "libtorch_cpu-*.so*"}}
	// BFC is a library with TensorFlow's or XLA's allocator: TensorFlow, or the plugin by which JAX uses a GPU.
	BFC = &Library{Name: "BFC allocator", Globs: []string{"libtensorflow_framework.so*", "xla_cuda_plugin.so", "xla_rocm_plugin.so",
		"xla_extension.so"}}
	// CuPy is the module of CuPy that has its memory pool.
	CuPy = &Library{Name: "CuPy pool", Globs: []string{"cupy/cuda/memory.*.so"}}
	// RMM is RAPIDS' memory manager, and the library through which PyTorch uses it.
	RMM = &Library{Name: "RMM pool", Globs: []string{"librmm.so", "rmm/librmm/_torch_allocator.so"}}
	// OTel is any library that reports its allocations by the probes of OpenTelemetry's contract for memory.
	OTel = &Library{Name: "OpenTelemetry", Provider: "otel_memory"}
	// LevelZero is the loader that every user of Intel's driver calls.
	LevelZero = &Library{Name: "Level Zero", Globs: []string{"libze_loader.so*", "libze_loader-*.so*"}}
	// Metal and MPS are macOS's, where a library in the process replaces functions; they have no rows.
	Metal = &Library{Name: "Metal", Globs: []string{"Metal"}}
	MPS   = &Library{Name: "MPS allocator", Globs: []string{"libtorch_cpu.dylib"}}
)

// Libraries lists them in the order in which they are shown on Linux, without Autograd, which allocates no memory.
var Libraries = []*Library{Torch, BFC, CuPy, RMM, OTel, Driver, Runtime, HIP, LevelZero}

// MaxDims is the maximum number of dimensions of a row: MAX_DIMS in bpf/limits.h.
const MaxDims = 7

// Matches reports whether a mapped file belongs to the library.
func (l *Library) Matches(file string) bool {
	for _, g := range l.Globs {
		end := file
		for at, more := len(file), strings.Count(g, "/"); at >= 0 && more >= 0; more-- {
			at = strings.LastIndexByte(file[:at], '/')
			end = file[at+1:]
		}
		if ok, _ := path.Match(g, end); ok {
			return true
		}
	}
	return false
}

// Symbols lists the symbols to look for in the library, each once.
func (l *Library) Symbols() []string {
	var out []string
	for i := range Rows {
		if r := &Rows[i]; r.Library == l && !slices.Contains(out, r.Label()) {
			out = append(out, r.Label())
		}
	}
	return out
}

// Row is one traced function.
type Row struct {
	Library *Library
	Symbol  string // as in the symbol table
	Title   string // shown to people, if Symbol is mangled
	Copies  bool   // with Prefix: every function with such a name is traced, not only the first
	Prefix  bool   // Symbol is a prefix of a mangled name whose rest, the argument types, differs between versions
	Suffix  string // with Prefix: how the name must end; empty: any
	Program Program
	Layer   event.Layer
	// Allocator is the allocator of the blocks, on event.LayerAllocator.
	Allocator allocator.Allocator
	Object    event.Object
	Kind      event.Kind
	// DeviceType is the device type for calls, which do not pass it.
	DeviceType event.DeviceType

	// Arguments of PyTorch's reports and of marks.
	Pointer, Size, Allocated, Reserved, Device Arg

	// Operands of calls and of other reports. Addr is the address, or the handle of the kind Object. Handle and Ordinal
	// are as in event.Event; Dims are passed to Bytes.
	Addr, Handle, Ordinal Operand
	Dims                  []Operand
	// Bytes computes the size of the event from Dims. Nil: the size is the first of Dims, or unknown without any.
	Bytes func(dims []uint64) uint64
	// Requested is the index in Dims of the bytes that the program asked for; 0: the call does not distinguish them from the size.
	Requested int
	// Asked computes the bytes that the program asked for from Dims. Nil: Requested names them.
	Asked func(dims []uint64) uint64
	// NoStatus means that the function returns a value or nothing instead of an error number.
	NoStatus bool
	// Where computes the layer of the memory from Dims. Nil: the layer is Layer.
	Where func(dims []uint64) event.Layer
	// Guard, if set, must equal GuardValue; otherwise the call is not about memory.
	Guard      Operand
	GuardValue uint32
	// InContext means that Handle is the context in which the call allocates.
	InContext bool
	// Current: the call pushes the context that it creates onto the thread's stack of contexts. Push: it pushes the
	// context that it names.
	Current, Push bool
}

// EventSize returns the size in bytes of a call with these dimensions, or event.Unknown.
func (r *Row) EventSize(dims []uint64) uint64 {
	switch {
	case len(r.Dims) == 0:
		return event.Unknown
	case r.Bytes == nil:
		return dims[0]
	default:
		return r.Bytes(dims[:len(r.Dims)])
	}
}

// EventRequested returns the bytes that the program asked for in a call with these dimensions, and whether the call contains them.
func (r *Row) EventRequested(dims []uint64) (bytes uint64, ok bool) {
	if r.Asked != nil {
		return r.Asked(dims[:len(r.Dims)]), true
	}
	return dims[r.Requested], r.Requested > 0
}

// EventLayer returns the layer of a call with these dimensions.
func (r *Row) EventLayer(dims []uint64) event.Layer {
	if r.Where == nil {
		return r.Layer
	}
	return r.Where(dims[:len(r.Dims)])
}

// Retires reports whether the call frees memory, so that it is applied when it is entered.
func (r *Row) Retires() bool {
	return r.Kind == event.KindFree || r.Kind == event.KindUnmap || r.Kind == event.KindReset
}

// OfTorch reports whether the row is served as PyTorch's reports and marks are, which have arguments in place of operands.
func (r *Row) OfTorch() bool { return r.Program < Report }

// Paired reports whether the return of the function is traced too.
func (r *Row) Paired() bool { return r.Program >= Call }

// Name returns the function's public name: "cudaMalloc" for cudaMalloc, "cuMemAlloc" for cuMemAlloc_v2.
func (r *Row) Name() string {
	if r.Program == Mark {
		return r.Title
	}
	if !r.Paired() || r.Layer == event.LayerAllocator {
		return ""
	}
	name := r.Symbol
	if i := len(name) - 3; i > 0 && strings.HasPrefix(name[i:], "_v") && name[i+2] >= '0' && name[i+2] <= '9' {
		name = name[:i]
	}
	return name
}

// MatchesName reports whether a symbol belongs to this row.
func (r *Row) MatchesName(symbol string) bool {
	if !r.Prefix {
		return symbol == r.Symbol
	}
	return strings.HasPrefix(symbol, r.Symbol) && strings.HasSuffix(symbol, r.Suffix)
}

// Label returns the function's name for people: the symbol, or the name in it when it is mangled.
func (r *Row) Label() string {
	if r.Title != "" {
		return r.Title
	}
	return r.Symbol
}
