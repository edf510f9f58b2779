// A real handle owns device memory of its own: a driver allocation that PyTorch's allocator never sees.
#include "../standin.h"

int cuMemAlloc_v2(uint64_t *, size_t), cuMemFree_v2(uint64_t);

struct handle {
    uint64_t mem;
    long pad[63];
};

int cublasCreate_v2(struct handle **h) {
    *h = calloc(1, sizeof **h);
    int failed = cuMemAlloc_v2(&(*h)->mem, env_size("STANDIN_CUBLAS_MEM", 8ull << 20));
    return failed ? 3 : 0; // CUBLAS_STATUS_ALLOC_FAILED
}
int cublasDestroy_v2(struct handle *h) {
    if (h) cuMemFree_v2(h->mem);
    free(h);
    return 0;
}
int cublasGetMathMode(void *h, int *mode) { return *mode = 0, 0; }
int cublasGetPointerMode_v2(void *h, int *mode) { return *mode = 0, 0; }
int cublasGetVersion_v2(void *h, int *v) { return *v = 130401, 0; }
