// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/allocator"
)

// The methods of cupy/cuda/memory.pyx by which arrays take memory from CuPy's pool and give it back, as Cython names them:
// SingleDeviceMemoryPool.malloc(self, size, skip_dispatch), which returns a MemoryPointer, and PooledMemory.free(self,
// skip_dispatch), of which compilers make a second copy. Only the table of local symbols has the names.
const (
	cupyTake = "_ZL59__pyx_f_4cupy_4cuda_6memory_22SingleDeviceMemoryPool_mallocP52__pyx_obj_4cupy_4cuda_6memory_SingleDeviceMemoryPoolmi"
	cupyGive = "_ZL47__pyx_f_4cupy_4cuda_6memory_12PooledMemory_freeP42__pyx_obj_4cupy_4cuda_6memory_PooledMemoryi"
)

// Offsets of the address and of the device in both objects, from the debug information of the modules of CuPy 12.3, 13.6 and 14.2.
// Behind the device are 4 bytes of padding, which CPython's allocation has cleared.
const (
	cupyPointer       = 24 // MemoryPointer.ptr
	cupyPointerDevice = 32 // MemoryPointer.device_id
	cupyMemory        = 16 // PooledMemory.ptr; 0: it was freed already
	cupyMemoryDevice  = 32 // PooledMemory.device_id
)

// cupyUnit is the unit in which the pool rounds requests up (ALLOCATION_UNIT_SIZE), bytes.
const cupyUnit = 512

var cupyRows = []Row{
	cupy(cupyTake, "SingleDeviceMemoryPool.malloc", event.KindAlloc, returned(cupyPointer), returned(cupyPointerDevice), arg(1), arg(1)),
	cupy(cupyGive, "PooledMemory.free", event.KindFree, field(0, cupyMemory), field32(0, cupyMemoryDevice)),
}

func cupy(symbol, title string, kind event.Kind, addr, device Operand, dims ...Operand) Row {
	r := Row{
		Library: CuPy, Symbol: symbol, Title: title, Prefix: true, Copies: true, Program: Call, Allocator: allocator.CuPy,
		Layer: event.LayerAllocator, Kind: kind, DeviceType: event.DeviceCUDA,
		Pointer: None, Size: None, Allocated: None, Reserved: None, Device: None,
		Addr: addr, Ordinal: device, Dims: dims, NoStatus: true,
	}
	if kind == event.KindAlloc {
		r.Bytes, r.Requested = cupyBytes, 1
	}
	return r
}

// cupyBytes returns the size of the block for a request.
func cupyBytes(d []uint64) uint64 {
	if d[0] > event.Unknown-cupyUnit {
		return event.Unknown
	}
	return (d[0] + cupyUnit - 1) / cupyUnit * cupyUnit
}
