// What the stand-in libraries of all vendors share: settings, the registry of address ranges, contexts, memory of every
// sort, and the ledger. libcuda, libamdhip64 and libze_loader each have it inside, below thin functions of their API.
//
// All functions here that are not said to be otherwise are called with the lock held, from within BOOK or LOCKED.
#pragma once
#include "../standin.h"
#include <pthread.h>

// Results are numbered as in CUresult (cuda.h); hipError_t has the same numbers.
enum {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    CONTEXT_IS_DESTROYED = 709,
    HOST_MEMORY_ALREADY_REGISTERED = 712,
    HOST_MEMORY_NOT_REGISTERED = 713,
    NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900,
};

enum { DRIVER_VERSION = 13020 };

typedef uint64_t dptr; // an address on the device

extern struct settings {
    int devices, cc_major, cc_minor, logging;
    int gpu[MAXDEV]; // of each device: CUDA_VISIBLE_DEVICES chooses and orders
    size_t device_mem, context_mem, copy_max, fail_free, fail_alloc;
    uint64_t event_ns;
} set;

extern struct books *books;
extern pthread_mutex_t mu;

void init(void); // reads the settings once per process, and again in a forked child; called without the lock

// charge takes bytes of a device from the books, if there are that many. Device -1 is the host, which has no end.
int charge(int dev, size_t n);
void refund(int dev, size_t n);
size_t in_use(int dev); // by all processes; needs no lock
int memory_info(size_t *avail, size_t *total, int dev);

// ---- address ranges

enum kind {
    DEVICE = 1,
    SLAB, // small device memory
    MANAGED,
    ARRAY,
    MIPMAP,
    HOST,
    REGISTERED,
    ASYNC,        // stream-ordered, from a pool
    GRAPH,        // of a graph's allocation node
    RESERVED,     // address space only
    MAPPED,       // physical memory in it
    IPC,          // memory of another process
    EXTERNAL,     // a buffer of another API
    POOL_POINTER, // memory of another process's pool
};

// One range of address space. n is its length, asked what the caller wanted, charged what is in the books for it.
struct range {
    dptr p;
    size_t n, asked, charged;
    enum kind kind;
    int dev;             // -1: the host's
    struct context *ctx; // what it goes with; NULL: nothing
    union {
        struct phys *phys;         // MAPPED
        struct pool *pool;         // ASYNC
        struct graph_memory *node; // GRAPH
        struct {                   // SLAB
            size_t cls;            // bytes of a slot
            unsigned live;         // slots in use
            uint64_t bits[64];     // which
        };
        struct {             // IPC
            int refs, owner; // owner: the process that exported it
            uint64_t serial; // which of its memory
        };
    };
};

struct range *range_find(dptr p); // the innermost
struct range *range_exact(dptr p, enum kind kind);
struct range *range_at(size_t i); // the i-th by address, NULL behind the last
struct range *range_add(dptr p, size_t n, enum kind kind, int dev, size_t asked);
void range_drop(struct range *r);
void range_unmap(struct range *r); // the same, and its addresses are free again

#define BIG (2ull << 20) // granularity of device memory on current GPUs
#define UP(n, a) (((n) + (a) - 1) / (a) * (a))
dptr map_big(size_t n, int prot); // n bytes of address space aligned to BIG, or 0

// ---- contexts

enum { SIZE_CLASSES = 12 };
struct context {
    int dev, live, refs;               // refs: how often it was retained, or made and attached to
    struct range *slabs[SIZE_CLASSES]; // the slab to try first, by size class
};
struct context *ctx_primary(int dev);
struct context *ctx_current(void);    // of the calling thread, NULL: none; needs no lock
int ctx_to_use(struct context **out); // the same, or why it cannot be used
int cur_dev(void);                    // its device, 0 without one; needs no lock
void ctx_set(struct context *c);      // replaces the current one
void ctx_push(struct context *c);
int ctx_pop(struct context **out);
int ctx_valid(const struct context *c);
int ctx_create(struct context **out, int dev, size_t memory);
int ctx_destroy(struct context *c, size_t memory);
int ctx_attach(struct context **out);             // one more reference to the current one
int ctx_detach(struct context *c, size_t memory); // one less; the last destroys it
int ctx_retain(struct context **out, int dev);
int ctx_release(int dev);
int ctx_reset(int dev);
int ctx_revive(struct context *c); // a primary context that was reset is made anew when it is used again

// ---- memory

int dev_alloc(dptr *out, size_t n, struct context *c, int dev, enum kind kind);
int dev_free(dptr p);             // of any sort that an API frees by address, but for host memory
void range_free(struct range *r); // gives back what a context owns
int host_alloc(void **out, size_t n, struct context *c);
int host_free(void *p);
int host_register(void *p, size_t n, struct context *c);
int host_unregister(void *p);
int foreign_alloc(dptr *out, size_t n, struct context *c, int dev, enum kind kind); // not in the books

struct array_desc { // CUDA_ARRAY3D_DESCRIPTOR (cuda.h), and HIP_ARRAY3D_DESCRIPTOR
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
};
struct array_desc desc_of_2d(const void *d);    // CUDA_ARRAY_DESCRIPTOR, which has no depth and no flags
size_t array_bytes(const struct array_desc *d); // 0: the format is unknown
size_t mipmap_bytes(struct array_desc d, unsigned levels);
int array_create(dptr *h, const struct array_desc *d, size_t n, struct context *c, enum kind kind);
int array_destroy(dptr h, enum kind kind);

// ---- pools

