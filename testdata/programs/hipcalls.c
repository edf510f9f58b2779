// Calls every memory function of the HIP runtime: the tables. See calls.c for what is done with them.
#define _GNU_SOURCE
#include "calls.h"
#include <sys/mman.h>
#include <unistd.h>

struct extent { // hipExtent
    size_t width, height, depth;
};
struct ipc_handle { // hipIpcMemHandle_t
    char bytes[64];
};
typedef const void *desc;
enum { HIP };

// clang-format off
#define CALLS(X)                                                                                                       \
    X(HIP, hipDeviceSynchronize, void)                                                                                 \
    X(HIP, hipSetDevice, int)                                                                                          \
    X(HIP, hipMalloc, ptr *, size_t)                                                                                   \
    X(HIP, hipExtMallocWithFlags, ptr *, size_t, unsigned)                                                             \
    X(HIP, hipMallocManaged, ptr *, size_t, unsigned)                                                                  \
    X(HIP, hipMallocPitch, ptr *, size_t *, size_t, size_t)                                                            \
    X(HIP, hipMemAllocPitch, ptr *, size_t *, size_t, size_t, unsigned)                                                \
    X(HIP, hipMalloc3D, struct part *, struct extent)                                                                  \
    X(HIP, hipFree, ptr)                                                                                               \
    X(HIP, hipMallocAsync, ptr *, size_t, ptr)                                                                         \
    X(HIP, hipFreeAsync, ptr, ptr)                                                                                     \
    X(HIP, hipMallocFromPoolAsync, ptr *, size_t, ptr, ptr)                                                            \
    X(HIP, hipMallocArray, ptr *, desc, size_t, size_t, unsigned)                                                      \
    X(HIP, hipMalloc3DArray, ptr *, desc, struct extent, unsigned)                                                     \
    X(HIP, hipMallocMipmappedArray, ptr *, desc, struct extent, unsigned, unsigned)                                    \
    X(HIP, hipArrayCreate, ptr *, desc)                                                                                \
    X(HIP, hipArray3DCreate, ptr *, desc)                                                                              \
    X(HIP, hipMipmappedArrayCreate, ptr *, desc, unsigned)                                                             \
    X(HIP, hipFreeArray, ptr)                                                                                          \
    X(HIP, hipArrayDestroy, ptr)                                                                                       \
    X(HIP, hipFreeMipmappedArray, ptr)                                                                                 \
    X(HIP, hipMipmappedArrayDestroy, ptr)                                                                              \
    X(HIP, hipHostMalloc, ptr *, size_t, unsigned)                                                                     \
    X(HIP, hipHostAlloc, ptr *, size_t, unsigned)                                                                      \
    X(HIP, hipMallocHost, ptr *, size_t)                                                                               \
    X(HIP, hipMemAllocHost, ptr *, size_t)                                                                             \
    X(HIP, hipHostFree, ptr)                                                                                           \
    X(HIP, hipFreeHost, ptr)                                                                                           \
    X(HIP, hipHostRegister, ptr, size_t, unsigned)                                                                     \
    X(HIP, hipHostUnregister, ptr)                                                                                     \
    X(HIP, hipMemPoolCreate, ptr *, desc)                                                                              \
    X(HIP, hipMemPoolDestroy, ptr)                                                                                     \
    X(HIP, hipMemPoolTrimTo, ptr, size_t)                                                                              \
    X(HIP, hipMemPoolExportToShareableHandle, void *, ptr, int, unsigned)                                              \
    X(HIP, hipMemPoolImportFromShareableHandle, ptr *, void *, int, unsigned)                                          \
    X(HIP, hipMemPoolExportPointer, void *, ptr)                                                                       \
    X(HIP, hipMemPoolImportPointer, ptr *, ptr, void *)                                                                \
    X(HIP, hipMemAddressReserve, ptr *, size_t, size_t, ptr, uint64_t)                                                 \
    X(HIP, hipMemAddressFree, ptr, size_t)                                                                             \
    X(HIP, hipMemCreate, ptr *, size_t, desc, uint64_t)                                                                \
    X(HIP, hipMemRelease, ptr)                                                                                         \
    X(HIP, hipMemRetainAllocationHandle, ptr *, ptr)                                                                   \
    X(HIP, hipMemMap, ptr, size_t, size_t, ptr, uint64_t)                                                              \
    X(HIP, hipMemUnmap, ptr, size_t)                                                                                   \
    X(HIP, hipMemSetAccess, ptr, size_t, desc, size_t)                                                                 \
    X(HIP, hipMemExportToShareableHandle, void *, ptr, int, uint64_t)                                                  \
    X(HIP, hipMemImportFromShareableHandle, ptr *, void *, int)                                                        \
    X(HIP, hipIpcGetMemHandle, struct ipc_handle *, ptr)                                                               \
    X(HIP, hipIpcOpenMemHandle, ptr *, struct ipc_handle, unsigned)                                                    \
    X(HIP, hipIpcCloseMemHandle, ptr)                                                                                  \
    X(HIP, hipImportExternalMemory, ptr *, desc)                                                                       \
    X(HIP, hipExternalMemoryGetMappedBuffer, ptr *, ptr, desc)                                                         \
    X(HIP, hipExternalMemoryGetMappedMipmappedArray, ptr *, ptr, desc)                                                 \
    X(HIP, hipDestroyExternalMemory, ptr)                                                                              \
    X(HIP, hipGraphCreate, ptr *, unsigned)                                                                            \
    X(HIP, hipGraphAddMemAllocNode, ptr *, ptr, desc, size_t, void *)                                                  \
    X(HIP, hipGraphAddMemFreeNode, ptr *, ptr, desc, size_t, ptr)                                                      \
    X(HIP, hipDrvGraphAddMemFreeNode, ptr *, ptr, desc, size_t, ptr)                                                   \
    X(HIP, hipGraphAddNode, ptr *, ptr, desc, size_t, void *)                                                          \
    X(HIP, hipGraphInstantiateWithFlags, ptr *, ptr, uint64_t)                                                         \
    X(HIP, hipGraphLaunch, ptr, ptr)                                                                                   \
    X(HIP, hipGraphExecDestroy, ptr)                                                                                   \
    X(HIP, hipGraphDestroy, ptr)                                                                                       \
    X(HIP, hipDeviceGraphMemTrim, int)                                                                                 \
    X(HIP, hipMemGetInfo, size_t *, size_t *)                                                                          \
    X(HIP, hipCtxCreate, ptr *, unsigned, int)                                                                         \
    X(HIP, hipCtxDestroy, ptr)                                                                                         \
    X(HIP, hipCtxSetCurrent, ptr)                                                                                      \
    X(HIP, hipCtxPushCurrent, ptr)                                                                                     \
    X(HIP, hipCtxPopCurrent, ptr *)                                                                                    \
    X(HIP, hipDevicePrimaryCtxRetain, ptr *, int)                                                                      \
    X(HIP, hipDevicePrimaryCtxRelease, int)                                                                            \
    X(HIP, hipDevicePrimaryCtxReset, int)                                                                              \
    X(HIP, hipDeviceReset, void)
