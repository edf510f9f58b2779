// Calls every memory function of the CUDA runtime and driver: the tables. See calls.c for what is done with them.
#define _GNU_SOURCE
#include "cudacalls.h"
#include <sys/mman.h>
#include <unistd.h>

CALLS(DEFINE)
const struct call calls[] = {CALLS(ROW){0}};
const char *const libraries[][4] = {
    [RUNTIME] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"},
    [DRIVER] = {"libcuda.so.1"},
};

// ---- plain, managed and pitched

static int free_runtime(struct part *s) { return DO(cudaFree, s->p); }
static int free_driver(struct part *s) { return DO(cuMemFree_v2, s->p); }

static int malloc_runtime(struct block *b, size_t n) {
    struct part *s = fresh(b, n, free_runtime);
    return TAKE(b, cudaMalloc, &s->p, n);
}
static int malloc_driver(struct block *b, size_t n) {
    struct part *s = fresh(b, n, free_driver);
    return TAKE(b, cuMemAlloc_v2, &s->p, n);
}
static int managed_runtime(struct block *b, size_t n) {
    struct part *s = fresh(b, n, free_runtime);
    return TAKE(b, cudaMallocManaged, &s->p, n, 1);
}
static int managed_driver(struct block *b, size_t n) {
    struct part *s = fresh(b, n, free_driver);
    return TAKE(b, cuMemAllocManaged, &s->p, n, 1);
}
enum { PITCHED_WIDTH = 1000 };
static struct part *fresh_pitched(struct block *b, size_t n, int (*release)(struct part *)) {
    struct part *s = fresh(b, 0, release);
    s->rows = (n / PITCHED_WIDTH + 2) / 2 * 2;
    return s;
}
static int pitch_runtime(struct block *b, size_t n) {
    struct part *s = fresh_pitched(b, n, free_runtime);
    return TAKE(b, cudaMallocPitch, &s->p, &s->pitch, PITCHED_WIDTH, s->rows);
}
static int pitch_3d(struct block *b, size_t n) {
    struct part *s = fresh_pitched(b, n, free_runtime);
    return TAKE(b, cudaMalloc3D, s, (struct extent){PITCHED_WIDTH, s->rows / 2, 2});
}
static int pitch_driver(struct block *b, size_t n) {
    struct part *s = fresh_pitched(b, n, free_driver);
    return TAKE(b, cuMemAllocPitch_v2, &s->p, &s->pitch, PITCHED_WIDTH, s->rows, 4);
}

// ---- arrays

static const int float1[5] = {32, 0, 0, 0, 2};  // cudaChannelFormatDesc: bits of four channels, kind float
static const int uchar4[5] = {8, 8, 8, 8, 1};   // unsigned
static const int half2[5] = {16, 16, 0, 0, 2};  // float of 16 bits
static const int short2[5] = {16, 16, 0, 0, 0}; // signed
enum { UINT8 = 0x01, SINT32 = 0x0a, HALF = 0x10, FLOAT = 0x20 }; // CUarray_format
struct array_2d {                                                // CUDA_ARRAY_DESCRIPTOR
    size_t width, height;
    int format;
    unsigned channels;
};
struct array_3d { // CUDA_ARRAY3D_DESCRIPTOR
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
};

static int free_array_runtime(struct part *s) { return DO(cudaFreeArray, s->p); }
static int free_array_driver(struct part *s) { return DO(cuArrayDestroy, s->p); }
static int free_mipmap_runtime(struct part *s) { return DO(cudaFreeMipmappedArray, s->p); }
static int free_mipmap_driver(struct part *s) { return DO(cuMipmappedArrayDestroy, s->p); }

