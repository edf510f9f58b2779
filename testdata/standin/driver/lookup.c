// Entry points by name, and the calls that a caller may look up but that have no effect here.
#define _GNU_SOURCE
#include "driver.h"
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

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

int cuGetProcAddress(const char *name, void **pfn, int version, uint64_t flags);

// Functions whose variants differ in their arguments, by the CUDA version that brought each (cudaTypedefs.h), the
// newest first: the caller's version picks. Of all others the newest variant serves every caller.
static const struct {
    const char *name;
    int since;
    const char *symbol;
} variants[] = {
    {"cuCtxCreate", 12050, "cuCtxCreate_v4"},
    {"cuCtxCreate", 11040, "cuCtxCreate_v3"},
    {"cuCtxCreate", 0, "cuCtxCreate_v2"},
    {"cuGraphAddNode", 13040, "cuGraphAddNode_v3"},
    {"cuGraphAddNode", 12030, "cuGraphAddNode_v2"},
    {"cuGraphAddNode", 0, "cuGraphAddNode"},
    {"cuMulticastBindMem", 13010, "cuMulticastBindMem_v2"},
    {"cuMulticastBindMem", 0, "cuMulticastBindMem"},
    {"cuMulticastBindAddr", 13010, "cuMulticastBindAddr_v2"},
    {"cuMulticastBindAddr", 0, "cuMulticastBindAddr"},
};
static void *by_version(const char *name, int version) {
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++)
        if (!strcmp(variants[i].name, name) && version >= variants[i].since)
            return dlsym(own_library(), variants[i].symbol);
    return NULL;
}

// cuGetProcAddress_v2 gives the newest variant of a name; flag 2 asks for per-thread default streams.
int cuGetProcAddress_v2(const char *name, void **pfn, int version, uint64_t flags, int *status) {
    static const char *const suffix[] = {"_v4", "_v3", "_v2", ""};
    char full[160];
    *pfn = NULL;
    // Before CUDA 12 it has no status: the caller passes four arguments.
    if (version < 12000 && !strcmp(name, "cuGetProcAddress")) *pfn = (void *)cuGetProcAddress;
    if (!*pfn) *pfn = by_version(name, version);
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
