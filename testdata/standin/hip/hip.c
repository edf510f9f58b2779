// Stand-in HIP runtime (libamdhip64.so.6): the memory functions of hip_runtime_api.h over the core. HIP has no driver
// API below it, so the ledger has the names of these functions. Its numbers and layouts are CUDA's.
#include "../core/core.h"

// A thread's device, and its primary context, which is made when it is first needed, without a call that says so.
static __thread int device;
static void make_current(void) {
    static int retained[MAXDEV];
    struct context *c = ctx_current();
    if (c && c->live) return;
    c = ctx_primary(device);
    if (!retained[device]++ && ctx_retain(&c, device)) retained[device] = 0;
    ctx_revive(c);
    ctx_set(c);
}
static void bind(void) { (void)LOCKED((make_current(), OK)); }

#define ALLOC(expr, out, n) (bind(), BOOK_ALLOC(IN(c, expr), out, n))
#define FREE(expr, p) (bind(), BOOK_FREE(expr, p, 0))

int hipInit(unsigned flags) { return init(), OK; }
int hipGetDeviceCount(int *n) { return init(), *n = set.devices, set.devices ? OK : NO_DEVICE; }
int hipGetDevice(int *dev) { return *dev = device, OK; }
int hipSetDevice(int dev) {
    init();
    if (dev < 0 || dev >= set.devices) return INVALID_DEVICE;
    device = dev;
    return LOCKED((ctx_set(NULL), make_current(), OK));
}
int hipDeviceSynchronize(void) { return LOCKED((pools_sync(), OK)); }
int hipStreamSynchronize(void *s) { return LOCKED((pools_sync(), OK)); }
int hipMemGetInfo(size_t *avail, size_t *total) { return BOOK(memory_info(avail, total, device), 0, *avail); }

// ---- memory of the device

static int pitched(dptr *out, size_t *pitch, size_t width, size_t height, struct context *c) {
    *pitch = UP(width, 512);
    return dev_alloc(out, *pitch * height, c, c->dev, DEVICE);
}
struct pitched { // hipPitchedPtr
    dptr ptr;
    size_t pitch, xsize, ysize;
};
struct extent { // hipExtent
    size_t width, height, depth;
};
int hipMalloc(dptr *out, size_t n) { return ALLOC(dev_alloc(out, n, c, c->dev, DEVICE), out, n); }
int hipExtMallocWithFlags(dptr *out, size_t n, unsigned flags) {
    return ALLOC(dev_alloc(out, n, c, c->dev, DEVICE), out, n);
}
int hipMallocManaged(dptr *out, size_t n, unsigned flags) {
    return ALLOC(dev_alloc(out, n, c, c->dev, MANAGED), out, n);
}
int hipMallocPitch(dptr *out, size_t *pitch, size_t w, size_t h) {
    return ALLOC(pitched(out, pitch, w, h, c), out, UP(w, 512) * h);
}
int hipMemAllocPitch(dptr *out, size_t *pitch, size_t w, size_t h, unsigned element) {
    return ALLOC(pitched(out, pitch, w, h, c), out, UP(w, 512) * h);
}
int hipMalloc3D(struct pitched *out, struct extent e) {
    out->xsize = e.width;
    out->ysize = e.height;
    return ALLOC(pitched(&out->ptr, &out->pitch, e.width, e.height * e.depth, c), &out->ptr,
                 UP(e.width, 512) * e.height * e.depth);
}
int hipFree(dptr p) { return FREE(range_exact(p, HOST) ? host_free((void *)p) : dev_free(p), p); }

// ---- arrays

