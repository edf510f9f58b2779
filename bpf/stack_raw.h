/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Stacks that cannot be unwound here are sent as they are: the registers, a copy of the stack, and
 * the Python frames with the place of each activation. The tracer unwinds them by the same
 * .eh_frame, with all registers and every expression.
 */
#pragma once
#include "stack.h"

u64 raw_sent;
u64 raw_over_rate; /* not sent: more than RAW_PER_SECOND */
u64 raw_no_room;   /* not sent: the ring was filling up */
u64 raw_second;	   /* when the present second began, CLOCK_MONOTONIC */
u64 raw_in_second;

/* Two CPUs that begin a second at once let a few more through; that does no harm. */
static __always_inline bool raw_allowed(void)
{
	u64 now = bpf_ktime_get_ns();

	if (now - raw_second >= 1000000000ull) {
		raw_second = now;
		raw_in_second = 0;
	}
	if (raw_in_second >= RAW_PER_SECOND) {
		__sync_fetch_and_add(&raw_over_rate, 1);
		return 0;
	}
	void *to = ring_here();

	if (!to || bpf_ringbuf_query(to, BPF_RB_AVAIL_DATA) >
			   bpf_ringbuf_query(to, BPF_RB_RING_SIZE) / RAW_SHARE) {
		__sync_fetch_and_add(&raw_no_room, 1);
		return 0;
	}
	__sync_fetch_and_add(&raw_in_second, 1);
	return 1;
}

/*
 * Sends the stack from addr to the end of its page. Returns the bytes; 0: not readable, negative:
 * no room.
 */
BPF_GLOBAL int raw_page(u64 id, u64 addr)
{
	u32 len = RAW_PAGE - ((u32)addr & (RAW_PAGE - 1));
	void *to = ring_here();
	u64 time = bpf_ktime_get_ns();
	struct record_raw_page *r = to ? bpf_ringbuf_reserve(to, sizeof(*r), 0) : 0;

	if (!r)
		return -ENOSPC;
	if (target_read(r->data, len, addr)) {
		bpf_ringbuf_discard(r, BPF_RB_NO_WAKEUP);
		return 0;
	}
	r->type = RECORD_RAW_PAGE;
	r->time = time;
	r->len = len;
	r->id = id;
	r->addr = addr;
	bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
	return len;
}

/*
 * Sends the stack from below sp on, page by page, up to the thread's top or what cannot be read. 0
 * or -ENOSPC.
 */
static __always_inline int raw_pages(struct walk *w, u64 id)
{
	u64 addr = (w->sp - RAW_BELOW) & ~7ull, end = addr + RAW_BYTES;
	u64 top = w->stack_top > w->sp ? w->stack_top : ~0ull;

	for (int i = 0; i <= RAW_BYTES / RAW_PAGE; i++) {
		if (addr >= end || addr >= top)
			break;
		int n = raw_page(id, addr);
		if (n < 0)
			return -ENOSPC;
		if (!n)
			break;
		addr += n;
	}
	return 0;
}

/* The return addresses that return probes have replaced. */
static __always_inline void raw_slots(struct walk *w)
{
	struct uprobe_task *utask = walked(bpf_get_current_task_btf())->utask;

	if (!utask)
		return;
	struct return_instance *ri = utask->return_instances;
	for (int i = 0; i < MAX_RETURN_PROBES && ri; i++) {
		push_word(w, SLOT_WORD | ri->stack);
		push_word(w, ri->orig_ret_vaddr);
		ri = ri->next;
	}
}

/* Marks one activation. Returns 1 if none is left. */
BPF_GLOBAL int raw_activation(struct walk *w, struct unwind_info *p)
{
	if (!w || !p || w->python >= MAX_PYTHON || !py_pending(w, p))
		return 1;
	push_word(w, BOUNDARY_WORD | py_boundary(w, p));
	py_run(w, p);
	return 0;
}

DEFINE_STEPS(raw_activations, raw_activation)

/* Reads the Python frames once more, and marks the address of each activation. */
static __always_inline void raw_python(struct walk *w, struct unwind_info *p)
{
	w->python = w->nqueue = w->status = 0;
	w->py_bound = w->py_cframe = w->py_frame = 0;
	memory_copy_only(&w->mem);
	py_start(w, p);
	for (int i = 0; i < MAX_PYTHON / STEP_BATCH; i++) {
		if (raw_activations(w, p))
			break;
	}
	if (w->status) /* of the Python frames: more than the walk that broke off had to say */
		w->rec.status = w->status;
}

/*
 * Sends the stack whose registers save_registers left in the record. The copy has an id of its own,
 * which the event uses, because the whole stack is unknown until it is unwound. Returns whether it
 * was sent.
 */
BPF_GLOBAL int send_raw(struct walk *w, struct unwind_info *p)
{
	if (!w || !p)
		return 0;
	u64 partial = w->rec.words[RAW_PARTIAL];
	u64 id =
		(partial ^ bpf_get_current_pid_tgid() ^ bpf_ktime_get_ns() * HASH_MULT) * HASH_MULT;

	if (!raw_allowed())
		return 0;
	w->sp = w->rec.words[RAW_SP];
	w->rec.nwords = RAW_WORDS;
	raw_slots(w);
	raw_python(w, p);
	w->rec.type = RECORD_RAW;
	w->rec.hash = id;
	if (!raw_pages(w, id) && !send_words(w)) {
		__sync_fetch_and_add(&raw_sent, 1);
		return 1;
	}
	w->rec.hash = partial;
	__sync_fetch_and_add(&raw_no_room, 1);
	return 0;
}

/*
 * The registers at the probe in the order of DWARF, and the stack that the walk has come to. The
 * words of that stack are not needed any more.
 */
static __always_inline void save_registers(struct walk *w, struct pt_regs *ctx)
{
	raw_registers(ctx, w->rec.words);
	w->rec.words[RAW_PARTIAL] = w->rec.hash;
}

/* Whether user space may get further with a stack than the walk did. */
static __always_inline bool raw_helps(u8 status)
{
	return status == STACK_NO_MAPPING || status == STACK_NO_ROW || status == STACK_BAD_RULE;
}

/* Walks, and sends what could not be unwound as it is. Returns the stack's id, 0 for none. */
static __always_inline u64 stack_made(struct hit *h, struct walk *w, struct unwind_info *p,
				      u8 *status)
{
	*status = stack_walk(w, p);
	if (raw_helps(*status)) {
		save_registers(w, h->ctx);
		send_raw(w, p);
	}
	if (*status != STACK_LOST)
		return w->rec.hash;
	__sync_fetch_and_add(&h->traced->stacks_lost, 1);
	return 0;
}

/* Captures the stack of a call. It is walked each time: a call of the driver takes much longer. */
static __always_inline u64 stack_of_call(struct hit *h, u8 *status)
{
	struct unwind_info *p;
	struct walk_slot *s = stack_open(h, &p);

	*status = STACK_NO_SCRATCH;
	if (!s)
		return 0;
	u64 id = stack_made(h, &s->walk, p, status);
	slot_give_back(s);
	return id;
}
