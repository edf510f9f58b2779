// Calls every family of CUDA memory function from many threads and keeps its own account of what is live.
//
// cudacalls [--threads N] [--rounds N] [--go FILE] [--hold FILE]
//
// Per function it prints "CALL <function> ok <n> failed <n>", then "LIVE <function> <pointer> <bytes>" for what is
// left, and "TOTAL live <n> bytes <n>". Some blocks are left on purpose. Runs on the stand-in and on a real driver.
#define _GNU_SOURCE
#include "wait.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>

typedef uint64_t ptr;

static int (*cudaMalloc)(ptr *, size_t), (*cudaFree)(ptr), (*cudaMallocManaged)(ptr *, size_t, unsigned);
static int (*cudaMallocPitch)(ptr *, size_t *, size_t, size_t), (*cudaMallocAsync)(ptr *, size_t, void *);
static int (*cudaMallocAsync_ptsz)(ptr *, size_t, void *), (*cudaFreeAsync_ptsz)(ptr, void *);
static int (*cudaFreeAsync)(ptr, void *), (*cudaHostAlloc)(ptr *, size_t, unsigned), (*cudaFreeHost)(ptr);
static int (*cudaMallocArray)(ptr *, const int *, size_t, size_t, unsigned), (*cudaFreeArray)(ptr);
static int (*cudaHostRegister)(ptr, size_t, unsigned), (*cudaHostUnregister)(ptr), (*cudaSetDevice)(int);
static int (*cuMemAlloc_v2)(ptr *, size_t), (*cuMemFree_v2)(ptr), (*cuMemCreate)(ptr *, size_t, const void *, uint64_t);
static int (*cuMemRelease)(ptr), (*cuMemAllocHost_v2)(ptr *, size_t), (*cuMemFreeHost)(ptr);

// ---- families: how to get memory, and how to give it back. *n goes in as a wish and comes out as what was passed.