static size_t some_width(size_t n) { return n % 1000 + 1; }
static int array_runtime(struct block *b, size_t n) { // one dimension
    size_t w = some_width(n);
    struct part *s = fresh(b, w * 4, free_array_runtime);
    return TAKE(b, cudaMallocArray, &s->p, float1, w, 0, 0);
}
static int array_flags(struct block *b, size_t n) {
    size_t w = some_width(n), h = n % 100 + 1;
    struct part *s = fresh(b, w * h * 4, free_array_runtime);
    return TAKE(b, cudaMallocArray, &s->p, uchar4, w, h, 2); // cudaArraySurfaceLoadStore
}
static int array_3d_runtime(struct block *b, size_t n) {
    struct extent e = {some_width(n), n % 60 + 1, n % 12 + 1};
    struct part *s = fresh(b, e.width * e.height * e.depth * 4, free_array_runtime);
    return TAKE(b, cudaMalloc3DArray, &s->p, half2, e, 0);
}
static int array_layered(struct block *b, size_t n) { // layers of one dimension: the height is 0
    struct extent e = {some_width(n), 0, n % 12 + 1};
    struct part *s = fresh(b, e.width * e.depth * 4, free_array_runtime);
    return TAKE(b, cudaMalloc3DArray, &s->p, short2, e, 1);
}
static int array_driver(struct block *b, size_t n) {
    struct array_2d d = {some_width(n), n % 100, HALF, 4};
    struct part *s = fresh(b, d.width * (d.height ? d.height : 1) * 2 * 4, free_array_driver);
    return TAKE(b, cuArrayCreate_v2, &s->p, &d);
}
static int array_3d_driver(struct block *b, size_t n) {
    struct array_3d d = {some_width(n), n % 50 + 1, n % 11 + 1, SINT32, 2, 0};
    struct part *s = fresh(b, d.width * d.height * d.depth * 4 * 2, free_array_driver);
    return TAKE(b, cuArray3DCreate_v2, &s->p, &d);
}

static size_t half_of(size_t n) { return n > 1 ? n / 2 : 1; }
static size_t texels(size_t w, size_t h, size_t d, unsigned levels) {
    size_t sum = 0;
    for (unsigned i = 0; i < levels; i++, w = half_of(w), h = half_of(h), d = half_of(d))
        sum += w * (h ? h : 1) * (d ? d : 1);
    return sum;
}
static int mipmap_runtime(struct block *b, size_t n) {
    struct extent e = {some_width(n), n % 100 + 1, 0};
    struct part *s = fresh(b, texels(e.width, e.height, 0, 4) * 4, free_mipmap_runtime);
    return TAKE(b, cudaMallocMipmappedArray, &s->p, uchar4, e, 4, 0);
}
static int mipmap_driver(struct block *b, size_t n) {
    struct array_3d d = {some_width(n), n % 60 + 1, n % 9 + 1, FLOAT, 1, 0};
    struct part *s = fresh(b, texels(d.width, d.height, d.depth, 3) * 4, free_mipmap_driver);
    return TAKE(b, cuMipmappedArrayCreate, &s->p, &d, 3);
}

// ---- pinned host memory

static int free_host_runtime(struct part *s) { return DO(cudaFreeHost, s->p); }
static int free_host_driver(struct part *s) { return DO(cuMemFreeHost, s->p); }
static int host_runtime(struct block *b, size_t n) {
    struct part *s = fresh(b, n, free_host_runtime);
    return TAKE(b, cudaHostAlloc, &s->p, n, 0);
}
static int host_runtime_plain(struct block *b, size_t n) {
    struct part *s = fresh(b, n, free_host_runtime);
    return TAKE(b, cudaMallocHost, &s->p, n);
}
static int host_driver(struct block *b, size_t n) {
    struct part *s = fresh(b, n, free_host_driver);
    return TAKE(b, cuMemHostAlloc, &s->p, n, 1);
}
static int host_driver_plain(struct block *b, size_t n) {
    struct part *s = fresh(b, n, free_host_driver);
    return TAKE(b, cuMemAllocHost_v2, &s->p, n);
}

