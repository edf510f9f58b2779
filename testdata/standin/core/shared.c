// Memory of another process or another API: opened, imported, mapped. It is in nobody's books a second time, and it
// reads as zero; only its size is true.
#define _GNU_SOURCE
#include "core.h"
#include <stdio.h>

_Static_assert(sizeof(struct shared) <= 64, "it fits into every vendor's handle");
static const char magic[8] = "standin";

enum { SHARE_FD = 1 }; // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR: what is handed over is a file with the record in it
int share_write(void *handle, int type, struct shared s) {
    memcpy(s.magic, magic, sizeof magic);
    s.pid = getpid();
    if (type == SHARE_BYTES) {
        memset(handle, 0, 64);
        memcpy(handle, &s, sizeof s);
        return OK;
    }
    if (type != SHARE_FD) return NOT_SUPPORTED;
    int fd = memfd_create("stand-in memory", MFD_CLOEXEC);
    if (fd < 0) return OUT_OF_MEMORY;
    if (pwrite(fd, &s, sizeof s, 0) != sizeof s) return close(fd), OUT_OF_MEMORY;
    *(int *)handle = fd;
    return OK;
}
int share_read(struct shared *s, void *handle, int type, int what) {
    memset(s, 0, sizeof *s);
    if (type == SHARE_BYTES)
        memcpy(s, handle, sizeof *s);
    else if (type != SHARE_FD)
        return NOT_SUPPORTED;
    else if (pread((int)(intptr_t)handle, s, sizeof *s, 0) != sizeof *s)
        return INVALID_VALUE;
    return memcmp(s->magic, magic, sizeof magic) || s->what != what ? INVALID_VALUE : OK;
}

// ---- inter-process handles

int ipc_export(void *handle, dptr p) {
    struct range *r = range_find(p);
    if (!r || (r->kind != DEVICE && r->kind != SLAB)) return INVALID_VALUE;
    // A handle stands for the whole allocation: of a slab all of it, as on a real driver.
    return share_write(handle, SHARE_BYTES,
                       (struct shared){.what = ALLOCATION, .dev = r->dev, .n = r->n, .serial = r->p});
}
static struct range *ipc_opened(const struct shared *s, const struct context *c) {
    struct range *r;
    for (size_t i = 0; (r = range_at(i)); i++)
        if (r->kind == IPC && r->ctx == c && r->serial == s->serial && r->owner == s->pid) break;
    return r;
}
int ipc_open(dptr *out, const void *handle, struct context *c) {
    struct shared s;
    int rc = share_read(&s, (void *)handle, SHARE_BYTES, ALLOCATION);
    if (rc) return INVALID_HANDLE;
    note.dev = c->dev;
    note.other = s.serial;
    struct range *r = ipc_opened(&s, c);
    if (r) return r->refs++, *out = r->p, OK; // opened again: the same address (cuIpcOpenMemHandle in cuda.h)
    if ((rc = foreign_alloc(out, s.n, c, c->dev, IPC))) return rc;
    r = range_exact(*out, IPC);
    r->refs = 1;
    r->owner = s.pid;
    r->serial = s.serial;
    return OK;
}
int ipc_close(dptr p) {
    struct range *r = range_exact(p, IPC);
    if (!r) return INVALID_VALUE;
    note.dev = r->dev;
    note.other = r->serial;
    if (!--r->refs) range_free(r);
    return OK;
}

// ---- memory of graphics APIs

struct external {
    size_t n;
    struct context *ctx;
    struct external *next;
};
static struct external *externals;

static struct external **external_at(uint64_t h) {
    struct external **at = &externals;
    while (*at && (uint64_t)*at != h)
        at = &(*at)->next;
    return at;
}
int external_import(uint64_t *h, size_t n, struct context *c) {
    if (!n) return INVALID_VALUE;
    struct external *e = malloc(sizeof *e);
    if (!e) return OUT_OF_MEMORY;
    *e = (struct external){n, c, externals};
    externals = e;
    note.dev = c->dev;
    *h = (uint64_t)e;
    return OK;
}
static int external_map(dptr *out, uint64_t h, uint64_t offset, size_t n, struct context *c, enum kind kind) {
    const struct external *e = *external_at(h);
    if (!e || offset > e->n || n > e->n - offset) return INVALID_VALUE;
    note.other = h;
    return foreign_alloc(out, n, c, c->dev, kind);
}
int external_buffer(dptr *out, uint64_t h, uint64_t offset, size_t n, struct context *c) {
    return external_map(out, h, offset, n, c, EXTERNAL);
}
int external_mipmap(dptr *out, uint64_t h, uint64_t offset, size_t n, struct context *c) {
    return external_map(out, h, offset, n, c, MIPMAP);
}
static void external_drop(struct external **at) {
    struct external *e = *at;
    *at = e->next;
    free(e);
}
int external_destroy(uint64_t h) {
    struct external **at = external_at(h);
    if (!*at) return INVALID_HANDLE;
    note.dev = (*at)->ctx->dev;
    external_drop(at);
    return OK;
}
void external_reset(struct context *c) {
    for (struct external **at = &externals; *at;)
        if ((*at)->ctx == c)
            external_drop(at);
        else
            at = &(*at)->next;
}
