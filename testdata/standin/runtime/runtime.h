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
