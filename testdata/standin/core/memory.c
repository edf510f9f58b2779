// Plain, pitched and managed device memory, arrays, and pinned host memory.
//
// Device memory is address space only (MAP_NORESERVE): untouched bytes cost nothing, and a host access does not crash.
#include "core.h"

// Requests of up to 1 MiB are slots of a 2 MiB slab, as a real driver packs them; larger ones are multiples of 2 MiB.
static int slab_serves(const struct range *r, const struct context *c, int dev, size_t cls) {
    return r->kind == SLAB && r->ctx == c && r->dev == dev && r->cls == cls && r->live < BIG / cls;
}
static struct range *slab_find(const struct context *c, int dev, size_t cls) {
    struct range *r;
    for (size_t i = 0; (r = range_at(i)); i++)
        if (slab_serves(r, c, dev, cls)) break;
    return r;
}
static struct range *slab_make(struct context *c, int dev, size_t cls) {
    if (charge(dev, BIG)) return NULL;
    dptr p = map_big(BIG, PROT_READ | PROT_WRITE);
    if (!p) return refund(dev, BIG), NULL;
    struct range *s = range_add(p, BIG, SLAB, dev, 0);
    s->ctx = c;
    s->charged = BIG;
    s->cls = cls;
    return s;
}
static int slab_alloc(dptr *out, size_t n, struct context *c, int dev) {
    size_t cls = 512;
    int k = 0;
    for (; cls < n; cls *= 2)
        k++;
    struct range *s = c->slabs[k];
    if (!s || !slab_serves(s, c, dev, cls)) s = slab_find(c, dev, cls);
    if (!s) s = slab_make(c, dev, cls);
    if (!s) return OUT_OF_MEMORY;
    c->slabs[k] = s;
    unsigned i = 0;
    while (s->bits[i / 64] >> (i % 64) & 1)
        i++; // the lowest free slot: an address just freed is handed out at once
    s->bits[i / 64] |= 1ull << (i % 64);
    s->live++;
    *out = s->p + i * cls;
    return OK;
}
// slab_free returns a slot; *empty is set when the slab itself should go.
static int slab_free(struct range *r, dptr p, int *empty) {
    size_t i = (p - r->p) / r->cls;
    if ((p - r->p) % r->cls || !(r->bits[i / 64] >> (i % 64) & 1)) return INVALID_VALUE;
    r->bits[i / 64] &= ~(1ull << (i % 64));
    *empty = --r->live == 0;
    for (int k = 0; *empty && k < SIZE_CLASSES; k++)
        if (r->ctx->slabs[k] == r) r->ctx->slabs[k] = NULL;
    return OK;
}

int dev_alloc(dptr *out, size_t n, struct context *c, int dev, enum kind kind) {
    note.dev = dev;
    if (!n || !out) return INVALID_VALUE;
    if (n > set.device_mem) return OUT_OF_MEMORY;
    if (n <= 1 << 20 && kind == DEVICE) return slab_alloc(out, n, c, dev);
    size_t full = UP(n, BIG);
    if (charge(dev, full)) return OUT_OF_MEMORY;
    if (!(*out = map_big(full, PROT_READ | PROT_WRITE))) return refund(dev, full), OUT_OF_MEMORY;
    struct range *r = range_add(*out, full, kind, dev, n);
    r->ctx = c;
    r->charged = full;
    return OK;
}
int foreign_alloc(dptr *out, size_t n, struct context *c, int dev, enum kind kind) {
    if (!n || !out) return INVALID_VALUE;
    note.dev = dev;
    size_t full = UP(n, BIG);
    if (!(*out = map_big(full, PROT_READ | PROT_WRITE))) return OUT_OF_MEMORY;
    range_add(*out, full, kind, dev, n)->ctx = c;
    return OK;
}

void range_free(struct range *r) {
    refund(r->dev, r->charged);
    if (r->kind == REGISTERED)
        range_drop(r); // the program's own memory
    else
        range_unmap(r);
}

