// Entry points by name, and the calls that a caller may look up but that have no effect here.
#define _GNU_SOURCE
#include "driver.h"
#include <dlfcn.h>
#include <stdio.h>

// clang-format off
#define NOTHING(f) int f(void) { return OK; }
#define UNSUPPORTED(f) int f(void) { return NOT_SUPPORTED; }
#define HANDLE(f) int f(void **h) { return *h = calloc(1, 64), OK; }
// clang-format on
#include "no_effect.inc"

int cuLinkCreate_v2(unsigned n, void *options, void *values, void **h) { return *h = calloc(1, 64), OK; }
int cuFuncGetAttribute(int *v, int attr, void *f) { return *v = attr == 0 ? 1024 : 0, OK; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, void *f, int block, size_t shared) { return *n = 2, OK; }
int cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, void *f, int block, size_t shared, unsigned flags) {
    return *n = 2, OK;
}

static void *own_library(void) {
    static void *lib;
    Dl_info info;
    if (!lib && dladdr((void *)cuLinkCreate_v2, &info)) lib = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    return lib;
}

// cuGetProcAddress_v2 gives the newest variant of a name; flag 2 asks for per-thread default streams.
int cuGetProcAddress_v2(const char *name, void **pfn, int version, uint64_t flags, int *status) {
    static const char *const suffix[] = {"_v4", "_v3", "_v2", ""};
    char full[160];
    *pfn = NULL;
    for (int per_thread = flags & 2 ? 1 : 0; per_thread >= 0 && !*pfn; per_thread--)
        for (int i = 0; i < 4 && !*pfn; i++) {
            snprintf(full, sizeof full, "%s%s%s", name, suffix[i], per_thread ? "_ptsz" : "");
            *pfn = dlsym(own_library(), full);
        }
    if (status) *status = *pfn ? 0 : 1; // CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
    if (!*pfn && set.logging) fprintf(stderr, "[stand-in] cuGetProcAddress(%s, %d): unknown\n", name, version);
    return *pfn ? OK : NOT_FOUND;
}
int cuGetProcAddress(const char *name, void **pfn, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, pfn, version, flags, NULL);
}
