/* SPDX-License-Identifier: Apache-2.0 */
/* Answers gputrace's questions about the process's memory, from which gputrace learns who holds the tensors. A thread of our own answers
 * and sleeps between questions. It takes no lock of the program's: it reads memory through the kernel, which refuses an address that is not
 * mapped, and calls only those functions of malloc that take no lock. */
#pragma once
#include "ring.h"
#include "system.h"

#define ANSWER_PIECE 65536 /* bytes that are read at once */
#define ANSWER_PAGE                                                                                \
	RING_PAGE /* below the page of a Mac: what is refused as a whole is read by these */
#define ANSWER_SOON                                                                                \
	1000000u /* nanoseconds behind an answer in which the next question is waited for awake */
#define ANSWER_LATER  1000000000u /* likewise, with short pauses */
#define ANSWER_OBJECT 65536	  /* bytes of an object, at most */
#define PAUSE_SHORT   100	  /* microseconds */
#define PAUSE_LONG    20000
#define PAUSES_LOOK   25 /* long ones, from one look at the reader to the next */

static uint8_t answer_buffer[ANSWER_PIECE]; /* of the one thread that answers */
static uint64_t answer_list[RING_PAGES];
static char answer_pages[RING_ANSWER_BYTES / 64];

static uint64_t answer_piece(uint8_t *to, uint64_t at, uint64_t bytes)
{
	uint64_t got = 0;
	if (mach_vm_read_overwrite(mach_task_self_, at, bytes, (uintptr_t)answer_buffer, &got) !=
		    0 ||
	    got != bytes)
		return 0;
	__builtin_memcpy(to, answer_buffer, bytes);
	return bytes;
}

static uint64_t answer_memory(uint8_t *to, uint64_t at, uint64_t bytes)
{
	uint64_t done = 0;
	while (done < bytes) {
		uint64_t n = bytes - done < ANSWER_PIECE ? bytes - done : ANSWER_PIECE,
			 page = ANSWER_PAGE - ((at + done) & (ANSWER_PAGE - 1));
		if (!answer_piece(to + done, at + done, n)) {
			n = n < page ? n : page;
			if (!answer_piece(to + done, at + done, n))
				break;
		}
		done += n;
	}
	return done;
}

static uint64_t answer_regions(struct ring_region *to, uint64_t at)
{
	uint64_t n = 0, size = 0;
	for (; n < RING_ANSWER_BYTES / sizeof *to; at += size) {
		struct region_info info = { 0 };
		uint32_t depth = 0, words = sizeof info / 4;
		if (mach_vm_region_recurse(mach_task_self_, &at, &size, &depth, &info, &words) !=
			    0 ||
		    !size)
			break;
		to[n++] = (struct ring_region){
			at,	  at + size,	   (uint32_t)info.protection,
			info.tag, info.share_mode, info.submap || info.external_pager
		};
	}
	return n * sizeof *to;
}

static uint64_t answer_present(uint8_t *to, uint64_t at, uint64_t bytes)
{
	uint64_t page = (uint64_t)getpagesize(), first = at & -page,
		 n = (at - first + bytes + page - 1) / page;
	if (n > sizeof answer_pages)
		n = sizeof answer_pages;
	__builtin_memcpy(to, &page, sizeof page);
	if (mincore((void *)first, n * page, answer_pages) != 0)
		return 0;
	for (uint64_t i = 0; i < n; i++)
		to[sizeof page + i] = (answer_pages[i] & (MINCORE_INCORE | MINCORE_PAGED_OUT)) != 0;
	return sizeof page + n;
}

static uint64_t answer_images(struct ring_image *to, uint64_t from)
{
	uint64_t n = 0;
	for (uint32_t i = (uint32_t)from, of = _dyld_image_count();
	     i < of && n < RING_ANSWER_BYTES / sizeof *to; i++)
		to[n++] = (struct ring_image){ (uintptr_t)_dyld_get_image_header(i),
					       (uint64_t)_dyld_get_image_vmaddr_slide(i),
					       (uintptr_t)_dyld_get_image_name(i) };
	return n * sizeof *to;
}

static uint64_t answer_symbol(uint64_t *to, const struct ring_question *q)
{
	char name[RING_NAME];
	__builtin_memcpy(name, q->name, sizeof name);
	name[sizeof name - 1] = 0;
	*to = (uintptr_t)dlsym(RTLD_DEFAULT, name);
	return sizeof *to;
}

static uint64_t answer_at_once(uint8_t *to, uint64_t n)
{
	if (n > RING_PAGES)
		n = RING_PAGES;
	__builtin_memcpy(answer_list, to, n * sizeof *answer_list);
	for (uint64_t i = 0; i < n; i++)
		to[n * RING_PAGE + i] =
			answer_piece(to + i * RING_PAGE, answer_list[i], RING_PAGE) != 0;
	return n * (RING_PAGE + 1);
}