static int alloc_runtime(ptr *p, size_t *n) { return cudaMalloc(p, *n); }
static int alloc_driver(ptr *p, size_t *n) { return cuMemAlloc_v2(p, *n); }
static int alloc_managed(ptr *p, size_t *n) { return cudaMallocManaged(p, *n, 1); }
static int alloc_async(ptr *p, size_t *n) { return cudaMallocAsync(p, *n, NULL); }
static int free_async(ptr p) { return cudaFreeAsync(p, NULL); }
static int alloc_async_ptsz(ptr *p, size_t *n) { return cudaMallocAsync_ptsz(p, *n, NULL); }
static int free_async_ptsz(ptr p) { return cudaFreeAsync_ptsz(p, NULL); }
static int alloc_host(ptr *p, size_t *n) { return cudaHostAlloc(p, *n, 0); }
static int alloc_host_driver(ptr *p, size_t *n) { return cuMemAllocHost_v2(p, *n); }
static int alloc_pitch(ptr *p, size_t *n) {
    size_t pitch = 0, rows = *n / 1000 + 1;
    int rc = cudaMallocPitch(p, &pitch, 1000, rows);
    *n = pitch * rows;
    return rc;
}
static int alloc_array(ptr *p, size_t *n) {
    static const int float1[5] = {32, 0, 0, 0, 2}; // cudaChannelFormatDesc: bits of four channels, kind float
    size_t width = *n / 4 % 16384 + 1;
    *n = 4 * width;
    return cudaMallocArray(p, float1, width, 0, 0);
}
static int alloc_physical(ptr *p, size_t *n) {
    static const int prop[16] = {1, 0, 1, 0}; // CUmemAllocationProp: pinned, not exported, on device 0
    *n = (*n + (2 << 20) - 1) & ~(size_t)((2 << 20) - 1);
    return cuMemCreate(p, *n, prop, 0);
}
static int alloc_registered(ptr *p, size_t *n) {
    *n = (*n + 4095) & ~(size_t)4095;
    void *m = mmap(NULL, *n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *p = (ptr)m; // never unmapped: another thread must not be given an address that is still registered
    return m == MAP_FAILED ? 2 : cudaHostRegister(*p, *n, 0);
}
static int free_runtime(ptr p) { return cudaFree(p); }
static int free_driver(ptr p) { return cuMemFree_v2(p); }
static int free_host(ptr p) { return cudaFreeHost(p); }
static int free_host_driver(ptr p) { return cuMemFreeHost(p); }
static int free_array(ptr p) { return cudaFreeArray(p); }
static int free_physical(ptr p) { return cuMemRelease(p); }
static int free_registered(ptr p) { return cudaHostUnregister(p); }

static const struct family {
    const char *alloc_name, *free_name;
    int (*alloc)(ptr *, size_t *), (*release)(ptr);
} families[] = {
    {"cudaMalloc", "cudaFree", alloc_runtime, free_runtime},
    {"cuMemAlloc_v2", "cuMemFree_v2", alloc_driver, free_driver},
    {"cudaMallocManaged", "cudaFree", alloc_managed, free_runtime},
    {"cudaMallocPitch", "cudaFree", alloc_pitch, free_runtime},
    {"cudaMallocAsync", "cudaFreeAsync", alloc_async, free_async},
    {"cudaMallocAsync_ptsz", "cudaFreeAsync_ptsz", alloc_async_ptsz, free_async_ptsz},
    {"cudaHostAlloc", "cudaFreeHost", alloc_host, free_host},
    {"cuMemAllocHost_v2", "cuMemFreeHost", alloc_host_driver, free_host_driver},
    {"cudaMallocArray", "cudaFreeArray", alloc_array, free_array},
    {"cuMemCreate", "cuMemRelease", alloc_physical, free_physical},
    {"cudaHostRegister", "cudaHostUnregister", alloc_registered, free_registered},
};
enum { FAMILIES = sizeof families / sizeof *families, LIVE = 16, RETRIES = 100 };

// ---- the account, one for each thread, added up at the end

struct block {
    int family;
    ptr p;
    size_t n;
};
struct worker {
    pthread_t thread;
    unsigned seed;
    struct block live[LIVE]; // n 0: empty
    size_t alloc_ok[FAMILIES], alloc_failed[FAMILIES], free_ok[FAMILIES], free_failed[FAMILIES];
};
static int threads = 4, rounds = 1000;
static const char *go, *hold;

static void take(struct worker *w, struct block *b, int family, size_t n) {
    *b = (struct block){family, 0, n};
    if (families[family].alloc(&b->p, &b->n)) {
        w->alloc_failed[family]++;
        b->n = 0;
        return;
    }
    w->alloc_ok[family]++;
}
// give frees a block. A free can fail and leave the block live (STANDIN_FAIL_FREE); it is then tried again.
static void give(struct worker *w, struct block *b) {
    for (int i = 0; i < RETRIES && b->n; i++) {
        if (families[b->family].release(b->p)) {
            w->free_failed[b->family]++;
            continue;
        }
        w->free_ok[b->family]++;
        b->n = 0;
    }
}

// fail makes calls that cannot succeed: more memory than there is, and pointers into the middle of a block.
static void fail(struct worker *w, const struct block *b) {
    ptr p = 0;
    if (cudaMalloc(&p, (size_t)1 << 50)) w->alloc_failed[0]++;
    if (cuMemAlloc_v2(&p, (size_t)1 << 50)) w->alloc_failed[1]++;
    if (!b->n || b->family > 1) return;
    if (families[b->family].release(b->p + 1)) w->free_failed[b->family]++;
}
static void *work(void *arg) {
    struct worker *w = arg;
    cudaSetDevice(0);
    for (int i = 0; i < rounds; i++) {
        struct block *b = &w->live[rand_r(&w->seed) % LIVE];
        give(w, b);
        take(w, b, rand_r(&w->seed) % FAMILIES, 1 + (size_t)rand_r(&w->seed) % (4 << 20));
        if (i % 16 == 0) fail(w, b);
    }
    return NULL;
}

// free_twice runs alone: with other threads about, the second free could hit a block that is theirs by then.
static void free_twice(struct worker *w) {
    for (int family = 0; family < 2; family++) {
        struct block b;
        take(w, &b, family, 4096);
        ptr p = b.p;
        give(w, &b);
        if (families[family].release(p)) w->free_failed[family]++;
    }
}

// ---- loading

static void *open_any(const char *const *names) {
    for (; *names; names++) {
        void *lib = dlopen(*names, RTLD_NOW | RTLD_GLOBAL);
        if (lib) return lib;
    }
    fprintf(stderr, "cudacalls: %s\n", dlerror());
    exit(1);
}
static void *symbol(void *lib, const char *name) {
    void *f = dlsym(lib, name);
    if (f) return f;
    fprintf(stderr, "cudacalls: %s\n", dlerror());
    exit(1);
}
#define LOAD(lib, f) f = symbol(lib, #f)
static void load(void) {
    static const char *const runtimes[] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", NULL};
    static const char *const drivers[] = {"libcuda.so.1", NULL};
    void *rt = open_any(runtimes), *drv = open_any(drivers);
    LOAD(rt, cudaMalloc), LOAD(rt, cudaFree), LOAD(rt, cudaMallocManaged), LOAD(rt, cudaMallocPitch);
    LOAD(rt, cudaMallocAsync), LOAD(rt, cudaFreeAsync), LOAD(rt, cudaHostAlloc), LOAD(rt, cudaFreeHost);
    LOAD(rt, cudaMallocAsync_ptsz), LOAD(rt, cudaFreeAsync_ptsz);
    LOAD(rt, cudaMallocArray), LOAD(rt, cudaFreeArray), LOAD(rt, cudaHostRegister), LOAD(rt, cudaHostUnregister);
    LOAD(rt, cudaSetDevice), LOAD(drv, cuMemAlloc_v2), LOAD(drv, cuMemFree_v2), LOAD(drv, cuMemCreate);
    LOAD(drv, cuMemRelease), LOAD(drv, cuMemAllocHost_v2), LOAD(drv, cuMemFreeHost);
    cudaSetDevice(0);
    ptr warm;
    if (cudaMalloc(&warm, 1 << 20) || cudaFree(warm)) {
        fprintf(stderr, "cudacalls: no memory from device 0\n");
        exit(1);
    }
}

// ---- the report

static void print_calls(const struct worker *w) {
    for (int f = 0; f < FAMILIES; f++) {
        size_t sum[4] = {0};
        for (int t = 0; t < threads; t++) {
            sum[0] += w[t].alloc_ok[f], sum[1] += w[t].alloc_failed[f];
            sum[2] += w[t].free_ok[f], sum[3] += w[t].free_failed[f];
        }
        printf("CALL %s ok %zu failed %zu\n", families[f].alloc_name, sum[0], sum[1]);
        printf("CALL %s ok %zu failed %zu\n", families[f].free_name, sum[2], sum[3]);
    }
}
static void print_live(const struct worker *w) {
    size_t count = 0, bytes = 0;
    for (int i = 0; i < threads * LIVE; i++) {
        const struct block *b = &w[i / LIVE].live[i % LIVE];
        if (!b->n) continue;
        printf("LIVE %s 0x%lx %zu\n", families[b->family].alloc_name, b->p, b->n);
        count++;
        bytes += b->n;
    }
    printf("TOTAL live %zu bytes %zu\n", count, bytes);
}

int main(int argc, char **argv) {
    const struct option options[] = {
        {"--threads", &threads, NULL}, {"--rounds", &rounds, NULL}, {"--go", NULL, &go}, {"--hold", NULL, &hold}, {0}};
    parse_options(argc, argv, options);
    if (threads < 1 || threads > 1024 || rounds < 0) return fprintf(stderr, "cudacalls: options out of range\n"), 2;
    load();
    wait_for_go(go);
    struct worker *w = calloc((size_t)threads, sizeof *w);
    if (!w) return 1;
    free_twice(&w[0]);
    for (int i = 0; i < threads; i++) {
        w[i].seed = (unsigned)i + 1;
        if (pthread_create(&w[i].thread, NULL, work, &w[i])) return 1;
    }
    for (int i = 0; i < threads; i++)
        pthread_join(w[i].thread, NULL);
    print_calls(w);
    print_live(w);
    if (hold) printf("DONE\n");
    fflush(stdout);
    wait_for_file(hold);
    free(w);
    return 0;
}
