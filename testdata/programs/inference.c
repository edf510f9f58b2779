// Takes device memory as an inference program in C does that has no framework: weights, a cache of keys and values,
// buffers of the graph, and a pool that reserves 32 GiB of addresses and maps more of them as batches grow. The
// functions are named by what they do.
//
// inference [--batches N]
#define _GNU_SOURCE
#include "wait.h"
#include <dlfcn.h>
#include <stdint.h>

enum { MIB = 1 << 20, GRANULE = 2 * MIB };

static int (*mem_alloc)(uint64_t *, size_t);
static int (*mem_reserve)(uint64_t *, size_t, size_t, uint64_t, uint64_t);
static int (*mem_create)(uint64_t *, size_t, const void *, uint64_t);
static int (*mem_map)(uint64_t, size_t, size_t, uint64_t, uint64_t);

static void must(int code, const char *what) {
    if (!code) return;
    fprintf(stderr, "%s: error %d\n", what, code);
    exit(1);
}

static void *function(void *library, const char *name) {
    void *f = dlsym(library, name);
    if (!f) must(1, name);
    return f;
}

__attribute__((noinline)) static void load_model(int layers) {
    uint64_t p;
    for (int i = 0; i < layers; i++)
        must(mem_alloc(&p, 96 * MIB), __func__);
    __asm__ volatile("");
}

__attribute__((noinline)) static void init_kv_cache(int layers) {
    uint64_t p;
    for (int i = 0; i < layers; i++)
        must(mem_alloc(&p, 16 * MIB), __func__);
    __asm__ volatile("");
}

__attribute__((noinline)) static void reserve_graph(void) {
    uint64_t p;
    must(mem_alloc(&p, 304 * MIB), __func__);
    __asm__ volatile("");
}

static uint64_t pool_base, pool_size;

__attribute__((noinline)) static void grow_pool(size_t bytes) {
    int32_t location[8] = {1, 0, 1, 0};
    uint64_t handle;

    if (!pool_base) must(mem_reserve(&pool_base, 32ull << 30, 0, 0, 0), "reserve addresses");
    must(mem_create(&handle, bytes, location, 0), "create memory");
    must(mem_map(pool_base + pool_size, bytes, 0, handle, 0), "map memory");
    pool_size += bytes;
    __asm__ volatile("");
}

int main(int argc, char **argv) {
    int batches = 8;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int (*init)(unsigned), (*retain)(void **, int), (*current)(void *);
    void *context;

    for (int i = 1; i + 1 < argc; i += 2)
        if (!strcmp(argv[i], "--batches")) batches = atoi(argv[i + 1]);
    if (!driver) must(1, dlerror());
    init = function(driver, "cuInit");
    retain = function(driver, "cuDevicePrimaryCtxRetain");
    current = function(driver, "cuCtxSetCurrent");
    mem_alloc = function(driver, "cuMemAlloc_v2");
    mem_reserve = function(driver, "cuMemAddressReserve");
    mem_create = function(driver, "cuMemCreate");
    mem_map = function(driver, "cuMemMap");
    must(init(0), "cuInit");
    must(retain(&context, 0), "retain the context");
    must(current(context), "choose the context");
    load_model(16);
    init_kv_cache(16);
    reserve_graph();
    for (int i = 0; i < batches; i++) {
        grow_pool((size_t)(i + 1) * 8 * GRANULE);
        usleep(100000);
    }
    puts("DONE");
    return 0;
}