static struct array_desc array_of(const struct channels *c, struct extent e, unsigned flags) {
    return (struct array_desc){e.width, e.height, e.depth, channel_format(c), channel_count(c), flags};
}
int hipMallocArray(dptr *h, const struct channels *channels, size_t w, size_t height, unsigned flags) {
    struct array_desc d = array_of(channels, (struct extent){w, height, 0}, flags);
    return ALLOC(array_create(h, &d, array_bytes(&d), c, ARRAY), h, array_bytes(&d));
}
int hipMalloc3DArray(dptr *h, const struct channels *channels, struct extent e, unsigned flags) {
    struct array_desc d = array_of(channels, e, flags);
    return ALLOC(array_create(h, &d, array_bytes(&d), c, ARRAY), h, array_bytes(&d));
}
int hipArrayCreate(dptr *h, const void *desc2d) {
    struct array_desc d = desc_of_2d(desc2d);
    return ALLOC(array_create(h, &d, array_bytes(&d), c, ARRAY), h, array_bytes(&d));
}
int hipArray3DCreate(dptr *h, const struct array_desc *d) {
    return ALLOC(array_create(h, d, array_bytes(d), c, ARRAY), h, array_bytes(d));
}
int hipMallocMipmappedArray(dptr *h, const struct channels *channels, struct extent e, unsigned levels,
                            unsigned flags) {
    struct array_desc d = array_of(channels, e, flags);
    return ALLOC(array_create(h, &d, mipmap_bytes(d, levels), c, MIPMAP), h, mipmap_bytes(d, levels));
}
int hipMipmappedArrayCreate(dptr *h, const struct array_desc *d, unsigned levels) {
    return ALLOC(array_create(h, d, mipmap_bytes(*d, levels), c, MIPMAP), h, mipmap_bytes(*d, levels));
}
int hipFreeArray(dptr h) { return FREE(array_destroy(h, ARRAY), h); }
int hipArrayDestroy(dptr h) { return FREE(array_destroy(h, ARRAY), h); }
int hipFreeMipmappedArray(dptr h) { return FREE(array_destroy(h, MIPMAP), h); }
int hipMipmappedArrayDestroy(dptr h) { return FREE(array_destroy(h, MIPMAP), h); }

// ---- pinned host memory

int hipHostMalloc(void **out, size_t n, unsigned flags) { return ALLOC(host_alloc(out, n, c), out, n); }
int hipHostAlloc(void **out, size_t n, unsigned flags) { return ALLOC(host_alloc(out, n, c), out, n); }
int hipMallocHost(void **out, size_t n) { return ALLOC(host_alloc(out, n, c), out, n); }
int hipMemAllocHost(void **out, size_t n) { return ALLOC(host_alloc(out, n, c), out, n); }
int hipHostFree(void *p) { return FREE(host_free(p), p); }
int hipFreeHost(void *p) { return FREE(host_free(p), p); }
int hipHostRegister(void *p, size_t n, unsigned flags) {
    bind();
    return BOOK(alloc_fails() ? OUT_OF_MEMORY : IN(c, host_register(p, n, c)), p, n);
}
int hipHostUnregister(void *p) { return FREE(host_unregister(p), p); }

// ---- stream-ordered memory and pools

int hipMallocAsync(dptr *out, size_t n, void *s) { return ALLOC(pool_alloc(out, n, pool_current(c->dev)), out, n); }
int hipMallocFromPoolAsync(dptr *out, size_t n, struct pool *p, void *s) {
    return ALLOC(pool_alloc(out, n, p), out, n);
}
int hipFreeAsync(dptr p, void *s) { return FREE(dev_free(p), p); }
static int hand_out(struct pool **out, struct pool *p) { return *out = p, OK; }
int hipDeviceGetDefaultMemPool(struct pool **out, int dev) { return LOCKED(hand_out(out, pool_default(dev))); }
int hipDeviceGetMemPool(struct pool **out, int dev) { return LOCKED(hand_out(out, pool_current(dev))); }
int hipDeviceSetMemPool(int dev, struct pool *p) { return LOCKED(pool_choose(dev, p)); }
int hipMemPoolCreate(struct pool **out, const int *props) {
    return bind(), BOOK_ALLOC(pool_create(out, props), out, 0);
}
int hipMemPoolDestroy(struct pool *p) { return FREE(pool_destroy(p), p); }
int hipMemPoolTrimTo(struct pool *p, size_t keep) { return BOOK(pool_trim(p, keep), p, keep); }
int hipMemPoolSetAttribute(struct pool *p, int attr, const void *v) { return LOCKED(pool_set(p, attr, v)); }
int hipMemPoolGetAttribute(struct pool *p, int attr, void *v) { return LOCKED(pool_get(p, attr, v)); }
int hipMemPoolExportToShareableHandle(void *handle, struct pool *p, int type, unsigned flags) {
    return LOCKED(pool_export(handle, p, type));
}
int hipMemPoolImportFromShareableHandle(struct pool **out, void *handle, int type, unsigned flags) {
    return BOOK_ALLOC(pool_import(out, handle, type), out, 0);
}
int hipMemPoolExportPointer(void *data, dptr p) { return LOCKED(pool_export_pointer(data, p)); }
int hipMemPoolImportPointer(dptr *out, struct pool *p, const void *data) {
    return BOOK_ALLOC(pool_import_pointer(out, p, data), out, 0);
}

