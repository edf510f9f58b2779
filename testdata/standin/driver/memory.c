// Plain, pitched and managed device memory, arrays, and pinned host memory.
#include "driver.h"

static int pitched(dptr *out, size_t *pitch, size_t width, size_t height, struct context *c) {
    *pitch = UP(width, 512);
    return dev_alloc(out, *pitch * height, c, c->dev, DEVICE);
}

int cuMemAlloc_v2(dptr *out, size_t n) { return BOOK_ALLOC(IN(c, dev_alloc(out, n, c, c->dev, DEVICE)), out, n); }
int cuMemAllocManaged(dptr *out, size_t n, unsigned flags) {
    return BOOK_ALLOC(IN(c, dev_alloc(out, n, c, c->dev, MANAGED)), out, n);
}
int cuMemAllocPitch_v2(dptr *out, size_t *pitch, size_t width, size_t height, unsigned element) {
    return BOOK_ALLOC(IN(c, pitched(out, pitch, width, height, c)), out, UP(width, 512) * height);
}
int cuMemFree_v2(dptr p) { return BOOK_FREE(dev_free(p), p, 0); }
int cuMemGetInfo_v2(size_t *avail, size_t *total) { return BOOK(memory_info(avail, total, cur_dev()), 0, *avail); }

// ---- arrays

int cuArray3DCreate_v2(dptr *h, const struct array_desc *d) {
    size_t n = array_bytes(d);
    return BOOK_ALLOC(IN(c, array_create(h, d, n, c, ARRAY)), h, n);
}
int cuArrayCreate_v2(dptr *h, const void *desc2d) {
    struct array_desc d = desc_of_2d(desc2d);
    size_t n = array_bytes(&d);
    return BOOK_ALLOC(IN(c, array_create(h, &d, n, c, ARRAY)), h, n);
}
int cuMipmappedArrayCreate(dptr *h, const struct array_desc *d, unsigned levels) {
    size_t n = mipmap_bytes(*d, levels);
    return BOOK_ALLOC(IN(c, array_create(h, d, n, c, MIPMAP)), h, n);
}
// A level's handle is the mipmapped array's and its number. It owns nothing.
int cuMipmappedArrayGetLevel(dptr *level, dptr h, unsigned i) { return *level = h + 1 + i, OK; }
int cuArrayDestroy(dptr h) { return BOOK_FREE(array_destroy(h, ARRAY), h, 0); }
int cuMipmappedArrayDestroy(dptr h) { return BOOK_FREE(array_destroy(h, MIPMAP), h, 0); }

// ---- pinned host memory

int cuMemHostAlloc(void **out, size_t n, unsigned flags) { return BOOK_ALLOC(IN(c, host_alloc(out, n, c)), out, n); }
int cuMemAllocHost_v2(void **out, size_t n) { return BOOK_ALLOC(IN(c, host_alloc(out, n, c)), out, n); }
int cuMemFreeHost(void *p) { return BOOK_FREE(host_free(p), p, 0); }
int cuMemHostRegister_v2(void *p, size_t n, unsigned flags) {
    return BOOK(alloc_fails() ? OUT_OF_MEMORY : IN(c, host_register(p, n, c)), p, n);
}
int cuMemHostRegister(void *p, size_t n, unsigned flags) {
    return BOOK(alloc_fails() ? OUT_OF_MEMORY : IN(c, host_register(p, n, c)), p, n);
}
int cuMemHostUnregister(void *p) { return BOOK_FREE(host_unregister(p), p, 0); }
int cuMemHostGetDevicePointer_v2(dptr *out, void *host, unsigned flags) { return *out = (dptr)host, OK; }
int cuMemHostGetFlags(unsigned *flags, void *p) { return *flags = 0, OK; }

// ---- what a pointer is

static int where(dptr p, struct range *out) {
    struct range *r = range_find(p);
    if (!r) return INVALID_VALUE;
    *out = *r;
    return OK;
}
static int is_host(const struct range *r) { return r->kind == HOST || r->kind == REGISTERED || r->dev < 0; }

int cuMemGetAddressRange_v2(dptr *base, size_t *n, dptr p) {
    struct range r;
    if (LOCKED(where(p, &r))) return NOT_FOUND;
    if (r.kind == SLAB) {
        r.p += (p - r.p) / r.cls * r.cls;
        r.n = r.cls;
    }
    if (base) *base = r.p;
    if (n) *n = r.n;
    return OK;
}
int cuPointerGetAttribute(void *data, int attr, dptr p) { // CUpointer_attribute (cuda.h)
    struct range r;
    if (LOCKED(where(p, &r))) return INVALID_VALUE;
    switch (attr) {
    case 1:
        return *(void **)data = r.ctx ? r.ctx : r.dev < 0 ? NULL : ctx_primary(r.dev), OK; // CONTEXT
    case 2:
        return *(int *)data = is_host(&r) ? 1 : 2, OK; // MEMORY_TYPE
    case 3:
    case 4:
        return *(dptr *)data = p, OK; // DEVICE_POINTER, HOST_POINTER
    case 7:
        return *(uint64_t *)data = r.p, OK; // BUFFER_ID
    case 8:
        return *(int *)data = r.kind == MANAGED, OK; // IS_MANAGED
    case 9:
        return *(int *)data = r.dev, OK; // DEVICE_ORDINAL
    case 11:
        return *(dptr *)data = r.p, OK; // RANGE_START_ADDR
    case 12:
        return *(size_t *)data = r.n, OK; // RANGE_SIZE
    default:
        return *(int *)data = 0, OK;
    }
}
int cuPointerGetAttributes(unsigned n, const int *attrs, void **data, dptr p) {
    for (unsigned i = 0; i < n; i++)
        if (cuPointerGetAttribute(data[i], attrs[i], p)) *(uint64_t *)data[i] = 0;
    return OK;
}
// For the stand-in runtime: cudaMemoryType (0 not CUDA's, 1 host, 2 device, 3 managed).
int standin_pointer(dptr p, int *type, int *dev) {
    struct range r;
    *type = 0;
    *dev = -2;
    if (LOCKED(where(p, &r))) return OK;
    *type = is_host(&r) ? 1 : r.kind == MANAGED ? 3 : 2;
    *dev = r.dev;
    return OK;
}

// A module's global variable: some memory of its own.
int cuModuleGetGlobal_v2(dptr *p, size_t *bytes, void *module, const char *name) {
    if (p) *p = (dptr)calloc(1, 64);
    if (bytes) *bytes = 64;
    return OK;
}