// clang-format on

CALLS(DEFINE)
enum { CALLS(NUMBER) N_END };
const struct call calls[] = {CALLS(ROW){0}};
const char *const libraries[][4] = {[HIP] = {"libamdhip64.so.6", "libamdhip64.so.7", "libamdhip64.so"}};

// ---- plain, managed, pitched and stream-ordered

static int free_plain(struct part *s) { return DO(hipFree, s->p); }
static int free_async(struct part *s) { return DO(hipFreeAsync, s->p, 0); }
static int plain(struct block *b, size_t n) {
    struct part *s = fresh(b, n, free_plain);
    return TAKE(b, hipMalloc, &s->p, n);
}
static int with_flags(struct block *b, size_t n) {
    struct part *s = fresh(b, n, free_plain);
    return TAKE(b, hipExtMallocWithFlags, &s->p, n, 1);
}
static int managed(struct block *b, size_t n) {
    struct part *s = fresh(b, n, free_plain);
    return TAKE(b, hipMallocManaged, &s->p, n, 1);
}
enum { PITCHED_WIDTH = 1000 };
static struct part *fresh_pitched(struct block *b, size_t n) {
    struct part *s = fresh(b, 0, free_plain);
    s->rows = (n / PITCHED_WIDTH + 2) / 2 * 2;
    return s;
}
static int pitched(struct block *b, size_t n) {
    struct part *s = fresh_pitched(b, n);
    return TAKE(b, hipMallocPitch, &s->p, &s->pitch, PITCHED_WIDTH, s->rows);
}
static int pitched_driver(struct block *b, size_t n) {
    struct part *s = fresh_pitched(b, n);
    return TAKE(b, hipMemAllocPitch, &s->p, &s->pitch, PITCHED_WIDTH, s->rows, 4);
}
static int pitched_3d(struct block *b, size_t n) {
    struct part *s = fresh_pitched(b, n);
    return TAKE(b, hipMalloc3D, s, (struct extent){PITCHED_WIDTH, s->rows / 2, 2});
}
static int async(struct block *b, size_t n) {
    struct part *s = fresh(b, n, n % 4 ? free_async : free_plain);
    return TAKE(b, hipMallocAsync, &s->p, n, 0);
}

