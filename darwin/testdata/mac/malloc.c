/* What malloc_size says can be made wrong by GPUTRACE_FAKE_SIZES: large (twice as much), zero, random. */
#define _GNU_SOURCE
#include "malloc.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ARENA	(64ull << 20)
#define QUANTUM 16
#define LARGEST 32768
#define CLASSES (LARGEST / QUANTUM + 1)

struct piece {
	struct piece *next;
	uint64_t check;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint8_t *arena;
static uint64_t used;
static uint16_t given[ARENA / QUANTUM]; /* quanta of what begins there */
static struct piece *freed[CLASSES];
static uint64_t stale;

size_t mac_malloc_good_size(size_t n)
{
	if (n <= 1008)
		return n ? (n + 15) / 16 * 16 : 16;
	if (n <= LARGEST)
		return (n + 511) / 512 * 512;
	return (n + 16383) / 16384 * 16384;
}

void mac_stale(uint64_t word)
{
	stale = word;
}

void *mac_malloc(size_t n)
{
	size_t size = mac_malloc_good_size(n);
	uint8_t *p;
	if (size > LARGEST)
		abort(); /* no object is that large */
	pthread_mutex_lock(&lock);
	if (!arena)
		arena = mmap(NULL, ARENA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			     0);
	if (freed[size / QUANTUM]) {
		p = (uint8_t *)freed[size / QUANTUM];
		freed[size / QUANTUM] = freed[size / QUANTUM]->next;
	} else {
		if (used + size > ARENA)
			abort();
		p = arena + used;
		used += size;
	}
	given[(p - arena) / QUANTUM] = (uint16_t)(size / QUANTUM);
	pthread_mutex_unlock(&lock);
	for (size_t at = (n + 7) / 8 * 8; stale && at < size; at += 8)
		memcpy(p + at, &stale, sizeof stale);
	return p;
}

void mac_free(void *p)
{
	struct piece *piece = p;
	uint64_t i = ((uint8_t *)p - arena) / QUANTUM;
	if (!p)
		return;
	pthread_mutex_lock(&lock);
	piece->next = freed[given[i]];
	piece->check = ~(uint64_t)piece->next;
	freed[given[i]] = piece;
	given[i] = 0;
	pthread_mutex_unlock(&lock);
}

static size_t size_of(const void *p)
{
	uint64_t offset = (uint64_t)p - (uint64_t)arena;
	if (!arena || offset >= ARENA || offset % QUANTUM)
		return 0;
	return (size_t)given[offset / QUANTUM] * QUANTUM;
}

size_t mac_malloc_size(const void *p)
{
	static unsigned random = 1;
	const char *wrong = getenv("GPUTRACE_FAKE_SIZES");
	if (!wrong)
		return size_of(p);
	if (!strcmp(wrong, "large"))
		return mac_malloc_good_size(2 * size_of(p)) * (size_of(p) != 0);
	if (!strcmp(wrong, "random"))
		return mac_malloc_good_size((random = random * 1103515245 + 12345) >> 16 & 4095);
	return 0;
}
