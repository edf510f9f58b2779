// A pluggable allocator for PyTorch, as RAPIDS' and others are: three ways to get device memory from the runtime.
//
// PyTorch calls NAME_alloc(bytes, device, stream) and NAME_free(pointer, bytes, device, stream). NULL: out of memory.
#include <pthread.h>
#include <stddef.h>
#include <sys/types.h>

// The runtime that PyTorch has loaded defines these (cuda_runtime_api.h).
int cudaMalloc(void **, size_t), cudaFree(void *), cudaSetDevice(int), cudaGetDevice(int *), cudaGetLastError(void);
int cudaMallocAsync(void **, size_t, void *), cudaFreeAsync(void *, void *);
int cudaMallocFromPoolAsync(void **, size_t, void *pool, void *stream), cudaMemPoolCreate(void **, const void *);

enum { DEVICES = 16 };

static int enter(int device) {
    int before = 0;
    cudaGetDevice(&before);
    if (before != device) cudaSetDevice(device);
    return before;
}
static void leave(int before, int device, int failed) {
    if (before != device) cudaSetDevice(before);
    if (failed) cudaGetLastError(); // PyTorch must not find it
}

void *plain_alloc(ssize_t n, int device, void *stream) {
    void *p = NULL;
    int before = enter(device);
    leave(before, device, cudaMalloc(&p, (size_t)n));
    return p;
}
void plain_free(void *p, ssize_t n, int device, void *stream) { cudaFree(p); }

void *async_alloc(ssize_t n, int device, void *stream) {
    void *p = NULL;
    int before = enter(device);
    leave(before, device, cudaMallocAsync(&p, (size_t)n, stream));
    return p;
}
void async_free(void *p, ssize_t n, int device, void *stream) { cudaFreeAsync(p, stream); }

struct properties { // cudaMemPoolProps: pinned, no export, on a device, which; then reserved
    int type, handles, location, device;
    char rest[72];
};
static void *pool_of(int device) { // made at its first use
    static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
    static void *pools[DEVICES];
    struct properties p = {1, 0, 1, device, {0}};
    pthread_mutex_lock(&mu);
    if (!pools[device]) cudaMemPoolCreate(&pools[device], &p);
    pthread_mutex_unlock(&mu);
    return pools[device];
}
void *pool_alloc(ssize_t n, int device, void *stream) {
    void *p = NULL;
    int before = enter(device);
    leave(before, device, cudaMallocFromPoolAsync(&p, (size_t)n, pool_of(device), stream));
    return p;
}
void pool_free(void *p, ssize_t n, int device, void *stream) { cudaFreeAsync(p, stream); }