// ---- virtual memory management

int hipMemAddressReserve(dptr *out, size_t n, size_t align, dptr hint, uint64_t flags) {
    return BOOK_ALLOC(va_reserve(out, n, align), out, n);
}
int hipMemAddressFree(dptr p, size_t n) { return BOOK_FREE(va_free(p, n), p, n); }
int hipMemCreate(uint64_t *h, size_t n, const int *prop, uint64_t flags) { // laid out as in ROCm 5.7 and later
    return BOOK_ALLOC(phys_create(h, n, prop), h, n);
}
int hipMemRelease(uint64_t h) { return BOOK_FREE(phys_release(h), h, 0); }
int hipMemRetainAllocationHandle(uint64_t *h, dptr p) { return BOOK(phys_retain(h, p), rc_ ? 0 : *h, 0); }
int hipMemMap(dptr p, size_t n, size_t offset, uint64_t h, uint64_t flags) {
    return BOOK(va_map(p, n, offset, h), p, n);
}
int hipMemUnmap(dptr p, size_t n) { return BOOK_FREE(va_unmap(p, n), p, n); }
int hipMemSetAccess(dptr p, size_t n, const void *desc, size_t count) { return va_access(p, n); }
int hipMemGetAllocationGranularity(size_t *n, const void *prop, int option) { return *n = BIG, OK; }
int hipMemExportToShareableHandle(void *handle, uint64_t h, int type, uint64_t flags) {
    return LOCKED(phys_export(handle, h, type));
}
int hipMemImportFromShareableHandle(uint64_t *h, void *handle, int type) {
    return BOOK_ALLOC(phys_import(h, handle, type), h, 0);
}

// ---- memory of other processes and APIs

struct ipc_handle { // hipIpcMemHandle_t, passed by value
    char bytes[64];
};
int hipIpcGetMemHandle(struct ipc_handle *handle, dptr p) { return LOCKED(ipc_export(handle, p)); }
int hipIpcOpenMemHandle(dptr *out, struct ipc_handle handle, unsigned flags) {
    return ALLOC(ipc_open(out, &handle, c), out, 0);
}
int hipIpcCloseMemHandle(dptr p) { return FREE(ipc_close(p), p); }

struct external_handle { // hipExternalMemoryHandleDesc
    int type;
    uint64_t handle[2], n;
};
struct external_buffer { // hipExternalMemoryBufferDesc
    uint64_t offset, n;
};
struct external_mipmap { // hipExternalMemoryMipmappedArrayDesc
    uint64_t offset;
    struct channels channels;
    struct extent extent;
    unsigned flags, levels;
};
int hipImportExternalMemory(uint64_t *h, const struct external_handle *d) {
    return ALLOC(external_import(h, d->n, c), h, d->n);
}
int hipExternalMemoryGetMappedBuffer(dptr *out, uint64_t h, const struct external_buffer *d) {
    return ALLOC(external_buffer(out, h, d->offset, d->n, c), out, d->n);
}
int hipExternalMemoryGetMappedMipmappedArray(dptr *out, uint64_t h, const struct external_mipmap *d) {
    size_t n = mipmap_bytes(array_of(&d->channels, d->extent, d->flags), d->levels);
    return ALLOC(external_mipmap(out, h, d->offset, n, c), out, n);
}
int hipDestroyExternalMemory(uint64_t h) { return FREE(external_destroy(h), h); }

// ---- graphs

enum { MEM_ALLOC = 10, MEM_FREE = 11, PARAMS = 16, ALLOC_SIZE = 104, ALLOC_ADDRESS = 112 }; // hipGraphNodeParams
#define ADD_ALLOC(n, g, params)                                                                                        \
    BOOK(alloc_fails() ? OUT_OF_MEMORY : graph_add_alloc(n, g, params), rc_ ? 0 : *(dptr *)((params) + ALLOC_ADDRESS), \
         *(size_t *)((params) + ALLOC_SIZE))
