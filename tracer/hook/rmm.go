// SPDX-License-Identifier: Apache-2.0

package hook

import (
	goruntime "runtime"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/allocator"
)

// The functions of RMM's pool (rmm/mr/detail/pool_memory_resource_impl.hpp) that are called once for each block that the pool deals
// out or takes back, under its lock. Their names contain the release from 26.8 on: rmm::mr::detail, rmm::_RMM_26_10::mr::detail.
//
//	split_block allocate_from_block(block const& b, size_t size): the block begins where b does
//	block free_block(void* p, size_t size) noexcept
//
// Both return a struct in memory. The resources' allocate is not traced: it throws if memory is short, and no exception may pass a return
// probe.
const (
	rmmSpace = "_ZN3rmm"
	rmmTake  = "_5blockEm" // allocate_from_block; no other function ends so
	rmmGive  = "25pool_memory_resource_impl10free_blockEPvm"
)

// The functions that ask a resource for memory, in bytes: void device_buffer::allocate_async(size_t), of which RMM's Python objects and
// C++ containers are made, and void* allocate(size_t, int device, cudaStream_t) of the library that PyTorch loads.
const (
	rmmBuffer = "13device_buffer14allocate_asyncEm"
	rmmTorch  = "allocate"
)

// rmmLayout is what differs between processors: how many arguments the address of a returned struct takes (x86-64 passes it as the first
// one, System V psABI 3.2.3; arm64 in x8, AAPCS64 6.9), and the offset of stream_ordered_memory_resource::device_id_ after a std::mutex,
// of 40 or 48 bytes in glibc. The offsets are those in the constructors of librmm 26.6, 26.8 and 26.10, and 26.10 for arm64.
var rmmLayout = map[string]struct {
	hidden uint8
	device uint16
}{"amd64": {1, 0x90}, "arm64": {0, 0x98}}[goruntime.GOARCH]

// rmmUnit is the unit in which the pool rounds requests up (CUDA_ALLOCATION_ALIGNMENT), bytes.
const rmmUnit = 256

var rmmRows = []Row{
	rmm(rmmTake, "pool_memory_resource::allocate_from_block", event.KindAlloc, field(1+rmmLayout.hidden, 0), arg(2+rmmLayout.hidden)),
	rmm(rmmGive, "pool_memory_resource::free_block", event.KindFree, arg(1+rmmLayout.hidden), arg(2+rmmLayout.hidden)),
	rmmRequest(Row{Symbol: rmmSpace, Suffix: rmmBuffer, Prefix: true, Title: "device_buffer::allocate_async"}, arg(1)),
	rmmRequest(Row{Symbol: rmmTorch, Title: "allocate of RMM for PyTorch"}, arg(0)),
}

func rmm(suffix, title string, kind event.Kind, addr, size Operand) Row {
	r := Row{
		Library: RMM, Symbol: rmmSpace, Suffix: suffix, Title: title, Prefix: true, Program: Report, Allocator: allocator.RMM,
		Layer: event.LayerAllocator, Kind: kind, DeviceType: event.DeviceCUDA,
		Pointer: None, Size: None, Allocated: None, Reserved: None, Device: None,
		Addr: addr, Ordinal: field32(rmmLayout.hidden, rmmLayout.device), Dims: []Operand{size},
	}
	if kind == event.KindAlloc {
		r.Dims, r.Asked = append(r.Dims, Operand{From: FromRequest}), rmmAsked
	}
	return r
}

func rmmRequest(r Row, size Operand) Row {
	r.Library, r.Program, r.Allocator, r.Layer, r.DeviceType = RMM, Request, allocator.RMM, event.LayerAllocator, event.DeviceCUDA
	r.Pointer, r.Size, r.Allocated, r.Reserved, r.Device = None, None, None, None, None
	r.Dims = []Operand{size}
	return r
}

// rmmAsked returns the bytes that were asked for, before the pool rounded them. A request that is not seen, such as one to the resource
// itself, has the bytes of its block.
func rmmAsked(d []uint64) uint64 {
	if request := d[1]; request < d[0] && d[0]-request < rmmUnit {
		return request
	}
	return d[0]
}
