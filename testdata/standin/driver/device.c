// Devices and contexts.
#include "driver.h"
#include <stdio.h>

int cuInit(unsigned flags) { return init(), set.devices ? OK : NO_DEVICE; }
int cuDriverGetVersion(int *v) { return *v = DRIVER_VERSION, OK; }
int cuDeviceGetCount(int *n) { return init(), *n = set.devices, OK; }
int cuDeviceGet(int *dev, int i) { return init(), i < 0 || i >= set.devices ? INVALID_DEVICE : (*dev = i, OK); }
int cuDeviceGetName(char *s, int n, int dev) { return snprintf(s, (size_t)n, "Stand-in GPU"), OK; }
int cuDeviceGetUuid_v2(char *u, int dev) { return memcpy(u, "standin-gpu-uuid", 16), u[15] = (char)set.gpu[dev], OK; }
int cuDeviceGetUuid(char *u, int dev) { return cuDeviceGetUuid_v2(u, dev); }
int cuDeviceTotalMem_v2(size_t *n, int dev) { return init(), *n = set.device_mem, OK; }
int cuDeviceGetPCIBusId(char *s, int n, int dev) {
    return snprintf(s, (size_t)n, "0000:%02x:00.0", set.gpu[dev] + 1), OK;
}
int cuDeviceCanAccessPeer(int *can, int a, int b) { return *can = a != b, OK; }
int cuDeviceGetP2PAttribute(int *v, int attr, int a, int b) { return *v = 0, OK; }

// CUdevice_attribute (cuda.h): the figures of a GA102, as far as PyTorch asks.
static const int attributes[160] = {
    [1] = 1024,                                             // threads per block
    [2] = 1024,        [3] = 1024,   [4] = 64,              // block
    [5] = 2147483647,  [6] = 65535,  [7] = 65535,           // grid
    [8] = 49152,                                            // shared memory per block
    [9] = 65536,                                            // constant memory
    [10] = 32,                                              // warp
    [11] = 2147483647,                                      // pitch
    [12] = 65536,                                           // registers per block
    [13] = 1695000,                                         // clock, kHz
    [14] = 512,                                             // texture alignment
    [15] = 1,                                               // overlap
    [16] = 84,                                              // multiprocessors
    [19] = 1,                                               // maps host memory
    [31] = 1,                                               // concurrent kernels
    [36] = 6251000,                                         // memory clock, kHz
    [37] = 384,                                             // bus width
    [38] = 6291456,                                         // L2
    [39] = 1536,                                            // threads per multiprocessor
    [40] = 2,                                               // copy engines
    [41] = 1,                                               // unified addressing
    [51] = 32,                                              // pitch alignment
    [78] = 1,          [79] = 1,     [80] = 1,              // stream priorities, L1 caches
    [81] = 102400,     [82] = 65536,                        // shared memory, registers per multiprocessor
    [83] = 1,          [89] = 1,     [90] = 1,    [91] = 1, // managed memory and its variants
    [95] = 1,                                               // cooperative launch
    [97] = 101376,                                          // opt-in shared memory per block
    [99] = 1,                                               // host register
    [102] = 1,         [103] = 1,                           // VMM, POSIX handles
    [106] = 16,                                             // blocks per multiprocessor
    [108] = 4194304,                                        // persisting L2
    [111] = 1024,                                           // reserved shared memory per block
    [115] = 1,                                              // memory pools
    [119] = 1,         [122] = 1,    [123] = 1,
};
int cuDeviceGetAttribute(int *v, int attr, int dev) {
    init();
    switch (attr) {
    case 33:
        return *v = set.gpu[dev] + 1, OK; // PCI bus
    case 75:
        return *v = set.cc_major, OK;
    case 76:
        return *v = set.cc_minor, OK;
    case 120:
        return *v = set.cc_major >= 9, OK; // cluster launch
    default:
        return *v = attr >= 0 && attr < 160 ? attributes[attr] : 0, OK;
    }
}

// ---- contexts. The ledger has a context in the pointer's place, and as size the device that the call was given.

static struct context *primary_of(int dev) { return dev >= 0 && dev < MAXDEV ? ctx_primary(dev) : NULL; }

