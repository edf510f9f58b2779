// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"slices"

	"github.com/gputrace/gputrace/event"
)

// Rows is the table of traced functions.
var Rows = slices.Concat(torchRows, bfcRows, cupyRows, rmmRows, pointRows, markRows, driverRows, runtimeRows, hipRows, levelZeroRows)

// maker makes the rows of one library.
type maker struct {
	library *Library
	device  event.DeviceType
}

func (m maker) row(symbol string, kind event.Kind, layer event.Layer, object event.Object) Row {
	return Row{
		Library: m.library, Symbol: symbol, Program: Call, Kind: kind, Layer: layer, Object: object, DeviceType: m.device,
		Pointer: None, Size: None, Allocated: None, Reserved: None, Device: None,
	}
}

// alloc returns the row of a function that allocates memory, identified by its address.
func (m maker) alloc(symbol string, layer event.Layer, addr, size Operand) Row {
	return m.object(symbol, layer, event.ObjectMemory, addr, size)
}

// object returns the row of a function that creates an object, identified by a handle.
func (m maker) object(symbol string, layer event.Layer, object event.Object, addr Operand, dims ...Operand) Row {
	r := m.row(symbol, event.KindAlloc, layer, object)
	r.Addr = addr
	for _, d := range dims {
		if d.From != FromNone {
			r.Dims = append(r.Dims, d)
		}
	}
	return r
}

// free returns the row of a function that frees addr.
func (m maker) free(symbol string, layer event.Layer, object event.Object, addr Operand) Row {
	r := m.row(symbol, event.KindFree, layer, object)
	r.Addr = addr
	return r
}

func (m maker) mapping(symbol string, kind event.Kind, addr, size, handle Operand) Row {
	r := m.row(symbol, kind, event.LayerDevice, event.ObjectPhysical)
	r.Addr, r.Dims, r.Handle = addr, []Operand{size}, handle
	return r
}

func (m maker) retain(symbol string, addr Operand) Row {
	r := m.row(symbol, event.KindRetain, event.LayerDevice, event.ObjectPhysical)
	r.Addr = addr
	return r
}

func (m maker) trim(symbol string, pool Operand, keep ...Operand) Row {
	r := m.row(symbol, event.KindTrim, event.LayerHolder, event.ObjectPool)
	r.Addr, r.Dims = pool, keep
	return r
}

// info returns the row of a function that tells how much of the current device is free, and its size.
func (m maker) info(symbol string, free, total Operand) Row {
	r := m.row(symbol, event.KindMemoryInfo, event.LayerDevice, event.ObjectMemory)
	r.Dims, r.Handle = []Operand{free}, total
	return r
}

// context returns the row of a function that creates a context, or adds a reference to one.
func (m maker) context(symbol string, addr, ordinal Operand) Row {
	return m.object(symbol, event.LayerHolder, event.ObjectContext, addr).on(ordinal)
}

// reset returns the row of a function that destroys a context, or all of a device's.
func (m maker) reset(symbol string, addr, ordinal Operand) Row {
	r := m.row(symbol, event.KindReset, event.LayerHolder, event.ObjectContext)
	r.Addr, r.Ordinal = addr, ordinal
	return r
}

// choose returns the row of a function by which a thread chooses where it allocates.
func (m maker) choose(symbol string, p Program, context, ordinal Operand) Row {
	r := m.row(symbol, 0, event.LayerHolder, event.ObjectContext)
	r.Program, r.Addr, r.Ordinal = p, context, ordinal
	return r
}

func (r Row) on(ordinal Operand) Row {
	r.Ordinal = ordinal
	return r
}

func (r Row) from(pool Operand) Row {
	r.Handle = pool
	return r
}

func (r Row) within(context Operand) Row {
	r.Handle, r.InContext = context, true
	return r
}

func (r Row) sized(f func([]uint64) uint64) Row {
	r.Bytes = f
	return r
}

func (r Row) where(f func([]uint64) event.Layer) Row {
	r.Where = f
	return r
}

func (r Row) when(guard Operand, value uint32) Row {
	r.Guard, r.GuardValue = guard, value
	return r
}

