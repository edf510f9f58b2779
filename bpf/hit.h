/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * One run of one probe. Each run that counts as a hit has exactly one outcome, so user space can
 * check that hits = emitted + without an event + dropped.
 */
#pragma once
#include "process.h"
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "target_bpf.h"

struct hit {
	struct pt_regs *ctx;
	struct task_struct *task; /* the current one: each helper that is called costs a return */
	struct traced *traced;
	struct hook *hook;
	struct hook_stats *stats;
	u32 index; /* of the process */
	u32 row;   /* of the hook table */
};

static __always_inline struct hook_stats *stats_of(u32 row)
{
	return bpf_map_lookup_elem(&stats, &row);
}

static __always_inline void count_outcome(struct hook_stats *s, enum outcome what)
{
	__sync_fetch_and_add(&s->outcome[what], 1);
}

static __always_inline void outcome(struct hit *h, enum outcome what)
{
	count_outcome(h->stats, what);
}

/* An event of the process is lost. Who sees the outcome also sees that it was this process's. */
static __always_inline void drop(struct hit *h, enum outcome what)
{
	__sync_fetch_and_add(&h->traced->lost, 1);
	count(events_lost);
	outcome(h, what);
}

/* The locks that a CPU holds, of the kind with a timeout: since Linux 6.15, the ring has one. */
struct rqspinlock_held {
	int cnt;
} RELOCATED;

/*
 * Whether the ring had room although it took no record, because its lock timed out: after 250 ms
 * (RES_DEF_TIMEOUT in asm-generic/rqspinlock.h), for example if the lock's owner is a virtual CPU
 * that does not run.
 */
static __noinline bool ring_has_room(void)
{
	void *from = ring_here();

	return bpf_core_type_exists(struct rqspinlock_held) && from &&
	       bpf_ringbuf_query(from, BPF_RB_AVAIL_DATA) <
		       bpf_ringbuf_query(from, BPF_RB_RING_SIZE) / 2;
}

/*
 * Reserves a record in the ring; NULL on failure. If the ring has room, tries once more: it may
 * have been full and read since.
 */
static __always_inline void *ring_reserve(const u64 size)
{
	void *from = ring_here();
	void *r = from ? bpf_ringbuf_reserve(from, size, 0) : 0;

	if (r || !ring_has_room())
		return r;
	from = ring_here();
	return from ? bpf_ringbuf_reserve(from, size, 0) : 0;
}

/* Returns why the ring took no record. */
static __always_inline enum outcome ring_refused(void)
{
	return ring_has_room() ? DROP_RING_LOCKED : DROP_RING_FULL;
}

/*
 * The cost of tracing a process: one run in TIMED_ONE_IN of each probe and CPU is timed. Multiples of
 * the golden ratio choose runs evenly without a period that a program's loop could have. The time
 * lies beside the counters that the run writes anyway. A run that left its CPU meanwhile does not
 * count, because it includes the time of other threads.
 */
static __always_inline bool time_is_due(u64 hits)
{
	return (u32)hits * 0x9E3779B9u < (u32)(0x100000000ull / TIMED_ONE_IN);
}

static __always_inline u64 switches_of(struct task_struct *task)
{
	return task->nvcsw + task->nivcsw;
}

static __always_inline void time_begin(struct hit *h)
{
	h->stats->timed = h->task->pid;
	h->stats->switches = switches_of(h->task);
	h->stats->began = bpf_ktime_get_ns();
}

/* Ends a run that may be the one that is timed. */
static __noinline int time_end(struct hook_stats *s, struct traced *t)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u64 took = bpf_ktime_get_ns() - s->began;

	if (s->timed != (u32)task->pid)
		return 0;
	s->timed = 0;
	if (switches_of(task) == s->switches && took <= TIMED_LONGEST) {
		__sync_fetch_and_add(&t->timed, 1);
		__sync_fetch_and_add(&t->timed_ns, took);
	}
	return 0;
}

/* Ends a run. */
static __always_inline void hit_end(struct hit *h)
{
	if (h->stats->timed)
		time_end(h->stats, h->traced);
}

/*
 * Whether the stack of a hit is left out, because the process is at its CPU budget. Failed requests
 * and marks keep theirs.
 */
static __always_inline bool leaves_out(struct hit *h, u8 kind)
{
	u32 share = h->traced->leave_out;

	return share && (kind == KIND_ALLOC || kind == KIND_FREE) && bpf_get_prandom_u32() <= share;
}

/* Finds the process. 0, or -ENOENT: it is not traced. */
static __always_inline int hit_process(struct hit *h, struct pt_regs *ctx)
{
	h->ctx = ctx;
	h->task = bpf_get_current_task_btf();
	h->traced = current_traced(h->task->tgid, &h->index);
	return h->traced ? 0 : -ENOENT;
}

/* Finds the row of the probe. 0, or -ENOENT: there is none. */
static __always_inline int hit_row(struct hit *h, struct pt_regs *ctx)
{
	h->row = bpf_get_attach_cookie(ctx) & (MAX_HOOKS - 1);
	h->hook = &hooks.row[h->row];
	h->stats = stats_of(h->row);
	return h->stats ? 0 : -ENOENT;
}

/* Starts a run: finds the process and counts the hit. 0, or -ENOENT: it is not traced. */
static __always_inline int hit_begin(struct hit *h, struct pt_regs *ctx)
{
	if (hit_process(h, ctx)) {
		count(not_traced);
		return -ENOENT;
	}
	if (hit_row(h, ctx))
		return -ENOENT;
	if (time_is_due(__sync_fetch_and_add(&h->stats->hits, 1)))
		time_begin(h);
	return 0;
}

/* Continues a run that was already counted, in another program. 0, or -ENOENT: the process is no longer traced. */
static __always_inline int hit_go_on(struct hit *h, struct pt_regs *ctx)
{
	if (hit_row(h, ctx))
		return -ENOENT;
	if (!hit_process(h, ctx))
		return 0;
	outcome(h, OUT_OUTSIDE);
	return -ENOENT;
}

static __always_inline void fill_event(struct record_event *e, struct traced *t, struct hook *k,
				       u32 row, u32 tid)
{
	e->type = RECORD_EVENT;
	e->kind = k->kind;
	e->layer = k->layer;
	e->stack_status = STACK_OK;
	e->device_type = k->device_type;
	e->device_index = -1;
	e->hook = row;
	e->pid = t->pid;
	e->tid = tid;
	e->call = row;
	e->object = k->object;
	e->running = 0;
	e->meaning = e->pad2 = 0;
	e->time = bpf_ktime_get_ns();
	e->addr = e->size = e->stack = 0;
	e->requested = e->stream = e->pool = UNKNOWN;
	e->allocated = e->reserved = UNKNOWN;
	e->next_node = e->node = UNKNOWN;
	e->node_class = e->thread = e->node_thread = 0;
}

static __always_inline void submit(struct hit *h, void *record)
{
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
	outcome(h, OUT_EMITTED);
}
