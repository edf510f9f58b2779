// Stand-in Level Zero (libze_loader.so.1): the memory functions of ze_api.h over the core. Results are ze_result_t,
// also in the ledger, whose context column has the context that a call names.
static inline int ze_result(int rc);
#define RESULT(rc) ze_result(rc)
#include "../core/core.h"

enum {
    DEVICE_LOST = 0x70000001,
    OUT_OF_DEVICE_MEMORY = 0x70000003,
    UNINITIALIZED = 0x78000001,
    INVALID_ARGUMENT = 0x78000004,
};
static inline int ze_result(int rc) {
    switch (rc) {
    case OK:
        return OK;
    case OUT_OF_MEMORY:
        return OUT_OF_DEVICE_MEMORY;
    case ILLEGAL_ADDRESS:
        return DEVICE_LOST;
    default:
        return INVALID_ARGUMENT;
    }
}

// A device's handle is its ordinal + 1; there is one driver, whose handle is 1.
static int ordinal(const void *device) { return (int)(intptr_t)device - 1; }
static int known(const void *device) { return ordinal(device) >= 0 && ordinal(device) < set.devices; }
#define WITHIN(c, expr) (note.ctx = (c), ctx_valid(c) ? (expr) : INVALID_CONTEXT)
#define ON(c, device, expr) WITHIN(c, known(device) ? (expr) : INVALID_DEVICE)

int zeInit(unsigned flags) { return init(), set.devices ? OK : UNINITIALIZED; }
int zeDriverGet(unsigned *n, void **drivers) {
    if (drivers && *n) drivers[0] = (void *)1;
    return *n = 1, OK;
}
int zeDeviceGet(void *driver, unsigned *n, void **devices) {
    init();
    for (int i = 0; devices && i < set.devices && i < (int)*n; i++)
        devices[i] = (void *)(intptr_t)(i + 1);
    return *n = (unsigned)set.devices, OK;
}

// Contexts are of the driver, and take no memory of a device themselves.
int zeContextCreate(void *driver, const void *desc, struct context **c) {
    return BOOK_ALLOC(ctx_create(c, 0, 0), c, 0);
}
int zeContextCreateEx(void *driver, const void *desc, unsigned n, void **devices, struct context **c) {
    return BOOK_ALLOC(ctx_create(c, 0, 0), c, 0);
}
int zeContextDestroy(struct context *c) { return BOOK_FREE(WITHIN(c, ctx_destroy(c, 0)), c, 0); }

int zeMemAllocDevice(struct context *c, const void *desc, size_t n, size_t align, void *device, dptr *out) {
    return BOOK_ALLOC(ON(c, device, dev_alloc(out, n, c, ordinal(device), DEVICE)), out, n);
}
int zeMemAllocShared(struct context *c, const void *device_desc, const void *host_desc, size_t n, size_t align,
                     void *device, dptr *out) {
    return BOOK_ALLOC(ON(c, device, dev_alloc(out, n, c, ordinal(device), MANAGED)), out, n);
}
int zeMemAllocHost(struct context *c, const void *desc, size_t n, size_t align, void **out) {
    return BOOK_ALLOC(WITHIN(c, host_alloc(out, n, c)), out, n);
}
static int free_any(dptr p) { return range_exact(p, HOST) ? host_free((void *)p) : dev_free(p); }
int zeMemFree(struct context *c, dptr p) { return BOOK_FREE(WITHIN(c, free_any(p)), p, 0); }
int zeMemFreeExt(struct context *c, const void *desc, dptr p) { return BOOK_FREE(WITHIN(c, free_any(p)), p, 0); }

// What an image takes is the driver's secret: 2 MiB here, and the ledger does not say.
int zeImageCreate(struct context *c, void *device, const void *desc, dptr *h) {
    return BOOK_ALLOC(ON(c, device, dev_alloc(h, BIG, c, ordinal(device), ARRAY)), h, 0);
}
int zeImageDestroy(dptr h) { return BOOK_FREE(array_destroy(h, ARRAY), h, 0); }

struct physical { // ze_physical_mem_desc_t
    int type;
    const void *next;
    unsigned flags;
    size_t n;
};
static int physical(uint64_t *h, size_t n, int dev) {
    const int prop[8] = {1, 0, 1, dev}; // as phys_create reads it
    return phys_create(h, n, prop);
}
int zePhysicalMemCreate(struct context *c, void *device, const struct physical *d, uint64_t *h) {
    return BOOK_ALLOC(ON(c, device, physical(h, d->n, ordinal(device))), h, d->n);
}
int zePhysicalMemDestroy(struct context *c, uint64_t h) { return BOOK_FREE(WITHIN(c, phys_release(h)), h, 0); }
int zeVirtualMemQueryPageSize(struct context *c, void *device, size_t n, size_t *page) { return *page = BIG, OK; }
int zeVirtualMemReserve(struct context *c, const void *start, size_t n, dptr *out) {
    return BOOK_ALLOC(WITHIN(c, va_reserve(out, n, 0)), out, n);
}
int zeVirtualMemFree(struct context *c, dptr p, size_t n) { return BOOK_FREE(WITHIN(c, va_free(p, n)), p, n); }
int zeVirtualMemMap(struct context *c, dptr p, size_t n, uint64_t h, size_t offset, int access) {
    return BOOK(WITHIN(c, va_map(p, n, offset, h)), p, n);
}
int zeVirtualMemUnmap(struct context *c, dptr p, size_t n) { return BOOK_FREE(WITHIN(c, va_unmap(p, n)), p, n); }
int zeVirtualMemSetAccessAttribute(struct context *c, dptr p, size_t n, int access) { return va_access(p, n); }

struct ipc_handle { // ze_ipc_mem_handle_t, passed by value
    char bytes[64];
};
int zeMemGetIpcHandle(struct context *c, dptr p, struct ipc_handle *handle) { return LOCKED(ipc_export(handle, p)); }
int zeMemOpenIpcHandle(struct context *c, void *device, struct ipc_handle handle, unsigned flags, dptr *out) {
    return BOOK_ALLOC(ON(c, device, ipc_open(out, &handle, c)), out, 0);
}
int zeMemCloseIpcHandle(struct context *c, dptr p) { return BOOK_FREE(WITHIN(c, ipc_close(p)), p, 0); }
