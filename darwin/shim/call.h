/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of what is replaced. An exception that leaves one returns to no code of ours: C catches none, and our frames are only unwound. So a
 * call is noted before, and is known to have been left when its thread comes again and its frame is not among the thread's any more. */
#pragma once
#include "event.h"

/* CALL is of a function that makes such a call: it has a frame, and its code lies where return addresses into it are known. */
#define CALL                                                                                       \
	__attribute__((noinline, disable_tail_calls,                                               \
		       section("__TEXT,__calls,regular,pure_instructions"))) static
extern const char calls_begin[] __asm("section$start$__TEXT$__calls");
extern const char calls_end[] __asm("section$end$__TEXT$__calls");

static void counters(const struct thread *t, int always); /* in metal.h */

/* call_runs returns whether a call is still running: a frame of the calling thread, whose caller's frame is the call's, returns into a
 * CALL. The place of the frame alone proves nothing, because the next call can have its frame there. */
static int call_runs(const struct thread *t, const struct call *c)
{
	uintptr_t *frame = __builtin_frame_address(0);
	while ((uintptr_t)frame < c->frame) {
		uintptr_t *next = frame_above(t, frame), pc;
		if (!next)
			return 0;
		pc = frame[1] & ADDRESS_BITS;
		if ((uintptr_t)next == c->frame)
			return pc > (uintptr_t)calls_begin && pc <= (uintptr_t)calls_end;
		frame = next;
	}
	return 0;
}

static void call_end(struct call *c)
{
	if (c->slot)
		__atomic_store_n(&c->slot->thread, 0, __ATOMIC_RELEASE);
	c->slot = NULL;
	c->frame = 0;
}

/* call_failed reports a request that did not return. */
static void call_failed(const struct thread *t, struct call *c)
{
	struct ring_event e = { .record.what = (uint16_t)c->hook,
				.requested = c->size,
				.size = RING_UNKNOWN,
				.offset = RING_UNKNOWN,
				.stack = c->stack,
				.flags = c->flags | FLAG_FAILED };
	call_end(c);
	counters(t, 1);
	emit(t, &e);
}

/* enter is begin, for hooks that calls can be left by: what was left is reported first. */
static struct thread *enter(enum ring_hook hook)
{
	struct thread *t = begin(hook);
	if (t && t->request.frame && !call_runs(t, &t->request))
		call_failed(t, &t->request);
	if (t && t->making.frame && !call_runs(t, &t->making))
		call_failed(t, &t->making);
	return t;
}

/* thread_leaves is for a thread that ends: it does not come again. */
static void thread_leaves(struct thread *t)
{
	struct call *calls[] = { &t->request, &t->making };
	for (int i = 0; i < 2; i++)
		if (calls[i]->frame && active())
			call_failed(t, calls[i]);
		else
			call_end(calls[i]);
}
