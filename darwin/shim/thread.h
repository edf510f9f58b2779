/* SPDX-License-Identifier: Apache-2.0 */
/* What the shim knows of a thread. Thread-local variables of C would need dyld's help, which a library that is inserted should not
 * ask for inside an allocator: the places are in one array, and a pthread key has a thread's own. */
#pragma once
#include "emit.h"

#define THREADS 1024

/* A call of what is replaced, while it runs; call.h. */
struct call {
	uintptr_t frame; /* of the function that makes it; 0: there is none */
	enum ring_hook hook;
	uint64_t size, stack, flags;
	struct ring_pending *slot; /* where gputrace sees it; NULL: nowhere */
};

struct thread {
	uint64_t id;
	uintptr_t low, high; /* its stack */
	struct call request; /* of PyTorch's allocator */
	struct call making;  /* of a maker of Metal; those within it are parts of it */
	char used;
};

static struct thread threads[THREADS];
static pthread_key_t thread_key;
static int thread_ready;

static void thread_leaves(struct thread *t); /* in call.h */

static void thread_end(void *t)
{
	thread_leaves(t);
	__atomic_store_n(&((struct thread *)t)->used, 0, __ATOMIC_RELEASE);
}

static void thread_start(void)
{
	thread_ready = pthread_key_create(&thread_key, thread_end) == 0;
}

static void thread_fill(struct thread *t)
{
	pthread_t self = pthread_self();
	t->request = t->making = (struct call){ 0 };
	pthread_threadid_np(NULL, &t->id);
	t->high = (uintptr_t)pthread_get_stackaddr_np(self);
	t->low = t->high - pthread_get_stacksize_np(self);
}

/* thread_here is the calling thread's place; NULL: all are taken. */
static struct thread *thread_here(void)
{
	struct thread *t;
	if (!thread_ready)
		return NULL;
	t = pthread_getspecific(thread_key);
	if (t)
		return t;
	for (t = threads; t < threads + THREADS; t++) {
		if (__atomic_test_and_set(&t->used, __ATOMIC_ACQUIRE))
			continue;
		thread_fill(t);
		if (pthread_setspecific(thread_key, t) == 0)
			return t;
		thread_end(t);
		return NULL;
	}
	return NULL;
}
