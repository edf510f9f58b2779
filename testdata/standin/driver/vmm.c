// Virtual memory management and multicast objects.
#include "driver.h"

int cuMemAddressReserve(dptr *out, size_t n, size_t align, dptr hint, uint64_t flags) {
    return BOOK_ALLOC(va_reserve(out, n, align), out, n);
}
int cuMemAddressFree(dptr p, size_t n) { return BOOK_FREE(va_free(p, n), p, n); }
int cuMemCreate(uint64_t *h, size_t n, const int *prop, uint64_t flags) {
    return BOOK_ALLOC(phys_create(h, n, prop), h, n);
}
int cuMemRelease(uint64_t h) { return BOOK_FREE(phys_release(h), h, 0); }
int cuMemMap(dptr p, size_t n, size_t offset, uint64_t h, uint64_t flags) {
    return BOOK(va_map(p, n, offset, h), p, n);
}
int cuMemUnmap(dptr p, size_t n) { return BOOK_FREE(va_unmap(p, n), p, n); }
int cuMemRetainAllocationHandle(uint64_t *h, dptr p) { return BOOK(phys_retain(h, p), rc_ ? 0 : *h, 0); }
int cuMemExportToShareableHandle(void *handle, uint64_t h, int type, uint64_t flags) {
    return LOCKED(phys_export(handle, h, type));
}
int cuMemImportFromShareableHandle(uint64_t *h, void *handle, int type) {
    return BOOK_ALLOC(phys_import(h, handle, type), h, 0);
}

int cuMemSetAccess(dptr p, size_t n, const void *desc, size_t count) { return va_access(p, n); }
int cuMemGetAccess(uint64_t *flags, const void *location, dptr p) { return *flags = 3, OK; }
int cuMemGetAllocationGranularity(size_t *n, const void *prop, int option) { return *n = BIG, OK; }
int cuMemGetAllocationPropertiesFromHandle(int *prop, uint64_t h) {
    memset(prop, 0, 32);
    prop[0] = 1; // CU_MEM_ALLOCATION_TYPE_PINNED
    prop[2] = 1; // CU_MEM_LOCATION_TYPE_DEVICE
    return LOCKED(phys_device(&prop[3], h));
}

struct multicast_prop { // CUmulticastObjectProp
    unsigned devices;
    size_t n;
    uint64_t handle_types, flags;
};
int cuMulticastCreate(uint64_t *h, const struct multicast_prop *prop) {
    return BOOK_ALLOC(multicast_create(h, prop->n), h, prop->n);
}
int cuMulticastAddDevice(uint64_t h, int dev) { return LOCKED(multicast_check(h, 0)); }
int cuMulticastBindMem(uint64_t h, size_t at, uint64_t memory, size_t offset, size_t n, uint64_t flags) {
    return BOOK(multicast_check(h, memory), h, n);
}
int cuMulticastBindMem_v2(uint64_t h, int dev, size_t at, uint64_t memory, size_t offset, size_t n, uint64_t flags) {
    return BOOK(multicast_check(h, memory), h, n);
}
int cuMulticastBindAddr(uint64_t h, size_t at, dptr p, size_t n, uint64_t flags) {
    return BOOK(multicast_check(h, 0), h, n);
}
int cuMulticastBindAddr_v2(uint64_t h, int dev, size_t at, dptr p, size_t n, uint64_t flags) {
    return BOOK(multicast_check(h, 0), h, n);
}
int cuMulticastUnbind(uint64_t h, int dev, size_t at, size_t n) { return BOOK(multicast_check(h, 0), h, n); }
int cuMulticastGetGranularity(size_t *n, const void *prop, int option) { return *n = BIG, OK; }
