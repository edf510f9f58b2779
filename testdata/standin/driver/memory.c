// Plain, pitched and managed device memory, arrays, and pinned host memory.
//
// Device memory is address space only (MAP_NORESERVE): untouched bytes cost nothing, and a host access does not crash.
#include "driver.h"

// Requests of up to 1 MiB are slots of a 2 MiB slab, as a real driver packs them; larger ones are multiples of 2 MiB.
enum { CLASSES = 12 };
static struct range *slabs[MAXDEV][CLASSES]; // the slab to try first, by size class

static int slab_alloc(dptr *out, size_t n, int dev) {
    size_t cls = 512;
    int c = 0;
    for (; cls < n; cls *= 2)
        c++;
    struct range *s = slabs[dev][c];
    if (!s || s->live == BIG / cls) s = range_slab(dev, cls);
    if (!s) {
        if (charge(dev, BIG)) return OUT_OF_MEMORY;
        dptr p = map_big(BIG, PROT_READ | PROT_WRITE);
        if (!p) return refund(dev, BIG), OUT_OF_MEMORY;
        s = range_add(p, BIG, SLAB, dev, 0);
        s->cls = cls;
    }
    slabs[dev][c] = s;
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
    for (int c = 0; *empty && c < CLASSES; c++)
        if (slabs[r->dev][c] == r) slabs[r->dev][c] = NULL;
    return OK;
}

int dev_alloc(dptr *out, size_t n, int dev, enum kind kind) {
    if (!n || !out) return INVALID_VALUE;
    if (n > set.device_mem) return OUT_OF_MEMORY;
    if (n <= 1 << 20 && kind == DEVICE) return slab_alloc(out, n, dev);
    size_t full = UP(n, BIG);
    if (charge(dev, full)) return OUT_OF_MEMORY;
    if (!(*out = map_big(full, PROT_READ | PROT_WRITE))) return refund(dev, full), OUT_OF_MEMORY;
    range_add(*out, full, kind, dev, n);
    return OK;
}

int dev_free(dptr p) {
    if (!p) return OK;
    struct range *r = range_find(p);
    int gone = 1, rc = OK;
    if (!r) return INVALID_VALUE;
    if (r->kind == SLAB)
        rc = slab_free(r, p, &gone);
    else if (r->p != p || (r->kind != DEVICE && r->kind != MANAGED))
        rc = INVALID_VALUE;
    if (rc || !gone) return rc;
    refund(r->dev, r->n);
    munmap((void *)r->p, r->n);
    range_drop(r);
    return OK;
}

int cuMemAlloc_v2(dptr *out, size_t n) { return BOOK_ALLOC(dev_alloc(out, n, cur_dev(), DEVICE), out, n); }
int cuMemAllocManaged(dptr *out, size_t n, unsigned flags) {
    return BOOK_ALLOC(dev_alloc(out, n, cur_dev(), MANAGED), out, n);
}
int cuMemAllocPitch_v2(dptr *out, size_t *pitch, size_t width, size_t height, unsigned element) {
    *pitch = UP(width, 512);
    return BOOK_ALLOC(dev_alloc(out, *pitch * height, cur_dev(), DEVICE), out, *pitch * height);
}
// With STANDIN_FAIL_FREE=n every n-th free fails as it does after a kernel's fault, and the memory stays.
static int free_or_fail(dptr p) {
    static size_t calls;
    if (set.fail_free && ++calls % set.fail_free == 0) return ILLEGAL_ADDRESS;
    return dev_free(p);
}
int cuMemFree_v2(dptr p) { return BOOK(free_or_fail(p), p, 0); }
int cuMemGetInfo_v2(size_t *avail, size_t *total) {
    init();
    size_t used = books_used(books, cur_dev());
    *total = set.device_mem;
    *avail = used > set.device_mem ? 0 : set.device_mem - used;
    return OK;
}

// ---- arrays: opaque handles, no address of their own