/* answer_least returns the smallest request for which malloc returns a block of bytes bytes, or 0 if no request does, as for memory of a
 * zone that is not malloc's own. The bytes after the request may still have their old contents. */
static uint64_t answer_least(uint64_t bytes)
{
	uint64_t less = 0, least = bytes;
	if (!bytes || bytes > ANSWER_OBJECT || malloc_good_size(bytes) != bytes)
		return 0;
	while (least - less > 1) {
		uint64_t middle = less + (least - less) / 2;
		if (malloc_good_size(middle) == bytes)
			least = middle;
		else
			less = middle;
	}
	return least;
}

/* answer_sizes asks malloc for the sizes of mapped addresses that may be blocks of its own. An address at the start of a page is left out:
 * for it malloc looks for a large block, and takes the lock of its zone. The object's word is read last: if it is still there, the size
 * belongs to the object's memory. */
static uint64_t answer_sizes(struct ring_size *to, uint64_t n)
{
	if (n > RING_SIZES)
		n = RING_SIZES;
	for (uint64_t i = 0; i < n; i++) {
		uint64_t start = __atomic_load_n(&to[i].start, __ATOMIC_RELAXED), word = 0, least;
		if (start & 15 || !(start & (ANSWER_PAGE - 1)) ||
		    !answer_piece((uint8_t *)&word, start, sizeof word))
			start = 0;
		least = start ? answer_least(malloc_size((const void *)start)) : 0;
		word = 0;
		answer_piece((uint8_t *)&word, to[i].object, sizeof word);
		to[i] = (struct ring_size){ word, least };
	}
	return n * sizeof *to;
}

static uint64_t answer(struct ring_header *h)
{
	struct ring_question *q = &h->question;
	uint8_t *to = (uint8_t *)h + RING_HEADER_BYTES + h->capacity;
	uint64_t at = q->address, bytes = q->bytes;
	if (bytes > RING_ANSWER_BYTES)
		bytes = RING_ANSWER_BYTES;
	switch (q->kind) {
	case ASK_MEMORY:
		return answer_memory(to, at, bytes);
	case ASK_REGIONS:
		return answer_regions((struct ring_region *)to, at);
	case ASK_PRESENT:
		return answer_present(to, at, q->bytes);
	case ASK_IMAGES:
		return answer_images((struct ring_image *)to, at);
	case ASK_SYMBOL:
		return answer_symbol((uint64_t *)to, q);
	case ASK_PAGES:
		return answer_at_once(to, bytes);
	case ASK_SIZES:
		return answer_sizes((struct ring_size *)to, bytes);
	}
	return 0;
}

/* reader_gone tells whether gputrace was killed: it closes the ring otherwise. */
static int reader_gone(const struct ring_header *h)
{
	uint64_t reader = __atomic_load_n(&h->reader, __ATOMIC_RELAXED);
	return reader && reader <= INT32_MAX && kill((int)reader, 0) != 0 && *__error() == ESRCH;
}

/* answer_run answers until gputrace reads the ring no more. */
static void *answer_run(void *ring)
{
	struct ring_header *h = ring;
	struct ring_question *q = &h->question;
	uint64_t last = 0;
	unsigned pauses = 0;
	while (!__atomic_load_n(&h->closed, __ATOMIC_RELAXED)) {
		uint64_t asked = __atomic_load_n(&q->asked, __ATOMIC_ACQUIRE), since;
		if (asked != q->answered) {
			uint64_t begun = clock_gettime_nsec_np(CLOCK_MONOTONIC_RAW);
			q->got = answer(h);
			last = clock_gettime_nsec_np(CLOCK_MONOTONIC_RAW);
			q->took = last - begun;
			__atomic_store_n(&q->answered, asked, __ATOMIC_RELEASE);
			continue;
		}
		if (pauses == PAUSES_LOOK) {
			pauses = 0;
			if (reader_gone(h))
				__atomic_store_n(&h->closed, 1, __ATOMIC_RELAXED);
		}
		since = clock_gettime_nsec_np(CLOCK_MONOTONIC_RAW) - last;
		if (since < ANSWER_SOON) {
			sched_yield();
		} else if (since < ANSWER_LATER) {
			usleep(PAUSE_SHORT);
		} else {
			usleep(PAUSE_LONG);
			pauses++;
		}
	}
	return NULL;
}

/* answer_start makes the thread. It takes no signal: those are for the program's own. */
static void answer_start(struct ring_header *h)
{
	uint32_t all = ~0u, before;
	pthread_t thread;
	if (pthread_sigmask(SIG_SETMASK, &all, &before) != 0)
		return;
	if (pthread_create(&thread, NULL, answer_run, h) == 0)
		pthread_detach(thread);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}
