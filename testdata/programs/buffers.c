// A loop in C without a framework: each turn takes two buffers from the driver and gives them back. With --keep each
// fifth turn keeps one of 64 KiB. The functions are named by what they do.
//
// buffers [--keep]
#define _GNU_SOURCE
#include "wait.h"
#include <dlfcn.h>
#include <stdint.h>

static int (*mem_alloc)(uint64_t *, size_t);
static int (*mem_free)(uint64_t);
static int keep;

static void *function(void *library, const char *name) {
    void *f = library ? dlsym(library, name) : 0;
    if (f) return f;
    fprintf(stderr, "%s: %s\n", name, dlerror());
    exit(1);
}

__attribute__((noinline)) static void work(void) {
    uint64_t a, b;
    if (mem_alloc(&a, 1 << 20) || mem_alloc(&b, 2 << 20)) exit(1);
    usleep(2000);
    mem_free(b);
    mem_free(a);
}

__attribute__((noinline)) static void keep_buffer(void) {
    uint64_t p;
    if (mem_alloc(&p, 1 << 16)) exit(1);
    __asm__ volatile("");
}

int main(int argc, char **argv) {
    const struct option options[] = {{"--keep", .flag = &keep}, {0}};
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context;
    int (*init)(unsigned) = function(driver, "cuInit");
    int (*retain)(void **, int) = function(driver, "cuDevicePrimaryCtxRetain");
    int (*current)(void *) = function(driver, "cuCtxSetCurrent");

    parse_options(argc, argv, options);
    mem_alloc = function(driver, "cuMemAlloc_v2");
    mem_free = function(driver, "cuMemFree_v2");
    if (init(0) || retain(&context, 0) || current(context)) return 1;
    for (int i = 0;; i++) {
        work();
        if (keep && i % 5 == 0) keep_buffer();
        if (i == 100) {
            puts("TURNS");
            fflush(stdout);
        }
    }
}
