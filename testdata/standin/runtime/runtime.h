// Inside the stand-in runtime.
#pragma once
#include <stddef.h>
#include <stdint.h>

typedef int cudaError; // cudaError_t
typedef uint64_t dptr;

enum { INSUFFICIENT_DRIVER = 35, INVALID_DEVICE = 101, NOT_READY = 600, NOT_SUPPORTED = 801 };

// struct cudaDeviceProp (driver_types.h), which the versions lay out differently: which device attribute is where.
struct field {
    short offset, attribute, wide; // wide: a size_t
};
struct layout {
    size_t size;
    const struct field *fields; // ends with offset 0
};
extern const struct layout properties_11, properties_12, properties_13;

struct ipc_handle { // cudaIpcMemHandle_t and cudaIpcEventHandle_t, passed by value
    char bytes[64];
};

// The driver's functions, without prototypes, so that the list is one name a row. Arguments must have the callee's
// widths. Not exported: another library's cuMemAlloc is the driver's.
#pragma GCC visibility push(hidden)
#define DRIVER(f) extern int (*f)();
#include "driver_calls.inc"
#undef DRIVER
extern int (*alloc_async_ptsz)(), (*alloc_from_pool_async_ptsz)(), (*free_async_ptsz)();

cudaError init(void);        // loads the driver, once
cudaError bind(void);        // makes the context of the thread's device current
cudaError fail(cudaError e); // keeps it for cudaGetLastError
#pragma GCC visibility pop

// A program may leave a call from these, before and behind the driver's part of it: by longjmp, an exception or the end
// of the thread. Nothing is locked then.
extern void (*standin_before_driver)(const char *function);
extern void (*standin_after_driver)(const char *function, cudaError result);

#define CALL(expr) /* with a context */                                                                                \
    ({                                                                                                                 \
        cudaError e_ = bind();                                                                                         \
        if (!e_) {                                                                                                     \
            if (standin_before_driver) standin_before_driver(__func__);                                                \
            e_ = (expr);                                                                                               \
            if (standin_after_driver) standin_after_driver(__func__, e_);                                              \
        }                                                                                                              \
        fail(e_);                                                                                                      \
    })
#define ASK(expr) /* without one */                                                                                    \
    ({                                                                                                                 \
        cudaError e_ = init();                                                                                         \
        fail(e_ ? e_ : (expr));                                                                                        \
    })

// redirect makes runtimes that are linked statically jump to this one (redirect.c).
void redirect(void);
