// An allocator that nobody knows: pools of a device each, memory by address, a free that says neither size nor device,
// and no error numbers. TestArena traces it by adding rows to the hook table.
#include "arena.h"
#include <stdlib.h>

struct arena {
    int device;
    size_t limit, used;
};

struct arena *arena_open(int device, size_t limit) {
    struct arena *a = calloc(1, sizeof(*a));
    a->device = device;
    a->limit = limit;
    return a;
}

void *arena_take(struct arena *a, size_t bytes) {
    if (a->used + bytes > a->limit) return 0;
    size_t *p = malloc(sizeof(*p)); // the memory itself is elsewhere
    *p = bytes;
    a->used += bytes;
    return p;
}

void arena_give(struct arena *a, void *memory) {
    if (!memory) return;
    a->used -= *(size_t *)memory;
    free(memory);
}

size_t arena_used(struct arena *a) { return a->used; }
