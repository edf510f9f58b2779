// Virtual memory management: physical memory (a handle), address space, and the mapping of one into the other.
#include "driver.h"

struct phys {
    size_t n;
    int dev, refs; // dev -1: host memory, not charged
    struct phys *next;
};
static struct phys *all;

static struct phys *phys_of(uint64_t h) { // NULL for a handle that is not (or no longer) ours
    struct phys *p = all;
    while (p && (uint64_t)p != h)
        p = p->next;
    return p;
}
static int create(uint64_t *h, size_t n, const int *prop) { // CUmemAllocationProp: type, handle types, location, id
    int dev = prop[2] == 1 ? prop[3] : -1;
    if (!n || n % BIG) return INVALID_VALUE;
    if (dev >= 0 && charge(dev, n)) return OUT_OF_MEMORY;
    struct phys *p = malloc(sizeof *p);
    if (!p) return OUT_OF_MEMORY;
    *p = (struct phys){n, dev, 1, all};
    all = p;
    *h = (uint64_t)p;
    return OK;
}
static int unref(uint64_t h) {
    struct phys *p = phys_of(h), **at = &all;
    if (!p) return INVALID_VALUE;
    if (--p->refs) return OK;
    if (p->dev >= 0) refund(p->dev, p->n);
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    free(p);
    return OK;
}
static int map(dptr p, size_t n, uint64_t h) {
    struct phys *phys = phys_of(h);
    if (!phys) return INVALID_VALUE;
    phys->refs++;
    range_add(p, n, MAPPED, phys->dev, n)->handle = h;
    return OK;
}
static int unmap(dptr p, size_t n) {
    for (dptr at = p; at < p + n;) {
        struct range *r = range_exact(at, MAPPED);
        if (!r) return INVALID_VALUE;
        at += r->n;
        mmap((void *)r->p, r->n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        unref(r->handle);
        range_drop(r);
    }
    return OK;
}
static int reserve(dptr *out, size_t n) {
    if (!n || n % BIG) return INVALID_VALUE;
    if (!(*out = map_big(n, PROT_NONE))) return OUT_OF_MEMORY;
    range_add(*out, n, RESERVED, cur_dev(), n);
    return OK;
}
static int unreserve(dptr p) {
    struct range *r = range_exact(p, RESERVED);
    if (!r) return INVALID_VALUE;
    munmap((void *)p, r->n);
    range_drop(r);
    return OK;
}
static int retain(uint64_t *h, dptr p) {
    struct range *r = range_find(p);
    if (!r || r->kind != MAPPED) return INVALID_VALUE;
    *h = r->handle;
    phys_of(*h)->refs++;
    return OK;
}

int cuMemAddressReserve(dptr *out, size_t n, size_t align, dptr hint, uint64_t flags) {
    return BOOK_ALLOC(reserve(out, n), out, n);
}
int cuMemAddressFree(dptr p, size_t n) { return BOOK(unreserve(p), p, n); }
int cuMemCreate(uint64_t *h, size_t n, const int *prop, uint64_t flags) { return BOOK_ALLOC(create(h, n, prop), h, n); }
int cuMemRelease(uint64_t h) { return BOOK(unref(h), h, 0); }
int cuMemMap(dptr p, size_t n, size_t offset, uint64_t h, uint64_t flags) { return BOOK(map(p, n, h), p, n); }
int cuMemUnmap(dptr p, size_t n) { return BOOK(unmap(p, n), p, n); }
int cuMemRetainAllocationHandle(uint64_t *h, dptr p) { return LOCKED(retain(h, p)); }

int cuMemSetAccess(dptr p, size_t n, const void *desc, size_t count) {
    return mprotect((void *)p, n, PROT_READ | PROT_WRITE) ? INVALID_VALUE : OK;
}
int cuMemGetAllocationGranularity(size_t *n, const void *prop, int option) { return *n = BIG, OK; }
static int dev_of(int *dev, uint64_t h) {
    struct phys *p = phys_of(h);
    return p ? (*dev = p->dev, OK) : INVALID_VALUE;
}
int cuMemGetAllocationPropertiesFromHandle(int *prop, uint64_t h) {
    memset(prop, 0, 32);
    prop[0] = 1; // CU_MEM_ALLOCATION_TYPE_PINNED
    prop[2] = 1; // CU_MEM_LOCATION_TYPE_DEVICE
    return LOCKED(dev_of(&prop[3], h));
}
int cuMemExportToShareableHandle(void *out, uint64_t h, int type, uint64_t flags) { return NOT_SUPPORTED; }
int cuMemImportFromShareableHandle(uint64_t *h, void *handle, int type) { return NOT_SUPPORTED; }
