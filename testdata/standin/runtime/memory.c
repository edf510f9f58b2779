// The runtime's memory functions.
#include "../standin.h"
#include "runtime.h"

cudaError cudaMalloc(void **p, size_t n) { return *p = NULL, n ? CALL(cuMemAlloc(p, n)) : 0; }
cudaError cudaMallocManaged(void **p, size_t n, unsigned flags) { return CALL(cuMemAllocManaged(p, n, flags)); }
cudaError cudaMallocPitch(void **p, size_t *pitch, size_t w, size_t h) {
    return CALL(cuMemAllocPitch(p, pitch, w, h, 4u));
}
struct pitched { // cudaPitchedPtr
    void *ptr;
    size_t pitch, xsize, ysize;
};
struct extent { // cudaExtent
    size_t width, height, depth;
};
cudaError cudaMalloc3D(struct pitched *out, struct extent e) {
    *out = (struct pitched){.xsize = e.width, .ysize = e.height};
    return CALL(cuMemAllocPitch(&out->ptr, &out->pitch, e.width, e.height * e.depth, 4u));
}
cudaError cudaFree(void *p) { return CALL(p ? cuMemFree(p) : 0); }

// ---- arrays

struct array_2d { // CUDA_ARRAY_DESCRIPTOR
    size_t width, height;
    int format;
    unsigned channels;
};
struct array_3d { // CUDA_ARRAY3D_DESCRIPTOR
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
};
static struct array_3d array_of(const struct channels *c, struct extent e, unsigned flags) {
    return (struct array_3d){e.width, e.height, e.depth, channel_format(c), channel_count(c), flags};
}
cudaError cudaMallocArray(void **out, const struct channels *c, size_t w, size_t h, unsigned flags) {
    struct array_2d d = {w, h, channel_format(c), channel_count(c)};
    struct array_3d with_flags = array_of(c, (struct extent){w, h, 0}, flags);
    return CALL(flags ? cuArray3DCreate(out, &with_flags) : cuArrayCreate(out, &d));
}
cudaError cudaMalloc3DArray(void **out, const struct channels *c, struct extent e, unsigned flags) {
    struct array_3d d = array_of(c, e, flags);
    return CALL(cuArray3DCreate(out, &d));
}
cudaError cudaMallocMipmappedArray(void **out, const struct channels *c, struct extent e, unsigned levels,
                                   unsigned flags) {
    struct array_3d d = array_of(c, e, flags);
    return CALL(cuMipmappedArrayCreate(out, &d, levels));
}
cudaError cudaGetMipmappedArrayLevel(void **level, void *array, unsigned i) {
    return CALL(cuMipmappedArrayGetLevel(level, array, i));
}
cudaError cudaFreeArray(void *array) { return CALL(array ? cuArrayDestroy(array) : 0); }
cudaError cudaFreeMipmappedArray(void *array) { return CALL(array ? cuMipmappedArrayDestroy(array) : 0); }

// ---- pinned host memory

cudaError cudaMallocHost(void **p, size_t n) { return CALL(cuMemHostAlloc(p, n, 0u)); }
cudaError cudaHostAlloc(void **p, size_t n, unsigned flags) { return CALL(cuMemHostAlloc(p, n, flags)); }
cudaError cudaFreeHost(void *p) { return CALL(p ? cuMemFreeHost(p) : 0); }
cudaError cudaHostRegister(void *p, size_t n, unsigned flags) { return CALL(cuMemHostRegister(p, n, flags)); }
cudaError cudaHostUnregister(void *p) { return CALL(cuMemHostUnregister(p)); }
cudaError cudaHostGetDevicePointer(void **out, void *host, unsigned flags) { return *out = host, 0; }
cudaError cudaMemGetInfo(size_t *avail, size_t *total) { return CALL(cuMemGetInfo(avail, total)); }

// ---- stream-ordered memory

