// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/allocator"
)

// bfcReport is BFCAllocator::AddTraceMe(string_view name, const void* chunk, int64 requested, int64 size) of
// xla/tsl/framework/bfc_allocator.cc. Each allocation and each free calls it once, under the allocator's lock, whether a profiler
// is on or not. It is private and in no header; its signature was read from the libraries of TensorFlow 2.21 and of JAX 0.4.38,
// 0.7.2, 0.10.2 and 0.12.0. A std::string_view is its length and the address of its characters (libstdc++), each in a register.
const bfcReport = "_ZN3tsl12BFCAllocator10AddTraceMeESt17basic_string_viewIcSt11char_traitsIcEEPKvll"

// The lengths of the two names: "MemoryAllocation" and "MemoryDeallocation".
const (
	bfcAllocation   = 16
	bfcDeallocation = 18
)

var bfcRows = []Row{
	bfc(event.KindAlloc, bfcAllocation),
	bfc(event.KindFree, bfcDeallocation),
}

func bfc(kind event.Kind, length uint32) Row {
	return Row{
		Library: BFC, Symbol: bfcReport, Title: "BFCAllocator::AddTraceMe", Program: Report, Allocator: allocator.BFC,
		Layer: event.LayerAllocator, Kind: kind, DeviceType: event.DeviceCUDA,
		Pointer: None, Size: None, Allocated: None, Reserved: None, Device: None,
		Guard: arg(1), GuardValue: length, Handle: arg(0), Addr: arg(3), Dims: []Operand{arg(5), arg(4)}, Requested: 1,
	}
}
