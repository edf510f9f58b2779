// Calls every memory function of Level Zero: the tables. See calls.c for what is done with them.
#include "calls.h"

struct ipc_handle { // ze_ipc_mem_handle_t
    char bytes[64];
};
typedef const void *desc;
enum { ZE };

// clang-format off
#define CALLS(X)                                                                                                       \
    X(ZE, zeInit, unsigned)                                                                                            \
    X(ZE, zeDriverGet, unsigned *, ptr *)                                                                              \
    X(ZE, zeDeviceGet, ptr, unsigned *, ptr *)                                                                         \
    X(ZE, zeContextCreate, ptr, desc, ptr *)                                                                           \
    X(ZE, zeContextCreateEx, ptr, desc, unsigned, ptr *, ptr *)                                                        \
    X(ZE, zeContextDestroy, ptr)                                                                                       \
    X(ZE, zeMemAllocDevice, ptr, desc, size_t, size_t, ptr, ptr *)                                                     \
    X(ZE, zeMemAllocShared, ptr, desc, desc, size_t, size_t, ptr, ptr *)                                               \
    X(ZE, zeMemAllocHost, ptr, desc, size_t, size_t, ptr *)                                                            \
    X(ZE, zeMemFree, ptr, ptr)                                                                                         \
    X(ZE, zeMemFreeExt, ptr, desc, ptr)                                                                                \
    X(ZE, zeImageCreate, ptr, ptr, desc, ptr *)                                                                        \
    X(ZE, zeImageDestroy, ptr)                                                                                         \
    X(ZE, zePhysicalMemCreate, ptr, ptr, desc, ptr *)                                                                  \
    X(ZE, zePhysicalMemDestroy, ptr, ptr)                                                                              \
    X(ZE, zeVirtualMemReserve, ptr, desc, size_t, ptr *)                                                               \
    X(ZE, zeVirtualMemFree, ptr, ptr, size_t)                                                                          \
    X(ZE, zeVirtualMemMap, ptr, ptr, size_t, ptr, size_t, int)                                                         \
    X(ZE, zeVirtualMemUnmap, ptr, ptr, size_t)                                                                         \
    X(ZE, zeMemGetIpcHandle, ptr, ptr, struct ipc_handle *)                                                            \
    X(ZE, zeMemOpenIpcHandle, ptr, ptr, struct ipc_handle, unsigned, ptr *)                                            \
    X(ZE, zeMemCloseIpcHandle, ptr, ptr)
// clang-format on

CALLS(DEFINE)
enum { CALLS(NUMBER) N_END };
const struct call calls[] = {CALLS(ROW){0}};
const char *const libraries[][4] = {[ZE] = {"libze_loader.so.1"}};

static ptr driver, device, home; // home: the context that lasts

struct memory_desc { // ze_device_mem_alloc_desc_t; the one of host memory has no ordinal
    int type;
    desc next;
    unsigned flags, ordinal;
};
static const struct memory_desc device_memory = {.type = 0x15}, host_memory = {.type = 0x16};
static const struct { // ze_context_desc_t
    int type;
    desc next;
    unsigned flags;
} context_desc = {.type = 0x0d};
static const struct { // ze_image_desc_t: one dimension of 4 bytes each
    int type;
    desc next;
    unsigned flags, shape, format[6];
    uint64_t width;
    unsigned height, depth, layers, levels;
} image_desc = {.type = 0x13, .width = 1024, .height = 1, .depth = 1};

// other is the context of each part.
static struct part *fresh_in(struct block *b, ptr context, size_t n, int (*release)(struct part *)) {
    struct part *s = fresh(b, n, release);
    s->other = context;
    return s;
}
static int free_plain(struct part *s) { return DO(zeMemFree, s->other, s->p); }
static int free_ext(struct part *s) {
    static const struct memory_desc how = {.type = 0x1000a}; // ze_memory_free_ext_desc_t
    return DO(zeMemFreeExt, s->other, &how, s->p);
}
static int device_in(struct block *b, ptr context, size_t n, int (*release)(struct part *)) {
    struct part *s = fresh_in(b, context, n, release);
    return TAKE(b, zeMemAllocDevice, context, &device_memory, n, 0, device, &s->p);
}
static int device_plain(struct block *b, size_t n) { return device_in(b, home, n, free_plain); }
static int device_ext(struct block *b, size_t n) { return device_in(b, home, n, free_ext); }
static int shared_in(struct block *b, ptr context, size_t n) {
    struct part *s = fresh_in(b, context, n, free_plain);
    return TAKE(b, zeMemAllocShared, context, &device_memory, &host_memory, n, 0, device, &s->p);
}
static int shared(struct block *b, size_t n) { return shared_in(b, home, n); }
static int host_in(struct block *b, ptr context, size_t n) {
    struct part *s = fresh_in(b, context, n, free_plain);
    return TAKE(b, zeMemAllocHost, context, &host_memory, n, 0, &s->p);
}
static int host(struct block *b, size_t n) { return host_in(b, home, n); }

