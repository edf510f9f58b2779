// SPDX-License-Identifier: Apache-2.0

package main

// Status says how a function is handled.
type Status int

const (
	// Hooked: package hook must have a row for it.
	Hooked Status = iota + 1
	// NotHooked: memory is involved, and the reason says why it is not traced.
	NotHooked
	// NotMemory: it looks like memory, but neither allocates nor frees any.
	NotMemory
	// Other: nothing in its name or parameters looks like memory.
	Other
)

// Group is functions with one status and one reason.
type Group struct {
	// Family is the heading on the page.
	Family string
	Status Status
	// Reason completes "not hooked because": what is known instead, or what the function does.
	Reason string
	// Names are the exported names, separated by blanks, and include the variants for the other default stream (_ptsz,
	// _ptds, _spt). In groups of copies, and with status Other, a name may be a pattern (package path).
	Driver, Runtime, HIP, LevelZero string
	// Copies allows patterns in a group of NotMemory. They may only match functions that copy or fill.
	Copies bool
}

// Families, in the order of the page.
const (
	plain     = "Plain memory"
	pitched   = "Pitched and 3D"
	arrays    = "Arrays and images"
	ordered   = "Stream-ordered memory and pools"
	host      = "Host memory"
	vmm       = "Virtual memory management"
	shared    = "Memory of others: IPC, external, graphics"
	multicast = "Multicast and fabric"
	graphs    = "Graphs"
	contexts  = "Contexts and devices"
	code      = "Code"
	queries   = "Queries"
	contents  = "Contents and placement"
)

var families = []string{plain, pitched, arrays, ordered, host, vmm, shared, multicast, graphs, contexts, code, queries, contents}

