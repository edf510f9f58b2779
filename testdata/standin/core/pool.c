// Stream-ordered pools: memory grows in 32 MiB steps and is given back at a synchronisation, down to the threshold.
#define _GNU_SOURCE
#include "core.h"

enum { MAXPOOLS = 256, HOST_POOL = MAXDEV, MANAGED_POOL, CREATED = MANAGED_POOL + MAXDEV };
struct pool {
    int dev, live, gone, imported; // gone: destroyed with memory still in use; dev -1: the host's
    size_t used, reserved, used_hi, reserved_hi, threshold, max;
};
static struct pool pools[MAXPOOLS]; // the first are default pools: the devices', the host's, the managed ones
static struct pool *current[MAXDEV];

static struct pool *given(int i, int dev) {
    pools[i].dev = dev;
    pools[i].live = 1;
    return &pools[i];
}
struct pool *pool_default(int dev) { return dev < 0 ? given(HOST_POOL, -1) : given(dev, dev); }
struct pool *pool_current(int dev) { return current[dev] ? current[dev] : pool_default(dev); }

static int valid(const struct pool *p) { return p >= pools && p < pools + MAXPOOLS && p->live && !p->gone; }

enum { AT_DEVICE = 1, MANAGED_TYPE = 2 }; // CUmemLocationType, CUmemAllocationType
// pool_of is the default pool of a place and a type of memory; NULL: there is none. Devices have one kind that is set.
struct pool *pool_of(const struct location *where, int type) {
    int dev = where->type == AT_DEVICE ? where->id : -1;
    if (dev >= set.devices || (where->type == AT_DEVICE && dev < 0)) return NULL;
    if (type == MANAGED_TYPE) return given(MANAGED_POOL + (dev < 0 ? 0 : dev), dev);
    return pool_default(dev);
}
int pool_choose(int dev, struct pool *p) {
    if (dev < 0 || dev >= set.devices) return INVALID_DEVICE;
    if (!valid(p) || p->dev != dev) return INVALID_VALUE;
    current[dev] = p;
    return OK;
}

static int trim(struct pool *p, size_t keep) {
    size_t want = p->used > keep ? p->used : keep;
    if (p->reserved > want) {
        refund(p->dev, p->reserved - want);
        p->reserved = want;
    }
    return OK;
}
int pool_trim(struct pool *p, size_t keep) {
    if (!valid(p)) return INVALID_VALUE;
    note.dev = p->dev;
    return trim(p, keep);
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
int pool_alloc(dptr *out, size_t n, struct pool *p) {
    if (!n || !out || !valid(p) || p->imported) return INVALID_VALUE;
    note.dev = p->dev;
    note.other = (uint64_t)p;
    if (n > set.device_mem) return OUT_OF_MEMORY;
    size_t full = UP(n, 512);
    if (p->max && p->used + full > p->max) return OUT_OF_MEMORY;
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
// A destroyed pool goes with the last of its memory (cuMemPoolDestroy in cuda.h).
static void go_when_empty(struct pool *p) {
    if (!p->gone || p->used) return;
    trim(p, 0);
    p->live = 0;
}
void pool_free(struct range *r) {
    struct pool *p = r->pool;
    p->used -= r->asked;
    note.other = (uint64_t)p;
    range_unmap(r);
    go_when_empty(p);
}

static int new_pool(struct pool **out, struct pool like) {
    int i = CREATED; // the lowest free one: a handle comes back at once
    while (i < MAXPOOLS && pools[i].live)
        i++;
    if (i == MAXPOOLS) return OUT_OF_MEMORY;
    pools[i] = like;
    pools[i].live = 1;
    *out = &pools[i];
    note.dev = like.dev;
    return OK;
}
int pool_create(struct pool **out, const int *props) { // CUmemPoolProps: type, handle types, location, ..., maxSize
    struct pool like = {.dev = props[2] == AT_DEVICE ? props[3] : -1};
    if (like.dev >= set.devices) return INVALID_DEVICE;
    memcpy(&like.max, props + 6, sizeof like.max);
    return new_pool(out, like);
}
int pool_destroy(struct pool *p) {
    if (!valid(p) || p < pools + CREATED) return INVALID_VALUE;
    note.dev = p->dev;
    for (int dev = 0; dev < MAXDEV; dev++)
        if (current[dev] == p) current[dev] = NULL;
    p->gone = 1;
    trim(p, 0);
    go_when_empty(p);
    return OK;
}

void pools_sync(void) {
    for (int i = 0; i < MAXPOOLS; i++)
        if (pools[i].live) trim(&pools[i], pools[i].threshold);
}
void pools_reset(int dev) {
    struct range *r;
    for (size_t i = 0; (r = range_at(i));)
        if (r->kind == ASYNC && r->dev == dev)
            pool_free(r);
        else
            i++;
    for (int i = 0; i < MAXPOOLS; i++)
        if (pools[i].live && pools[i].dev == dev) trim(&pools[i], 0);
}

// CUmemPool_attribute (cuda.h): up to 3 switches, then the sizes.
enum { RELEASE_THRESHOLD = 4, RESERVED_CURRENT, RESERVED_HIGH, USED_CURRENT, USED_HIGH };
int pool_set(struct pool *p, int attr, const void *v) {
    if (!valid(p)) return INVALID_VALUE;
    if (attr == RELEASE_THRESHOLD) p->threshold = *(const uint64_t *)v;
    if (attr == RESERVED_HIGH) p->reserved_hi = p->reserved;
    if (attr == USED_HIGH) p->used_hi = p->used;
    return OK;
}
int pool_get(struct pool *p, int attr, void *v) {
    if (!valid(p) || attr < 1 || attr > USED_HIGH) return INVALID_VALUE;
    if (attr < RELEASE_THRESHOLD) return *(int *)v = 1, OK;
    const size_t value[] = {p->threshold, p->reserved, p->reserved_hi, p->used, p->used_hi};
    *(uint64_t *)v = value[attr - RELEASE_THRESHOLD];
    return OK;
}

// ---- a pool and its memory in another process

int pool_export(void *handle, struct pool *p, int type) {
    if (!valid(p)) return INVALID_VALUE;
    return share_write(handle, type, (struct shared){.what = POOL, .dev = p->dev});
}
int pool_import(struct pool **out, void *handle, int type) {
    struct shared s;
    int rc = share_read(&s, handle, type, POOL);
    return rc ? rc : new_pool(out, (struct pool){.dev = s.dev, .imported = 1});
}
int pool_export_pointer(void *data, dptr p) { // CUmemPoolPtrExportData
    struct range *r = range_exact(p, ASYNC);
    if (!r) return INVALID_VALUE;
    return share_write(data, SHARE_BYTES, (struct shared){.what = POINTER, .dev = r->dev, .n = r->asked, .serial = p});
}
int pool_import_pointer(dptr *out, struct pool *p, const void *data) {
    struct shared s;
    int rc = share_read(&s, (void *)data, SHARE_BYTES, POINTER);
    if (rc || !valid(p) || !p->imported) return INVALID_VALUE;
    rc = foreign_alloc(out, s.n, NULL, s.dev, POOL_POINTER);
    note.other = (uint64_t)p;
    return rc;
}
