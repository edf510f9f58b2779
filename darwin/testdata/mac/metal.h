/* Metal for tests: the classes of Apple's drivers as crash reports and headers show them, over memory that is not there. All that
 * is allocated and freed is written to a ledger, the oracle of the tests. */
#pragma once
#include "objc.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RECOMMENDED_BYTES (1ull << 30) /* recommendedMaxWorkingSetSize */
#define DRIVER_BYTES                                                                               \
	(3ull << 20) /* what the driver has for itself, which only currentAllocatedSize shows */

id MTLCopyAllDevices(void);
id MTLCreateSystemDefaultDevice(void);

/* What calls of other images to these two go to: dyld sets them where a library replaces them. */
extern id (*copy_all_devices)(void);
extern id (*create_default_device)(void);
id real_copy_all_devices(void);
id real_create_default_device(void);

/* A descriptor of a heap or a texture; the fake has no objects for them. */
struct descriptor {
	uint64_t bytes;
};

/* refuse throws an exception, for a request that is too large. NULL: there is none. */
extern void (*refuse)(void);

/* ledger writes a line: what happened, and numbers. */
void ledger(const char *what, uint64_t object, uint64_t a, uint64_t b, uint64_t c);

#ifdef __cplusplus
}
#endif