func (r Row) push() Row {
	r.Push = true
	return r
}

func (r Row) current() Row {
	r.Current = true
	return r
}

// array returns the row of a function that creates an array or mipmapped array.
func (m maker) array(symbol string, dims ...Operand) Row {
	return m.object(symbol, event.LayerDevice, event.ObjectArray, out(0), dims...)
}

// dims joins operands.
func dims(first []Operand, more ...Operand) []Operand { return append(first, more...) }

// array3D returns format and channels, flags and extents of the CUDA_ARRAY3D_DESCRIPTOR at an offset of argument n's target.
func array3D(n uint8, at uint16) []Operand {
	return []Operand{field(n, at+array3DFormat), field32(n, at+array3DFlags), field(n, at), field(n, at+8), field(n, at+16)}
}

// channelsOf returns the channel bits of the cudaChannelFormatDesc at an offset of argument n's target.
func channelsOf(n uint8, at uint16) []Operand {
	return []Operand{field(n, at), field(n, at+channelsZW)}
}

// Types of graph nodes that own memory: CU_GRAPH_NODE_TYPE_MEM_ALLOC and MEM_FREE; HIP has the same numbers.
const (
	nodeMemAlloc = 10
	nodeMemFree  = 11
)

// Offsets in structures, bytes; the same in cuda.h and cuda_runtime_api.h of 11.8 to 13.x and, under other names, in
// hip_runtime_api.h.
const (
	propLocationType = 8   // CUmemAllocationProp
	propLocationID   = 12  //
	arrayFormat      = 16  // CUDA_ARRAY_DESCRIPTOR: Width, Height, Format, NumChannels
	array3DFormat    = 24  // CUDA_ARRAY3D_DESCRIPTOR: Width, Height, Depth, Format, NumChannels, Flags
	array3DFlags     = 32  //
	externalSize     = 24  // CUDA_EXTERNAL_MEMORY_HANDLE_DESC: type, handle of 16 bytes, size
	bufferSize       = 8   // CUDA_EXTERNAL_MEMORY_BUFFER_DESC: offset, size
	externalArray    = 8   // CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC: offset, array descriptor, levels
	externalLevels   = 48  //
	runtimeExternal  = 8   // cudaExternalMemoryMipmappedArrayDesc: offset, channel format, extent, flags, levels
	runtimeExtExtent = 32  //
	runtimeExtFlags  = 56  //
	runtimeExtLevels = 60  //
	multicastSize    = 8   // CUmulticastObjectProp: devices, size
	nodeBytes        = 104 // CUDA_MEM_ALLOC_NODE_PARAMS: pool properties, access, bytes, address
	nodeAddr         = 112 //
	nodeUnion        = 16  // CUgraphNodeParams: type, padding, union
	pitchedPitch     = 8   // cudaPitchedPtr: pointer, pitch
	channelsZW       = 8   // cudaChannelFormatDesc: bits of x, y, z, w
)

// driverRows: cuda.h of 11.8 to 13.x.
var driverRows = driver(maker{Driver, event.DeviceCUDA})

func driver(m maker) []Row {
	return slices.Concat(driverMemory(m), driverVMM(m), driverShared(m), driverHolders(m))
}

