// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"slices"

	"github.com/gputrace/gputrace/event"
)

// hipRows: hip/hip_runtime_api.h of ROCm 5.2, 5.7 and 6.4. HIP has CUDA's signatures and, except for one structure, their layouts.
var hipRows = hip(maker{HIP, event.DeviceHIP})

func hip(m maker) []Row {
	return slices.Concat(hipMemory(m), hipHost(m), hipVMM(m), hipOthers(m))
}

func hipMemory(m maker) []Row {
	device := event.LayerDevice
	return []Row{
		m.info("hipMemGetInfo", out(0), out(1)),
		m.alloc("hipMalloc", device, out(0), arg(1)),
		m.alloc("hipExtMallocWithFlags", device, out(0), arg(1)),
		m.alloc("hipMallocManaged", device, out(0), arg(1)),
		m.object("hipMallocPitch", device, event.ObjectMemory, out(0), out(1), arg(3)).sized(pitched),
		m.object("hipMemAllocPitch", device, event.ObjectMemory, out(0), out(1), arg(3)).sized(pitched),
		m.object("hipMalloc3D", device, event.ObjectMemory, out(0), outField(0, pitchedPitch), stack(1), stack(2)).sized(pitched),
		m.alloc("hipMallocAsync", device, out(0), arg(1)),
		m.alloc("hipMallocFromPoolAsync", device, out(0), arg(1)).from(arg(2)),
		m.free("hipFree", device, event.ObjectMemory, arg(0)),
		m.free("hipFreeAsync", device, event.ObjectMemory, arg(0)),

		m.array("hipMallocArray", dims(channelsOf(1, 0), arg32(4), arg(2), arg(3))...).sized(runtimeArray).where(runtimeBacked),
		m.array("hipMalloc3DArray", dims(channelsOf(1, 0), arg32(2), stack(0), stack(1), stack(2))...).sized(runtimeArray).where(runtimeBacked),
		m.array("hipMallocMipmappedArray", dims(channelsOf(1, 0), arg32(3), stack(0), stack(1), stack(2), arg32(2))...).sized(
			runtimeMipmap).where(runtimeBacked),
		m.array("hipArrayCreate", field(1, arrayFormat), field(1, 0), field(1, 8)).sized(array2D),
		m.array("hipArray3DCreate", array3D(1, 0)...).sized(array).where(backed),
		m.array("hipMipmappedArrayCreate", dims(array3D(1, 0), arg32(2))...).sized(mipmap).where(backed),
		m.free("hipFreeArray", device, event.ObjectArray, arg(0)),
		m.free("hipArrayDestroy", device, event.ObjectArray, arg(0)),
		m.free("hipFreeMipmappedArray", device, event.ObjectArray, arg(0)),
		m.free("hipMipmappedArrayDestroy", device, event.ObjectArray, arg(0)),
	}
}

func hipHost(m maker) []Row {
	host := event.LayerHost
	return []Row{
		m.alloc("hipHostMalloc", host, out(0), arg(1)),
		m.alloc("hipHostAlloc", host, out(0), arg(1)),
		m.alloc("hipMallocHost", host, out(0), arg(1)),
		m.alloc("hipMemAllocHost", host, out(0), arg(1)),
		m.alloc("hipHostRegister", host, arg(0), arg(1)),
		m.free("hipHostFree", host, event.ObjectMemory, arg(0)),
		m.free("hipFreeHost", host, event.ObjectMemory, arg(0)),
		m.free("hipHostUnregister", host, event.ObjectMemory, arg(0)),
	}
}

func hipVMM(m maker) []Row {
	none := Operand{}
	return []Row{
		m.alloc("hipMemAddressReserve", event.LayerVirtual, out(0), arg(1)),
		m.free("hipMemAddressFree", event.LayerVirtual, event.ObjectMemory, arg(0)),
		// hipMemAllocationProp of ROCm 5.2 has another order of fields than later ones, so the location is not read.
		m.object("hipMemCreate", event.LayerDevice, event.ObjectPhysical, out(0), arg(1)),
		m.free("hipMemRelease", event.LayerDevice, event.ObjectPhysical, arg(0)),
		m.retain("hipMemRetainAllocationHandle", out(0)),
		m.mapping("hipMemMap", event.KindMap, arg(0), arg(1), arg(3)),
		m.mapping("hipMemUnmap", event.KindUnmap, arg(0), arg(1), none),
		m.object("hipMemImportFromShareableHandle", event.LayerShared, event.ObjectPhysical, out(0)),
	}
}

