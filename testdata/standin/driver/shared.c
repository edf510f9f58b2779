// Memory of other processes and APIs.
#include "driver.h"

struct ipc_handle { // CUipcMemHandle, passed by value
    char bytes[64];
};
int cuIpcGetMemHandle(struct ipc_handle *handle, dptr p) { return LOCKED(ipc_export(handle, p)); }
int cuIpcOpenMemHandle_v2(dptr *out, struct ipc_handle handle, unsigned flags) {
    return BOOK_ALLOC(IN(c, ipc_open(out, &handle, c)), out, 0);
}
int cuIpcOpenMemHandle(dptr *out, struct ipc_handle handle, unsigned flags) {
    return BOOK_ALLOC(IN(c, ipc_open(out, &handle, c)), out, 0);
}
int cuIpcCloseMemHandle(dptr p) { return BOOK_FREE(ipc_close(p), p, 0); }

struct external_handle { // CUDA_EXTERNAL_MEMORY_HANDLE_DESC
    int type;
    uint64_t handle[2], n;
};
struct external_buffer { // CUDA_EXTERNAL_MEMORY_BUFFER_DESC
    uint64_t offset, n;
};
struct external_mipmap { // CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC
    uint64_t offset;
    struct array_desc array;
    unsigned levels;
};
int cuImportExternalMemory(uint64_t *h, const struct external_handle *d) {
    return BOOK_ALLOC(IN(c, external_import(h, d->n, c)), h, d->n);
}
int cuExternalMemoryGetMappedBuffer(dptr *out, uint64_t h, const struct external_buffer *d) {
    return BOOK_ALLOC(IN(c, external_buffer(out, h, d->offset, d->n, c)), out, d->n);
}
int cuExternalMemoryGetMappedMipmappedArray(dptr *out, uint64_t h, const struct external_mipmap *d) {
    size_t n = mipmap_bytes(d->array, d->levels);
    return BOOK_ALLOC(IN(c, external_mipmap(out, h, d->offset, n, c)), out, n);
}
int cuDestroyExternalMemory(uint64_t h) { return BOOK_FREE(external_destroy(h), h, 0); }
