/* SPDX-License-Identifier: Apache-2.0 */
/* Events, and how runs of hooks are counted: each ends in exactly one of emitted, quiet and dropped. */
#pragma once
#include "stack.h"

static void quiet(enum ring_hook hook, enum ring_quiet why)
{
	count(&ring->counters[hook].quiet[why]);
}

static void dropped(enum ring_hook hook, enum ring_drop why)
{
	count(&ring->counters[hook].dropped[why]);
}

/* begin counts a run of a hook and finds its thread; NULL: nothing is to be emitted. */
static struct thread *begin(enum ring_hook hook)
{
	struct thread *t;
	if (!active())
		return NULL;
	count(&ring->counters[hook].hits);
	t = thread_here();
	if (!t)
		dropped(hook, DROP_NO_THREAD);
	return t;
}

/* totals fills in the allocator's own total, in the lock: allocations were counted by it before they are reported, and frees are after.
 * NULL: what was allocated is known without it. */
static void (*totals)(struct ring_event *e);

/* emit sends an event; the hook, and what is particular, are filled in. Its time is taken under the lock: events are in order. */
static void emit(const struct thread *t, struct ring_event *e)
{
	enum ring_hook hook = e->record.what;
	struct piece piece = { e, sizeof *e };
	int fits;
	e->record.type = RECORD_EVENT;
	e->thread = t->id;
	e->allocated = RING_UNKNOWN;
	ring_lock();
	if (totals)
		totals(e);
	if (!e->time)
		e->time = now();
	fits = ring_put(&e->record, &piece, 1);
	ring_unlock();
	if (fits)
		count(&ring->counters[hook].emitted);
	else
		dropped(hook, DROP_NO_ROOM);
}