func hipOthers(m maker) []Row {
	shared, holder, none := event.LayerShared, event.LayerHolder, Operand{}
	return []Row{
		m.alloc("hipMemPoolImportPointer", shared, out(0), none).from(arg(1)),
		m.alloc("hipIpcOpenMemHandle", shared, out(0), none),
		m.free("hipIpcCloseMemHandle", shared, event.ObjectMemory, arg(0)),
		m.object("hipImportExternalMemory", holder, event.ObjectExternal, out(0), field(1, externalSize)),
		m.free("hipDestroyExternalMemory", holder, event.ObjectExternal, arg(0)),
		m.alloc("hipExternalMemoryGetMappedBuffer", shared, out(0), field(2, bufferSize)).from(arg(1)),
		m.object("hipExternalMemoryGetMappedMipmappedArray", shared, event.ObjectArray, out(0), dims(channelsOf(2, runtimeExternal),
			field32(2, runtimeExtFlags), field(2, runtimeExtExtent), field(2, runtimeExtExtent+8), field(2, runtimeExtExtent+16),
			field32(2, runtimeExtLevels))...).sized(runtimeMipmap).from(arg(1)),
		m.object("hipMemPoolCreate", holder, event.ObjectPool, out(0)),
		m.object("hipMemPoolImportFromShareableHandle", holder, event.ObjectPool, out(0)),
		m.free("hipMemPoolDestroy", holder, event.ObjectPool, arg(0)),
		m.trim("hipMemPoolTrimTo", arg(0), arg(1)),
		m.trim("hipDeviceGraphMemTrim", none).on(arg32(0)),
		m.alloc("hipGraphAddMemAllocNode", event.LayerVirtual, outField(4, nodeAddr), field(4, nodeBytes)),
		m.free("hipDrvGraphAddMemFreeNode", event.LayerVirtual, event.ObjectMemory, arg(4)),
		m.free("hipGraphAddMemFreeNode", event.LayerVirtual, event.ObjectMemory, arg(4)),
		m.alloc("hipGraphAddNode", event.LayerVirtual, outField(4, nodeUnion+nodeAddr), field(4, nodeUnion+nodeBytes)).when(field32(4, 0),
			nodeMemAlloc),
		m.free("hipGraphAddNode", event.LayerVirtual, event.ObjectMemory, field(4, nodeUnion)).when(field32(4, 0), nodeMemFree),
		m.context("hipCtxCreate", out(0), arg32(2)).current(),
		m.reset("hipCtxDestroy", arg(0), none),
		m.context("hipDevicePrimaryCtxRetain", out(0), arg32(1)), // its release never destroys the context
		m.reset("hipDevicePrimaryCtxReset", none, arg32(0)),
		m.reset("hipDeviceReset", none, none),
		m.choose("hipCtxSetCurrent", SetContext, arg(0), none),
		m.choose("hipCtxPushCurrent", SetContext, arg(0), none).push(),
		m.choose("hipCtxPopCurrent", SetContext, none, none),
		m.choose("hipSetDevice", SetDevice, none, arg32(0)),
	}
}

// physicalDescSize is the offset of the size in ze_physical_mem_desc_t: stype, pNext, flags, size.
const physicalDescSize = 24

// levelZeroRows: ze_api.h of the loaders 1.8, 1.20 and 1.32. Each call names its context. Memory that a call imports
// through a descriptor in its pNext chain counts as allocated by the call.
var levelZeroRows = levelZero(maker{LevelZero, event.DeviceXPU})

func levelZero(m maker) []Row {
	device, none, context := event.LayerDevice, Operand{}, arg(0)
	return []Row{
		m.alloc("zeMemAllocDevice", device, out(5), arg(2)).within(context),
		m.alloc("zeMemAllocShared", device, out(6), arg(3)).within(context), // the seventh argument is on the stack
		m.alloc("zeMemAllocHost", event.LayerHost, out(4), arg(2)).within(context),
		m.free("zeMemFree", device, event.ObjectMemory, arg(1)),
		m.free("zeMemFreeExt", device, event.ObjectMemory, arg(2)),
		// Only the driver knows the size of an image.
		m.object("zeImageCreate", device, event.ObjectArray, out(3)).within(context),
		m.free("zeImageDestroy", device, event.ObjectArray, arg(0)),
		m.object("zePhysicalMemCreate", device, event.ObjectPhysical, out(3), field(2, physicalDescSize)),
		m.free("zePhysicalMemDestroy", device, event.ObjectPhysical, arg(1)),
		m.alloc("zeVirtualMemReserve", event.LayerVirtual, out(3), arg(2)),
		m.free("zeVirtualMemFree", event.LayerVirtual, event.ObjectMemory, arg(1)),
		m.mapping("zeVirtualMemMap", event.KindMap, arg(1), arg(2), arg(3)),
		m.mapping("zeVirtualMemUnmap", event.KindUnmap, arg(1), arg(2), none),
		m.alloc("zeMemOpenIpcHandle", event.LayerShared, out(3), none).within(context),
		m.free("zeMemCloseIpcHandle", event.LayerShared, event.ObjectMemory, arg(1)),
		m.context("zeContextCreate", out(2), none),
		m.context("zeContextCreateEx", out(4), none),
		m.reset("zeContextDestroy", arg(0), none),
	}
}