cudaError cudaMallocAsync(void **p, size_t n, void *s) { return CALL(cuMemAllocAsync(p, n, s)); }
cudaError cudaMallocFromPoolAsync(void **p, size_t n, void *pool, void *s) {
    return CALL(cuMemAllocFromPoolAsync(p, n, pool, s));
}
cudaError cudaFreeAsync(void *p, void *s) { return CALL(cuMemFreeAsync(p, s)); }
cudaError cudaMallocAsync_ptsz(void **p, size_t n, void *s) { return CALL(alloc_async_ptsz(p, n, s)); }
cudaError cudaMallocFromPoolAsync_ptsz(void **p, size_t n, void *pool, void *s) {
    return CALL(alloc_from_pool_async_ptsz(p, n, pool, s));
}
cudaError cudaFreeAsync_ptsz(void *p, void *s) { return CALL(free_async_ptsz(p, s)); }

cudaError cudaDeviceGetDefaultMemPool(void **p, int dev) { return CALL(cuDeviceGetDefaultMemPool(p, dev)); }
cudaError cudaDeviceGetMemPool(void **p, int dev) { return CALL(cuDeviceGetMemPool(p, dev)); }
cudaError cudaDeviceSetMemPool(int dev, void *p) { return CALL(cuDeviceSetMemPool(dev, p)); }
cudaError cudaMemGetDefaultMemPool(void **p, void *at, int type) { return CALL(cuMemGetDefaultMemPool(p, at, type)); }
cudaError cudaMemGetMemPool(void **p, void *at, int type) { return CALL(cuMemGetMemPool(p, at, type)); }
cudaError cudaMemSetMemPool(void *at, int type, void *p) { return CALL(cuMemSetMemPool(at, type, p)); }
cudaError cudaMemPoolCreate(void **p, const void *props) { return CALL(cuMemPoolCreate(p, props)); }
cudaError cudaMemPoolDestroy(void *p) { return CALL(cuMemPoolDestroy(p)); }
cudaError cudaMemPoolTrimTo(void *p, size_t n) { return CALL(cuMemPoolTrimTo(p, n)); }
cudaError cudaMemPoolSetAccess(void *p, void *desc, size_t n) { return CALL(cuMemPoolSetAccess(p, desc, n)); }
cudaError cudaMemPoolGetAccess(int *flags, void *p, void *at) { return CALL(cuMemPoolGetAccess(flags, p, at)); }
cudaError cudaMemPoolSetAttribute(void *p, int attr, void *v) { return CALL(cuMemPoolSetAttribute(p, attr, v)); }
cudaError cudaMemPoolGetAttribute(void *p, int attr, void *v) { return CALL(cuMemPoolGetAttribute(p, attr, v)); }
cudaError cudaMemPoolExportToShareableHandle(void *handle, void *p, int type, unsigned flags) {
    return CALL(cuMemPoolExportToShareableHandle(handle, p, type, (uint64_t)flags));
}
cudaError cudaMemPoolImportFromShareableHandle(void **p, void *handle, int type, unsigned flags) {
    return CALL(cuMemPoolImportFromShareableHandle(p, handle, type, (uint64_t)flags));
}
cudaError cudaMemPoolExportPointer(void *data, void *p) { return CALL(cuMemPoolExportPointer(data, p)); }
cudaError cudaMemPoolImportPointer(void **p, void *pool, void *data) {
    return CALL(cuMemPoolImportPointer(p, pool, data));
}

// ---- memory of other processes and APIs

cudaError cudaIpcGetMemHandle(void *handle, void *p) { return CALL(cuIpcGetMemHandle(handle, p)); }
cudaError cudaIpcOpenMemHandle(void **p, struct ipc_handle handle, unsigned flags) {
    return CALL(cuIpcOpenMemHandle(p, handle, flags));
}
cudaError cudaIpcCloseMemHandle(void *p) { return CALL(cuIpcCloseMemHandle(p)); }

cudaError cudaImportExternalMemory(void **h, const void *desc) { return CALL(cuImportExternalMemory(h, desc)); }
cudaError cudaExternalMemoryGetMappedBuffer(void **p, void *h, const void *desc) { // both APIs lay these two out alike
    return CALL(cuExternalMemoryGetMappedBuffer(p, h, desc));
}
struct external_mipmap { // cudaExternalMemoryMipmappedArrayDesc
    uint64_t offset;
    struct channels channels;
    struct extent extent;
    unsigned flags, levels;
};
struct driver_mipmap { // CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC
    uint64_t offset;
    struct array_3d array;
    unsigned levels, reserved[16];
};
cudaError cudaExternalMemoryGetMappedMipmappedArray(void **out, void *h, const struct external_mipmap *d) {
    struct driver_mipmap to = {d->offset, array_of(&d->channels, d->extent, d->flags), d->levels, {0}};
    return CALL(cuExternalMemoryGetMappedMipmappedArray(out, h, &to));
}
cudaError cudaDestroyExternalMemory(void *h) { return CALL(cuDestroyExternalMemory(h)); }