func driverMemory(m maker) []Row {
	device, host := event.LayerDevice, event.LayerHost
	none := Operand{}
	return []Row{
		m.info("cuMemGetInfo_v2", out(0), out(1)),
		m.alloc("cuMemAlloc_v2", device, out(0), arg(1)),
		m.alloc("cuMemAllocManaged", device, out(0), arg(1)),
		m.object("cuMemAllocPitch_v2", device, event.ObjectMemory, out(0), out(1), arg(3)).sized(pitched),
		m.alloc("cuMemAllocAsync", device, out(0), arg(1)),
		m.alloc("cuMemAllocAsync_ptsz", device, out(0), arg(1)),
		m.alloc("cuMemAllocFromPoolAsync", device, out(0), arg(1)).from(arg(2)),
		m.alloc("cuMemAllocFromPoolAsync_ptsz", device, out(0), arg(1)).from(arg(2)),
		m.free("cuMemFree_v2", device, event.ObjectMemory, arg(0)),
		m.free("cuMemFreeAsync", device, event.ObjectMemory, arg(0)),
		m.free("cuMemFreeAsync_ptsz", device, event.ObjectMemory, arg(0)),

		m.array("cuArrayCreate_v2", field(1, arrayFormat), field(1, 0), field(1, 8)).sized(array2D),
		m.array("cuArray3DCreate_v2", array3D(1, 0)...).sized(array).where(backed),
		m.array("cuMipmappedArrayCreate", dims(array3D(1, 0), arg32(2))...).sized(mipmap).where(backed),
		m.free("cuArrayDestroy", device, event.ObjectArray, arg(0)),
		m.free("cuMipmappedArrayDestroy", device, event.ObjectArray, arg(0)),

		m.alloc("cuMemAllocHost_v2", host, out(0), arg(1)),
		m.alloc("cuMemHostAlloc", host, out(0), arg(1)),
		m.alloc("cuMemHostRegister", host, arg(0), arg(1)),
		m.alloc("cuMemHostRegister_v2", host, arg(0), arg(1)),
		m.free("cuMemFreeHost", host, event.ObjectMemory, arg(0)),
		m.free("cuMemHostUnregister", host, event.ObjectMemory, arg(0)),

		// A node's address is fixed when it is added; it has memory from its first launch on.
		m.alloc("cuGraphAddMemAllocNode", event.LayerVirtual, outField(4, nodeAddr), field(4, nodeBytes)),
		m.free("cuGraphAddMemFreeNode", event.LayerVirtual, event.ObjectMemory, arg(4)),
		m.alloc("cuGraphAddNode", event.LayerVirtual, outField(4, nodeUnion+nodeAddr), field(4, nodeUnion+nodeBytes)).when(field32(4, 0),
			nodeMemAlloc),
		m.free("cuGraphAddNode", event.LayerVirtual, event.ObjectMemory, field(4, nodeUnion)).when(field32(4, 0), nodeMemFree),
		m.alloc("cuGraphAddNode_v3", event.LayerVirtual, outField(5, nodeUnion+nodeAddr), field(5, nodeUnion+nodeBytes)).when(field32(5, 0),
			nodeMemAlloc),
		m.free("cuGraphAddNode_v3", event.LayerVirtual, event.ObjectMemory, field(5, nodeUnion)).when(field32(5, 0), nodeMemFree),
		m.alloc("cuGraphAddNode_v2", event.LayerVirtual, outField(5, nodeUnion+nodeAddr), field(5, nodeUnion+nodeBytes)).when(field32(5, 0),
			nodeMemAlloc),
		m.free("cuGraphAddNode_v2", event.LayerVirtual, event.ObjectMemory, field(5, nodeUnion)).when(field32(5, 0), nodeMemFree),
		m.trim("cuDeviceGraphMemTrim", none).on(arg32(0)),
	}
}

// driverVMM returns the rows for physical memory, which is separate from addresses.
func driverVMM(m maker) []Row {
	none := Operand{}
	return []Row{
		m.alloc("cuMemAddressReserve", event.LayerVirtual, out(0), arg(1)),
		m.free("cuMemAddressFree", event.LayerVirtual, event.ObjectMemory, arg(0)),
		m.object("cuMemCreate", event.LayerDevice, event.ObjectPhysical, out(0), arg(1), field32(2, propLocationType)).
			on(field32(2, propLocationID)).sized(physical).where(located),
		m.free("cuMemRelease", event.LayerDevice, event.ObjectPhysical, arg(0)),
		m.retain("cuMemRetainAllocationHandle", out(0)),
		m.mapping("cuMemMap", event.KindMap, arg(0), arg(1), arg(3)),
		m.mapping("cuMemUnmap", event.KindUnmap, arg(0), arg(1), none),
	}
}

