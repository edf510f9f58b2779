// Virtual memory management: physical memory (a handle), address space, and the mapping of one into the other.
#include "core.h"

// Physical memory lives while a handle refers to it or it is mapped somewhere. A handle is its address, so that the
// number stays the same as long as any of it lives (cuMemRetainAllocationHandle in cuda.h).
struct phys {
    size_t n;
    int dev, refs, maps; // dev -1: host memory
    int charged, multicast;
    struct phys *base; // imported from this process: the memory itself
    struct phys *next;
};
static struct phys *all;

static struct phys *phys_of(uint64_t h) { // NULL for a handle that is not (or no longer) ours
    struct phys *p = all;
    while (p && (uint64_t)p != h)
        p = p->next;
    return p;
}
static struct phys *referred(uint64_t h) { // the same, if it may still be used
    struct phys *p = phys_of(h);
    return p && p->refs ? p : NULL;
}
static int phys_new(uint64_t *h, struct phys like) {
    struct phys *p = malloc(sizeof *p);
    if (!p) return OUT_OF_MEMORY;
    if (like.charged && charge(like.dev, like.n)) return free(p), OUT_OF_MEMORY;
    *p = like;
    p->refs = 1;
    p->next = all;
    all = p;
    note.dev = like.dev;
    *h = (uint64_t)p;
    return OK;
}
static void phys_drop(struct phys *p) {
    while (p && !p->refs && !p->maps) {
        struct phys **at = &all, *base = p->base;
        while (*at != p)
            at = &(*at)->next;
        *at = p->next;
        if (p->charged) refund(p->dev, p->n);
        free(p);
        if (base) base->maps--;
        p = base;
    }
}

int phys_create(uint64_t *h, size_t n, const int *prop) { // CUmemAllocationProp: type, handle types, location, id
    int dev = prop[2] == 1 ? prop[3] : -1;
    if (!n || n % BIG) return INVALID_VALUE;
    if (dev >= set.devices) return INVALID_DEVICE;
    note.dev = dev;
    return phys_new(h, (struct phys){.n = n, .dev = dev, .charged = dev >= 0});
}
int phys_release(uint64_t h) {
    struct phys *p = referred(h);
    if (!p) return INVALID_VALUE;
    note.dev = p->dev;
    p->refs--;
    phys_drop(p);
    return OK;
}
int phys_retain(uint64_t *h, dptr p) {
    struct range *r = range_find(p);
    if (!r || r->kind != MAPPED) return INVALID_VALUE;
    note.dev = r->dev;
    note.other = p;
    r->phys->refs++;
    *h = (uint64_t)r->phys;
    return OK;
}
int phys_device(int *dev, uint64_t h) {
    struct phys *p = phys_of(h);
    return p ? (*dev = p->dev, OK) : INVALID_VALUE;
}
int phys_export(void *handle, uint64_t h, int type) {
    struct phys *p = referred(h);
    if (!p) return INVALID_VALUE;
    return share_write(handle, type, (struct shared){.what = PHYSICAL, .dev = p->dev, .n = p->n, .serial = h});
}
// phys_import gives a handle of its own also for memory of this process, which it then keeps alive.
int phys_import(uint64_t *h, void *handle, int type) {
    struct shared s;
    int rc = share_read(&s, handle, type, PHYSICAL);
    if (rc) return rc;
    struct phys *base = s.pid == getpid() ? phys_of(s.serial) : NULL;
    if ((rc = phys_new(h, (struct phys){.n = s.n, .dev = s.dev, .base = base}))) return rc;
    if (base) base->maps++;
    note.other = s.serial;
    return OK;
}

// ---- address space

static struct range *reservation(dptr p, size_t n) { // the one that holds all of it
    struct range *r;
    for (size_t i = 0; (r = range_at(i)); i++)
        if (r->kind == RESERVED && r->p <= p && p + n <= r->p + r->n) break;
    return r;
}
static int has_mapping(dptr p, size_t n) {
    struct range *r;
    for (size_t i = 0; (r = range_at(i)); i++)
        if (r->kind == MAPPED && r->p < p + n && p < r->p + r->n) return 1;
    return 0;
}
int va_reserve(dptr *out, size_t n, size_t align) {
    if (!n || n % BIG || (align & (align - 1))) return INVALID_VALUE;
    if (align <= BIG) {
        if (!(*out = map_big(n, PROT_NONE))) return OUT_OF_MEMORY;
    } else {
        dptr p = map_big(n + align, PROT_NONE);
        if (!p) return OUT_OF_MEMORY;
        *out = UP(p, align);
        if (*out > p) munmap((void *)p, *out - p);
        munmap((void *)(*out + n), p + align - *out);
    }
    range_add(*out, n, RESERVED, cur_dev(), n);
    return OK;
}
int va_free(dptr p, size_t n) {
    struct range *r = range_exact(p, RESERVED);
    if (!r || r->n != n || has_mapping(p, n)) return INVALID_VALUE;
    range_unmap(r);
    return OK;
}
int va_map(dptr p, size_t n, size_t offset, uint64_t h) {
    struct phys *phys = referred(h);
    if (!phys || !n || offset > phys->n || n > phys->n - offset) return INVALID_VALUE;
    note.dev = phys->dev;
    note.other = h;
    if (!reservation(p, n) || has_mapping(p, n)) return INVALID_VALUE;
    phys->maps++;
    range_add(p, n, MAPPED, phys->dev, n)->phys = phys;
    return OK;
}
// whole says whether a range is made of whole mappings.
static int whole(dptr p, size_t n) {
    dptr at = p;
    while (at < p + n) {
        struct range *r = range_exact(at, MAPPED);
        if (!r) return 0;
        at += r->n;
    }
    return n && at == p + n;
}
static void unmap_one(struct range *r) {
    struct phys *phys = r->phys;
    mmap((void *)r->p, r->n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    range_drop(r);
    phys->maps--;
    phys_drop(phys);
}
int va_unmap(dptr p, size_t n) {
    if (!whole(p, n)) return INVALID_VALUE;
    for (dptr at = p; at < p + n;) {
        struct range *r = range_exact(at, MAPPED);
        at += r->n;
        note.dev = r->dev;
        unmap_one(r);
    }
    return OK;
}
int va_access(dptr p, size_t n) { return mprotect((void *)p, n, PROT_READ | PROT_WRITE) ? INVALID_VALUE : OK; }

// ---- multicast: an object to which memory of several devices is bound, and that has none itself

int multicast_create(uint64_t *h, size_t n) {
    if (!n || n % BIG) return INVALID_VALUE;
    return phys_new(h, (struct phys){.n = n, .dev = -1, .multicast = 1});
}
int multicast_check(uint64_t h, uint64_t memory) {
    struct phys *p = referred(h);
    if (!p || !p->multicast || (memory && !referred(memory))) return INVALID_VALUE;
    note.other = memory;
    return OK;
}
