// Stream-ordered memory and its pools.
#include "driver.h"

static int alloc_here(dptr *out, size_t n) { return IN(c, pool_alloc(out, n, pool_current(c->dev))); }

int cuMemAllocFromPoolAsync(dptr *out, size_t n, struct pool *pool, void *stream) {
    return BOOK_ALLOC(pool_alloc(out, n, pool), out, n);
}
int cuMemAllocAsync(dptr *out, size_t n, void *stream) { return BOOK_ALLOC(alloc_here(out, n), out, n); }
int cuMemFreeAsync(dptr p, void *stream) { return BOOK_FREE(dev_free(p), p, 0); }
// The same under the names for per-thread default streams.
int cuMemAllocFromPoolAsync_ptsz(dptr *out, size_t n, struct pool *pool, void *stream) {
    return BOOK_ALLOC(pool_alloc(out, n, pool), out, n);
}
int cuMemAllocAsync_ptsz(dptr *out, size_t n, void *stream) { return BOOK_ALLOC(alloc_here(out, n), out, n); }
int cuMemFreeAsync_ptsz(dptr p, void *stream) { return BOOK_FREE(dev_free(p), p, 0); }

static int hand_out(struct pool **out, struct pool *p) { return (*out = p) ? OK : INVALID_VALUE; }
static int known(int dev) { return dev >= 0 && dev < set.devices; }
int cuDeviceGetDefaultMemPool(struct pool **out, int dev) {
    return LOCKED(known(dev) ? hand_out(out, pool_default(dev)) : INVALID_DEVICE);
}
int cuDeviceGetMemPool(struct pool **out, int dev) {
    return LOCKED(known(dev) ? hand_out(out, pool_current(dev)) : INVALID_DEVICE);
}
int cuDeviceSetMemPool(int dev, struct pool *pool) { return LOCKED(pool_choose(dev, pool)); }
// The same by place and type of memory (CUDA 13). Only a device's pinned memory has a pool that can be chosen.
int cuMemGetDefaultMemPool(struct pool **out, const struct location *where, int type) {
    return LOCKED(hand_out(out, pool_of(where, type)));
}
static int chosen(const struct location *where, int type) { return where->type == 1 && type == 1; }
int cuMemGetMemPool(struct pool **out, const struct location *where, int type) {
    if (chosen(where, type)) return cuDeviceGetMemPool(out, where->id);
    return cuMemGetDefaultMemPool(out, where, type);
}
int cuMemSetMemPool(const struct location *where, int type, struct pool *pool) {
    return chosen(where, type) ? cuDeviceSetMemPool(where->id, pool) : NOT_SUPPORTED;
}

int cuMemPoolCreate(struct pool **out, const int *props) { return BOOK_ALLOC(pool_create(out, props), out, 0); }
int cuMemPoolDestroy(struct pool *p) { return BOOK_FREE(pool_destroy(p), p, 0); }
int cuMemPoolTrimTo(struct pool *p, size_t keep) { return BOOK(pool_trim(p, keep), p, keep); }
int cuMemPoolSetAttribute(struct pool *p, int attr, const void *v) { return LOCKED(pool_set(p, attr, v)); }
int cuMemPoolGetAttribute(struct pool *p, int attr, void *v) { return LOCKED(pool_get(p, attr, v)); }
int cuMemPoolSetAccess(struct pool *p, const void *desc, size_t n) { return OK; }
int cuMemPoolGetAccess(int *flags, struct pool *p, void *location) { return *flags = 3, OK; }

int cuMemPoolExportToShareableHandle(void *handle, struct pool *p, int type, uint64_t flags) {
    return LOCKED(pool_export(handle, p, type));
}
int cuMemPoolImportFromShareableHandle(struct pool **out, void *handle, int type, uint64_t flags) {
    return BOOK_ALLOC(pool_import(out, handle, type), out, 0);
}
int cuMemPoolExportPointer(void *data, dptr p) { return LOCKED(pool_export_pointer(data, p)); }
int cuMemPoolImportPointer(dptr *out, struct pool *p, const void *data) {
    return BOOK_ALLOC(pool_import_pointer(out, p, data), out, 0);
}
