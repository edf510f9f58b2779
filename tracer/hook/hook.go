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
	// Call is an allocation or free: it takes effect when it returns 0. Entry and return.
	Call
)

// Arg is the number of an argument, from 0.
type Arg uint8

// None marks what a function does not tell.
const None Arg = 7

// Library names a group of object files that define the same functions.
type Library struct {
	Name  string   // for people
	Globs []string // of base names; every mapped file that matches is hooked
}

// The libraries. Wheels rename bundled copies (libcudart-e409450e.so.11.0, libcudart.3fc2a6e8.so.13) and the driver is
// mapped under its version (libcuda.so.580.65), hence the patterns.
var (
	Torch   = &Library{Name: "torch allocator", Globs: []string{"libc10.so*", "libc10-*.so*"}}
	Driver  = &Library{Name: "driver", Globs: []string{"libcuda.so*", "libcuda-*.so*"}}
	Runtime = &Library{Name: "runtime", Globs: []string{"libcudart.so*", "libcudart-*.so*", "libcudart.*.so*"}}
)

// Libraries lists them in the order in which they are shown.
var Libraries = []*Library{Torch, Driver, Runtime}

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
	Kind    event.Kind // Call: KindAlloc or KindFree

	// Pointer is the address (reports, frees) or where the call stores it (allocations).
	Pointer, Size, Allocated, Reserved, Device Arg
	// DeviceType is for calls that do not tell it.
	DeviceType event.DeviceType
}

// Name is what people call the function: "cudaMalloc" for cudaMalloc, "cuMemAlloc" for cuMemAlloc_v2.
func (r *Row) Name() string {
	if r.Program != Call {
		return ""
	}
	return strings.TrimSuffix(r.Symbol, "_v2")
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

const (
	reportPrefix = "_ZN3c1027reportMemoryUsageToProfilerE"
	oomPrefix    = "_ZN3c1027reportOutOfMemoryToProfilerE"
	deviceSuffix = "NS_6DeviceE"
)

// Rows is the table. The torch signatures: c10/core/Allocator.h; five arguments since 1.10 (void*, int64_t, then two totals
// that were int64_t up to 1.13 and size_t since 2.0), three before. c10::Device is two bytes in one register. The CUDA
// signatures: cuda.h and cuda_runtime_api.h.
var Rows = []Row{
	{Library: Torch, Symbol: reportPrefix + "Pvl", Prefix: true, Suffix: "mm" + deviceSuffix, Title: "reportMemoryUsageToProfiler", Program: TorchReport, Layer: event.LayerTorch, Kind: event.KindAlloc, Pointer: 0, Size: 1, Allocated: 2, Reserved: 3, Device: 4},
	{Library: Torch, Symbol: reportPrefix + "Pvl", Prefix: true, Suffix: "ll" + deviceSuffix, Title: "reportMemoryUsageToProfiler", Program: TorchReport, Layer: event.LayerTorch, Kind: event.KindAlloc, Pointer: 0, Size: 1, Allocated: 2, Reserved: 3, Device: 4},
	{Library: Torch, Symbol: reportPrefix + "Pvl" + deviceSuffix, Prefix: true, Title: "reportMemoryUsageToProfiler", Program: TorchReport, Layer: event.LayerTorch, Kind: event.KindAlloc, Pointer: 0, Size: 1, Allocated: None, Reserved: None, Device: 2},
	{Library: Torch, Symbol: oomPrefix, Prefix: true, Suffix: deviceSuffix, Title: "reportOutOfMemoryToProfiler", Program: TorchOOM, Layer: event.LayerTorch, Kind: event.KindOutOfMemory, Pointer: None, Size: 0, Allocated: 1, Reserved: 2, Device: 3},

	call(Driver, "cuMemAlloc_v2", event.LayerDevice, 0, 1),
	call(Driver, "cuMemAllocManaged", event.LayerDevice, 0, 1),
	call(Driver, "cuMemAllocAsync", event.LayerDevice, 0, 1),
	call(Driver, "cuMemAllocAsync_ptsz", event.LayerDevice, 0, 1),
	call(Driver, "cuMemAllocFromPoolAsync", event.LayerDevice, 0, 1),
	call(Driver, "cuMemAllocFromPoolAsync_ptsz", event.LayerDevice, 0, 1),
	free(Driver, "cuMemFree_v2", event.LayerDevice, 0),
	free(Driver, "cuMemFreeAsync", event.LayerDevice, 0),
	free(Driver, "cuMemFreeAsync_ptsz", event.LayerDevice, 0),
	call(Runtime, "cudaMalloc", event.LayerDevice, 0, 1),
	call(Runtime, "cudaMallocManaged", event.LayerDevice, 0, 1),
	call(Runtime, "cudaMallocAsync", event.LayerDevice, 0, 1),
	call(Runtime, "cudaMallocAsync_ptsz", event.LayerDevice, 0, 1),
	call(Runtime, "cudaMallocFromPoolAsync", event.LayerDevice, 0, 1),
	call(Runtime, "cudaMallocFromPoolAsync_ptsz", event.LayerDevice, 0, 1),
	free(Runtime, "cudaFree", event.LayerDevice, 0),
	free(Runtime, "cudaFreeAsync", event.LayerDevice, 0),
	free(Runtime, "cudaFreeAsync_ptsz", event.LayerDevice, 0),
}

func call(l *Library, symbol string, layer event.Layer, pointer, size Arg) Row {
	return Row{Library: l, Symbol: symbol, Program: Call, Layer: layer, Kind: event.KindAlloc, Pointer: pointer, Size: size, Allocated: None, Reserved: None, Device: None, DeviceType: event.DeviceCUDA}
}

func free(l *Library, symbol string, layer event.Layer, pointer Arg) Row {
	return Row{Library: l, Symbol: symbol, Program: Call, Layer: layer, Kind: event.KindFree, Pointer: pointer, Size: None, Allocated: None, Reserved: None, Device: None, DeviceType: event.DeviceCUDA}
}
