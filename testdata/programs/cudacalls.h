// The functions of CUDA that cudacalls calls, as pointers that loading fills in.
#pragma once
#include "calls.h"

struct extent { // cudaExtent
    size_t width, height, depth;
};
struct ipc_handle { // cudaIpcMemHandle_t, CUipcMemHandle
    char bytes[64];
};
typedef const void *desc; // a descriptor whose layout is at its place of use
enum { RUNTIME, DRIVER };

// clang-format off
#define CALLS(X)                                                                                                       \
    X(RUNTIME, cudaSetDevice, int)                                                                                     \
    X(RUNTIME, cudaDeviceSynchronize, void)                                                                            \
    X(RUNTIME, cudaDeviceReset, void)                                                                                  \
    X(RUNTIME, cudaThreadExit, void)                                                                                   \
    X(RUNTIME, cudaMalloc, ptr *, size_t)                                                                              \
    X(RUNTIME, cudaFree, ptr)                                                                                          \
    X(RUNTIME, cudaMallocManaged, ptr *, size_t, unsigned)                                                             \
    X(RUNTIME, cudaMallocPitch, ptr *, size_t *, size_t, size_t)                                                       \
    X(RUNTIME, cudaMalloc3D, struct part *, struct extent)                                                             \
    X(RUNTIME, cudaMallocArray, ptr *, desc, size_t, size_t, unsigned)                                                 \
    X(RUNTIME, cudaMalloc3DArray, ptr *, desc, struct extent, unsigned)                                                \
    X(RUNTIME, cudaMallocMipmappedArray, ptr *, desc, struct extent, unsigned, unsigned)                               \
    X(RUNTIME, cudaFreeArray, ptr)                                                                                     \
    X(RUNTIME, cudaFreeMipmappedArray, ptr)                                                                            \
    X(RUNTIME, cudaMallocHost, ptr *, size_t)                                                                          \
    X(RUNTIME, cudaHostAlloc, ptr *, size_t, unsigned)                                                                 \
    X(RUNTIME, cudaFreeHost, ptr)                                                                                      \
    X(RUNTIME, cudaHostRegister, ptr, size_t, unsigned)                                                                \
    X(RUNTIME, cudaHostUnregister, ptr)                                                                                \
    X(RUNTIME, cudaMallocAsync, ptr *, size_t, ptr)                                                                    \
    X(RUNTIME, cudaMallocAsync_ptsz, ptr *, size_t, ptr)                                                               \
    X(RUNTIME, cudaFreeAsync, ptr, ptr)                                                                                \
    X(RUNTIME, cudaFreeAsync_ptsz, ptr, ptr)                                                                           \
    X(RUNTIME, cudaMallocFromPoolAsync, ptr *, size_t, ptr, ptr)                                                       \
    X(RUNTIME, cudaMallocFromPoolAsync_ptsz, ptr *, size_t, ptr, ptr)                                                  \
    X(RUNTIME, cudaMemPoolCreate, ptr *, desc)                                                                         \
    X(RUNTIME, cudaMemPoolDestroy, ptr)                                                                                \
    X(RUNTIME, cudaMemPoolTrimTo, ptr, size_t)                                                                         \
    X(RUNTIME, cudaMemPoolExportToShareableHandle, void *, ptr, int, unsigned)                                         \
    X(RUNTIME, cudaMemPoolImportFromShareableHandle, ptr *, void *, int, unsigned)                                     \
    X(RUNTIME, cudaMemPoolExportPointer, void *, ptr)                                                                  \
    X(RUNTIME, cudaMemPoolImportPointer, ptr *, ptr, void *)                                                           \
    X(RUNTIME, cudaIpcGetMemHandle, struct ipc_handle *, ptr)                                                          \
    X(RUNTIME, cudaIpcOpenMemHandle, ptr *, struct ipc_handle, unsigned)                                               \
    X(RUNTIME, cudaIpcCloseMemHandle, ptr)                                                                             \
    X(RUNTIME, cudaImportExternalMemory, ptr *, desc)                                                                  \
    X(RUNTIME, cudaExternalMemoryGetMappedBuffer, ptr *, ptr, desc)                                                    \
    X(RUNTIME, cudaExternalMemoryGetMappedMipmappedArray, ptr *, ptr, desc)                                            \
    X(RUNTIME, cudaDestroyExternalMemory, ptr)                                                                         \
    X(RUNTIME, cudaGraphCreate, ptr *, unsigned)                                                                       \
    X(RUNTIME, cudaGraphAddMemAllocNode, ptr *, ptr, desc, size_t, void *)                                             \
    X(RUNTIME, cudaGraphAddMemFreeNode, ptr *, ptr, desc, size_t, ptr)                                                 \
    X(RUNTIME, cudaGraphInstantiateWithFlags, ptr *, ptr, uint64_t)                                                    \
    X(RUNTIME, cudaGraphLaunch, ptr, ptr)                                                                              \
    X(RUNTIME, cudaGraphExecDestroy, ptr)                                                                              \
    X(RUNTIME, cudaGraphDestroy, ptr)                                                                                  \
    X(RUNTIME, cudaDeviceGraphMemTrim, int)                                                                            \
    X(DRIVER, cuMemAlloc_v2, ptr *, size_t)                                                                            \
    X(DRIVER, cuMemFree_v2, ptr)                                                                                       \
    X(DRIVER, cuMemAllocManaged, ptr *, size_t, unsigned)                                                              \
    X(DRIVER, cuMemAllocPitch_v2, ptr *, size_t *, size_t, size_t, unsigned)                                           \
    X(DRIVER, cuArrayCreate_v2, ptr *, desc)                                                                           \
    X(DRIVER, cuArray3DCreate_v2, ptr *, desc)                                                                         \
    X(DRIVER, cuMipmappedArrayCreate, ptr *, desc, unsigned)                                                           \
    X(DRIVER, cuArrayDestroy, ptr)                                                                                     \
    X(DRIVER, cuMipmappedArrayDestroy, ptr)                                                                            \
    X(DRIVER, cuMemHostAlloc, ptr *, size_t, unsigned)                                                                 \
    X(DRIVER, cuMemAllocHost_v2, ptr *, size_t)                                                                        \
    X(DRIVER, cuMemFreeHost, ptr)                                                                                      \
    X(DRIVER, cuMemHostRegister_v2, ptr, size_t, unsigned)                                                             \
    X(DRIVER, cuMemHostRegister, ptr, size_t, unsigned)                                                                \
    X(DRIVER, cuMemHostUnregister, ptr)                                                                                \
    X(DRIVER, cuMemAllocAsync, ptr *, size_t, ptr)                                                                     \
    X(DRIVER, cuMemAllocAsync_ptsz, ptr *, size_t, ptr)                                                                \
    X(DRIVER, cuMemFreeAsync, ptr, ptr)                                                                                \
    X(DRIVER, cuMemFreeAsync_ptsz, ptr, ptr)                                                                           \
    X(DRIVER, cuMemAllocFromPoolAsync, ptr *, size_t, ptr, ptr)                                                        \
    X(DRIVER, cuMemAllocFromPoolAsync_ptsz, ptr *, size_t, ptr, ptr)                                                   \
    X(DRIVER, cuMemPoolCreate, ptr *, desc)                                                                            \
    X(DRIVER, cuMemPoolDestroy, ptr)                                                                                   \
    X(DRIVER, cuMemPoolTrimTo, ptr, size_t)                                                                            \
    X(DRIVER, cuMemPoolExportToShareableHandle, void *, ptr, int, uint64_t)                                            \
    X(DRIVER, cuMemPoolImportFromShareableHandle, ptr *, void *, int, uint64_t)                                        \
    X(DRIVER, cuMemPoolExportPointer, void *, ptr)                                                                     \
    X(DRIVER, cuMemPoolImportPointer, ptr *, ptr, void *)                                                              \
    X(DRIVER, cuMemAddressReserve, ptr *, size_t, size_t, ptr, uint64_t)                                               \
    X(DRIVER, cuMemAddressFree, ptr, size_t)                                                                           \
    X(DRIVER, cuMemCreate, ptr *, size_t, desc, uint64_t)                                                              \
    X(DRIVER, cuMemRelease, ptr)                                                                                       \
    X(DRIVER, cuMemMap, ptr, size_t, size_t, ptr, uint64_t)                                                            \
    X(DRIVER, cuMemUnmap, ptr, size_t)                                                                                 \
    X(DRIVER, cuMemSetAccess, ptr, size_t, desc, size_t)                                                               \
    X(DRIVER, cuMemRetainAllocationHandle, ptr *, ptr)                                                                 \
    X(DRIVER, cuMemExportToShareableHandle, void *, ptr, int, uint64_t)                                                \
    X(DRIVER, cuMemImportFromShareableHandle, ptr *, void *, int)                                                      \
    X(DRIVER, cuMulticastCreate, ptr *, desc)                                                                          \
    X(DRIVER, cuMulticastAddDevice, ptr, int)                                                                          \
    X(DRIVER, cuMulticastBindMem, ptr, size_t, ptr, size_t, size_t, uint64_t)                                          \
    X(DRIVER, cuMulticastBindAddr, ptr, size_t, ptr, size_t, uint64_t)                                                 \
    X(DRIVER, cuMulticastUnbind, ptr, int, size_t, size_t)                                                             \
    X(DRIVER, cuIpcGetMemHandle, struct ipc_handle *, ptr)                                                             \
    X(DRIVER, cuIpcOpenMemHandle_v2, ptr *, struct ipc_handle, unsigned)                                               \
    X(DRIVER, cuIpcOpenMemHandle, ptr *, struct ipc_handle, unsigned)                                                  \
    X(DRIVER, cuIpcCloseMemHandle, ptr)                                                                                \
    X(DRIVER, cuImportExternalMemory, ptr *, desc)                                                                     \
    X(DRIVER, cuExternalMemoryGetMappedBuffer, ptr *, ptr, desc)                                                       \
    X(DRIVER, cuExternalMemoryGetMappedMipmappedArray, ptr *, ptr, desc)                                               \
    X(DRIVER, cuDestroyExternalMemory, ptr)                                                                            \
    X(DRIVER, cuGraphCreate, ptr *, unsigned)                                                                          \
    X(DRIVER, cuGraphAddMemAllocNode, ptr *, ptr, desc, size_t, void *)                                                \
    X(DRIVER, cuGraphAddMemFreeNode, ptr *, ptr, desc, size_t, ptr)                                                    \
    X(DRIVER, cuGraphAddNode, ptr *, ptr, desc, size_t, void *)                                                        \
    X(DRIVER, cuGraphAddNode_v2, ptr *, ptr, desc, desc, size_t, void *)                                               \
    X(DRIVER, cuGraphAddNode_v3, ptr *, ptr, desc, desc, size_t, void *)                                               \
    X(DRIVER, cuGraphInstantiateWithFlags, ptr *, ptr, uint64_t)                                                       \
    X(DRIVER, cuGraphLaunch, ptr, ptr)                                                                                 \
    X(DRIVER, cuGraphExecDestroy, ptr)                                                                                 \
    X(DRIVER, cuGraphDestroy, ptr)                                                                                     \
    X(DRIVER, cuDeviceGraphMemTrim, int)                                                                               \
    X(DRIVER, cuMemGetInfo_v2, size_t *, size_t *)                                                                     \
    X(DRIVER, cuDeviceGetCount, int *)                                                                                 \
    X(DRIVER, cuCtxCreate_v2, ptr *, unsigned, int)                                                                    \
    X(DRIVER, cuCtxCreate, ptr *, unsigned, int)                                                                       \
    X(DRIVER, cuCtxCreate_v3, ptr *, desc, int, unsigned, int)                                                         \
    X(DRIVER, cuCtxCreate_v4, ptr *, desc, unsigned, int)                                                              \
    X(DRIVER, cuCtxDestroy_v2, ptr)                                                                                    \
    X(DRIVER, cuCtxDestroy, ptr)                                                                                       \
    X(DRIVER, cuCtxAttach, ptr *, unsigned)                                                                            \
    X(DRIVER, cuCtxDetach, ptr)                                                                                        \
    X(DRIVER, cuCtxGetCurrent, ptr *)                                                                                  \
    X(DRIVER, cuCtxSetCurrent, ptr)                                                                                    \
    X(DRIVER, cuCtxPushCurrent_v2, ptr)                                                                                \
    X(DRIVER, cuCtxPushCurrent, ptr)                                                                                   \
    X(DRIVER, cuCtxPopCurrent_v2, ptr *)                                                                               \
    X(DRIVER, cuCtxPopCurrent, ptr *)                                                                                  \
    X(DRIVER, cuDevicePrimaryCtxRetain, ptr *, int)                                                                    \
    X(DRIVER, cuDevicePrimaryCtxRelease_v2, int)                                                                       \
    X(DRIVER, cuDevicePrimaryCtxRelease, int)                                                                          \
    X(DRIVER, cuDevicePrimaryCtxReset, int)                                                                            \
    X(DRIVER, cuDevicePrimaryCtxReset_v2, int)
// clang-format on

#define DECLARE(library, f, ...) extern int (*f)(__VA_ARGS__);
CALLS(DECLARE)
enum { CALLS(NUMBER) N_END };

// Ways to get memory of which it is known with what they end.
enum fate { WITH_CONTEXT, WITH_DEVICE, STAYS };
struct fated {
    int (*take)(struct block *b, size_t n);
    enum fate fate;
    int runtime; // calls of the runtime: for the primary context of the device that it has set
};
extern const struct fated fated[]; // a row without a function ends it
