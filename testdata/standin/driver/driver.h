// Inside the stand-in driver: settings, the registry of address ranges, and the lock that orders everything.
#pragma once
#include "../standin.h"
#include <pthread.h>

// CUresult values (cuda.h).
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
    NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900,
};

enum { DRIVER_VERSION = 13020 };

typedef uint64_t dptr; // CUdeviceptr

extern struct settings {
    int devices, cc_major, cc_minor, logging;
    size_t device_mem, context_mem, copy_max, fail_free;
    uint64_t event_ns;
} set;

extern struct books *books;
extern pthread_mutex_t mu;

void init(void);       // reads the settings once per process, and again in a forked child
int cur_dev(void);     // device of the calling thread's context
void *ctx_of(int dev); // the primary context of a device
int charge(int dev, size_t n);
void refund(int dev, size_t n);
void pools_sync(void);

enum kind { DEVICE = 1, SLAB, ASYNC, MANAGED, HOST, REGISTERED, RESERVED, MAPPED, ARRAY };

// One range of address space. n is its length, asked what the caller wanted.
struct range {
    dptr p;
    size_t n, asked;
    enum kind kind;
    int dev;
    uint64_t handle;   // MAPPED: the physical memory
    struct pool *pool; // ASYNC
    size_t cls;        // SLAB: bytes of a slot
    unsigned live;     // SLAB: slots in use
    uint64_t bits[64]; // SLAB: which
};

struct range *range_find(dptr p);
struct range *range_exact(dptr p, enum kind kind);
struct range *range_slab(int dev, size_t cls); // one with a free slot, or NULL
struct range *range_add(dptr p, size_t n, enum kind kind, int dev, size_t asked);
void range_drop(struct range *r);

#define BIG (2ull << 20) // granularity of device memory on current GPUs
#define UP(n, a) (((n) + (a) - 1) / (a) * (a))
dptr map_big(size_t n, int prot); // n bytes of address space aligned to BIG, or 0
int dev_alloc(dptr *out, size_t n, int dev, enum kind kind);
int dev_free(dptr p);

void ledger(const char *func, uint64_t ptr, size_t size, int rc); // call with the lock held

#define LOCKED(expr)                                                                                                   \
    ({                                                                                                                 \
        init();                                                                                                        \
        pthread_mutex_lock(&mu);                                                                                       \
        int rc_ = (expr);                                                                                              \
        pthread_mutex_unlock(&mu);                                                                                     \
        rc_;                                                                                                           \
    })
// A call that hands out memory, and one that takes it back. The ledger's line is written inside the lock, so its order
// is the order of the effects: another thread cannot be given an address before the line of its free is there.
#define BOOK(expr, ptr, n)                                                                                             \
    ({                                                                                                                 \
        init();                                                                                                        \
        pthread_mutex_lock(&mu);                                                                                       \
        int rc_ = (expr);                                                                                              \
        ledger(__func__, (uint64_t)(ptr), n, rc_);                                                                     \
        pthread_mutex_unlock(&mu);                                                                                     \
        rc_;                                                                                                           \
    })
#define BOOK_ALLOC(expr, out, n) BOOK(expr, rc_ ? 0 : (uint64_t)*(out), n)