struct array_desc { // CUDA_ARRAY3D_DESCRIPTOR (cuda.h)
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
};

// CUarray_format: 0x01 8 bit, 0x02 16 bit, 0x03 32 bit, 0x08.. signed alike, 0x10 half, 0x20 float.
static size_t array_bytes(const struct array_desc *d) {
    static const unsigned char width[64] = {[1] = 1, 2, 4, [8] = 1, 2, 4, [16] = 2, [32] = 4};
    size_t texel = d->format > 0 && d->format < 64 ? width[d->format] : 0;
    return texel * d->channels * d->width * (d->height ? d->height : 1) * (d->depth ? d->depth : 1);
}
static int array_free(dptr h) {
    struct range *r = range_exact(h, ARRAY);
    if (!r) return INVALID_HANDLE;
    refund(r->dev, r->n);
    munmap((void *)r->p, r->n);
    range_drop(r);
    return OK;
}
int cuArray3DCreate_v2(dptr *h, const struct array_desc *d) {
    size_t n = array_bytes(d);
    return BOOK_ALLOC(dev_alloc(h, n, cur_dev(), ARRAY), h, n);
}
int cuArrayCreate_v2(dptr *h, const void *desc2d) { // CUDA_ARRAY_DESCRIPTOR: width, height, format, channels
    struct array_desc d = {0};
    memcpy(&d, desc2d, 2 * sizeof(size_t));
    memcpy(&d.format, (const char *)desc2d + 2 * sizeof(size_t), 2 * sizeof(int));
    size_t n = array_bytes(&d);
    return BOOK_ALLOC(dev_alloc(h, n, cur_dev(), ARRAY), h, n);
}
int cuArrayDestroy(dptr h) { return BOOK(array_free(h), h, 0); }

// ---- pinned host memory

static int host_alloc(void **out, size_t n) {
    if (!n || !out) return INVALID_VALUE;
    size_t full = UP(n, 4096);
    void *p = mmap(NULL, full, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return OUT_OF_MEMORY;
    *out = p;
    range_add((dptr)p, full, HOST, cur_dev(), n);
    return OK;
}
static int host_free(void *p) {
    struct range *r = range_exact((dptr)p, HOST);
    if (!r) return INVALID_VALUE;
    munmap(p, r->n);
    range_drop(r);
    return OK;
}
static int host_register(void *p, size_t n) {
    if (range_exact((dptr)p, REGISTERED)) return 712; // CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
    range_add((dptr)p, n, REGISTERED, cur_dev(), n);
    return OK;
}
static int host_unregister(void *p) {
    struct range *r = range_exact((dptr)p, REGISTERED);
    if (!r) return 713; // CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED
    range_drop(r);
    return OK;
}
int cuMemHostAlloc(void **out, size_t n, unsigned flags) { return BOOK_ALLOC(host_alloc(out, n), out, n); }
int cuMemAllocHost_v2(void **out, size_t n) { return BOOK_ALLOC(host_alloc(out, n), out, n); }
int cuMemFreeHost(void *p) { return BOOK(host_free(p), p, 0); }
int cuMemHostRegister_v2(void *p, size_t n, unsigned flags) { return BOOK(host_register(p, n), p, n); }
int cuMemHostUnregister(void *p) { return BOOK(host_unregister(p), p, 0); }
int cuMemHostGetDevicePointer_v2(dptr *out, void *host, unsigned flags) { return *out = (dptr)host, OK; }
int cuMemHostGetFlags(unsigned *flags, void *p) { return *flags = 0, OK; }

// ---- what a pointer is

static int where(dptr p, struct range *out) {
    struct range *r = range_find(p);
    if (!r) return INVALID_VALUE;
    *out = *r;
    return OK;
}
static int is_host(const struct range *r) { return r->kind == HOST || r->kind == REGISTERED; }

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
        return *(void **)data = ctx_of(r.dev), OK; // CONTEXT
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