static int destroy_image(struct part *s) { return DO(zeImageDestroy, s->p); }
static int image_in(struct block *b, ptr context) {
    struct part *s = fresh_in(b, context, 0, destroy_image);
    return TAKE(b, zeImageCreate, context, device, &image_desc, &s->p);
}
static int image(struct block *b, size_t n) { return image_in(b, home); }

static int destroy_physical(struct part *s) { return DO(zePhysicalMemDestroy, s->other, s->p); }
static int free_addresses(struct part *s) { return DO(zeVirtualMemFree, s->other, s->p, s->n); }
static int unmap(struct part *s) { return DO(zeVirtualMemUnmap, s->other, s->p, s->n); }
static int physical(struct block *b, size_t n) {
    struct { // ze_physical_mem_desc_t
        int type;
        desc next;
        unsigned flags;
        size_t n;
    } d = {0x20, NULL, 0, (n + (2 << 20) - 1) & ~(size_t)((2 << 20) - 1)};
    struct part *s = fresh_in(b, home, d.n, destroy_physical);
    return TAKE(b, zePhysicalMemCreate, home, device, &d, &s->p);
}
static int mapped(struct block *b, size_t n) {
    int rc = physical(b, n);
    if (rc) return rc;
    size_t size = b->part[0].n;
    struct part *s = fresh_in(b, home, size, free_addresses);
    if ((rc = TAKE(b, zeVirtualMemReserve, home, NULL, size, &s->p))) return rc;
    s = fresh_in(b, home, size, unmap);
    s->p = b->part[1].p;
    return TAKE(b, zeVirtualMemMap, home, s->p, size, b->part[0].p, 0, 1);
}

static int close_ipc(struct part *s) { return DO(zeMemCloseIpcHandle, s->other, s->p); }
static int ipc(struct block *b, size_t n) {
    struct ipc_handle handle;
    int rc = device_plain(b, n + (2 << 20));
    if (rc || DO(zeMemGetIpcHandle, home, b->part[0].p, &handle)) return rc;
    struct part *s = fresh_in(b, home, 0, close_ipc);
    return TAKE(b, zeMemOpenIpcHandle, home, device, handle, 0, &s->p);
}

static int destroy_context(struct part *s) { return DO(zeContextDestroy, s->p); }
static int context(struct block *b, size_t n) {
    struct part *s = fresh(b, 0, destroy_context);
    return n % 2 ? TAKE(b, zeContextCreate, driver, &context_desc, &s->p)
                 : TAKE(b, zeContextCreateEx, driver, &context_desc, 1, &device, &s->p);
}

const struct family families[] = {
    {"device", device_plain},
    {"device", device_ext},
    {"shared", shared},
    {"host", host},
    {"physical", physical},
    {"image", image, .apart = 1},
    {"vmm", mapped, .apart = 1},
    {"ipc", ipc, .apart = 1},
    {"context", context, .apart = 1},
    {0},
};

void misuse(const struct block *b) {
    ptr p = 0;
    DO(zeMemAllocDevice, home, &device_memory, 1ull << 50, 0, device, &p);
    if (b->parts == 1 && b->part[0].release == free_plain) DO(zeMemFree, home, b->part[0].p + 1);
}
void misuse_alone(void) {
    struct block b = {0};
    if (take(&b, &families[0], 4096)) return;
    struct part first = b.part[0];
    if (!give(&b)) first.release(&first);
}

// run_reset: memory of a context that is destroyed, in odd blocks, beside memory of the one that stays.
void run_reset(int rounds) {
    for (int i = 0; i < rounds; i++) {
        struct block place = {0};
        while (context(&place, (size_t)i))
            continue;
        for (int k = 0; k < BLOCKS; k++) {
            ptr in = k % 2 ? place.part[0].p : home;
            size_t n = 1 + draw(4 << 20);
            struct block *b = own_block(k);
            if (give(b)) abort();
            switch (draw(4)) {
            case 0:
                shared_in(b, in, n);
                break;
            case 1:
                host_in(b, in, n);
                break;
            case 2:
                image_in(b, in);
                break;
            default:
                device_in(b, in, n, free_plain);
            }
        }
        if (give(&place)) abort();
        for (int k = 1; k < BLOCKS; k += 2)
            own_block(k)->parts = 0;
    }
}

void start_thread(void) {}
void settle_device(void) {}
void start(void) {
    unsigned n = 1;
    ptr devices[1] = {0};
    zeInit(0);
    zeDriverGet(&n, &driver);
    n = 1;
    zeDeviceGet(driver, &n, devices);
    device = devices[0];
    for (int i = 0; i < RETRIES && !home; i++)
        zeContextCreate(driver, &context_desc, &home);
    if (device && home) return;
    fprintf(stderr, "zecalls: no device\n");
    exit(1);
}