#define ADD_FREE(n, g, p) BOOK_FREE(graph_add_free(n, g, p), p, 0)

int hipGraphCreate(struct graph **g, unsigned flags) { return (*g = graph_create()) ? OK : OUT_OF_MEMORY; }
int hipGraphAddMemAllocNode(struct graph_node **n, struct graph *g, const void *deps, size_t ndeps, char *params) {
    return ADD_ALLOC(n, g, params);
}
int hipGraphAddMemFreeNode(struct graph_node **n, struct graph *g, const void *deps, size_t ndeps, dptr p) {
    return ADD_FREE(n, g, p);
}
int hipDrvGraphAddMemFreeNode(struct graph_node **n, struct graph *g, const void *deps, size_t ndeps, dptr p) {
    return ADD_FREE(n, g, p);
}
int hipGraphAddNode(struct graph_node **n, struct graph *g, const void *deps, size_t ndeps, char *params) {
    char *p = params + PARAMS;
    if (*(int *)params == MEM_ALLOC) return ADD_ALLOC(n, g, p);
    return *(int *)params == MEM_FREE ? ADD_FREE(n, g, *(dptr *)p) : NOT_SUPPORTED;
}
static int instantiate(struct graph_exec **e, struct graph *g, uint64_t flags) {
    return (*e = graph_instantiate(g, flags)) ? OK : OUT_OF_MEMORY;
}
int hipGraphInstantiateWithFlags(struct graph_exec **e, struct graph *g, uint64_t flags) {
    return LOCKED(instantiate(e, g, flags));
}
int hipGraphLaunch(struct graph_exec *e, void *s) {
    size_t made = 0;
    return BOOK(alloc_fails() ? OUT_OF_MEMORY : graph_launch(e, &made), e, made);
}
int hipGraphDestroy(struct graph *g) { return BOOK((graph_destroy(g), OK), g, 0); }
int hipGraphExecDestroy(struct graph_exec *e) { return BOOK((graph_exec_destroy(e), OK), e, 0); }
int hipDeviceGraphMemTrim(int dev) { return BOOK(graph_trim(dev), 0, (size_t)dev); }

// ---- contexts

static struct context *primary_of(int dev) { return dev >= 0 && dev < MAXDEV ? ctx_primary(dev) : NULL; }
static int create(struct context **c, int dev) {
    int rc = ctx_create(c, dev, set.context_mem);
    if (!rc) ctx_push(*c);
    return rc;
}
int hipCtxCreate(struct context **c, unsigned flags, int dev) { return BOOK_ALLOC(create(c, dev), c, (size_t)dev); }
int hipCtxDestroy(struct context *c) { return BOOK_FREE(ctx_destroy(c, set.context_mem), c, 0); }
int hipCtxGetCurrent(struct context **c) { return *c = ctx_current(), OK; }
int hipCtxSetCurrent(struct context *c) { return LOCKED((ctx_set(c), OK)); }
int hipCtxPushCurrent(struct context *c) { return LOCKED((ctx_push(c), OK)); }
int hipCtxPopCurrent(struct context **c) { return ctx_pop(c); }
int hipDevicePrimaryCtxRetain(struct context **c, int dev) {
    return BOOK(ctx_retain(c, dev), rc_ ? 0 : (uint64_t)*c, (size_t)dev);
}
// HIP's own reference stays, so that no release ends a primary context (hip_runtime_api.h says as much).
static int release(int dev) {
    if (!primary_of(dev)) return INVALID_DEVICE;
    note.dev = dev;
    return ctx_primary(dev)->refs > 1 ? ctx_release(dev) : OK;
}
int hipDevicePrimaryCtxRelease(int dev) { return BOOK_FREE(release(dev), primary_of(dev), (size_t)dev); }
int hipDevicePrimaryCtxReset(int dev) { return BOOK_FREE(ctx_reset(dev), primary_of(dev), (size_t)dev); }
int hipDeviceReset(void) { return bind(), BOOK_FREE(ctx_reset(device), ctx_primary(device), (size_t)device); }