// ---- arrays

static const int uchar4[5] = {8, 8, 8, 8, 1}; // hipChannelFormatDesc: bits of four channels, kind unsigned
static const int float1[5] = {32, 0, 0, 0, 2};
enum { SINT16 = 0x09, FLOAT = 0x20 }; // hipArray_Format
struct array_2d {                     // HIP_ARRAY_DESCRIPTOR
    size_t width, height;
    int format;
    unsigned channels;
};
struct array_3d { // HIP_ARRAY3D_DESCRIPTOR
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
};
static int free_array(struct part *s) { return DO(hipFreeArray, s->p); }
static int destroy_array(struct part *s) { return DO(hipArrayDestroy, s->p); }
static int free_mipmap(struct part *s) { return DO(hipFreeMipmappedArray, s->p); }
static int destroy_mipmap(struct part *s) { return DO(hipMipmappedArrayDestroy, s->p); }
static size_t some_width(size_t n) { return n % 1000 + 1; }
static size_t half_of(size_t n) { return n > 1 ? n / 2 : 1; }
static size_t texels(size_t w, size_t h, size_t d, unsigned levels) {
    size_t sum = 0;
    for (unsigned i = 0; i < levels; i++, w = half_of(w), h = half_of(h), d = half_of(d))
        sum += w * (h ? h : 1) * (d ? d : 1);
    return sum;
}
static int array(struct block *b, size_t n) {
    size_t w = some_width(n), h = n % 90;
    struct part *s = fresh(b, texels(w, h, 0, 1) * 4, free_array);
    return TAKE(b, hipMallocArray, &s->p, uchar4, w, h, 0);
}
static int array_runtime_3d(struct block *b, size_t n) {
    struct extent e = {some_width(n), n % 60 + 1, n % 12};
    struct part *s = fresh(b, texels(e.width, e.height, e.depth, 1) * 4, free_array);
    return TAKE(b, hipMalloc3DArray, &s->p, float1, e, 0);
}
static int array_driver(struct block *b, size_t n) {
    struct array_2d d = {some_width(n), n % 100, SINT16, 2};
    struct part *s = fresh(b, texels(d.width, d.height, 0, 1) * 4, destroy_array);
    return TAKE(b, hipArrayCreate, &s->p, &d);
}
static int array_driver_3d(struct block *b, size_t n) {
    struct array_3d d = {some_width(n), n % 50, n % 11, FLOAT, 4, 0};
    struct part *s = fresh(b, texels(d.width, d.height, d.depth, 1) * 16, destroy_array);
    return TAKE(b, hipArray3DCreate, &s->p, &d);
}
static int mipmap(struct block *b, size_t n) {
    struct extent e = {some_width(n), n % 100 + 1, 0};
    struct part *s = fresh(b, texels(e.width, e.height, 0, 4) * 4, free_mipmap);
    return TAKE(b, hipMallocMipmappedArray, &s->p, uchar4, e, 4, 0);
}
static int mipmap_driver(struct block *b, size_t n) {
    struct array_3d d = {some_width(n), n % 60 + 1, n % 9 + 1, FLOAT, 1, 0};
    struct part *s = fresh(b, texels(d.width, d.height, d.depth, 3) * 4, destroy_mipmap);
    return TAKE(b, hipMipmappedArrayCreate, &s->p, &d, 3);
}

// ---- pinned host memory