static int unregister_runtime(struct part *s) { return DO(cudaHostUnregister, s->p); }
static int unregister_driver(struct part *s) { return DO(cuMemHostUnregister, s->p); }
static struct part *fresh_pages(struct block *b, size_t n, int (*release)(struct part *)) {
    struct part *s = fresh(b, (n + 4095) & ~(size_t)4095, release);
    // Never unmapped: another thread must not be given an address that is still registered.
    s->p = (ptr)mmap(NULL, s->n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return s;
}
static int register_runtime(struct block *b, size_t n) {
    struct part *s = fresh_pages(b, n, unregister_runtime);
    return TAKE(b, cudaHostRegister, s->p, s->n, 0);
}
static int register_driver(struct block *b, size_t n) {
    struct part *s = fresh_pages(b, n, unregister_driver);
    return n % 2 ? TAKE(b, cuMemHostRegister_v2, s->p, s->n, 0) : TAKE(b, cuMemHostRegister, s->p, s->n, 0);
}

// ---- stream-ordered memory, on the default stream

static int free_async(struct part *s) { return DO(cudaFreeAsync, s->p, 0); }
static int free_async_ptsz(struct part *s) { return DO(cudaFreeAsync_ptsz, s->p, 0); }
static int free_async_driver(struct part *s) { return DO(cuMemFreeAsync, s->p, 0); }
static int free_async_driver_ptsz(struct part *s) { return DO(cuMemFreeAsync_ptsz, s->p, 0); }
static int async_runtime(struct block *b, size_t n) {
    struct part *s = fresh(b, n, free_async);
    return TAKE(b, cudaMallocAsync, &s->p, n, 0);
}
static int async_ptsz(struct block *b, size_t n) {
    struct part *s = fresh(b, n, free_async_ptsz);
    return TAKE(b, cudaMallocAsync_ptsz, &s->p, n, 0);
}
static int async_driver(struct block *b, size_t n) {
    struct part *s = fresh(b, n, free_async_driver);
    return TAKE(b, cuMemAllocAsync, &s->p, n, 0);
}
static int async_driver_ptsz(struct block *b, size_t n) {
    struct part *s = fresh(b, n, free_async_driver_ptsz);
    return TAKE(b, cuMemAllocAsync_ptsz, &s->p, n, 0);
}
// Each sort may be given back by the other's function.
static int async_then_free(struct block *b, size_t n) {
    struct part *s = fresh(b, n, free_driver);
    return TAKE(b, cudaMallocAsync, &s->p, n, 0);
}
static int malloc_then_async(struct block *b, size_t n) {
    struct part *s = fresh(b, n, free_async);
    return TAKE(b, cuMemAlloc_v2, &s->p, n);
}

// ---- pools

static const int pool_props[22] = {1, 1, 1, 0}; // CUmemPoolProps: pinned, shared by a file descriptor, on device 0
static int destroy_pool_runtime(struct part *s) { return DO(cudaMemPoolDestroy, s->p); }
static int destroy_pool_driver(struct part *s) { return DO(cuMemPoolDestroy, s->p); }
static int make_pool_runtime(struct block *b) {
    struct part *s = fresh(b, 0, destroy_pool_runtime);
    return TAKE(b, cudaMemPoolCreate, &s->p, pool_props);
}
static int make_pool_driver(struct block *b) {
    struct part *s = fresh(b, 0, destroy_pool_driver);
    return TAKE(b, cuMemPoolCreate, &s->p, pool_props);
}
static int pool_runtime(struct block *b, size_t n) {
    int rc = make_pool_runtime(b);
    if (rc) return rc;
    struct part *s = fresh(b, n, free_async);
    rc = TAKE(b, cudaMallocFromPoolAsync, &s->p, n, b->part[0].p, 0);
    DO(cudaMemPoolTrimTo, b->part[0].p, n);
    return rc;
}
static int pool_ptsz(struct block *b, size_t n) {
    int rc = make_pool_runtime(b);
    if (rc) return rc;
    struct part *s = fresh(b, n, free_async_ptsz);
    return TAKE(b, cudaMallocFromPoolAsync_ptsz, &s->p, n, b->part[0].p, 0);
}
static int pool_driver(struct block *b, size_t n) {
    int rc = make_pool_driver(b);
    if (rc) return rc;
    struct part *s = fresh(b, n, free_async_driver);
    rc = TAKE(b, cuMemAllocFromPoolAsync, &s->p, n, b->part[0].p, 0);
    DO(cuMemPoolTrimTo, b->part[0].p, 0);
    return rc;
}
static int pool_driver_ptsz(struct block *b, size_t n) {
    int rc = make_pool_driver(b);
    if (rc) return rc;
    struct part *s = fresh(b, n, free_async_driver_ptsz);
    return TAKE(b, cuMemAllocFromPoolAsync_ptsz, &s->p, n, b->part[0].p, 0);
}
enum { BY_FD = 1 }; // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
static int pool_shared_runtime(struct block *b, size_t n) {
    char data[64];
    int rc = pool_runtime(b, n), fd = -1;
    if (rc) return rc;
    if (DO(cudaMemPoolExportToShareableHandle, &fd, b->part[0].p, BY_FD, 0)) return 0;
    struct part *s = fresh(b, 0, destroy_pool_runtime);
    rc = TAKE(b, cudaMemPoolImportFromShareableHandle, &s->p, (void *)(intptr_t)fd, BY_FD, 0);
    close(fd);
    if (rc || DO(cudaMemPoolExportPointer, data, b->part[1].p)) return rc;
    s = fresh(b, 0, free_async);
    return TAKE(b, cudaMemPoolImportPointer, &s->p, b->part[2].p, data);
}
static int pool_shared_driver(struct block *b, size_t n) {
    char data[64];
    int rc = pool_driver(b, n), fd = -1;
    if (rc) return rc;
    if (DO(cuMemPoolExportToShareableHandle, &fd, b->part[0].p, BY_FD, 0)) return 0;
    struct part *s = fresh(b, 0, destroy_pool_driver);
    rc = TAKE(b, cuMemPoolImportFromShareableHandle, &s->p, (void *)(intptr_t)fd, BY_FD, 0);
    close(fd);
    if (rc || DO(cuMemPoolExportPointer, data, b->part[1].p)) return rc;
    s = fresh(b, 0, free_driver);
    return TAKE(b, cuMemPoolImportPointer, &s->p, b->part[2].p, data);
}

// ---- physical memory and mappings

static const int physical_props[8] = {1, BY_FD, 1, 0}; // CUmemAllocationProp: pinned, shared so, on device 0
static size_t whole_pages(size_t n) { return (n + (2 << 20) - 1) & ~(size_t)((2 << 20) - 1); }
static int release_physical(struct part *s) { return DO(cuMemRelease, s->p); }
static int free_addresses(struct part *s) { return DO(cuMemAddressFree, s->p, s->n); }
static int unmap(struct part *s) { return DO(cuMemUnmap, s->p, s->n); }
static int nothing(struct part *s) { return 0; }
static int unmap_with_former(struct part *s) { // one call for this mapping and the one before it
    int rc = DO(cuMemUnmap, s[-1].p, s[-1].n + s->n);
    if (rc) return rc;
    s[-1].release = nothing;
    s[-1].silent = 1;
    return 0;
}

static int physical(struct block *b, size_t n) {
    struct part *s = fresh(b, whole_pages(n), release_physical);
    return TAKE(b, cuMemCreate, &s->p, s->n, physical_props, 0);
}
static int addresses(struct block *b, size_t n) {
    struct part *s = fresh(b, n, free_addresses);
    return TAKE(b, cuMemAddressReserve, &s->p, n, 0, 0, 0);
}
static int map(struct block *b, ptr at, size_t n, ptr handle, int (*release)(struct part *)) {
    static const int access[3] = {1, 0, 3}; // CUmemAccessDesc: device 0, read and write
    struct part *s = fresh(b, n, release);
    s->p = at;
    int rc = TAKE(b, cuMemMap, at, n, 0, handle, 0);
    return rc ? rc : DO(cuMemSetAccess, at, n, access, 1);
}
static int vmm(struct block *b, size_t n) { // as PyTorch's expandable segments
    int rc = physical(b, n);
    if (!rc) rc = addresses(b, b->part[0].n);
    return rc ? rc : map(b, b->part[1].p, b->part[0].n, b->part[0].p, unmap);
}
static int vmm_released(struct block *b, size_t n) { // the mapping keeps the memory when its handle has gone
    int rc = addresses(b, whole_pages(n));
    if (!rc) rc = physical(b, n);
    if (!rc) rc = map(b, b->part[0].p, b->part[0].n, b->part[1].p, unmap);
    if (rc || DO(cuMemRelease, b->part[1].p)) return rc;
    b->part[1] = b->part[2];
    b->parts = 2;
    return 0;
}
static int vmm_retained(struct block *b, size_t n) {
    int rc = vmm_released(b, n);
    if (rc) return rc;
    struct part *s = fresh(b, 0, release_physical);
    return TAKE(b, cuMemRetainAllocationHandle, &s->p, b->part[0].p + 4096);
}
static int vmm_twice(struct block *b, size_t n) { // two mappings side by side, the second of other memory
    int rc = physical(b, n);
    if (!rc) rc = physical(b, n / 2 + 1);
    if (!rc) rc = addresses(b, b->part[0].n + b->part[1].n);
    if (!rc) rc = map(b, b->part[2].p, b->part[0].n, b->part[0].p, unmap);
    return rc ? rc : map(b, b->part[2].p + b->part[0].n, b->part[1].n, b->part[1].p, unmap_with_former);
}
static int vmm_imported(struct block *b, size_t n) {
    int fd = -1, rc = physical(b, n);
    if (rc || DO(cuMemExportToShareableHandle, &fd, b->part[0].p, BY_FD, 0)) return rc;
    struct part *s = fresh(b, 0, release_physical);
    rc = TAKE(b, cuMemImportFromShareableHandle, &s->p, (void *)(intptr_t)fd, BY_FD);
    close(fd);
    if (!rc) rc = addresses(b, b->part[0].n);
    return rc ? rc : map(b, b->part[2].p, b->part[0].n, b->part[1].p, unmap);
}

static int multicast(struct block *b, size_t n) {
    struct { // CUmulticastObjectProp
        unsigned devices;
        size_t n;
        uint64_t handle_types, flags;
    } prop = {1, whole_pages(n), BY_FD, 0};
    int rc = physical(b, n);
    if (rc) return rc;
    struct part *s = fresh(b, prop.n, release_physical);
    if ((rc = TAKE(b, cuMulticastCreate, &s->p, &prop))) return rc;
    DO(cuMulticastAddDevice, s->p, 0);
    DO(cuMulticastBindMem, s->p, 0, b->part[0].p, 0, prop.n, 0);
    DO(cuMulticastUnbind, s->p, 0, 0, prop.n);
    return 0;
}
static int multicast_mapped(struct block *b, size_t n) {
    int rc = vmm(b, n);
    if (!rc) rc = multicast(b, n);
    if (!rc) rc = addresses(b, b->part[0].n);
    if (!rc) rc = map(b, b->part[5].p, b->part[0].n, b->part[4].p, unmap);
    if (!rc) DO(cuMulticastBindAddr, b->part[4].p, 0, b->part[1].p, b->part[0].n, 0);
    return rc;
}

// ---- memory of other processes and APIs. The stand-in also opens what is this process's own.

static int close_runtime(struct part *s) { return DO(cudaIpcCloseMemHandle, s->p); }
static int close_driver(struct part *s) { return DO(cuIpcCloseMemHandle, s->p); }
static int ipc_runtime(struct block *b, size_t n) {
    struct ipc_handle handle;
    int rc = malloc_runtime(b, n + (2 << 20));
    if (rc || DO(cudaIpcGetMemHandle, &handle, b->part[0].p)) return rc;
    struct part *s = fresh(b, 0, close_runtime);
    return TAKE(b, cudaIpcOpenMemHandle, &s->p, handle, 1);
}
static int ipc_driver(struct block *b, size_t n) { // opened twice: the same address, which takes two calls to close
    struct ipc_handle handle;
    int rc = malloc_driver(b, n + (2 << 20));
    if (rc || DO(cuIpcGetMemHandle, &handle, b->part[0].p)) return rc;
    struct part *s = fresh(b, 0, close_driver);
    if ((rc = TAKE(b, cuIpcOpenMemHandle_v2, &s->p, handle, 1))) return rc;
    s = fresh(b, 0, close_driver);
    return TAKE(b, cuIpcOpenMemHandle, &s->p, handle, 1);
}

struct external_handle { // CUDA_EXTERNAL_MEMORY_HANDLE_DESC
    int type;
    union {
        int fd;
        void *pointers[2];
    };
    uint64_t n;
    unsigned flags, reserved[17];
};
struct external_buffer { // CUDA_EXTERNAL_MEMORY_BUFFER_DESC
    uint64_t offset, n;
    unsigned flags, reserved[17];
};
static int destroy_external_runtime(struct part *s) { return DO(cudaDestroyExternalMemory, s->p); }
static int destroy_external_driver(struct part *s) { return DO(cuDestroyExternalMemory, s->p); }
static int external_runtime(struct block *b, size_t n) {
    struct external_handle handle = {.type = BY_FD, .fd = 0, .n = n + (8 << 20)};
    struct external_buffer buffer = {.offset = 4096, .n = n};
    struct {
        uint64_t offset;
        int channels[5];
        struct extent extent;
        unsigned flags, levels, reserved[16];
    } mipmap = {0, {8, 8, 8, 8, 1}, {64, 32, 0}, 0, 2, {0}}; // cudaExternalMemoryMipmappedArrayDesc
    struct part *s = fresh(b, handle.n, destroy_external_runtime);
    int rc = TAKE(b, cudaImportExternalMemory, &s->p, &handle);
    if (rc) return rc;
    s = fresh(b, n, free_runtime);
    if ((rc = TAKE(b, cudaExternalMemoryGetMappedBuffer, &s->p, b->part[0].p, &buffer))) return rc;
    s = fresh(b, texels(64, 32, 0, 2) * 4, free_mipmap_runtime);
    return TAKE(b, cudaExternalMemoryGetMappedMipmappedArray, &s->p, b->part[0].p, &mipmap);
}
static int external_driver(struct block *b, size_t n) {
    struct external_handle handle = {.type = BY_FD, .fd = 0, .n = n + (8 << 20)};
    struct external_buffer buffer = {.offset = 0, .n = n};
    struct {
        uint64_t offset;
        struct array_3d array;
        unsigned levels, reserved[16];
    } mipmap = {0, {64, 32, 4, FLOAT, 2, 0}, 3, {0}}; // CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC
    struct part *s = fresh(b, handle.n, destroy_external_driver);
    int rc = TAKE(b, cuImportExternalMemory, &s->p, &handle);
    if (rc) return rc;
    s = fresh(b, n, free_driver);
    if ((rc = TAKE(b, cuExternalMemoryGetMappedBuffer, &s->p, b->part[0].p, &buffer))) return rc;
    s = fresh(b, texels(64, 32, 4, 3) * 8, free_mipmap_driver);
    return TAKE(b, cuExternalMemoryGetMappedMipmappedArray, &s->p, b->part[0].p, &mipmap);
}

// ---- memory nodes of graphs

struct alloc_node { // CUDA_MEM_ALLOC_NODE_PARAMS: pool properties, access, size, and the address that comes out
    int type, handle_types, location, device;
    char rest[88];
    size_t n;
    ptr p;
};
struct node { // CUgraphNodeParams
    int type, reserved[3];
    union {
        struct alloc_node alloc;
        ptr free;
        char bytes[232];
    };
    uint64_t reserved2;
};
enum { ALLOC_NODE = 10, FREE_NODE = 11 };
static struct alloc_node alloc_node(size_t n) { return (struct alloc_node){.type = 1, .location = 1, .n = n}; }

static int destroy_graph(struct part *s) { return DO(cudaGraphDestroy, s->p); }
static int destroy_graph_driver(struct part *s) { return DO(cuGraphDestroy, s->p); }
static int destroy_exec(struct part *s) { return DO(cudaGraphExecDestroy, s->p); }
static int destroy_exec_driver(struct part *s) { return DO(cuGraphExecDestroy, s->p); }
// A node's memory that no launch has made real goes by a node that frees it; other is the graph until then.
static int free_node(struct part *s) {
    ptr node;
    return s->other ? DO(cudaGraphAddMemFreeNode, &node, s->other, NULL, 0, s->p) : DO(cudaFreeAsync, s->p, 0);
}
static int free_node_driver(struct part *s) {
    ptr node;
    return s->other ? DO(cuGraphAddMemFreeNode, &node, s->other, NULL, 0, s->p) : DO(cuMemFree_v2, s->p);
}

static int graph_runtime(struct block *b) {
    struct part *s = fresh(b, 0, destroy_graph);
    s->silent = 1;
    return TAKE(b, cudaGraphCreate, &s->p, 0);
}
static int launch_runtime(struct block *b) {
    struct part *s = fresh(b, 0, destroy_exec);
    s->silent = 1;
    int rc = TAKE(b, cudaGraphInstantiateWithFlags, &s->p, b->part[0].p, 0);
    return rc ? rc : DO(cudaGraphLaunch, s->p, 0);
}
static int launch_driver(struct block *b) {
    struct part *s = fresh(b, 0, destroy_exec_driver);
    s->silent = 1;
    int rc = TAKE(b, cuGraphInstantiateWithFlags, &s->p, b->part[0].p, 0);
    return rc ? rc : DO(cuGraphLaunch, s->p, 0);
}
static int graph_driver(struct block *b) {
    struct part *s = fresh(b, 0, destroy_graph_driver);
    s->silent = 1;
    return TAKE(b, cuGraphCreate, &s->p, 0);
}
static struct part *fresh_node(struct block *b, size_t n, int (*release)(struct part *)) {
    struct part *s = fresh(b, n, release);
    s->other = b->part[0].p;
    return s;
}
static int node_runtime(struct block *b, size_t n) {
    ptr node;
    int rc = graph_runtime(b);
    if (rc) return rc;
    struct alloc_node *params = (struct alloc_node *)b->scratch;
    *params = alloc_node(n);
    struct part *s = fresh_node(b, n, free_node);
    s->from = &params->p;
    return TAKE(b, cudaGraphAddMemAllocNode, &node, s->other, NULL, 0, params);
}
static int node_driver(struct block *b, size_t n) {
    ptr node;
    int rc = graph_driver(b);
    if (rc) return rc;
    struct alloc_node *params = (struct alloc_node *)b->scratch;
    *params = alloc_node(n);
    struct part *s = fresh_node(b, n, free_node_driver);
    s->from = &params->p;
    return TAKE(b, cuGraphAddMemAllocNode, &node, s->other, NULL, 0, params);
}
static int launched(struct block *b, int rc) {
    if (!rc) b->part[1].other = 0;
    return rc;
}
static int graph_launch_runtime(struct block *b, size_t n) {
    int rc = node_runtime(b, n);
    return rc ? rc : launched(b, launch_runtime(b));
}
static int graph_launch_driver(struct block *b, size_t n) {
    int rc = node_driver(b, n);
    return rc ? rc : launched(b, launch_driver(b));
}
static int graph_freed_runtime(struct block *b, size_t n) { // the graph frees what it allocates
    int rc = node_runtime(b, n);
    if (!rc) rc = give_last(b);
    if (!rc) rc = launch_runtime(b);
    DO(cudaDeviceGraphMemTrim, 0);
    return rc;
}
static int free_generic_node(struct part *s) {
    struct node params = {.type = FREE_NODE, .free = s->p};
    ptr node;
    return s->other ? DO(cuGraphAddNode, &node, s->other, NULL, 0, &params) : DO(cuMemFreeAsync, s->p, 0);
}
static int graph_generic(struct block *b, size_t n) {
    ptr node;
    int rc = graph_driver(b);
    if (rc) return rc;
    struct node *params = (struct node *)b->scratch;
    *params = (struct node){.type = ALLOC_NODE, .alloc = alloc_node(n)};
    struct part *s = fresh_node(b, n, free_generic_node);
    s->from = &params->alloc.p;
    switch (n % 4) {
    case 0:
        rc = TAKE(b, cuGraphAddNode_v3, &node, s->other, NULL, NULL, 0, params);
        break;
    case 1:
        rc = TAKE(b, cuGraphAddNode_v2, &node, s->other, NULL, NULL, 0, params);
        break;
    default:
        rc = TAKE(b, cuGraphAddNode, &node, s->other, NULL, 0, params);
    }
    if (!rc) rc = n % 3 ? launched(b, launch_driver(b)) : give_last(b);
    DO(cuDeviceGraphMemTrim, 0);
    size_t avail, total;
    DO(cuMemGetInfo_v2, &avail, &total);
    return rc;
}
_Static_assert(sizeof(struct node) <= sizeof(((struct block *)0)->scratch), "it fits");

// ---- contexts

static int destroy_context(struct part *s) { return DO(cuCtxDestroy_v2, s->p); }
static int destroy_context_v1(struct part *s) { return DO(cuCtxDestroy, s->p); }
static int detach_context(struct part *s) { return DO(cuCtxDetach, s->p); }
static int release_primary(struct part *s) { return DO(cuDevicePrimaryCtxRelease_v2, 0); }
static int release_primary_v1(struct part *s) { return DO(cuDevicePrimaryCtxRelease, 0); }
static int popped(int rc) { // a new context is current
    ptr c;
    if (!rc) cuCtxPopCurrent_v2(&c);
    return rc;
}
static int context_v1(struct block *b, size_t n) {
    struct part *s = fresh(b, 0, destroy_context_v1);
    return popped(TAKE(b, cuCtxCreate, &s->p, 0, 0));
}
static int context_attached(struct block *b, size_t n) { // one reference more, while it is current
    ptr c;
    struct part *s = fresh(b, 0, detach_context);
    int rc = popped(TAKE(b, cuCtxCreate, &s->p, 0, 0));
    if (rc) return rc;
    cuCtxPushCurrent(b->part[0].p);
    s = fresh(b, 0, detach_context);
    rc = TAKE(b, cuCtxAttach, &s->p, 0);
    cuCtxPopCurrent(&c);
    return rc;
}
static int context_v2(struct block *b, size_t n) {
    struct part *s = fresh(b, 0, destroy_context);
    return popped(TAKE(b, cuCtxCreate_v2, &s->p, 0, 0));
}
static int context_v3(struct block *b, size_t n) {
    struct part *s = fresh(b, 0, destroy_context);
    return popped(TAKE(b, cuCtxCreate_v3, &s->p, NULL, 0, 0, 0));
}
static int context_v4(struct block *b, size_t n) {
    struct part *s = fresh(b, 0, destroy_context);
    return popped(TAKE(b, cuCtxCreate_v4, &s->p, NULL, 0, 0));
}
static int context_primary(struct block *b, size_t n) {
    struct part *s = fresh(b, 0, n % 2 ? release_primary : release_primary_v1);
    return TAKE(b, cuDevicePrimaryCtxRetain, &s->p, 0);
}

const struct family families[] = {
    {"plain", malloc_runtime},
    {"plain", malloc_driver},
    {"managed", managed_runtime},
    {"managed", managed_driver},
    {"pitched", pitch_runtime},
    {"pitched", pitch_3d},
    {"pitched", pitch_driver},
    {"array", array_runtime},
    {"array", array_flags},
    {"array", array_3d_runtime},
    {"array", array_layered},
    {"array", array_driver},
    {"array", array_3d_driver},
    {"mipmapped", mipmap_runtime},
    {"mipmapped", mipmap_driver},
    {"host", host_runtime},
    {"host", host_runtime_plain},
    {"host", host_driver},
    {"host", host_driver_plain},
    {"register", register_runtime},
    {"register", register_driver},
    {"async", async_runtime},
    {"async", async_ptsz},
    {"async", async_driver},
    {"async", async_driver_ptsz},
    {"async", async_then_free},
    {"async", malloc_then_async},
    {"pool", pool_runtime, .apart = 1},
    {"pool", pool_ptsz, .apart = 1},
    {"pool", pool_driver, .apart = 1},
    {"pool", pool_driver_ptsz, .apart = 1},
    {"shared-pool", pool_shared_runtime, .apart = 1},
    {"shared-pool", pool_shared_driver, .apart = 1},
    {"physical", physical},
    {"vmm", vmm, .apart = 1},
    {"vmm", vmm_released, .apart = 1},
    {"vmm", vmm_retained, .apart = 1},
    {"vmm", vmm_twice, .apart = 1},
    {"vmm", vmm_imported, .apart = 1},
    {"multicast", multicast, .apart = 1},
    {"multicast", multicast_mapped, .apart = 1},
    {"ipc", ipc_runtime, .apart = 1},
    {"ipc", ipc_driver, .apart = 1},
    {"external", external_runtime, .apart = 1},
    {"external", external_driver, .apart = 1},
    {"graph", graph_launch_runtime, .apart = 1},
    {"graph", graph_launch_driver, .apart = 1},
    {"graph", graph_freed_runtime, .apart = 1},
    {"graph-node", graph_generic, .apart = 1},
    {"context", context_v1, .apart = 1},
    {"context", context_attached, .apart = 1},
    {"context", context_v2, .apart = 1},
    {"context", context_v3, .apart = 1},
    {"context", context_v4, .apart = 1},
    {"context", context_primary, .apart = 1},
    {0},
};

const struct fated fated[] = {
    {malloc_runtime, WITH_CONTEXT, 1},
    {malloc_driver, WITH_CONTEXT},
    {managed_driver, WITH_CONTEXT},
    {pitch_runtime, WITH_CONTEXT, 1},
    {pitch_driver, WITH_CONTEXT},
    {array_3d_runtime, WITH_CONTEXT, 1},
    {array_driver, WITH_CONTEXT},
    {mipmap_driver, WITH_CONTEXT},
    {host_runtime, WITH_CONTEXT, 1},
    {host_driver, WITH_CONTEXT},
    {register_driver, WITH_CONTEXT},
    {async_runtime, WITH_DEVICE, 1},
    {async_driver, WITH_DEVICE},
    {async_driver_ptsz, WITH_DEVICE},
    {physical, STAYS},
    {vmm, STAYS},
    {0},
};

// ---- calls that fail

static const size_t TOO_MUCH = 1ull << 50;
void misuse(const struct block *b) {
    ptr p = 0;
    DO(cudaMalloc, &p, TOO_MUCH);
    DO(cuMemAlloc_v2, &p, TOO_MUCH);
    DO(cudaMallocAsync, &p, TOO_MUCH, 0);
    if (b->parts != 1) return;
    if (b->part[0].release == free_runtime) DO(cudaFree, b->part[0].p + 1); // into the middle of it
    if (b->part[0].release == free_driver) DO(cuMemFree_v2, b->part[0].p + 1);
}
// With other threads about, the second free could hit memory that is theirs by then.
void misuse_alone(void) {
    struct block b = {0};
    for (int i = 0; i < 2; i++) {
        if (take(&b, &families[i], 4096)) continue;
        struct part first = b.part[0];
        if (!give(&b)) first.release(&first);
    }
}

// ---- starting and ending

void start_thread(void) { cudaSetDevice(0); }
void settle_device(void) {
    cudaDeviceSynchronize();
    cudaDeviceGraphMemTrim(0);
}
void start(void) {
    ptr warm = 0;
    cudaSetDevice(0);
    for (int i = 0; i < RETRIES && !warm; i++)
        DO(cudaMalloc, &warm, 1 << 20);
    int left = !warm;
    for (int i = 0; i < RETRIES && warm; i++)
        if (!DO(cudaFree, warm)) warm = 0;
    if (!left && !warm) return;
    fprintf(stderr, "cudacalls: no memory from device 0\n");
    exit(1);
}