// driverShared returns the rows for memory of other owners.
func driverShared(m maker) []Row {
	shared, none := event.LayerShared, Operand{}
	return []Row{
		m.object("cuMemImportFromShareableHandle", shared, event.ObjectPhysical, out(0)),
		m.alloc("cuMemPoolImportPointer", shared, out(0), none).from(arg(1)),
		// The handle, 64 bytes by value, is on the stack.
		m.alloc("cuIpcOpenMemHandle", shared, out(0), none),
		m.alloc("cuIpcOpenMemHandle_v2", shared, out(0), none),
		m.free("cuIpcCloseMemHandle", shared, event.ObjectMemory, arg(0)),
		m.object("cuImportExternalMemory", event.LayerHolder, event.ObjectExternal, out(0), field(1, externalSize)),
		m.free("cuDestroyExternalMemory", event.LayerHolder, event.ObjectExternal, arg(0)),
		m.alloc("cuExternalMemoryGetMappedBuffer", shared, out(0), field(2, bufferSize)).from(arg(1)),
		m.object("cuExternalMemoryGetMappedMipmappedArray", shared, event.ObjectArray, out(0),
			dims(array3D(2, externalArray), field32(2, externalLevels))...).sized(mipmap).from(arg(1)),
		m.object("cuMulticastCreate", event.LayerVirtual, event.ObjectPhysical, out(0), field(1, multicastSize)),
	}
}

// driverHolders returns the rows for objects that contain memory but are none.
func driverHolders(m maker) []Row {
	holder, none := event.LayerHolder, Operand{}
	return []Row{
		m.object("cuMemPoolCreate", holder, event.ObjectPool, out(0)),
		m.object("cuMemPoolImportFromShareableHandle", holder, event.ObjectPool, out(0)),
		m.free("cuMemPoolDestroy", holder, event.ObjectPool, arg(0)),
		m.trim("cuMemPoolTrimTo", arg(0), arg(1)),

		m.context("cuCtxCreate", out(0), arg32(2)).current(),
		m.context("cuCtxCreate_v2", out(0), arg32(2)).current(),
		m.context("cuCtxCreate_v3", out(0), arg32(4)).current(),
		m.context("cuCtxCreate_v4", out(0), arg32(3)).current(),
		m.context("cuDevicePrimaryCtxRetain", out(0), arg32(1)),
		m.free("cuDevicePrimaryCtxRelease", holder, event.ObjectContext, none).on(arg32(0)),
		m.free("cuDevicePrimaryCtxRelease_v2", holder, event.ObjectContext, none).on(arg32(0)),
		m.context("cuCtxAttach", out(0), none),
		m.free("cuCtxDetach", holder, event.ObjectContext, arg(0)),
		m.reset("cuCtxDestroy", arg(0), none),
		m.reset("cuCtxDestroy_v2", arg(0), none),
		m.reset("cuDevicePrimaryCtxReset", none, arg32(0)),
		m.reset("cuDevicePrimaryCtxReset_v2", none, arg32(0)),
		m.choose("cuCtxSetCurrent", SetContext, arg(0), none),
		m.choose("cuCtxPushCurrent", SetContext, arg(0), none).push(),
		m.choose("cuCtxPushCurrent_v2", SetContext, arg(0), none).push(),
		m.choose("cuCtxPopCurrent", SetContext, none, none),
		m.choose("cuCtxPopCurrent_v2", SetContext, none, none),
	}
}

// runtimeRows: cuda_runtime_api.h of 11.8 to 13.x.
var runtimeRows = runtime(maker{Runtime, event.DeviceCUDA})

func runtime(m maker) []Row {
	return slices.Concat(runtimeMemory(m), runtimeOthers(m))
}