static int free_host(struct part *s) { return DO(hipHostFree, s->p); }
static int free_host_old(struct part *s) { return DO(hipFreeHost, s->p); }
static int unregister(struct part *s) { return DO(hipHostUnregister, s->p); }
static int host(struct block *b, size_t n) {
    struct part *s = fresh(b, n, free_host);
    return TAKE(b, hipHostMalloc, &s->p, n, 0);
}
static int host_alloc(struct block *b, size_t n) {
    struct part *s = fresh(b, n, free_host);
    return TAKE(b, hipHostAlloc, &s->p, n, 0);
}
static int host_old(struct block *b, size_t n) {
    struct part *s = fresh(b, n, free_host_old);
    return n % 2 ? TAKE(b, hipMallocHost, &s->p, n) : TAKE(b, hipMemAllocHost, &s->p, n);
}
static int registered(struct block *b, size_t n) {
    struct part *s = fresh(b, (n + 4095) & ~(size_t)4095, unregister);
    // Never unmapped: another thread must not be given an address that is still registered.
    s->p = (ptr)mmap(NULL, s->n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return TAKE(b, hipHostRegister, s->p, s->n, 0);
}

// ---- pools

enum { BY_FD = 1 };
static const int pool_props[22] = {1, BY_FD, 1, 0}; // hipMemPoolProps: pinned, shared so, on device 0
static int destroy_pool(struct part *s) { return DO(hipMemPoolDestroy, s->p); }
static int pool(struct block *b, size_t n) {
    struct part *s = fresh(b, 0, destroy_pool);
    int rc = TAKE(b, hipMemPoolCreate, &s->p, pool_props);
    if (rc) return rc;
    s = fresh(b, n, free_async);
    rc = TAKE(b, hipMallocFromPoolAsync, &s->p, n, b->part[0].p, 0);
    DO(hipMemPoolTrimTo, b->part[0].p, 0);
    return rc;
}
static int pool_shared(struct block *b, size_t n) {
    char data[64];
    int fd = -1, rc = pool(b, n);
    if (rc || DO(hipMemPoolExportToShareableHandle, &fd, b->part[0].p, BY_FD, 0)) return rc;
    struct part *s = fresh(b, 0, destroy_pool);
    rc = TAKE(b, hipMemPoolImportFromShareableHandle, &s->p, (void *)(intptr_t)fd, BY_FD, 0);
    close(fd);
    if (rc || DO(hipMemPoolExportPointer, data, b->part[1].p)) return rc;
    s = fresh(b, 0, free_async);
    return TAKE(b, hipMemPoolImportPointer, &s->p, b->part[2].p, data);
}

// ---- physical memory and mappings

static const int physical_props[8] = {1, BY_FD, 1, 0}; // hipMemAllocationProp: pinned, shared so, on device 0
static int release_physical(struct part *s) { return DO(hipMemRelease, s->p); }
static int free_addresses(struct part *s) { return DO(hipMemAddressFree, s->p, s->n); }
static int unmap(struct part *s) { return DO(hipMemUnmap, s->p, s->n); }
static int physical(struct block *b, size_t n) {
    struct part *s = fresh(b, (n + (2 << 20) - 1) & ~(size_t)((2 << 20) - 1), release_physical);
    return TAKE(b, hipMemCreate, &s->p, s->n, physical_props, 0);
}
static int map(struct block *b, ptr handle) { // all of the first part's size
    static const int access[3] = {1, 0, 3};   // hipMemAccessDesc: device 0, read and write
    struct part *s = fresh(b, b->part[0].n, free_addresses);
    int rc = TAKE(b, hipMemAddressReserve, &s->p, b->part[0].n, 0, 0, 0);
    if (rc) return rc;
    ptr at = s->p;
    s = fresh(b, b->part[0].n, unmap);
    s->p = at;
    rc = TAKE(b, hipMemMap, at, s->n, 0, handle, 0);
    return rc ? rc : DO(hipMemSetAccess, at, s->n, access, 1);
}
static int vmm(struct block *b, size_t n) {
    int rc = physical(b, n);
    return rc ? rc : map(b, b->part[0].p);
}
static int vmm_retained(struct block *b, size_t n) {
    int rc = vmm(b, n);
    if (rc) return rc;
    struct part *s = fresh(b, 0, release_physical);
    return TAKE(b, hipMemRetainAllocationHandle, &s->p, b->part[1].p);
}
static int vmm_imported(struct block *b, size_t n) {
    int fd = -1, rc = physical(b, n);
    if (rc || DO(hipMemExportToShareableHandle, &fd, b->part[0].p, BY_FD, 0)) return rc;
    struct part *s = fresh(b, 0, release_physical);
    rc = TAKE(b, hipMemImportFromShareableHandle, &s->p, (void *)(intptr_t)fd, BY_FD);
    close(fd);
    return rc ? rc : map(b, b->part[1].p);
}

// ---- memory of other processes and APIs

static int close_ipc(struct part *s) { return DO(hipIpcCloseMemHandle, s->p); }
static int ipc(struct block *b, size_t n) {
    struct ipc_handle handle;
    int rc = plain(b, n + (2 << 20));
    if (rc || DO(hipIpcGetMemHandle, &handle, b->part[0].p)) return rc;
    struct part *s = fresh(b, 0, close_ipc);
    return TAKE(b, hipIpcOpenMemHandle, &s->p, handle, 1);
}
static int destroy_external(struct part *s) { return DO(hipDestroyExternalMemory, s->p); }
static int external(struct block *b, size_t n) {
    struct { // hipExternalMemoryHandleDesc
        int type;
        uint64_t handle[2], n;
        unsigned flags, reserved[16];
    } handle = {1, {0}, n + (8 << 20), 0, {0}};
    struct { // hipExternalMemoryBufferDesc
        uint64_t offset, n;
        unsigned flags, reserved[16];
    } buffer = {4096, n, 0, {0}};
    struct { // hipExternalMemoryMipmappedArrayDesc
        uint64_t offset;
        int channels[5];
        struct extent extent;
        unsigned flags, levels;
    } mip = {0, {8, 8, 8, 8, 1}, {64, 32, 0}, 0, 2};
    struct part *s = fresh(b, handle.n, destroy_external);
    int rc = TAKE(b, hipImportExternalMemory, &s->p, &handle);
    if (rc) return rc;
    s = fresh(b, n, free_plain);
    if ((rc = TAKE(b, hipExternalMemoryGetMappedBuffer, &s->p, b->part[0].p, &buffer))) return rc;
    s = fresh(b, texels(64, 32, 0, 2) * 4, free_mipmap);
    return TAKE(b, hipExternalMemoryGetMappedMipmappedArray, &s->p, b->part[0].p, &mip);
}

// ---- memory nodes of graphs

struct alloc_node { // hipMemAllocNodeParams
    int type, handle_types, location, device;
    char rest[88];
    size_t n;
    ptr p;
};
struct node { // hipGraphNodeParams
    int type, reserved[3];
    union {
        struct alloc_node alloc;
        ptr free;
        char bytes[232];
    };
    uint64_t reserved2;
};
enum { ALLOC_NODE = 10, FREE_NODE = 11 };
static int destroy_graph(struct part *s) { return DO(hipGraphDestroy, s->p); }
static int destroy_exec(struct part *s) { return DO(hipGraphExecDestroy, s->p); }
// A node's memory that no launch has made real goes by a node that frees it; other is the graph until then.
static int free_node(struct part *s) {
    struct node params = {.type = FREE_NODE, .free = s->p};
    ptr node;
    if (!s->other) return DO(hipFreeAsync, s->p, 0);
    switch (s->n % 3) {
    case 0:
        return DO(hipGraphAddMemFreeNode, &node, s->other, NULL, 0, s->p);
    case 1:
        return DO(hipDrvGraphAddMemFreeNode, &node, s->other, NULL, 0, s->p);
    default:
        return DO(hipGraphAddNode, &node, s->other, NULL, 0, &params);
    }
}
static int graph(struct block *b, size_t n) {
    ptr node;
    struct part *s = fresh(b, 0, destroy_graph);
    s->silent = 1;
    int rc = TAKE(b, hipGraphCreate, &s->p, 0);
    if (rc) return rc;
    struct node *params = (struct node *)b->scratch;
    *params = (struct node){.type = ALLOC_NODE, .alloc = {.type = 1, .location = 1, .n = n}};
    s = fresh(b, n, free_node);
    s->other = b->part[0].p;
    s->from = &params->alloc.p;
    rc = n % 2 ? TAKE(b, hipGraphAddMemAllocNode, &node, s->other, NULL, 0, &params->alloc)
               : TAKE(b, hipGraphAddNode, &node, s->other, NULL, 0, params);
    if (!rc && n % 8 < 4) rc = give_last(b); // the graph frees what it allocates
    if (rc) return rc;
    s = fresh(b, 0, destroy_exec);
    s->silent = 1;
    rc = TAKE(b, hipGraphInstantiateWithFlags, &s->p, b->part[0].p, 0);
    if (rc || (rc = DO(hipGraphLaunch, s->p, 0))) return rc;
    b->part[1].other = 0;
    DO(hipDeviceGraphMemTrim, 0);
    size_t avail, total;
    DO(hipMemGetInfo, &avail, &total);
    return 0;
}

// ---- contexts

static int destroy_context(struct part *s) { return DO(hipCtxDestroy, s->p); }
static int release_primary(struct part *s) { return DO(hipDevicePrimaryCtxRelease, 0); }
static int context(struct block *b, size_t n) {
    ptr c;
    struct part *s = fresh(b, 0, destroy_context);
    int rc = TAKE(b, hipCtxCreate, &s->p, 0, 0);
    if (!rc) hipCtxPopCurrent(&c);
    return rc;
}
static int context_primary(struct block *b, size_t n) {
    struct part *s = fresh(b, 0, release_primary);
    return TAKE(b, hipDevicePrimaryCtxRetain, &s->p, 0);
}

const struct family families[] = {
    {"plain", plain},
    {"plain", with_flags},
    {"managed", managed},
    {"pitched", pitched},
    {"pitched", pitched_driver},
    {"pitched", pitched_3d},
    {"async", async},
    {"array", array},
    {"array", array_runtime_3d},
    {"array", array_driver},
    {"array", array_driver_3d},
    {"mipmapped", mipmap},
    {"mipmapped", mipmap_driver},
    {"host", host},
    {"host", host_alloc},
    {"host", host_old},
    {"register", registered},
    {"physical", physical},
    {"pool", pool, .apart = 1},
    {"shared-pool", pool_shared, .apart = 1},
    {"vmm", vmm, .apart = 1},
    {"vmm", vmm_retained, .apart = 1},
    {"vmm", vmm_imported, .apart = 1},
    {"ipc", ipc, .apart = 1},
    {"external", external, .apart = 1},
    {"graph", graph, .apart = 1},
    {"context", context, .apart = 1},
    {"context", context_primary, .apart = 1},
    {0},
};

// ---- calls that fail

static const size_t TOO_MUCH = 1ull << 50;
void misuse(const struct block *b) {
    ptr p = 0;
    DO(hipMalloc, &p, TOO_MUCH);
    if (b->parts == 1 && b->part[0].release == free_plain) DO(hipFree, b->part[0].p + 1); // into the middle of it
}
void misuse_alone(void) {
    struct block b = {0};
    if (take(&b, &families[0], 4096)) return;
    struct part first = b.part[0];
    if (!give(&b)) first.release(&first);
}

// ---- contexts and devices that end with memory in them

static void lose(int parity) {
    for (int i = parity; i < BLOCKS; i += 2)
        own_block(i)->parts = 0;
}
// In turn memory of a context that is destroyed, in odd blocks, and of the device, in even ones, which is reset by one
// of two calls.
void run_reset(int rounds) {
    static int (*const ways[])(struct block *, size_t) = {plain, with_flags, managed, pitched,
                                                          array, mipmap,     host,    registered};
    for (int i = 0; i < rounds; i++) {
        struct block place = {0};
        while (context(&place, 0))
            continue;
        for (int k = 0; k < BLOCKS; k++) {
            const struct family f = {"", draw(8) || k % 2 ? ways[draw(8)] : async};
            if (k % 2) hipCtxPushCurrent(place.part[0].p);
            if (k % 4 == 3) hipCtxSetCurrent(place.part[0].p); // it is already: nothing changes
            take(own_block(k), &f, 1 + draw(4 << 20));
            ptr c;
            if (k % 2) hipCtxPopCurrent(&c);
        }
        if (give(&place)) abort();
        lose(1);
        while (i % 2 ? DO(hipDeviceReset) : DO(hipDevicePrimaryCtxReset, 0))
            continue;
        lose(0);
    }
    for (int k = 0; k < BLOCKS; k++)
        take(own_block(k), &families[0], 1 + draw(4 << 20));
}

// ---- starting and ending

void start_thread(void) { hipSetDevice(0); }
void settle_device(void) {
    hipDeviceSynchronize();
    hipDeviceGraphMemTrim(0);
}
void start(void) {
    ptr warm = 0;
    hipSetDevice(0);
    for (int i = 0; i < RETRIES && !warm; i++)
        DO(hipMalloc, &warm, 1 << 20);
    int ready = warm != 0;
    for (int i = 0; i < RETRIES && warm; i++)
        if (!DO(hipFree, warm)) warm = 0;
    if (ready && !warm) return;
    fprintf(stderr, "hipcalls: no memory from device 0\n");
    exit(1);
}
