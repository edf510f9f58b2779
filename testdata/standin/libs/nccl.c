// Collectives move no data between ranks (an all-gather repeats the rank's own part). A communicator owns device
// memory, obtained by cuMemCreate and cuMemMap as NCCL's cuMem path does.
#include "../standin.h"

int cuMemCreate(uint64_t *, size_t, const int *, uint64_t), cuMemRelease(uint64_t);
int cuMemAddressReserve(uint64_t *, size_t, size_t, uint64_t, uint64_t), cuMemAddressFree(uint64_t, size_t);
int cuMemMap(uint64_t, size_t, size_t, uint64_t, uint64_t), cuMemUnmap(uint64_t, size_t);
int cuMemAlloc_v2(uint64_t *, size_t), cuMemFree_v2(uint64_t), cuCtxGetDevice(int *);
int cuMemcpyDtoD_v2(uint64_t, uint64_t, size_t);

enum { UNHANDLED_CUDA_ERROR = 1, MEMORY_ALIGN = 2 << 20 };

struct comm {
    uint64_t va, handle;
    size_t n;
    int ranks, rank;
    char pad[4096]; // PyTorch only keeps the pointer
};
struct unique_id {
    char bytes[128];
};

static int make(struct comm **out, int ranks, int rank) {
    struct comm *c = *out = calloc(1, sizeof *c);
    int dev = 0;
    cuCtxGetDevice(&dev);
    const int prop[8] = {1, 0, 1, dev}; // CUmemAllocationProp: pinned, no export, on a device, which
    c->ranks = ranks;
    c->rank = rank;
    c->n = (env_size("STANDIN_NCCL_MEM", 64ull << 20) + MEMORY_ALIGN - 1) / MEMORY_ALIGN * MEMORY_ALIGN;
    if (cuMemCreate(&c->handle, c->n, prop, 0)) return UNHANDLED_CUDA_ERROR;
    if (cuMemAddressReserve(&c->va, c->n, 0, 0, 0)) return UNHANDLED_CUDA_ERROR;
    return cuMemMap(c->va, c->n, 0, c->handle, 0) ? UNHANDLED_CUDA_ERROR : 0;
}
static int destroy(struct comm *c) {
    if (!c || !c->va) return 0;
    cuMemUnmap(c->va, c->n);
    cuMemRelease(c->handle);
    cuMemAddressFree(c->va, c->n);
    c->va = 0; // the struct stays: PyTorch may abort a communicator that it has destroyed
    return 0;
}

int ncclGetVersion(int *v) { return *v = 23007, 0; }
int ncclGetUniqueId(struct unique_id *id) { return memset(id, 7, sizeof *id), 0; }
int ncclCommInitRank(struct comm **c, int ranks, struct unique_id id, int rank) { return make(c, ranks, rank); }
int ncclCommInitRankConfig(struct comm **c, int ranks, struct unique_id id, int rank, void *config) {
    return make(c, ranks, rank);
}
int ncclCommInitRankScalable(struct comm **c, int ranks, int rank, int ids, void *id, void *config) {
    return make(c, ranks, rank);
}
int ncclCommInitAll(struct comm **c, int ranks, const int *devices) {
    int rc = 0;
    for (int i = 0; i < ranks && !rc; i++)
        rc = make(&c[i], ranks, i);
    return rc;
}
int ncclCommSplit(struct comm *c, int color, int key, struct comm **out, void *config) {
    return make(out, c->ranks, c->rank);
}
int ncclCommDestroy(struct comm *c) { return destroy(c); }
int ncclCommAbort(struct comm *c) { return destroy(c); }
int ncclCommGetAsyncError(struct comm *c, int *e) { return *e = 0, 0; }
int ncclCommCount(struct comm *c, int *n) { return *n = c->ranks, 0; }
int ncclCommUserRank(struct comm *c, int *rank) { return *rank = c->rank, 0; }
int ncclMemAlloc(uint64_t *p, size_t n) { return cuMemAlloc_v2(p, n) ? UNHANDLED_CUDA_ERROR : 0; }
int ncclMemFree(uint64_t p) { return cuMemFree_v2(p); }

static size_t width(int type) { // ncclDataType_t
    static const unsigned char bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return type >= 0 && type < (int)sizeof bytes ? bytes[type] : 4;
}
static void copy(uint64_t to, uint64_t from, size_t n) {
    if (to != from) cuMemcpyDtoD_v2(to, from, n);
}
int ncclAllGather(uint64_t send, uint64_t recv, size_t n, int type, struct comm *c, void *stream) {
    size_t part = n * width(type);
    for (int i = 0; i < c->ranks; i++)
        copy(recv + (uint64_t)i * part, send, part);
    return 0;
}
int ncclAllReduce(uint64_t send, uint64_t recv, size_t n, int type, int op, struct comm *c, void *stream) {
    return copy(recv, send, n * width(type)), 0;
}

// An uneven all-gather is a group of broadcasts: every part becomes the rank's own data.
static __thread struct {
    uint64_t own, recv[64];
    size_t n;
    int parts;
} group;

int ncclGroupStart(void) { return group.parts = 0, group.own = 0, 0; }
int ncclBroadcast(uint64_t send, uint64_t recv, size_t n, int type, int root, struct comm *c, void *stream) {
    if (root != c->rank) {
        if (group.parts < 64) group.recv[group.parts++] = recv;
        return 0;
    }
    group.own = send;
    group.n = n * width(type);
    return copy(recv, send, group.n), 0;
}
int ncclGroupEnd(void) {
    for (int i = 0; group.own && i < group.parts; i++)
        copy(group.recv[i], group.own, group.n);
    return group.parts = 0, 0;
}
