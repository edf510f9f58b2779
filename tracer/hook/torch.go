// SPDX-License-Identifier: Apache-2.0

package hook

import "github.com/gputrace/gputrace/event"

const (
	reportPrefix = "_ZN3c1027reportMemoryUsageToProfilerE"
	oomPrefix    = "_ZN3c1027reportOutOfMemoryToProfilerE"
	deviceSuffix = "NS_6DeviceE"
)

// torchRows: c10/core/Allocator.h. Before 1.10 the functions had three arguments; since then five: void*, int64_t, and
// two totals, which were int64_t up to 1.13 and size_t since 2.0. c10::Device is two bytes in one register.
var torchRows = []Row{
	{Library: Torch, Symbol: reportPrefix + "Pvl", Prefix: true, Suffix: "mm" + deviceSuffix, Title: "reportMemoryUsageToProfiler",
		Program: TorchReport, Layer: event.LayerAllocator, Kind: event.KindAlloc, Pointer: 0, Size: 1, Allocated: 2, Reserved: 3, Device: 4},
	{Library: Torch, Symbol: reportPrefix + "Pvl", Prefix: true, Suffix: "ll" + deviceSuffix, Title: "reportMemoryUsageToProfiler",
		Program: TorchReport, Layer: event.LayerAllocator, Kind: event.KindAlloc, Pointer: 0, Size: 1, Allocated: 2, Reserved: 3, Device: 4},
	{Library: Torch, Symbol: reportPrefix + "Pvl" + deviceSuffix, Prefix: true, Title: "reportMemoryUsageToProfiler", Program: TorchReport,
		Layer: event.LayerAllocator, Kind: event.KindAlloc, Pointer: 0, Size: 1, Allocated: None, Reserved: None, Device: 2},
	{Library: Torch, Symbol: oomPrefix, Prefix: true, Suffix: deviceSuffix, Title: "reportOutOfMemoryToProfiler", Program: TorchOOM,
		Layer: event.LayerAllocator, Kind: event.KindOutOfMemory, Pointer: None, Size: 0, Allocated: 1, Reserved: 2, Device: 3},
}

// markRows: torch/csrc/autograd/profiler_kineto.h and record_function_ops.h, torch/csrc/autograd/engine.h. The functions are
// called whether a profiler is on or not. The first argument of the range's function is the place for its result, the second
// the range's name, and the third an optional value. The mangling of the second depends on the build's ABI of strings, that of
// the third on the type of optional values. The backward pass's function has the same name in all versions.
var markRows = []Row{
	rangeRow("RKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEERKSt8optionalIS7_E"),
	rangeRow("RKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEERKN3c108optionalIS7_EE"),
	rangeRow("RKSsRKSt8optionalISsE"),
	rangeRow("RKSsRKN3c108optionalISsEE"),
	mark("_ZN5torch8autograd6Engine7executeERKSt6vectorINS0_4EdgeESaIS3_EERKS2_IN2at6TensorESaIS9_EEbbbS7_", "Engine::execute", None),
}

func rangeRow(arguments string) Row {
	return mark("_ZN5torch8autograd8profiler25record_function_enter_newE"+arguments, "record_function_enter_new", 1)
}

func mark(symbol, title string, name Arg) Row {
	return Row{
		Library: Autograd, Symbol: symbol, Title: title, Program: Mark, Layer: event.LayerAllocator, Kind: event.KindMark,
		Pointer: name, Size: None, Allocated: None, Reserved: None, Device: None,
	}
}
