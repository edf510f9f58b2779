// SPDX-License-Identifier: Apache-2.0

package hook

import "github.com/gputrace/gputrace/event"

const (
	reportPrefix = "_ZN3c1027reportMemoryUsageToProfilerE"
	oomPrefix    = "_ZN3c1027reportOutOfMemoryToProfilerE"
	deviceSuffix = "NS_6DeviceE"
)

// torchRows: c10/core/Allocator.h. Five arguments since 1.10 (void*, int64_t, then two totals that were int64_t up to 1.13 and
// size_t since 2.0), three before. c10::Device is two bytes in one register.
var torchRows = []Row{
	{Library: Torch, Symbol: reportPrefix + "Pvl", Prefix: true, Suffix: "mm" + deviceSuffix, Title: "reportMemoryUsageToProfiler", Program: TorchReport, Layer: event.LayerTorch, Kind: event.KindAlloc, Pointer: 0, Size: 1, Allocated: 2, Reserved: 3, Device: 4},
	{Library: Torch, Symbol: reportPrefix + "Pvl", Prefix: true, Suffix: "ll" + deviceSuffix, Title: "reportMemoryUsageToProfiler", Program: TorchReport, Layer: event.LayerTorch, Kind: event.KindAlloc, Pointer: 0, Size: 1, Allocated: 2, Reserved: 3, Device: 4},
	{Library: Torch, Symbol: reportPrefix + "Pvl" + deviceSuffix, Prefix: true, Title: "reportMemoryUsageToProfiler", Program: TorchReport, Layer: event.LayerTorch, Kind: event.KindAlloc, Pointer: 0, Size: 1, Allocated: None, Reserved: None, Device: 2},
	{Library: Torch, Symbol: oomPrefix, Prefix: true, Suffix: deviceSuffix, Title: "reportOutOfMemoryToProfiler", Program: TorchOOM, Layer: event.LayerTorch, Kind: event.KindOutOfMemory, Pointer: None, Size: 0, Allocated: 1, Reserved: 2, Device: 3},
}