static int free_exact(struct range *r) {
    note.dev = r->dev;
    switch (r->kind) {
    case ASYNC:
        return pool_free(r), OK;
    case GRAPH:
        return graph_free(r);
    case DEVICE:
    case MANAGED:
    case EXTERNAL:
    case POOL_POINTER:
        return range_free(r), OK;
    default:
        return INVALID_VALUE;
    }
}
int dev_free(dptr p) {
    if (!p) return OK;
    struct range *r = range_find(p);
    if (!r) return INVALID_VALUE;
    if (r->kind != SLAB) return r->p == p ? free_exact(r) : INVALID_VALUE;
    note.dev = r->dev;
    int empty = 0, rc = slab_free(r, p, &empty);
    if (empty) range_free(r);
    return rc;
}

// ---- arrays: opaque handles, no address of their own

enum { LAYERED = 0x01, SPARSE = 0x40, DEFERRED = 0x80 }; // CUDA_ARRAY3D_*: the last two have no memory of their own

struct array_desc desc_of_2d(const void *desc) {
    struct array_desc d = {0};
    memcpy(&d, desc, 2 * sizeof(size_t));
    memcpy(&d.format, (const char *)desc + 2 * sizeof(size_t), 2 * sizeof(int));
    return d;
}

static size_t or_one(size_t n) { return n ? n : 1; }

// block_bytes is what a 4 x 4 block of a compressed format takes (BC1 to BC7), 0 for another format.
static size_t block_bytes(int format) {
    if (format < 0x91 || format > 0x9e) return 0;
    return format <= 0x92 || format == 0x97 || format == 0x98 ? 8 : 16;
}
// channel_bytes: CUarray_format (cuda.h) 8, 16 and 32 bit unsigned and signed, half, float, and the normalized ones.
static size_t channel_bytes(int format) {
    static const unsigned char width[256] = {[0x01] = 1, 2, 4, [0x08] = 1, 2, 4, [0x10] = 2, [0x20] = 4, [0xc0] = 1, 1,
                                             1,          2, 2, 2,          1, 1, 1,          2,          2,          2};
    return format > 0 && format < 256 ? width[format] : 0;
}
size_t array_bytes(const struct array_desc *d) {
    size_t height = or_one(d->height), depth = or_one(d->depth);
    if (d->flags & (SPARSE | DEFERRED)) return 0;
    if (block_bytes(d->format)) return block_bytes(d->format) * UP(d->width, 4) / 4 * UP(height, 4) / 4 * depth;
    return channel_bytes(d->format) * d->channels * d->width * height * depth;
}
size_t mipmap_bytes(struct array_desc d, unsigned levels) {
    size_t sum = 0;
    for (unsigned i = 0; i < levels; i++) {
        sum += array_bytes(&d);
        d.width = or_one(d.width / 2);
        d.height = or_one(d.height / 2);
        if (!(d.flags & LAYERED)) d.depth = or_one(d.depth / 2);
    }
    return sum;
}
int array_create(dptr *h, const struct array_desc *d, size_t n, struct context *c, enum kind kind) {
    note.dev = c->dev;
    if (!d->width || (!channel_bytes(d->format) && !block_bytes(d->format))) return INVALID_VALUE;
    if (d->flags & (SPARSE | DEFERRED)) return foreign_alloc(h, 1, c, c->dev, kind);
    return dev_alloc(h, n, c, c->dev, kind);
}
int array_destroy(dptr h, enum kind kind) {
    struct range *r = range_exact(h, kind);
    if (!r) return INVALID_HANDLE;
    note.dev = r->dev;
    range_free(r);
    return OK;
}

// ---- pinned host memory

int host_alloc(void **out, size_t n, struct context *c) {
    if (!n || !out) return INVALID_VALUE;
    size_t full = UP(n, 4096);
    void *p = mmap(NULL, full, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return OUT_OF_MEMORY;
    *out = p;
    range_add((dptr)p, full, HOST, c->dev, n)->ctx = c;
    return OK;
}
int host_free(void *p) {
    struct range *r = range_exact((dptr)p, HOST);
    return r ? range_free(r), OK : INVALID_VALUE;
}
int host_register(void *p, size_t n, struct context *c) {
    if (!p || !n) return INVALID_VALUE;
    if (range_exact((dptr)p, REGISTERED)) return HOST_MEMORY_ALREADY_REGISTERED;
    range_add((dptr)p, n, REGISTERED, c->dev, n)->ctx = c;
    return OK;
}
int host_unregister(void *p) {
    struct range *r = range_exact((dptr)p, REGISTERED);
    return r ? range_free(r), OK : HOST_MEMORY_NOT_REGISTERED;
}
