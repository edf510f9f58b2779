// Stream-ordered pools: memory grows in 32 MiB steps and is given back at a synchronisation, down to the threshold.
#include "driver.h"

struct pool {
    int dev;
    size_t used, reserved, used_hi, reserved_hi, threshold;
};
enum { MAXPOOLS = 64 };
static struct pool pools[MAXPOOLS]; // the first MAXDEV are the devices' default pools
static int npools = MAXDEV;

static struct pool *default_pool(int dev) {
    pools[dev].dev = dev;
    return &pools[dev];
}
static void trim(struct pool *p, size_t keep) {
    size_t want = p->used > keep ? p->used : keep;
    if (p->reserved <= want) return;
    refund(p->dev, p->reserved - want);
    p->reserved = want;
}
static int grow(struct pool *p, size_t missing) {
    size_t n = UP(missing, 32ull << 20);
    if (charge(p->dev, n)) {
        n = UP(missing, BIG);
        if (charge(p->dev, n)) return OUT_OF_MEMORY;
    }
    p->reserved += n;
    if (p->reserved > p->reserved_hi) p->reserved_hi = p->reserved;
    return OK;
}
static int async_alloc(dptr *out, size_t n, struct pool *p) {
    if (!n || !out) return INVALID_VALUE;
    if (n > set.device_mem) return OUT_OF_MEMORY;
    size_t full = UP(n, 512);
    if (p->used + full > p->reserved && grow(p, p->used + full - p->reserved)) return OUT_OF_MEMORY;
    size_t pages = UP(full, 4096);
    char *m = mmap(NULL, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m == MAP_FAILED) return OUT_OF_MEMORY;
    *out = (dptr)m;
    range_add(*out, pages, ASYNC, p->dev, full)->pool = p;
    p->used += full;
    if (p->used > p->used_hi) p->used_hi = p->used;
    return OK;
}
static int async_free(dptr d) {
    struct range *r = range_exact(d, ASYNC);
    if (!r) return dev_free(d); // cuMemFreeAsync also takes memory of cuMemAlloc
    r->pool->used -= r->asked;
    munmap((void *)r->p, r->n);
    range_drop(r);
    return OK;
}
static int new_pool(struct pool **out, int dev) {
    if (npools == MAXPOOLS) return OUT_OF_MEMORY;
    *out = &pools[npools++];
    (*out)->dev = dev;
    return OK;
}
void pools_sync(void) {
    for (int i = 0; i < npools; i++)
        trim(&pools[i], pools[i].threshold);
}

int cuMemAllocFromPoolAsync(dptr *out, size_t n, struct pool *pool, void *stream) {
    return BOOK_ALLOC(async_alloc(out, n, pool), out, n);
}
int cuMemAllocAsync(dptr *out, size_t n, void *stream) {
    return BOOK_ALLOC(async_alloc(out, n, default_pool(cur_dev())), out, n);
}
int cuMemFreeAsync(dptr p, void *stream) { return BOOK(async_free(p), p, 0); }
// The same under the names for per-thread default streams.
int cuMemAllocFromPoolAsync_ptsz(dptr *out, size_t n, struct pool *pool, void *stream) {
    return BOOK_ALLOC(async_alloc(out, n, pool), out, n);
}
int cuMemAllocAsync_ptsz(dptr *out, size_t n, void *stream) {
    return BOOK_ALLOC(async_alloc(out, n, default_pool(cur_dev())), out, n);
}
int cuMemFreeAsync_ptsz(dptr p, void *stream) { return BOOK(async_free(p), p, 0); }

int cuDeviceGetDefaultMemPool(struct pool **out, int dev) { return *out = default_pool(dev), OK; }
int cuDeviceGetMemPool(struct pool **out, int dev) { return *out = default_pool(dev), OK; }
int cuDeviceSetMemPool(int dev, struct pool *pool) { return OK; }
int cuMemPoolCreate(struct pool **out, const int *props) { return LOCKED(new_pool(out, props[3])); } // location.id
int cuMemPoolDestroy(struct pool *p) { return LOCKED((trim(p, 0), OK)); }
int cuMemPoolTrimTo(struct pool *p, size_t keep) { return LOCKED((trim(p, keep), OK)); }
int cuMemPoolSetAccess(struct pool *p, const void *desc, size_t n) { return OK; }
int cuMemPoolGetAccess(int *flags, struct pool *p, void *location) { return *flags = 3, OK; }

// CUmemPool_attribute (cuda.h): up to 3 switches, then the sizes.
enum { RELEASE_THRESHOLD = 4, RESERVED_CURRENT, RESERVED_HIGH, USED_CURRENT, USED_HIGH };
int cuMemPoolSetAttribute(struct pool *p, int attr, const uint64_t *v) {
    if (attr == RELEASE_THRESHOLD) p->threshold = *v;
    if (attr == RESERVED_HIGH) p->reserved_hi = p->reserved;
    if (attr == USED_HIGH) p->used_hi = p->used;
    return OK;
}
int cuMemPoolGetAttribute(struct pool *p, int attr, void *v) {
    if (attr < RELEASE_THRESHOLD) return *(int *)v = 1, OK;
    const size_t value[] = {p->threshold, p->reserved, p->reserved_hi, p->used, p->used_hi};
    if (attr > USED_HIGH) return INVALID_VALUE;
    *(uint64_t *)v = value[attr - RELEASE_THRESHOLD];
    return OK;
}