// groups is the table. A declared function without a group fails the build: decide what it is, add a row to package
// hook if it allocates or frees memory, and list it here.
var groups = []Group{
	{
		Family: plain, Status: Hooked,
		Driver:    "cuMemAlloc_v2 cuMemAllocManaged cuMemFree_v2",
		Runtime:   "cudaMalloc cudaMallocManaged cudaFree",
		HIP:       "hipMalloc hipExtMallocWithFlags hipMallocManaged hipFree",
		LevelZero: "zeMemAllocDevice zeMemAllocShared zeMemFree zeMemFreeExt",
	},
	{
		Family: plain, Status: NotHooked,
		Reason: "the old form, with addresses and sizes of 32 bits: the header declares it for the driver itself only",
		Driver: "cuMemAlloc cuMemFree cuMemAllocPitch cuMemAllocHost cuArrayCreate cuArray3DCreate",
	},
	{
		Family: pitched, Status: Hooked,
		Driver:  "cuMemAllocPitch_v2",
		Runtime: "cudaMallocPitch cudaMalloc3D",
		HIP:     "hipMallocPitch hipMemAllocPitch hipMalloc3D",
	},
	{
		Family: arrays, Status: Hooked,
		Driver:  "cuArrayCreate_v2 cuArray3DCreate_v2 cuArrayDestroy cuMipmappedArrayCreate cuMipmappedArrayDestroy",
		Runtime: "cudaMallocArray cudaMalloc3DArray cudaFreeArray cudaMallocMipmappedArray cudaFreeMipmappedArray",
		HIP: "hipMallocArray hipMalloc3DArray hipFreeArray hipMallocMipmappedArray hipFreeMipmappedArray hipArrayCreate hipArray3DCreate" +
			" hipArrayDestroy hipMipmappedArrayCreate hipMipmappedArrayDestroy",
		LevelZero: "zeImageCreate zeImageDestroy",
	},
	{
		Family: arrays, Status: NotHooked,
		Reason: "binds memory that is counted already, or takes it away, tile by tile, from an array without memory of its own",
		Driver: "cuMemMapArrayAsync",
		HIP:    "hipMemMapArrayAsync",
	},
	{
		Family: arrays, Status: NotMemory,
		Reason: "a level, plane or view of an array",
		Driver: "cuMipmappedArrayGetLevel cuArrayGetPlane", Runtime: "cudaGetMipmappedArrayLevel cudaArrayGetPlane",
		HIP: "hipGetMipmappedArrayLevel hipMipmappedArrayGetLevel", LevelZero: "zeImageViewCreateExt zeImageViewCreateExp",
	},
	{
		Family: arrays, Status: NotMemory,
		Reason: "textures and surfaces: a view of memory that is counted",
		Driver: "cuSurfObjectCreate cuSurfObjectDestroy cuSurfObjectGetResourceDesc cuSurfRefGetArray cuSurfRefSetArray" +
			" cuTexRefGetAddress cuTexRefGetAddress_v2 cuTexRefSetAddress cuTexRefSetAddress_v2 cuTexRefSetAddress2D cuTexRefSetAddress2D_v2" +
			" cuTexRefSetAddress2D_v3 cuTexRefGetArray cuTexRefSetArray cuTexRefGetFormat cuTexRefSetFormat cuTexRefGetMipmappedArray" +
			" cuTexRefSetMipmappedArray cuTexRefGetMipmapFilterMode cuTexRefSetMipmapFilterMode cuTexRefGetMipmapLevelBias" +
			" cuTexRefSetMipmapLevelBias cuTexRefGetMipmapLevelClamp cuTexRefSetMipmapLevelClamp",
		Runtime: "cudaCreateSurfaceObject cudaDestroySurfaceObject cudaGetSurfaceObjectResourceDesc cudaGetSurfaceReference" +
			" cudaBindSurfaceToArray cudaBindTextureToArray cudaBindTextureToMipmappedArray",
		HIP: "hipCreateSurfaceObject hipDestroySurfaceObject hipBindTextureToArray hipBindTextureToMipmappedArray hipTexRefGetAddress" +
			" hipTexRefSetAddress hipTexRefSetAddress2D hipTexRefGetArray" +
			" hipTexRefSetArray hipTexRefGetFormat hipTexRefSetFormat hipTexRefGetMipMappedArray hipTexRefSetMipmappedArray" +
			" hipTexRefGetMipmapFilterMode hipTexRefSetMipmapFilterMode hipTexRefGetMipmapLevelBias hipTexRefSetMipmapLevelBias" +
			" hipTexRefGetMipmapLevelClamp hipTexRefSetMipmapLevelClamp",
	},
	{
		Family: arrays, Status: NotMemory,
		Reason: "encodes the description of a tensor into 128 bytes of the caller's",
		Driver: "cuTensorMapEncodeTiled cuTensorMapEncodeIm2col cuTensorMapEncodeIm2colWide cuTensorMapReplaceAddress" +
			" cuTensorMapSetAllocationClass",
	},

	{
		Family: ordered, Status: Hooked,
		Driver: "cuMemAllocAsync cuMemAllocFromPoolAsync cuMemFreeAsync cuMemPoolCreate cuMemPoolDestroy cuMemPoolTrimTo" +
			" cuMemPoolImportFromShareableHandle cuMemPoolImportPointer",
		Runtime: "cudaMallocAsync cudaMallocFromPoolAsync cudaFreeAsync cudaMemPoolCreate cudaMemPoolDestroy cudaMemPoolTrimTo" +
			" cudaMemPoolImportFromShareableHandle cudaMemPoolImportPointer",
		HIP: "hipMallocAsync hipMallocFromPoolAsync hipFreeAsync hipMemPoolCreate hipMemPoolDestroy hipMemPoolTrimTo" +
			" hipMemPoolImportFromShareableHandle hipMemPoolImportPointer",
	},
	{
		Family: ordered, Status: NotHooked,
		Reason: "sets how much a pool keeps after frees. What is kept is in the part of the balance that no call explains",
		Driver: "cuMemPoolSetAttribute", Runtime: "cudaMemPoolSetAttribute", HIP: "hipMemPoolSetAttribute",
	},
	{
		Family: ordered, Status: NotMemory,
		Reason: "chooses or names a pool: what is taken from it later is counted",
		Driver: "cuDeviceGetDefaultMemPool cuDeviceGetMemPool cuDeviceSetMemPool cuMemGetDefaultMemPool cuMemGetMemPool cuMemSetMemPool",
		Runtime: "cudaDeviceGetDefaultMemPool cudaDeviceGetMemPool cudaDeviceSetMemPool cudaMemGetDefaultMemPool cudaMemGetMemPool" +
			" cudaMemSetMemPool",
		HIP: "hipDeviceGetDefaultMemPool hipDeviceGetMemPool hipDeviceSetMemPool",
	},
	{
		Family: ordered, Status: NotMemory,
		Reason:  "which devices may use a pool's memory",
		Driver:  "cuMemPoolSetAccess cuMemPoolGetAccess",
		Runtime: "cudaMemPoolSetAccess cudaMemPoolGetAccess",
		HIP:     "hipMemPoolSetAccess hipMemPoolGetAccess",
	},

	{
		Family: host, Status: Hooked,
		Driver:  "cuMemHostAlloc cuMemAllocHost_v2 cuMemFreeHost cuMemHostRegister cuMemHostRegister_v2 cuMemHostUnregister",
		Runtime: "cudaHostAlloc cudaMallocHost cudaFreeHost cudaHostRegister cudaHostUnregister",
		HIP: "hipHostMalloc hipHostAlloc hipMallocHost hipMemAllocHost hipHostFree hipFreeHost hipHostRegister" +
			" hipHostUnregister",
		LevelZero: "zeMemAllocHost",
	},

	{
		Family: vmm, Status: Hooked,
		Driver: "cuMemAddressReserve cuMemAddressFree cuMemCreate cuMemRelease cuMemMap cuMemUnmap cuMemRetainAllocationHandle" +
			" cuMemImportFromShareableHandle",
		HIP: "hipMemAddressReserve hipMemAddressFree hipMemCreate hipMemRelease hipMemMap hipMemUnmap hipMemRetainAllocationHandle" +
			" hipMemImportFromShareableHandle",
		LevelZero: "zePhysicalMemCreate zePhysicalMemDestroy zeVirtualMemReserve zeVirtualMemFree zeVirtualMemMap zeVirtualMemUnmap",
	},
	{
		Family: vmm, Status: NotMemory,
		Reason:    "which devices may use a range of addresses",
		Driver:    "cuMemSetAccess cuMemGetAccess",
		HIP:       "hipMemSetAccess hipMemGetAccess",
		LevelZero: "zeVirtualMemSetAccessAttribute zeVirtualMemGetAccessAttribute",
	},

	{
		Family: shared, Status: Hooked,
		Driver: "cuIpcOpenMemHandle cuIpcOpenMemHandle_v2 cuIpcCloseMemHandle cuImportExternalMemory cuDestroyExternalMemory" +
			" cuExternalMemoryGetMappedBuffer cuExternalMemoryGetMappedMipmappedArray",
		Runtime: "cudaIpcOpenMemHandle cudaIpcCloseMemHandle cudaImportExternalMemory cudaDestroyExternalMemory" +
			" cudaExternalMemoryGetMappedBuffer cudaExternalMemoryGetMappedMipmappedArray",
		HIP: "hipIpcOpenMemHandle hipIpcCloseMemHandle hipImportExternalMemory hipDestroyExternalMemory" +
			" hipExternalMemoryGetMappedBuffer hipExternalMemoryGetMappedMipmappedArray",
		LevelZero: "zeMemOpenIpcHandle zeMemCloseIpcHandle",
	},
	{
		Family: shared, Status: NotHooked,
		Reason: "the memory is allocated and freed by the graphics driver; mapping it here takes no more",
		Driver: "cuGraphicsMapResources cuGraphicsResourceGetMappedPointer cuGraphicsResourceGetMappedPointer_v2" +
			" cuGraphicsResourceGetMappedMipmappedArray cuGraphicsSubResourceGetMappedArray cuGraphicsResourceGetMappedEglFrame" +
			" cuGraphicsGLRegisterBuffer cuGraphicsGLRegisterImage cuGraphicsEGLRegisterImage cuGraphicsVDPAURegisterOutputSurface" +
			" cuGraphicsVDPAURegisterVideoSurface cuGLRegisterBufferObject cuGLUnregisterBufferObject cuGLMapBufferObject" +
			" cuGLMapBufferObject_v2 cuGLMapBufferObjectAsync cuGLMapBufferObjectAsync_v2 cuGLUnmapBufferObject" +
			" cuGLUnmapBufferObjectAsync cuEGLStreamConsumerReleaseFrame",
		Runtime: "cudaGraphicsMapResources cudaGraphicsResourceGetMappedPointer cudaGraphicsResourceGetMappedMipmappedArray" +
			" cudaGraphicsSubResourceGetMappedArray cudaGraphicsResourceGetMappedEglFrame cudaGraphicsGLRegisterBuffer" +
			" cudaGraphicsGLRegisterImage cudaGraphicsEGLRegisterImage cudaGraphicsVDPAURegisterOutputSurface" +
			" cudaGraphicsVDPAURegisterVideoSurface cudaGLRegisterBufferObject cudaGLUnregisterBufferObject cudaGLMapBufferObject" +
			" cudaGLMapBufferObjectAsync cudaGLUnmapBufferObject cudaGLUnmapBufferObjectAsync cudaEGLStreamConsumerReleaseFrame",
		HIP: "hipGraphicsMapResources hipGraphicsResourceGetMappedPointer hipGraphicsSubResourceGetMappedArray" +
			" hipGraphicsGLRegisterBuffer hipGraphicsGLRegisterImage",
	},
	{
		Family: shared, Status: NotMemory,
		Reason:  "flags for mapping, set before it",
		Driver:  "cuGraphicsResourceSetMapFlags cuGraphicsResourceSetMapFlags_v2 cuGLSetBufferObjectMapFlags",
		Runtime: "cudaGraphicsResourceSetMapFlags cudaGLSetBufferObjectMapFlags",
	},
	{
		Family: shared, Status: NotMemory,
		Reason: "makes a handle by which others can open memory that is counted here",
		Driver: "cuIpcGetMemHandle cuMemExportToShareableHandle cuMemGetHandleForAddressRange cuMemPoolExportPointer" +
			" cuMemPoolExportToShareableHandle",
		Runtime: "cudaIpcGetMemHandle cudaMemPoolExportPointer cudaMemPoolExportToShareableHandle",
		HIP:     "hipIpcGetMemHandle hipMemExportToShareableHandle hipMemPoolExportPointer hipMemPoolExportToShareableHandle",
		LevelZero: "zeMemGetIpcHandle zeMemGetIpcHandleWithProperties zeMemPutIpcHandle zeMemGetFileDescriptorFromIpcHandleExp" +
			" zeMemGetIpcHandleFromFileDescriptorExp",
	},
	{
		Family: shared, Status: NotMemory,
		Reason: "events and semaphores of others",
		Driver: "cuIpcGetEventHandle cuIpcOpenEventHandle cuImportExternalSemaphore cuDestroyExternalSemaphore" +
			" cuSignalExternalSemaphoresAsync cuWaitExternalSemaphoresAsync",
		Runtime: "cudaIpcGetEventHandle cudaIpcOpenEventHandle cudaImportExternalSemaphore cudaDestroyExternalSemaphore" +
			" cudaSignalExternalSemaphoresAsync cudaSignalExternalSemaphoresAsync_v2 cudaWaitExternalSemaphoresAsync" +
			" cudaWaitExternalSemaphoresAsync_v2",
		HIP: "hipIpcGetEventHandle hipIpcOpenEventHandle hipImportExternalSemaphore hipDestroyExternalSemaphore" +
			" hipSignalExternalSemaphoresAsync hipWaitExternalSemaphoresAsync",
		LevelZero: "zeEventPoolGetIpcHandle zeEventPoolOpenIpcHandle zeEventPoolCloseIpcHandle zeEventPoolPutIpcHandle" +
			" zeEventCounterBasedGetIpcHandle zeEventCounterBasedOpenIpcHandle zeEventCounterBasedCloseIpcHandle" +
			" zeDeviceImportExternalSemaphoreExt zeDeviceReleaseExternalSemaphoreExt zeCommandListAppendSignalExternalSemaphoreExt" +
			" zeCommandListAppendWaitExternalSemaphoreExt",
	},

	{
		Family: multicast, Status: Hooked,
		Driver: "cuMulticastCreate",
	},
	{
		Family: multicast, Status: NotHooked,
		Reason: "binds memory that is counted already to a multicast object, or takes it away",
		Driver: "cuMulticastAddDevice cuMulticastBindMem cuMulticastBindMem_v2 cuMulticastBindAddr cuMulticastBindAddr_v2 cuMulticastUnbind",
	},
	{
		Family: multicast, Status: NotHooked,
		Reason: "gives memory that is counted already an address on the fabric",
		Driver: "cuLogicalEndpointIdReserve cuLogicalEndpointIdRelease cuLogicalEndpointCreate cuLogicalEndpointDestroy" +
			" cuLogicalEndpointAddDevice cuLogicalEndpointBindMem cuLogicalEndpointBindAddr cuLogicalEndpointUnbind" +
			" cuLogicalEndpointExport cuLogicalEndpointImport",
	},

	{
		Family: graphs, Status: Hooked,
		Driver: "cuGraphAddMemAllocNode cuGraphAddMemFreeNode cuGraphAddNode cuGraphAddNode_v2 cuGraphAddNode_v3" +
			" cuDeviceGraphMemTrim",
		Runtime: "cudaGraphAddMemAllocNode cudaGraphAddMemFreeNode cudaDeviceGraphMemTrim",
		HIP: "hipGraphAddMemAllocNode hipGraphAddMemFreeNode hipDrvGraphAddMemFreeNode hipGraphAddNode" +
			" hipDeviceGraphMemTrim",
	},
	{
		Family: graphs, Status: NotHooked,
		Reason:  "the name has two signatures (libcudart.so.12 and .so.13); the driver's `cuGraphAddNode`, which it calls, is hooked",
		Runtime: "cudaGraphAddNode cudaGraphAddNode_v2",
	},
	{
		Family: graphs, Status: NotHooked,
		Reason: "the memory behind a graph's nodes, and what the driver needs to run it, comes and goes inside the driver, for all nodes at once",
		Driver: "cuGraphInstantiate cuGraphInstantiate_v2 cuGraphInstantiateWithFlags cuGraphInstantiateWithParams cuGraphUpload" +
			" cuGraphLaunch cuGraphExecUpdate cuGraphExecUpdate_v2 cuGraphExecDestroy cuGraphDestroy cuGraphDestroyNode cuGraphClone" +
			" cuGraphAddChildGraphNode",
		Runtime: "cudaGraphInstantiate cudaGraphInstantiateWithFlags cudaGraphInstantiateWithParams cudaGraphUpload cudaGraphLaunch" +
			" cudaGraphExecUpdate cudaGraphExecDestroy cudaGraphDestroy cudaGraphDestroyNode cudaGraphClone cudaGraphAddChildGraphNode",
		HIP: "hipGraphInstantiate hipGraphInstantiateWithFlags hipGraphInstantiateWithParams hipGraphUpload hipGraphLaunch" +
			" hipGraphExecUpdate hipGraphExecDestroy hipGraphDestroy hipGraphDestroyNode hipGraphClone hipGraphAddChildGraphNode",
		LevelZero: "zeGraphInstantiateExt zeGraphDestroyExt zeExecutableGraphDestroyExt",
	},
	{
		Family: graphs, Status: NotMemory,
		Reason: "reads or changes the parameters of nodes; those of an allocation cannot be changed",
		Driver: "cuGraphMemAllocNodeGetParams cuGraphMemFreeNodeGetParams cuGraphNodeGetParams cuGraphNodeSetParams cuGraphNodeSetParams_v2" +
			" cuGraphExecNodeSetParams",
		Runtime: "cudaGraphMemAllocNodeGetParams cudaGraphMemFreeNodeGetParams cudaGraphNodeGetParams cudaGraphNodeSetParams" +
			" cudaGraphExecNodeSetParams",
		HIP: "hipGraphMemAllocNodeGetParams hipGraphMemFreeNodeGetParams hipGraphNodeSetParams hipGraphExecNodeSetParams",
	},
	{
		Family: graphs, Status: NotMemory,
		Reason: "nodes that signal, wait or write single words",
		Driver: "cuGraphAddExternalSemaphoresSignalNode cuGraphAddExternalSemaphoresWaitNode" +
			" cuGraphExternalSemaphoresSignalNodeGetParams cuGraphExternalSemaphoresSignalNodeSetParams" +
			" cuGraphExternalSemaphoresWaitNodeGetParams cuGraphExternalSemaphoresWaitNodeSetParams" +
			" cuGraphExecExternalSemaphoresSignalNodeSetParams cuGraphExecExternalSemaphoresWaitNodeSetParams cuGraphAddBatchMemOpNode" +
			" cuGraphBatchMemOpNodeGetParams cuGraphBatchMemOpNodeSetParams cuGraphExecBatchMemOpNodeSetParams",
		Runtime: "cudaGraphAddExternalSemaphoresSignalNode cudaGraphAddExternalSemaphoresWaitNode" +
			" cudaGraphExternalSemaphoresSignalNodeGetParams cudaGraphExternalSemaphoresSignalNodeSetParams" +
			" cudaGraphExternalSemaphoresWaitNodeGetParams cudaGraphExternalSemaphoresWaitNodeSetParams" +
			" cudaGraphExecExternalSemaphoresSignalNodeSetParams cudaGraphExecExternalSemaphoresWaitNodeSetParams",
		HIP: "hipGraphAddExternalSemaphoresSignalNode hipGraphAddExternalSemaphoresWaitNode" +
			" hipGraphExternalSemaphoresSignalNodeGetParams hipGraphExternalSemaphoresSignalNodeSetParams" +
			" hipGraphExternalSemaphoresWaitNodeGetParams hipGraphExternalSemaphoresWaitNodeSetParams" +
			" hipGraphExecExternalSemaphoresSignalNodeSetParams hipGraphExecExternalSemaphoresWaitNodeSetParams hipGraphAddBatchMemOpNode" +
			" hipGraphBatchMemOpNodeGetParams hipGraphBatchMemOpNodeSetParams hipGraphExecBatchMemOpNodeSetParams",
	},
	{
		Family: graphs, Status: NotMemory,
		Reason:  "limits and counters of the memory that graphs keep",
		Driver:  "cuDeviceGetGraphMemAttribute cuDeviceSetGraphMemAttribute",
		Runtime: "cudaDeviceGetGraphMemAttribute cudaDeviceSetGraphMemAttribute",
		HIP:     "hipDeviceGetGraphMemAttribute hipDeviceSetGraphMemAttribute",
	},
	{
		Family: graphs, Status: NotMemory,
		Reason: "counts references of an object of the program's own",
		Driver: "cuUserObjectRelease cuGraphReleaseUserObject", Runtime: "cudaUserObjectRelease cudaGraphReleaseUserObject",
		HIP: "hipUserObjectRelease hipGraphReleaseUserObject",
	},

	{
		Family: contexts, Status: Hooked,
		Driver: "cuCtxCreate cuCtxCreate_v2 cuCtxCreate_v3 cuCtxCreate_v4 cuCtxDestroy cuCtxDestroy_v2 cuDevicePrimaryCtxRetain" +
			" cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2 cuDevicePrimaryCtxReset cuDevicePrimaryCtxReset_v2 cuCtxAttach cuCtxDetach",
		Runtime: "cudaDeviceReset cudaThreadExit",
		HIP: "hipCtxCreate hipCtxDestroy hipDevicePrimaryCtxRetain hipDevicePrimaryCtxReset" +
			" hipDeviceReset",
		LevelZero: "zeContextCreate zeContextCreateEx zeContextDestroy",
	},
	{
		Family: contexts, Status: Hooked,
		Driver:  "cuCtxSetCurrent cuCtxPushCurrent cuCtxPushCurrent_v2 cuCtxPopCurrent cuCtxPopCurrent_v2",
		Runtime: "cudaSetDevice",
		HIP:     "hipCtxSetCurrent hipCtxPushCurrent hipCtxPopCurrent hipSetDevice",
	},
	{
		Family: contexts, Status: NotHooked,
		Reason: "makes a context for programs that draw; what is allocated in it is counted, its end is `cuCtxDestroy`",
		Driver: "cuGLCtxCreate cuGLCtxCreate_v2 cuVDPAUCtxCreate cuVDPAUCtxCreate_v2",
	},
	{
		Family: contexts, Status: NotHooked,
		Reason: "a part of a device: what the driver keeps for it is not known. Memory belongs to the device's primary context, which it " +
			"retains",
		Driver:  "cuGreenCtxCreate cuGreenCtxDestroy cuCtxFromGreenCtx",
		Runtime: "cudaGreenCtxCreate cudaExecutionCtxDestroy cudaDeviceGetExecutionCtx",
	},
	{
		Family: contexts, Status: NotHooked,
		Reason:  "the driver's functions that it calls are hooked: `cuDevicePrimaryCtxRetain`, `cuCtxSetCurrent`",
		Runtime: "cudaInitDevice",
	},
	{
		Family: contexts, Status: NotMemory,
		Reason: "does not end the context (hip_runtime_api.h)",
		HIP:    "hipDevicePrimaryCtxRelease",
	},
	{
		Family: contexts, Status: NotHooked,
		Reason:    "the context belongs to the loader and is not destroyed: each allocation names it",
		LevelZero: "zeDriverGetDefaultContext",
	},
	{
		Family: contexts, Status: NotHooked,
		Reason: "heaps of the context (printf, malloc in kernels, stacks): the driver allocates inside; in the part that no call explains",
		Driver: "cuCtxSetLimit", Runtime: "cudaDeviceSetLimit cudaThreadSetLimit", HIP: "hipDeviceSetLimit",
	},
	{
		Family: contexts, Status: NotHooked,
		Reason: "called by another process: takes all memory of the traced one away and gives it back. In between it is still counted",
		Driver: "cuCheckpointProcessLock cuCheckpointProcessCheckpoint cuCheckpointProcessRestore cuCheckpointProcessUnlock" +
			" cuCheckpointProcessGetState cuCheckpointProcessGetRestoreThreadId cuCheckpointOperationComplete",
	},
	{
		Family: contexts, Status: NotHooked,
		Reason:  "no header declares it: its arguments are not known",
		Runtime: "cudaSubgridCreate cudaSubgridWorkerGridCreate cudaSubgridWorksetCreate",
	},
	{
		Family: contexts, Status: NotMemory,
		Reason:  "starts the driver: contexts come later",
		Driver:  "cuInit cuGLInit",
		Runtime: "cudaProfilerInitialize",
		HIP:     "hipInit", LevelZero: "zeInit zeInitDrivers",
	},
	{
		Family: contexts, Status: NotMemory,
		Reason: "settings, peers, events and waiting of a context",
		Driver: "cuCtxDisablePeerAccess cuCtxEnablePeerAccess cuCtxSetCacheConfig cuCtxSetFlags cuCtxSetSharedMemConfig cuCtxSynchronize" +
			" cuCtxSynchronize_v2 cuCtxRecordEvent cuCtxWaitEvent cuCtxResetPersistingL2Cache cuDevicePrimaryCtxSetFlags" +
			" cuDevicePrimaryCtxSetFlags_v2 cuGreenCtxRecordEvent cuGreenCtxWaitEvent cuGreenCtxStreamCreate",
		Runtime: "cudaCtxResetPersistingL2Cache cudaDeviceSetSharedMemConfig cudaExecutionCtxRecordEvent cudaExecutionCtxStreamCreate" +
			" cudaExecutionCtxSynchronize cudaExecutionCtxWaitEvent",
		HIP: "hipCtxDisablePeerAccess hipCtxEnablePeerAccess hipCtxSetCacheConfig hipCtxSetSharedMemConfig hipCtxSynchronize" +
			" hipDevicePrimaryCtxSetFlags hipDeviceSetSharedMemConfig",
		LevelZero: "zeContextSystemBarrier",
	},

	{
		Family: code, Status: NotHooked,
		Reason: "code and the variables in it: the driver allocates inside and tells no size; in the part that no call explains",
		Driver: "cuModuleLoad cuModuleLoadData cuModuleLoadDataEx cuModuleLoadFatBinary cuModuleUnload cuLibraryLoadData" +
			" cuLibraryLoadFromFile cuLibraryUnload cuFuncLoad cuLibraryGetModule",
		Runtime:   "cudaLibraryLoadData cudaLibraryLoadFromFile cudaLibraryUnload",
		HIP:       "hipModuleLoad hipModuleLoadData hipModuleLoadDataEx hipModuleUnload",
		LevelZero: "zeModuleCreate zeModuleDestroy zeModuleDynamicLink",
	},
	{
		Family: code, Status: NotHooked,
		Reason: "what a launch makes the driver allocate (code that is loaded late, local memory, printf) comes without a call; in the part " +
			"that no call explains",
		Driver:  "cuLaunchKernel cuLaunchKernelEx cuLaunchCooperativeKernel",
		Runtime: "cudaLaunchKernel cudaLaunchKernelExC cudaLaunchCooperativeKernel",
		HIP: "hipLaunchKernel hipExtLaunchKernel hipLaunchCooperativeKernel hipModuleLaunchKernel hipModuleLaunchCooperativeKernel" +
			" hipModuleLaunchCooperativeKernelMultiDevice",
		LevelZero: "zeCommandListAppendLaunchKernelWithArguments",
	},
	{
		Family: code, Status: NotHooked,
		Reason: "hands out functions without a name, to libraries of the vendor: what those allocate is in the part that no call explains",
		Driver: "cuGetExportTable", Runtime: "cudaGetExportTable",
	},
	{
		Family: code, Status: NotMemory,
		Reason: "hands out the addresses of functions: those of this table are hooked however they were found",
		Driver: "cuGetProcAddress cuGetProcAddress_v2", Runtime: "cudaGetDriverEntryPoint cudaGetDriverEntryPointByVersion",
		HIP: "hipGetProcAddress", LevelZero: "zeDriverGetExtensionFunctionAddress zeModuleGetFunctionPointer",
	},
	{
		Family: code, Status: NotMemory,
		Reason: "links or reads code on the host",
		Driver: "cuLinkCreate cuLinkCreate_v2 cuLinkAddData cuLinkAddData_v2 cuLinkAddFile cuLinkAddFile_v2 cuLinkComplete cuLinkDestroy",
		HIP:    "hipLinkCreate hipLinkAddData hipLinkAddFile hipLinkComplete hipLinkDestroy",
		LevelZero: "zeModuleInspectLinkageExt zeModuleBuildLogDestroy zeModuleBuildLogGetString zeModuleGetNativeBinary" +
			" zeModuleGetKernelNames",
	},
	{
		Family: code, Status: NotMemory,
		Reason: "looks something up in code that is loaded",
		Driver: "cuModuleGetFunction cuModuleGetFunctionCount cuModuleEnumerateFunctions cuModuleGetGlobal cuModuleGetGlobal_v2" +
			" cuModuleGetSurfRef cuModuleGetTexRef cuModuleGetLoadingMode cuLibraryGetKernel cuLibraryGetKernelCount" +
			" cuLibraryEnumerateKernels cuLibraryGetGlobal cuLibraryGetManaged cuLibraryGetUnifiedFunction cuKernelGetLibrary" +
			" cuFuncGetModule",
		Runtime: "cudaLibraryGetKernel cudaLibraryGetKernelCount cudaLibraryEnumerateKernels cudaLibraryGetGlobal cudaLibraryGetManaged" +
			" cudaLibraryGetUnifiedFunction cudaGetSymbolAddress",
		HIP:       "hipModuleGetFunction hipModuleGetGlobal hipModuleGetTexRef hipGetSymbolAddress",
		LevelZero: "zeModuleGetGlobalPointer zeModuleGetProperties",
	},
	{
		Family: code, Status: NotMemory,
		Reason:  "shared memory on the chip",
		Driver:  "cuCtxGetSharedMemConfig cuFuncSetSharedMemConfig cuFuncSetSharedSize cuOccupancyAvailableDynamicSMemPerBlock",
		Runtime: "cudaDeviceGetSharedMemConfig cudaFuncSetSharedMemConfig cudaOccupancyAvailableDynamicSMemPerBlock",
		HIP: "hipCtxGetSharedMemConfig hipDeviceGetSharedMemConfig hipFuncSetSharedMemConfig hipModuleOccupancyMaxPotentialBlockSize" +
			" hipModuleOccupancyMaxPotentialBlockSizeWithFlags hipModuleOccupancyMaxActiveBlocksPerMultiprocessor" +
			" hipModuleOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
	},

	{
		Family: queries, Status: Hooked,
		Driver: "cuMemGetInfo_v2", HIP: "hipMemGetInfo",
	},
	{
		Family: queries, Status: NotMemory,
		Reason: "sizes and properties of memory",
		Driver: "cuMemGetInfo cuDeviceTotalMem cuDeviceTotalMem_v2 cuMemGetAddressRange cuMemGetAddressRange_v2" +
			" cuMemGetAllocationGranularity cuMemGetAllocationPropertiesFromHandle cuMemGetLocationInfo cuMemHostGetDevicePointer" +
			" cuMemHostGetDevicePointer_v2 cuMemHostGetFlags cuMemPoolGetAttribute cuMemRangeGetAttribute cuMemRangeGetAttributes" +
			" cuPointerGetAttribute cuPointerGetAttributes cuMulticastGetGranularity cuLogicalEndpointGetLimits cuLogicalEndpointQuery",
		Runtime: "cudaMemGetInfo cudaMemGetLocationInfo cudaHostGetDevicePointer cudaMemPoolGetAttribute cudaMemRangeGetAttribute" +
			" cudaMemRangeGetAttributes",
		HIP: "hipDeviceTotalMem hipMemGetAddressRange hipMemPtrGetInfo hipMemGetAllocationGranularity" +
			" hipMemGetAllocationPropertiesFromHandle hipHostGetDevicePointer hipMemPoolGetAttribute hipMemRangeGetAttribute" +
			" hipMemRangeGetAttributes hipPointerGetAttribute hipDrvPointerGetAttributes",
		LevelZero: "zeMemGetAddressRange zeMemGetAllocProperties zeMemGetPitchFor2dImage zePhysicalMemGetProperties" +
			" zeVirtualMemQueryPageSize zeKernelGetAllocationPropertiesExp",
	},
	{
		Family: queries, Status: NotMemory,
		Reason: "properties of arrays and images",
		Driver: "cuArrayGetDescriptor cuArrayGetDescriptor_v2 cuArray3DGetDescriptor cuArray3DGetDescriptor_v2 cuArrayGetMemoryRequirements" +
			" cuArrayGetSparseProperties cuMipmappedArrayGetMemoryRequirements cuMipmappedArrayGetSparseProperties" +
			" cuDeviceGetTexture1DLinearMaxWidth",
		Runtime: "cudaArrayGetInfo cudaArrayGetMemoryRequirements cudaArrayGetSparseProperties cudaMipmappedArrayGetMemoryRequirements" +
			" cudaMipmappedArrayGetSparseProperties cudaGetChannelDesc",
		HIP: "hipArrayGetInfo hipArrayGetDescriptor hipArray3DGetDescriptor hipGetChannelDesc hipDeviceGetTexture1DLinearMaxWidth",
		LevelZero: "zeImageGetProperties zeImageGetAllocPropertiesExt zeImageGetMemoryPropertiesExp zeImageGetDeviceOffsetExp" +
			" zeDeviceGetImageProperties",
	},
	{
		Family: queries, Status: NotMemory,
		Reason: "state of contexts and devices",
		Driver: "cuCtxGetApiVersion cuCtxGetCacheConfig cuCtxGetCurrent cuCtxGetDevResource cuCtxGetDevice cuCtxGetDevice_v2" +
			" cuCtxGetExecAffinity cuCtxGetFlags cuCtxGetId cuCtxGetLimit cuCtxGetStreamPriorityRange cuDevicePrimaryCtxGetState" +
			" cuGreenCtxGetDevResource cuGreenCtxGetId cuStreamGetCtx cuStreamGetCtx_v2 cuStreamGetGreenCtx",
		Runtime: "cudaDeviceGetLimit cudaThreadGetLimit cudaExecutionCtxGetDevResource cudaExecutionCtxGetDevice cudaExecutionCtxGetId",
		HIP: "hipCtxGetApiVersion hipCtxGetCacheConfig hipCtxGetCurrent hipCtxGetDevice hipCtxGetFlags hipDeviceGetLimit" +
			" hipDevicePrimaryCtxGetState hipExtGetLinkTypeAndHopCount",
		LevelZero: "zeContextGetStatus zeDeviceGetExternalMemoryProperties zeDeviceGetMemoryAccessProperties zeDeviceGetMemoryProperties" +
			" zeDeviceGetModuleProperties zeDriverGetIpcProperties zeCommandListGetContextHandle zeEventGetEventPool" +
			" zeEventPoolGetContextHandle zeEventPoolGetFlags",
	},
	{
		Family: queries, Status: NotMemory,
		Reason: "prints the log of errors into a buffer of the caller's",
		Driver: "cuLogsDumpToMemory", Runtime: "cudaLogsDumpToMemory",
	},

	{
		Family: contents, Status: NotMemory, Copies: true,
		Reason: "copies and fills",
		Driver: "cuMemcpy* cuMemset* cuGraphAddMemcpyNode* cuGraphAddMemsetNode* cuGraphMemcpyNode* cuGraphMemsetNode* cuGraphExecMemcpyNode*" +
			" cuGraphExecMemsetNode*",
		Runtime: "cudaMemcpy* cudaMemset* cudaGraphAddMemcpyNode* cudaGraphAddMemsetNode* cudaGraphMemcpyNode* cudaGraphMemsetNode*" +
			" cudaGraphExecMemcpyNode* cudaGraphExecMemsetNode*",
		HIP: "hipMemcpy* hipMemset* hipDrvMemcpy* hipGraphAddMemcpyNode* hipGraphAddMemsetNode* hipGraphMemcpyNode* hipGraphMemsetNode*" +
			" hipGraphExecMemcpyNode* hipGraphExecMemsetNode* hipDrvGraphAddMemcpyNode* hipDrvGraphAddMemsetNode*" +
			" hipDrvGraphMemcpyNode* hipDrvGraphExecMemcpyNode* hipDrvGraphExecMemsetNode*",
		LevelZero: "zeCommandListAppendMemoryCopy* zeCommandListAppendMemoryFill* zeCommandListAppendImageCopy*",
	},
	{
		Family: contents, Status: NotMemory,
		Reason: "where the pages of managed memory lie, and whether what is in them counts: the memory is counted in full all the time",
		Driver: "cuMemAdvise cuMemAdvise_v2 cuMemPrefetchAsync cuMemPrefetchAsync_v2 cuMemPrefetchBatchAsync cuMemDiscardBatchAsync" +
			" cuMemDiscardAndPrefetchBatchAsync cuStreamAttachMemAsync",
		Runtime: "cudaMemAdvise cudaMemAdvise_v2 cudaMemPrefetchAsync cudaMemPrefetchAsync_v2 cudaMemPrefetchBatchAsync" +
			" cudaMemDiscardBatchAsync cudaMemDiscardAndPrefetchBatchAsync cudaStreamAttachMemAsync",
		HIP: "hipMemAdvise hipMemPrefetchAsync hipStreamAttachMemAsync",
		LevelZero: "zeCommandListAppendMemAdvise zeCommandListAppendMemoryPrefetch zeMemSetAtomicAccessAttributeExp" +
			" zeMemGetAtomicAccessAttributeExp",
	},
	{
		Family: contents, Status: NotMemory,
		Reason:    "makes memory that is counted resident on a device, or evicts it: it stays allocated",
		LevelZero: "zeContextMakeMemoryResident zeContextEvictMemory zeContextMakeImageResident zeContextEvictImage",
	},
	{
		Family: contents, Status: NotMemory,
		Reason: "settings of memory that is counted",
		Driver: "cuPointerSetAttribute", HIP: "hipPointerSetAttribute",
	},
	{
		Family: contents, Status: NotMemory,
		Reason: "reads or writes what is allocated, waits, orders or resets",
		Driver: "cuStreamBatchMemOp cuStreamBatchMemOp_v2 cuStreamWaitValue32 cuStreamWaitValue32_v2 cuStreamWaitValue64" +
			" cuStreamWaitValue64_v2 cuStreamWriteValue32 cuStreamWriteValue32_v2 cuStreamWriteValue64 cuStreamWriteValue64_v2" +
			" cuMemBatchDecompressAsync",
		HIP:       "hipStreamBatchMemOp",
		LevelZero: "zeCommandListAppendMemoryRangesBarrier zeCommandListAppendEventReset zeCommandListReset zeEventHostReset zeFenceReset",
	},
	{
		Family: contents, Status: NotMemory,
		Reason:    "events: what the driver keeps for a pool of them is not known",
		LevelZero: "zeEventPoolCreate zeEventPoolDestroy",
	},

	{
		Status: Other, Reason: "streams, events and what is ordered by them",
		Driver:    "cuStream* cuEvent* cuThreadExchangeStreamCaptureMode",
		Runtime:   "cudaStream* cudaEvent* cudaThreadExchangeStreamCaptureMode cudaThreadSynchronize",
		HIP:       "hipStream* hipExtStream* hipGetStreamDeviceId hipEvent* hipThreadExchangeStreamCaptureMode",
		LevelZero: "zeCommandList* zeCommandQueue* zeEvent* zeFence*",
	},
	{
		Status: Other, Reason: "nodes and edges of graphs",
		Driver: "cuGraph[A-Z]* cuUserObject*", Runtime: "cudaGraph[A-Z]* cudaUserObject*", HIP: "hipGraph[A-Z]* hipUserObject*",
		LevelZero: "zeGraph* zeExecutableGraph*",
	},
	{
		Status: Other, Reason: "kernels and their properties",
		Driver: "cuFunc* cuKernel* cuOccupancy* cuParam* cuLaunch*",
		Runtime: "cudaFunc* cudaKernel* cudaOccupancy* cudaLaunch* cudaGetKernel cudaGetFuncBySymbol cudaGetSymbolSize " +
			"cudaSetDoubleForDevice cudaSetDoubleForHost",
		HIP: "hipFunc* hipOccupancy* hipLaunch* hipExtLaunch* hipKernelName* hipGetFuncBySymbol hipGetSymbolSize hipConfigureCall " +
			"hipSetupArgument",
		LevelZero: "zeKernel*",
	},
	{
		Status: Other, Reason: "textures and samplers",
		Driver: "cuTex*",
		Runtime: "cudaBindTexture cudaBindTexture2D cudaUnbindTexture cudaCreateTextureObject* cudaDestroyTextureObject cudaGetTexture* " +
			"cudaCreateChannelDesc",
		HIP:       "hipTex* hipBindTexture hipBindTexture2D hipUnbindTexture hipCreateTextureObject hipDestroyTextureObject hipGetTexture*",
		LevelZero: "zeSampler*",
	},
	{
		Status: Other, Reason: "devices, their properties and resources",
		Driver: "cuDevice* cuDevSmResource* cuDevResource* cuFlushGPUDirectRDMAWrites cuFabric*",
		Runtime: "cudaDevice* cudaDevSmResource* cudaDevResource* cudaChooseDevice cudaGetDevice* cudaSetDeviceFlags cudaSetValidDevices " +
			"cudaPointerGetAttributes" +
			" cudaHostGetFlags cudaThreadGetCacheConfig cudaThreadSetCacheConfig",
		HIP:       "hipDevice* hipChooseDevice* hipGetDevice* hipSetDeviceFlags hipSetValidDevices hipPointer* hipHostGetFlags hipGLGetDevices",
		LevelZero: "zeDevice* zeDriver* zeFabric*",
	},
	{
		Status: Other, Reason: "graphics: which device, and streams of frames",
		Driver:  "cuGL* cuEGL* cuVDPAU* cuWGL* cuGraphics*",
		Runtime: "cudaGL* cudaEGL* cudaVDPAU* cudaWGL* cudaGraphics*",
		HIP:     "hipGraphics*",
	},
	{
		Status: Other, Reason: "versions, errors, logs, profiling and core dumps",
		Driver:  "cuDriverGetVersion cuGetError* cuLogs* cuCoredump*",
		Runtime: "cudaDriverGetVersion cudaRuntimeGetVersion cudaGetError* cudaGetLastError cudaPeekAtLastError cudaLogs* cudaProfiler*",
		HIP: "hipDriverGetVersion hipRuntimeGetVersion hipGetError* hipDrvGetError* hipGetLastError hipExtGetLastError hipPeekAtLastError" +
			" hipProfiler* hipApiName hipRegister*Callback hipRemove*Callback",
	},
	{
		Status: Other, Reason: "ray tracing: builds into memory of the caller's",
		LevelZero: "zeRTAS*",
	},
}
