/* SPDX-License-Identifier: Apache-2.0 */
/* The ring: it is made when the process first uses Metal, and written under one lock. Nothing here allocates or waits for a reader. */
#pragma once
#include "ring.h"
#include "system.h"
#include "answer.h"
#include "text.h"

#define DEFAULT_RING_BYTES (32u << 20)
#define MIN_RING_BYTES	   (64u << 10)
#define MAX_RING_BYTES	   (1u << 30)
#define RINGS		   64  /* of one process, by exec */
#define SPINS		   100 /* before the processor is given to another thread */

static struct ring_header *ring; /* NULL: there is none */
static uint32_t ring_pid;	 /* whose it is: a fork has the mapping, but no hooks */
static char ring_lock_word;
static char
	ring_folder[1024];  /* that gputrace named when it came late; empty: GPUTRACE_DIR says it */
static uint64_t ring_asked; /* likewise, bytes */

static uint64_t now(void)
{
	return clock_gettime_nsec_np(CLOCK_MONOTONIC_RAW);
}

/* active says whether hooks emit: there is a ring, somebody reads it, and it is this process's own. */
static int active(void)
{
	struct ring_header *r = ring;
	return r && !__atomic_load_n(&r->closed, __ATOMIC_RELAXED) &&
	       ring_pid == (uint32_t)getpid();
}

static void ring_lock(void)
{
	for (int i = 0; __atomic_test_and_set(&ring_lock_word, __ATOMIC_ACQUIRE); i++)
		if (i % SPINS == SPINS - 1)
			sched_yield();
}

static void ring_unlock(void)
{
	__atomic_clear(&ring_lock_word, __ATOMIC_RELEASE);
}

static void count(uint64_t *counter)
{
	__atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
}

static uint64_t power_of_two(uint64_t n)
{
	uint64_t size = MIN_RING_BYTES;
	while (size < n && size < MAX_RING_BYTES)
		size *= 2;
	return size;
}

static uint64_t ring_bytes(void)
{
	uint64_t n;
	const char *text = getenv("GPUTRACE_RING_BYTES");
	if (ring_asked)
		return power_of_two(ring_asked);
	if (!text || !*text)
		return DEFAULT_RING_BYTES;
	text_number(text, &n);
	return power_of_two(n);
}

/* ring_path writes the path of a file of this process in gputrace's folder; 0: there is no folder. */
static int ring_path(char *path, size_t bytes, const char *ending)
{
	const char *folder = *ring_folder ? ring_folder : getenv("GPUTRACE_DIR");
	struct text t = { path, path + bytes };
	if (!folder || !*folder || text_length(folder) > bytes - 64)
		return 0;
	text_add(&t, folder);
	text_add(&t, "/");
	text_add_number(&t, (uint64_t)getpid());
	text_add(&t, ending);
	return 1;
}

/* ring_touch makes an empty file, by which gputrace knows that the shim was loaded. */
static void ring_touch(const char *ending)
{
	char path[1024];
	int fd;
	if (!ring_path(path, sizeof path, ending))
		return;
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd >= 0)
		close(fd);
}

/* ring_create makes the file. A process that became another by exec has one already, which may not be read to its end. */
static int ring_create(void)
{
	char path[1024], ending[32];
	int fd = -1;
	for (uint64_t n = 1; fd < 0 && n <= RINGS; n++) {
		struct text t = { ending, ending + sizeof ending };
		if (n > 1) {
			text_add(&t, ".");
			text_add_number(&t, n);
		}
		text_add(&t, ".ring");
		if (!ring_path(path, sizeof path, ending))
			return -1;
		fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	}
	return fd;
}

/* ring_fill has the file have its room on the disk: to write by a mapping to what has none would end the process. */
static int ring_fill(int fd, uint64_t bytes)
{
	static char nothing[RING_HEADER_BYTES];
	for (uint64_t done = 0; done < bytes; done += sizeof nothing)
		if (write(fd, nothing, sizeof nothing) != sizeof nothing) {
			ftruncate(fd, 0);
			ring_touch(".full");
			return 0;
		}
	return 1;
}

static struct ring_header *ring_map(uint64_t bytes)
{
	void *at = MAP_FAILED;
	int fd = ring_create();
	if (fd < 0)
		return NULL;
	if (ring_fill(fd, bytes))
		at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	return at == MAP_FAILED ? NULL : at;
}

/* ring_start makes the ring: once in a process, and again for another gputrace. The first ring stays mapped because threads may still
 * write to it. A child of fork gets no ring: a thread that the child does not have may hold the lock. */
static void ring_start(void)
{
	uint64_t capacity = ring_bytes();
	struct ring_header *h, *made = NULL;
	if (ring_pid && ring_pid != (uint32_t)getpid())
		return;
	ring_lock();
	if (!ring_pid || (ring && ring->closed)) {
		ring_pid = (uint32_t)getpid();
		h = ring_map(RING_HEADER_BYTES + capacity + RING_ANSWER_BYTES);
		if (h) {
			h->magic = RING_MAGIC;
			h->version = RING_VERSION;
#ifdef __aarch64__
			h->arch = 2;
#else
			h->arch = 1;
#endif
			h->pid = ring_pid;
			h->capacity = capacity;
			h->time = now();
			__atomic_store_n(&h->started, 1, __ATOMIC_RELEASE);
			made = h;
		}
		ring = h;
	}
	ring_unlock();
	if (made)
		answer_start(made);
}

struct piece {
	const void *at;
	size_t bytes;
};

static void ring_copy(uint64_t to, const uint8_t *from, size_t bytes)
{
	uint8_t *data = (uint8_t *)ring + RING_HEADER_BYTES;
	uint64_t at = to & (ring->capacity - 1);
	size_t first = bytes < ring->capacity - at ? bytes : ring->capacity - at;
	__builtin_memcpy(data + at, from, first);
	__builtin_memcpy(data, from + first, bytes - first);
}

/* ring_put writes a record of several pieces, the first of which begins with struct ring_record. The lock is held. 0: there is no room. */
static int ring_put(struct ring_record *record, const struct piece *pieces, int n)
{
	uint64_t head = ring->head, tail = __atomic_load_n(&ring->tail, __ATOMIC_ACQUIRE),
		 at = head, size = 0;
	for (int i = 0; i < n; i++)
		size += pieces[i].bytes;
	size = (size + 7) & ~7ull;
	if (size > UINT32_MAX || head - tail + size > ring->capacity)
		return 0;
	record->size = (uint32_t)size;
	for (int i = 0; i < n; i++) {
		ring_copy(at, pieces[i].at, pieces[i].bytes);
		at += pieces[i].bytes;
	}
	__atomic_store_n(&ring->head, head + size, __ATOMIC_RELEASE);
	return 1;
}

/* words notes something that was found, for people and for tests. */
static void words(const char *key, const char *value)
{
	struct ring_words w = { .record.type = RECORD_WORDS,
				.key = (uint32_t)text_length(key),
				.value = (uint32_t)text_length(value) };
	struct piece pieces[] = { { &w, sizeof w }, { key, w.key }, { value, w.value } };
	if (!active())
		return;
	ring_lock();
	if (!ring_put(&w.record, pieces, 3))
		ring->names_lost++;
	ring_unlock();
}