int cuDevicePrimaryCtxRetain(struct context **c, int dev) {
    return BOOK(ctx_retain(c, dev), rc_ ? 0 : (uint64_t)*c, (size_t)dev);
}
int cuDevicePrimaryCtxRelease_v2(int dev) { return BOOK_FREE(ctx_release(dev), primary_of(dev), (size_t)dev); }
int cuDevicePrimaryCtxReset_v2(int dev) { return BOOK_FREE(ctx_reset(dev), primary_of(dev), (size_t)dev); }
// The same under the names of older versions.
int cuDevicePrimaryCtxRelease(int dev) { return BOOK_FREE(ctx_release(dev), primary_of(dev), (size_t)dev); }
int cuDevicePrimaryCtxReset(int dev) { return BOOK_FREE(ctx_reset(dev), primary_of(dev), (size_t)dev); }
int cuDevicePrimaryCtxSetFlags_v2(int dev, unsigned flags) { return OK; }
int cuDevicePrimaryCtxGetState(int dev, unsigned *flags, int *active) {
    if (dev < 0 || dev >= MAXDEV) return INVALID_DEVICE;
    *flags = 0;
    *active = ctx_primary(dev)->live;
    return OK;
}
static int create(struct context **c, int dev) {
    int rc = ctx_create(c, dev, set.context_mem);
    if (!rc) ctx_push(*c);
    return rc;
}
int cuCtxCreate_v2(struct context **c, unsigned flags, int dev) { return BOOK_ALLOC(create(c, dev), c, (size_t)dev); }
int cuCtxCreate_v3(struct context **c, void *affinity, int n, unsigned flags, int dev) {
    return BOOK_ALLOC(create(c, dev), c, (size_t)dev);
}
int cuCtxCreate_v4(struct context **c, void *params, unsigned flags, int dev) {
    return BOOK_ALLOC(create(c, dev), c, (size_t)dev);
}
int cuCtxCreate(struct context **c, unsigned flags, int dev) { return BOOK_ALLOC(create(c, dev), c, (size_t)dev); }
int cuCtxDestroy_v2(struct context *c) { return BOOK_FREE(ctx_destroy(c, set.context_mem), c, 0); }
int cuCtxDestroy(struct context *c) { return BOOK_FREE(ctx_destroy(c, set.context_mem), c, 0); }
int cuCtxAttach(struct context **c, unsigned flags) { return BOOK(ctx_attach(c), rc_ ? 0 : (uint64_t)*c, 0); }
int cuCtxDetach(struct context *c) { return BOOK_FREE(ctx_detach(c, set.context_mem), c, 0); }

int cuCtxGetCurrent(struct context **c) { return *c = ctx_current(), OK; }
int cuCtxSetCurrent(struct context *c) { return LOCKED(c && ctx_revive(c) ? OUT_OF_MEMORY : (ctx_set(c), OK)); }
int cuCtxPushCurrent_v2(struct context *c) { return LOCKED(ctx_revive(c) ? OUT_OF_MEMORY : (ctx_push(c), OK)); }
int cuCtxPopCurrent_v2(struct context **c) { return ctx_pop(c); }
int cuCtxPushCurrent(struct context *c) { return cuCtxPushCurrent_v2(c); }
int cuCtxPopCurrent(struct context **c) { return cuCtxPopCurrent_v2(c); }
int cuCtxGetDevice(int *dev) { return ctx_current() ? (*dev = cur_dev(), OK) : INVALID_CONTEXT; }
int cuCtxGetDevice_v2(int *dev, struct context *c) { return c ? (*dev = c->dev, OK) : cuCtxGetDevice(dev); }
int cuCtxGetApiVersion(void *c, unsigned *v) { return *v = DRIVER_VERSION, OK; }
int cuCtxSynchronize(void) { return LOCKED((pools_sync(), OK)); }
int cuCtxGetStreamPriorityRange(int *low, int *high) { return *low = 0, *high = -5, OK; }
int cuCtxGetLimit(size_t *v, int limit) { return *v = 1024, OK; }

static const struct error {
    int rc;
    const char *name, *text;
} errors[] = {
    {OK, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {-1, "CUDA_ERROR_STANDIN", "stand-in error"},
};
static const struct error *error_of(int rc) {
    const struct error *e = errors;
    while (e->rc != rc && e->rc != -1)
        e++;
    return e;
}
int cuGetErrorString(int rc, const char **s) { return *s = error_of(rc)->text, OK; }
int cuGetErrorName(int rc, const char **s) { return *s = error_of(rc)->name, OK; }
