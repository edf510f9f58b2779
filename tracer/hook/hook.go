// SPDX-License-Identifier: Apache-2.0

// Package hook is the table of what is traced: one row a function. To trace another function, add a row.
package hook

import (
	"path"
	"slices"
	"strings"

	"github.com/gputrace/gputrace/event"
)

// Program is the kernel-side program that serves a row. Each is generic: the row says which argument means what.
type Program uint8

const (
	// TorchReport: one call is one event, allocation or free by the sign of its size. Entry only.
	TorchReport Program = iota
	// TorchOOM: one call is one refused request. Entry only.
	TorchOOM
	// Mark: one call is one event, which says nothing of memory: a step may begin there. Entry only. Pointer is the argument with the
	// name of a range, a std::string, of which only those are events that marks.h in bpf/ knows; None: each call is one.
	Mark
	// Report is a function whose arguments say what an allocator has done. Entry only.
	Report
	// Call is a function that gives or takes memory: it took effect when it returned 0. Entry and return.
	Call
	// SetContext is a call by which a thread chooses the context that it allocates in from now on. No event.
	SetContext
	// SetDevice likewise for the device.
	SetDevice
)

// Arg is the number of an argument, from 0.
type Arg uint8

// None marks what a function does not tell.
const None Arg = 7

// Library names a group of object files that define the same functions.
type Library struct {
	Name  string   // for people
	Globs []string // of base names; every mapped file that matches is hooked
	// Below is the library whose functions this one calls to do its work; nil: none that is traced.
	Below *Library
}

// The libraries. Wheels rename bundled copies (libcudart-e409450e.so.11.0, libcudart.3fc2a6e8.so.13) and the driver is
// mapped under its version (libcuda.so.580.65), hence the patterns.
var (
	Torch   = &Library{Name: "torch allocator", Globs: []string{"libc10.so*", "libc10-*.so*"}}
	Driver  = &Library{Name: "driver", Globs: []string{"libcuda.so*", "libcuda-*.so*"}}
	Runtime = &Library{Name: "runtime", Globs: []string{"libcudart.so*", "libcudart-*.so*", "libcudart.*.so*"}, Below: Driver}
	// HIP is ROCm's runtime, below which there is nothing to trace; ROCm wheels bundle it without a version.
	HIP = &Library{Name: "HIP", Globs: []string{"libamdhip64.so*", "libamdhip64-*.so*"}}
	// Autograd is PyTorch beside its allocators, of which only what marks steps is traced.
	Autograd = &Library{Name: "autograd", Globs: []string{"libtorch_cpu.so*", "libtorch_cpu-*.so*"}}
	// BFC is what has TensorFlow's or XLA's allocator in it: TensorFlow, or the plugin by which JAX uses a GPU.
	BFC = &Library{Name: "BFC allocator", Globs: []string{"libtensorflow_framework.so*", "xla_cuda_plugin.so", "xla_rocm_plugin.so", "xla_extension.so"}}
	// LevelZero is the loader, through which every user of Intel's driver goes.
	LevelZero = &Library{Name: "Level Zero", Globs: []string{"libze_loader.so*", "libze_loader-*.so*"}}
	// Metal and MPS are macOS's, where a library in the process replaces functions: no row is theirs.
	Metal = &Library{Name: "Metal", Globs: []string{"Metal"}}
	MPS   = &Library{Name: "MPS allocator", Globs: []string{"libtorch_cpu.dylib"}}
)

// Libraries lists them in the order in which they are shown on Linux, but for Autograd, which has no memory.
var Libraries = []*Library{Torch, BFC, Driver, Runtime, HIP, LevelZero}

// MaxDims is how many dimensions a row can have: MAX_DIMS in bpf/limits.h.
const MaxDims = 7

// Matches reports whether a mapped file belongs to the library.
func (l *Library) Matches(file string) bool {
	base := path.Base(file)
	for _, g := range l.Globs {
		if ok, _ := path.Match(g, base); ok {
			return true
		}
	}
	return false
}

// Symbols lists what is looked for in the library, each name once.
func (l *Library) Symbols() []string {
	var out []string
	for i := range Rows {
		if r := &Rows[i]; r.Library == l && !slices.Contains(out, r.Label()) {
			out = append(out, r.Label())
		}
	}
	return out
}

// Row is one function.
type Row struct {
	Library *Library
	Symbol  string // as in the symbol table
	Title   string // for people, where Symbol is mangled
	Prefix  bool   // Symbol is the beginning of a mangled name whose rest, the argument types, differs between versions
	Suffix  string // with Prefix: the name must end so; empty: any
	Program Program
	Layer   event.Layer
	// Allocator is whose blocks it is about, on event.LayerTorch.
	Allocator event.Allocator
	Object    event.Object
	Kind      event.Kind
	// DeviceType is for calls, which do not tell it.
	DeviceType event.DeviceType

	// The arguments of PyTorch's reports and of marks.
	Pointer, Size, Allocated, Reserved, Device Arg

	// The operands of calls and of other reports. Addr is the address, or the handle that Object says; Handle, Ordinal and Dims as in
	// event.Event and in Bytes.
	Addr, Handle, Ordinal Operand
	Dims                  []Operand
	// Bytes computes the size of the event from Dims. Nil: it is the first of them; unknown without any.
	Bytes func(dims []uint64) uint64
	// Requested is which of Dims is the bytes that the program asked for; 0: the call does not tell them apart from the size.
	Requested int
	// NoStatus: the function returns a value or nothing, and no error number.
	NoStatus bool
	// Where tells from Dims in which layer the memory is. Nil: in Layer.
	Where func(dims []uint64) event.Layer
	// Guard, where it is set, must be GuardValue, or the call is about something else than memory.
	Guard      Operand
	GuardValue uint32
	// InContext: Handle is the context in which the call allocates.
	InContext bool
	// Current: the context that the call makes is put on top of the thread's others. Push: so is the one that it names.
	Current, Push bool
}

// EventSize is the size in bytes that a call's dimensions mean, or event.Unknown.
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

// EventLayer is the layer that a call's dimensions mean.
func (r *Row) EventLayer(dims []uint64) event.Layer {
	if r.Where == nil {
		return r.Layer
	}
	return r.Where(dims[:len(r.Dims)])
}

// Retires reports whether the call gives memory back: it is applied when it is entered.
func (r *Row) Retires() bool {
	return r.Kind == event.KindFree || r.Kind == event.KindUnmap || r.Kind == event.KindReset
}

// Paired reports whether the return of the function is traced too.
func (r *Row) Paired() bool { return r.Program >= Call }

// Name is what people call the function: "cudaMalloc" for cudaMalloc, "cuMemAlloc" for cuMemAlloc_v2.
func (r *Row) Name() string {
	if r.Program == Mark {
		return r.Title
	}
	if !r.Paired() {
		return ""
	}
	name := r.Symbol
	if i := len(name) - 3; i > 0 && strings.HasPrefix(name[i:], "_v") && name[i+2] >= '0' && name[i+2] <= '9' {
		name = name[:i]
	}
	return name
}

// MatchesName reports whether a symbol is this row's.
func (r *Row) MatchesName(symbol string) bool {
	if !r.Prefix {
		return symbol == r.Symbol
	}
	return strings.HasPrefix(symbol, r.Symbol) && strings.HasSuffix(symbol, r.Suffix)
}

// Label is the function's name for people: the symbol, or the name in it when it is mangled.
func (r *Row) Label() string {
	if r.Title != "" {
		return r.Title
	}
	return r.Symbol
}