struct pool;
struct location { // CUmemLocation
    int type, id;
};
int pool_alloc(dptr *out, size_t n, struct pool *pool);
void pool_free(struct range *r);
int pool_create(struct pool **out, const int *props);
int pool_destroy(struct pool *p);
int pool_trim(struct pool *p, size_t keep);
int pool_set(struct pool *p, int attr, const void *v);
int pool_get(struct pool *p, int attr, void *v);
struct pool *pool_default(int dev); // dev -1: the host's
struct pool *pool_current(int dev);
int pool_choose(int dev, struct pool *p);
struct pool *pool_of(const struct location *where, int type);
int pool_export(void *handle, struct pool *p, int type);
int pool_import(struct pool **out, void *handle, int type);
int pool_export_pointer(void *data, dptr p);
int pool_import_pointer(dptr *out, struct pool *p, const void *data);
void pools_sync(void);
void pools_reset(int dev); // everything in them is gone

// ---- physical memory and mappings

int phys_create(uint64_t *h, size_t n, const int *prop);
int phys_release(uint64_t h);
int phys_retain(uint64_t *h, dptr p);
int phys_device(int *dev, uint64_t h);
int phys_export(void *handle, uint64_t h, int type);
int phys_import(uint64_t *h, void *handle, int type);
int va_reserve(dptr *out, size_t n, size_t align);
int va_free(dptr p, size_t n);
int va_map(dptr p, size_t n, size_t offset, uint64_t h);
int va_unmap(dptr p, size_t n);
int va_access(dptr p, size_t n);
int multicast_create(uint64_t *h, size_t n);
int multicast_check(uint64_t h, uint64_t memory);

// ---- memory of others

struct shared { // what goes from one process to another
    char magic[8];
    int what, pid, dev, pad;
    uint64_t n, serial; // bytes; the address or handle in the process that has it
};
enum { ALLOCATION = 1, PHYSICAL, POOL, POINTER }; // what
enum { SHARE_BYTES = 8 };                         // as a handle of 64 bytes (CU_MEM_HANDLE_TYPE_FABRIC is such)
int share_write(void *handle, int type, struct shared s);
int share_read(struct shared *s, void *handle, int type, int what);
int ipc_export(void *handle, dptr p);
int ipc_open(dptr *out, const void *handle, struct context *c);
int ipc_close(dptr p);
int external_import(uint64_t *h, size_t n, struct context *c);
int external_buffer(dptr *out, uint64_t h, uint64_t offset, size_t n, struct context *c);
int external_mipmap(dptr *out, uint64_t h, uint64_t offset, size_t n, struct context *c);
int external_destroy(uint64_t h);
void external_reset(struct context *c);

// ---- memory nodes of graphs

struct graph;
struct graph_exec;
struct graph_node;
struct graph *graph_create(void);
void graph_destroy(struct graph *g);
int graph_add_alloc(struct graph_node **out, struct graph *g, char *params);
int graph_add_free(struct graph_node **out, struct graph *g, dptr p);
int graph_node_params(const struct graph_node *n, char *params);
int graph_node_address(const struct graph_node *n, dptr *p);
size_t graph_nodes(const struct graph *g, void **nodes, size_t room);
struct graph_exec *graph_instantiate(struct graph *g, uint64_t flags);
int graph_launch(struct graph_exec *e, size_t *made); // *made: bytes that became real
void graph_exec_destroy(struct graph_exec *e);
size_t graph_has_memory(const struct graph *g);
size_t graph_exec_has_memory(const struct graph_exec *e);
int graph_free(struct range *r);
int graph_trim(int dev);
int graph_attribute(int dev, int attr, uint64_t *v, int set_it);
void graphs_reset(int dev);

// ---- the ledger, and the calls that are in it

// What a call did, for its line, beyond its arguments. BOOK clears it, the functions above fill it in.
extern struct note {
    struct context *ctx; // the current one when the call began
    int dev;             // whose memory it is; -1: nobody's, or the host's
    uint64_t other;      // the pool that memory is from, the handle that was mapped, what was imported
} note;

// A program may leave a call from here, by longjmp, an exception or the end of the thread: nothing has happened yet.
extern void (*standin_in_driver)(const char *function);

void book_begin(const char *function);
int book_end(const char *function, uint64_t ptr, size_t size, int rc); // gives rc
int alloc_fails(void);                                                 // STANDIN_FAIL_ALLOC
int free_fails(void);                                                  // STANDIN_FAIL_FREE

#ifndef RESULT
#define RESULT(rc) (rc) // in the API's own numbers
#endif

#define LOCKED(expr)                                                                                                   \
    ({                                                                                                                 \
        init();                                                                                                        \
        pthread_mutex_lock(&mu);                                                                                       \
        int rc_ = (expr);                                                                                              \
        pthread_mutex_unlock(&mu);                                                                                     \
        RESULT(rc_);                                                                                                   \
    })
// A call that is in the ledger. The line is written inside the lock, so the order of the lines is the order of the
// effects: another thread cannot be given an address before the line of its free is there.
#define BOOK(expr, ptr, n)                                                                                             \
    ({                                                                                                                 \
        book_begin(__func__);                                                                                          \
        int rc_ = (expr);                                                                                              \
        book_end(__func__, (uint64_t)(ptr), n, RESULT(rc_));                                                           \
    })
// One that hands out memory or a handle, and one that takes it back.
#define BOOK_ALLOC(expr, out, n) BOOK(alloc_fails() ? OUT_OF_MEMORY : (expr), rc_ ? 0 : (uint64_t)*(out), n)
#define BOOK_FREE(expr, ptr, n) BOOK(free_fails() ? ILLEGAL_ADDRESS : (expr), ptr, n)
// IN(c, expr) gives expr the current context as c, if there is one that can be used.
#define IN(c, expr)                                                                                                    \
    ({                                                                                                                 \
        struct context *c;                                                                                             \
        int use_ = ctx_to_use(&c);                                                                                     \
        use_ ? use_ : (expr);                                                                                          \
    })
