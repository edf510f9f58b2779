// Settings, the books, and the registry of address ranges sorted by address.
#define _GNU_SOURCE
#include "core.h"
#include <stdio.h>

struct settings set;
struct books *books;
pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;

static struct slot *self;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct range **tab;
static size_t ntab, captab;

// gpu_named tells a GPU by an entry of CUDA_VISIBLE_DEVICES: an index, or a UUID of it or of a MIG device in it.
static int gpu_named(const char *name, int gpus) {
    char *end, uuid[UUID_TEXT];
    long index = strtol(name, &end, 10);
    if (end != name && !*end) return index >= 0 && index < gpus ? (int)index : -1;
    for (int gpu = 0; gpu < gpus; gpu++)
        for (int part = -1; part < 7; part++) {
            uuid_text(uuid, gpu, part);
            if (!strncmp(uuid, name, strlen(name))) return gpu; // a beginning is enough
        }
    return -1;
}
// choose_gpus reads CUDA_VISIBLE_DEVICES: what stands behind an entry that names nothing does not count.
static void choose_gpus(void) {
    int gpus = (int)env_size("STANDIN_GPUS", 1), gpu;
    if (gpus > MAXDEV) gpus = MAXDEV;
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    char list[512], *rest = list, *name;
    for (set.devices = 0; !visible && set.devices < gpus; set.devices++)
        set.gpu[set.devices] = set.devices;
    if (!visible) return;
    snprintf(list, sizeof list, "%s", visible);
    while (set.devices < MAXDEV && (name = strsep(&rest, ",")) && *name && (gpu = gpu_named(name, gpus)) >= 0)
        set.gpu[set.devices++] = gpu;
}

static void setup(void) {
    choose_gpus();
    set.device_mem = env_size("STANDIN_GPU_MEM", 24ull << 30);
    set.context_mem = env_size("STANDIN_CTX_MEM", 460ull << 20);
    set.copy_max = env_size("STANDIN_COPY_MAX", 0);
    set.fail_free = env_size("STANDIN_FAIL_FREE", 0);
    set.fail_alloc = env_size("STANDIN_FAIL_ALLOC", 0);
    set.event_ns = env_size("STANDIN_EVENT_US", 0) * 1000;
    set.logging = getenv("STANDIN_LOG") != NULL;
    const char *cc = getenv("STANDIN_GPU_CC");
    if (!cc || sscanf(cc, "%d.%d", &set.cc_major, &set.cc_minor) != 2) {
        set.cc_major = 8;
        set.cc_minor = 6;
    }
    books = books_open();
    self = books_self(books);
}
void init(void) { pthread_once(&once, setup); }

// A forked child has a pid, and so a slot in the books, of its own; a lock held by another thread would never be freed.
static void in_child(void) {
    once = (pthread_once_t)PTHREAD_ONCE_INIT;
    mu = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}
__attribute__((constructor)) static void state_ctor(void) { pthread_atfork(NULL, NULL, in_child); }

int charge(int dev, size_t n) {
    if (dev < 0) return OK;
    if (n > set.device_mem || in_use(dev) > set.device_mem - n) return OUT_OF_MEMORY;
    __atomic_add_fetch(&self->used[set.gpu[dev]], n, __ATOMIC_RELAXED);
    return OK;
}
void refund(int dev, size_t n) {
    if (dev >= 0) __atomic_sub_fetch(&self->used[set.gpu[dev]], n, __ATOMIC_RELAXED);
}
size_t in_use(int dev) { return books_used(books, set.gpu[dev]); }
int memory_info(size_t *avail, size_t *total, int dev) {
    size_t used = in_use(dev);
    *total = set.device_mem;
    *avail = used > set.device_mem ? 0 : set.device_mem - used;
    note.dev = dev;
    note.other = *total;
    return OK;
}

// upper is the index of the first range that starts behind p.
static size_t upper(dptr p) {
    size_t lo = 0, hi = ntab;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (tab[mid]->p <= p)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

// range_find gives the innermost range that holds p. Only reserved address space has other ranges inside.
struct range *range_find(dptr p) {
    for (size_t i = upper(p); i > 0; i--) {
        struct range *r = tab[i - 1];
        if (p < r->p + r->n) return r;
        if (r->kind != RESERVED && r->kind != MAPPED) break;
    }
    return NULL;
}

struct range *range_exact(dptr p, enum kind kind) {
    for (size_t i = upper(p); i > 0 && tab[i - 1]->p == p; i--)
        if (tab[i - 1]->kind == kind) return tab[i - 1];
    return NULL;
}

static size_t index_of(const struct range *r) {
    size_t i = upper(r->p);
    while (i > 0 && tab[i - 1] != r)
        i--;
    return i - 1;
}

struct range *range_at(size_t i) { return i < ntab ? tab[i] : NULL; }

struct range *range_add(dptr p, size_t n, enum kind kind, int dev, size_t asked) {
    if (ntab == captab) {
        captab = captab ? captab * 2 : 256;
        tab = realloc(tab, captab * sizeof *tab);
    }
    struct range *r = tab ? calloc(1, sizeof *r) : NULL;
    if (!r) abort();
    *r = (struct range){.p = p, .n = n, .kind = kind, .dev = dev, .asked = asked};
    size_t i = upper(p);
    memmove(tab + i + 1, tab + i, (ntab - i) * sizeof *tab);
    tab[i] = r;
    ntab++;
    return r;
}

void range_drop(struct range *r) {
    size_t i = index_of(r);
    memmove(tab + i, tab + i + 1, (ntab - i - 1) * sizeof *tab);
    ntab--;
    free(r);
}

void range_unmap(struct range *r) {
    munmap((void *)r->p, r->n);
    range_drop(r);
}

dptr map_big(size_t n, int prot) {
    char *p = mmap(NULL, n + BIG, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return 0;
    char *a = (char *)UP((uintptr_t)p, BIG);
    if (a > p) munmap(p, (size_t)(a - p));
    if (a < p + BIG) munmap(a + n, BIG - (size_t)(a - p));
    return (dptr)a;
}
