/* malloc of macOS for tests (libmalloc, magazine_malloc.c): what it gives has multiples of 16 bytes to 1,008, of 512 to 32 KiB; of an address at which
 * nothing begins that it gave the size is 0, as of what was freed. It has memory of its own, from which what was freed is given again; the links
 * between free pieces are in their first words. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

void *mac_malloc(size_t n);
void mac_free(void *p);
size_t mac_malloc_size(const void *p);
size_t mac_malloc_good_size(size_t n);

/* mac_stale is written to all words behind a request, up to what was given: what reads beyond an object finds it. */
void mac_stale(uint64_t word);

#ifdef __cplusplus
}
#endif
