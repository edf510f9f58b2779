// The interface of libarena.so.
#pragma once
#include <stddef.h>

struct arena;
struct arena *arena_open(int device, size_t limit);
void *arena_take(struct arena *a, size_t bytes); // 0: there is no room
void arena_give(struct arena *a, void *memory);
size_t arena_used(struct arena *a);