func runtimeMemory(m maker) []Row {
	device, host := event.LayerDevice, event.LayerHost
	return []Row{
		m.alloc("cudaMalloc", device, out(0), arg(1)),
		m.alloc("cudaMallocManaged", device, out(0), arg(1)),
		m.object("cudaMallocPitch", device, event.ObjectMemory, out(0), out(1), arg(3)).sized(pitched),
		// The extent, by value, is on the stack: its height and depth.
		m.object("cudaMalloc3D", device, event.ObjectMemory, out(0), outField(0, pitchedPitch), stack(1), stack(2)).sized(pitched),
		m.alloc("cudaMallocAsync", device, out(0), arg(1)),
		m.alloc("cudaMallocAsync_ptsz", device, out(0), arg(1)),
		m.alloc("cudaMallocFromPoolAsync", device, out(0), arg(1)).from(arg(2)),
		m.alloc("cudaMallocFromPoolAsync_ptsz", device, out(0), arg(1)).from(arg(2)),
		m.free("cudaFree", device, event.ObjectMemory, arg(0)),
		m.free("cudaFreeAsync", device, event.ObjectMemory, arg(0)),
		m.free("cudaFreeAsync_ptsz", device, event.ObjectMemory, arg(0)),

		m.array("cudaMallocArray", dims(channelsOf(1, 0), arg32(4), arg(2), arg(3))...).sized(runtimeArray).where(runtimeBacked),
		m.array("cudaMalloc3DArray", dims(channelsOf(1, 0), arg32(2), stack(0), stack(1), stack(2))...).sized(runtimeArray).where(runtimeBacked),
		m.array("cudaMallocMipmappedArray", dims(channelsOf(1, 0), arg32(3), stack(0), stack(1), stack(2), arg32(2))...).sized(
			runtimeMipmap).where(runtimeBacked),
		m.free("cudaFreeArray", device, event.ObjectArray, arg(0)),
		m.free("cudaFreeMipmappedArray", device, event.ObjectArray, arg(0)),

		m.alloc("cudaMallocHost", host, out(0), arg(1)),
		m.alloc("cudaHostAlloc", host, out(0), arg(1)),
		m.alloc("cudaHostRegister", host, arg(0), arg(1)),
		m.free("cudaFreeHost", host, event.ObjectMemory, arg(0)),
		m.free("cudaHostUnregister", host, event.ObjectMemory, arg(0)),

		m.alloc("cudaGraphAddMemAllocNode", event.LayerVirtual, outField(4, nodeAddr), field(4, nodeBytes)),
		m.free("cudaGraphAddMemFreeNode", event.LayerVirtual, event.ObjectMemory, arg(4)),
		m.trim("cudaDeviceGraphMemTrim", Operand{}).on(arg32(0)),
	}
}

func runtimeOthers(m maker) []Row {
	shared, holder, none := event.LayerShared, event.LayerHolder, Operand{}
	return []Row{
		m.alloc("cudaMemPoolImportPointer", shared, out(0), none).from(arg(1)),
		m.alloc("cudaIpcOpenMemHandle", shared, out(0), none),
		m.free("cudaIpcCloseMemHandle", shared, event.ObjectMemory, arg(0)),
		m.object("cudaImportExternalMemory", holder, event.ObjectExternal, out(0), field(1, externalSize)),
		m.free("cudaDestroyExternalMemory", holder, event.ObjectExternal, arg(0)),
		m.alloc("cudaExternalMemoryGetMappedBuffer", shared, out(0), field(2, bufferSize)).from(arg(1)),
		m.object("cudaExternalMemoryGetMappedMipmappedArray", shared, event.ObjectArray, out(0), dims(channelsOf(2, runtimeExternal),
			field32(2, runtimeExtFlags), field(2, runtimeExtExtent), field(2, runtimeExtExtent+8), field(2, runtimeExtExtent+16),
			field32(2, runtimeExtLevels))...).sized(runtimeMipmap).from(arg(1)),

		m.object("cudaMemPoolCreate", holder, event.ObjectPool, out(0)),
		m.object("cudaMemPoolImportFromShareableHandle", holder, event.ObjectPool, out(0)),
		m.free("cudaMemPoolDestroy", holder, event.ObjectPool, arg(0)),
		m.trim("cudaMemPoolTrimTo", arg(0), arg(1)),
		m.reset("cudaDeviceReset", none, none),
		m.reset("cudaThreadExit", none, none),
		m.choose("cudaSetDevice", SetDevice, none, arg32(0)),
	}
}
