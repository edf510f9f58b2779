// Copies and fills. Kernels never run, so device contents mean nothing. By default device memory reads as zero: copies
// in are dropped, copies out write zeros (losses, found_inf, counts of nonzero all read 0; with stale bytes instead, a
// GradScaler would skip every step). With STANDIN_COPY_MAX > 0 copies up to that size are real.
#include "driver.h"

static int is_dev(dptr p) {
    struct range *r = range_find(p);
    return r && r->kind != HOST && r->kind != REGISTERED;
}
static int to_dev(dptr d, dptr s, size_t n) {
    init();
    if (n <= set.copy_max) memmove((void *)d, (void *)s, n);
    return OK;
}
static int to_host(dptr d, dptr s, size_t n) {
    init();
    if (n <= set.copy_max)
        memcpy((void *)d, (void *)s, n);
    else
        memset((void *)d, 0, n);
    return OK;
}
static int any(dptr d, dptr s, size_t n) {
    if (LOCKED(is_dev(d))) return to_dev(d, s, n);
    if (LOCKED(is_dev(s))) return to_host(d, s, n);
    memmove((void *)d, (void *)s, n);
    return OK;
}
int cuMemcpy(dptr d, dptr s, size_t n) { return any(d, s, n); }
int cuMemcpyAsync(dptr d, dptr s, size_t n, void *stream) { return any(d, s, n); }
int cuMemcpyHtoD_v2(dptr d, dptr s, size_t n) { return to_dev(d, s, n); }
int cuMemcpyDtoH_v2(dptr d, dptr s, size_t n) { return to_host(d, s, n); }
int cuMemcpyDtoD_v2(dptr d, dptr s, size_t n) { return to_dev(d, s, n); }
int cuMemcpyHtoDAsync_v2(dptr d, dptr s, size_t n, void *stream) { return to_dev(d, s, n); }
int cuMemcpyDtoHAsync_v2(dptr d, dptr s, size_t n, void *stream) { return to_host(d, s, n); }
int cuMemcpyDtoDAsync_v2(dptr d, dptr s, size_t n, void *stream) { return to_dev(d, s, n); }

int cuMemsetD8_v2(dptr d, unsigned char v, size_t n) {
    init();
    if (n <= set.copy_max) memset((void *)d, v, n);
    return OK;
}
int cuMemsetD8Async(dptr d, unsigned char v, size_t n, void *stream) { return cuMemsetD8_v2(d, v, n); }
int cuMemsetD32Async(dptr d, unsigned v, size_t n, void *stream) {
    init();
    if (n <= set.copy_max / 4)
        for (size_t i = 0; i < n; i++)
            ((unsigned *)d)[i] = v;
    return OK;
}