// ---- graphs and their memory nodes

cudaError cudaGraphCreate(void **g, unsigned flags) { return CALL(cuGraphCreate(g, flags)); }
cudaError cudaGraphAddMemAllocNode(void **n, void *g, const void *deps, size_t ndeps, void *params) {
    return CALL(cuGraphAddMemAllocNode(n, g, deps, ndeps, params));
}
cudaError cudaGraphAddMemFreeNode(void **n, void *g, const void *deps, size_t ndeps, void *p) {
    return CALL(cuGraphAddMemFreeNode(n, g, deps, ndeps, p));
}
cudaError cudaGraphAddNode_v2(void **n, void *g, const void *deps, const void *edges, size_t ndeps, void *params) {
    return CALL(cuGraphAddNode(n, g, deps, edges, ndeps, params));
}
#if CUDART_MAJOR >= 13
cudaError cudaGraphAddNode(void **n, void *g, const void *deps, const void *edges, size_t ndeps, void *params) {
    return CALL(cuGraphAddNode(n, g, deps, edges, ndeps, params));
}
cudaError cudaGraphInstantiate(void **exec, void *g, uint64_t flags) {
    return CALL(cuGraphInstantiateWithFlags(exec, g, flags));
}
#else
cudaError cudaGraphAddNode(void **n, void *g, const void *deps, size_t ndeps, void *params) {
    return CALL(cuGraphAddNode(n, g, deps, NULL, ndeps, params));
}
cudaError cudaGraphInstantiate(void **exec, void *g, uint64_t flags) { // CUDA 11 has a node for errors in its place
    return CALL(cuGraphInstantiateWithFlags(exec, g, CUDART_MAJOR >= 12 ? flags : (uint64_t)0));
}
#endif
cudaError cudaGraphInstantiateWithFlags(void **exec, void *g, uint64_t flags) {
    return CALL(cuGraphInstantiateWithFlags(exec, g, flags));
}
cudaError cudaGraphInstantiateWithParams(void **exec, void *g, void *params) {
    return CALL(cuGraphInstantiateWithParams(exec, g, params));
}
cudaError cudaGraphMemAllocNodeGetParams(void *n, void *params) {
    return CALL(cuGraphMemAllocNodeGetParams(n, params));
}
cudaError cudaGraphMemFreeNodeGetParams(void *n, void *p) { return CALL(cuGraphMemFreeNodeGetParams(n, p)); }
cudaError cudaGraphUpload(void *exec, void *s) { return CALL(cuGraphUpload(exec, s)); }
cudaError cudaGraphLaunch(void *exec, void *s) { return CALL(cuGraphLaunch(exec, s)); }
cudaError cudaGraphLaunch_ptsz(void *exec, void *s) { return CALL(cuGraphLaunch(exec, s)); }
cudaError cudaGraphDestroy(void *g) { return CALL(cuGraphDestroy(g)); }
cudaError cudaGraphExecDestroy(void *exec) { return CALL(cuGraphExecDestroy(exec)); }
cudaError cudaGraphGetNodes(void *g, void **nodes, size_t *n) { return CALL(cuGraphGetNodes(g, nodes, n)); }
cudaError cudaDeviceGraphMemTrim(int dev) { return CALL(cuDeviceGraphMemTrim(dev)); }
cudaError cudaDeviceGetGraphMemAttribute(int dev, int attr, void *v) {
    return CALL(cuDeviceGetGraphMemAttribute(dev, attr, v));
}
cudaError cudaDeviceSetGraphMemAttribute(int dev, int attr, void *v) {
    return CALL(cuDeviceSetGraphMemAttribute(dev, attr, v));
}
