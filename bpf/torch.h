/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The reports of PyTorch's caching allocator: a block that is allocated or freed, with the totals,
 * and a request that fails. The row names the meaning of each argument.
 */
#pragma once
#include "autograd.h"
#include "stack_raw.h"

/* Where the caller of the report has the address of the Block; 0: not known. */
static __always_inline u64 block_slot(struct walk *w, struct block_layout *l)
{
	u64 *ret = &w->block.stack;

	if (!l->count)
		return 0;
	if (HAS_LINK)
		*ret = w->first_link;
	else if ((read_word_fast(&w->mem, ON_STACK, w->first_sp, ret) || !*ret) &&
		 read_stack(w, w->first_sp, ret))
		return 0;
	for (u32 i = 0; i < MAX_SITES; i++)
		if (i < l->count && l->site[i].ret == *ret)
			return (l->site[i].base_sp ? w->first_sp + ENTRY_CFA : w->first_fp) +
			       l->site[i].offset;
	count(site_unknown);
	return 0;
}

static __always_inline void block_unknown(struct block *b)
{
	b->requested = b->stream = b->pool = UNKNOWN;
}

/* Reads the Block at `at`. Returns whether it could, and whether the Block belongs to the report. */
BPF_GLOBAL int copy_block(struct walk *w, struct block_layout *l, u64 at)
{
	if (!w || !l)
		return 0;
	struct block *b = &w->block;

	/* The fields of w->block hold what is compared, too: the stack of BPF has no room. */
	return !read_elsewhere(w, at + l->ptr, &b->pool) &&
	       !read_elsewhere(w, at + l->size, &b->requested) && b->pool == w->report.addr &&
	       b->requested == w->report.size &&
	       !read_elsewhere(w, at + l->requested, &b->requested) &&
	       !read_word_unsure(&w->mem, ELSEWHERE, at + l->stream, &b->stream) &&
	       !read_elsewhere(w, at + l->pool, &b->pool);
}

/*
 * Reads the Block whose address is at `slot`. Its content is used only if its address and size
 * equal those of the report.
 */
static __always_inline void take_block(struct walk *w, struct block_layout *l, u64 slot)
{
	struct block *b = &w->block;
	u64 block;

	if (read_word_fast(&w->mem, ON_STACK, slot, &block))
		return;
	u64 at = window_at(&w->mem, ELSEWHERE, block, l->bytes);

	if (at && target_shown_word(at + l->ptr) == w->report.addr &&
	    target_shown_word(at + l->size) == w->report.size) {
		b->requested = target_shown_word(at + l->requested);
		b->stream = target_shown_word(at + l->stream);
		b->pool = target_shown_word(at + l->pool);
		if (b->requested && b->pool)
			return;
	}
	if (!copy_block(w, l, block))
		block_unknown(b);
}

/* The allocator's Block, through a stack slot of its caller: no second probe is needed for it. */
static __always_inline void read_block(struct walk *w, struct block_layout *l)
{
	u64 slot = block_slot(w, l);

	if (slot)
		take_block(w, l, slot);
}

/* Reads the Block again, by copies. */
BPF_GLOBAL int read_block_again(struct walk *w, struct unwind_info *p)
{
	if (!w || !p)
		return -EINVAL;
	block_unknown(&w->block);
	memory_copy_only(&w->mem);
	read_block(w, &p->block);
	return 0;
}

/* Reads the Block of an allocation, whose stack is then walked. */
BPF_GLOBAL int read_block_surely(struct walk *w, struct unwind_info *p)
{
	if (!w || !p || w->report.kind != KIND_ALLOC)
		return -EINVAL;
	read_block(w, &p->block);
	return memory_was_stable(&w->mem) ? 0 : read_block_again(w, p);
}

/*
 * Reads the Block of an allocation, and looks for its stack among the cached walks. Returns whether
 * it need not be walked.
 */
BPF_GLOBAL int find_origin(struct walk *w, struct unwind_info *p)
{
	if (!w || !p)
		return 0;
	bool has_block = w->report.kind == KIND_ALLOC, found = 1;

	w->found = 0;
	if (!w->report.left_out)
		cached_walk_touch(w);
	if (has_block)
		read_block(w, &p->block); /* first: its place is where the walk begins */
	if (!w->report.left_out)
		found = cached_walk_find(w, p);
	else
		memory_was_stable(&w->mem);
	if (w->mem.moved && has_block)
		read_block_again(w, p);
	return found;
}

/* The first six arguments of a function. */
struct arguments_in_registers {
	u64 arg[8];
};

static __always_inline void take_arguments(struct hit *h, struct arguments_in_registers *a)
{
	register_arguments(h->ctx, a->arg);
	a->arg[6] = a->arg[7] = UNKNOWN;
}

/*
 * Reads the arguments that the row names (none for a mark). Then the kind is the event's.
 */
static __always_inline void read_report(struct hit *h, struct arguments_in_registers *a,
					struct report *r)
{
	struct hook *k = h->hook;

	r->addr = a->arg[k->arg_ptr & 7];
	r->size = a->arg[k->arg_size & 7];
	r->allocated = a->arg[k->arg_allocated & 7];
	r->reserved = a->arg[k->arg_reserved & 7];
	r->device = a->arg[k->arg_device & 7];
	r->kind = k->kind;
	if (r->kind != KIND_ALLOC) {
		r->addr = 0;
	} else if ((s64)r->size < 0) {
		r->kind = KIND_FREE;
		r->size = -r->size;
	}
}

/* Sends a freed block as a short record, unless its stack is wanted. */
static __always_inline void torch_free(struct hit *h, struct arguments_in_registers *a)
{
	struct record_free *e = ring_reserve(sizeof(*e));
	struct report r;

	if (!e) {
		drop(h, ring_refused());
		return;
	}
	read_report(h, a, &r);
	e->type = RECORD_FREE;
	e->device_type = r.device;
	e->device_index = r.device >> 8;
	e->pad = 0;
	e->hook = h->row;
	e->pad2 = 0;
	e->pid = h->traced->pid;
	e->tid = h->task->pid;
	e->time = bpf_ktime_get_ns();
	e->addr = r.addr;
	e->size = r.size;
	e->allocated = r.allocated;
	e->reserved = r.reserved;
	submit(h, e);
}

/* Sends an event with the data in the memory of a walk; w is NULL if there was no memory. */
static __always_inline void torch_event(struct hit *h, struct report *r, struct walk *w)
{
	struct record_event *e = ring_reserve(sizeof(*e));

	if (!e) {
		drop(h, ring_refused());
		return;
	}
	fill_event(e, h->traced, h->hook, h->row, h->task->pid);
	e->kind = r->kind;
	e->device_type = r->device;
	e->device_index = r->device >> 8;
	e->addr = r->addr;
	e->size = r->size;
	e->allocated = r->allocated;
	e->reserved = r->reserved;
	e->stack_status = STACK_NO_SCRATCH;
	if (w) {
		e->stack_status = w->block.stack_status;
		e->stack = w->block.stack;
		e->requested = w->block.requested;
		e->stream = w->block.stream;
		e->pool = w->block.pool;
		e->next_node = w->autograd.next;
		e->node = w->autograd.node;
		e->node_class = w->autograd.node_class;
		e->thread = w->autograd.thread;
		e->node_thread = w->autograd.node_thread;
		e->running = w->autograd.running;
	}
	submit(h, e);
}

/*
 * Takes memory for the walk of an event, and notes the report there. The info is in *p. NULL: there
 * was none, and the event was sent without a stack.
 */
static __always_inline struct walk_slot *torch_open(struct hit *h, struct arguments_in_registers *a,
						    struct unwind_info **p)
{
	struct walk_slot *s = stack_open(h, p);

	if (!s) {
		struct report r;

		read_report(h, a, &r);
		torch_event(h, &r, 0);
		return 0;
	}
	read_report(h, a, &s->walk.report);
	block_unknown(&s->walk.block);
	return s;
}

/*
 * Sends an event whose stack need not be walked, and puts the stack into *stack, 0 where it has
 * none. Returns whether it could.
 */
static __always_inline bool torch_event_recalled(struct hit *h, struct arguments_in_registers *a,
						 u64 *stack)
{
	struct unwind_info *p;
	struct walk_slot *s = torch_open(h, a, &p);

	*stack = 0;
	if (!s)
		return 1;
	struct walk *w = &s->walk;

	w->report.left_out = leaves_out(h, w->report.kind);
	bool found = find_origin(w, p);

	if (found) {
		*stack = w->block.stack = w->found;
		w->block.stack_status = w->report.left_out ? STACK_LEFT_OUT : STACK_OK;
		/* Not atomic: one that is lost now and then does no harm. */
		h->stats->cached += !w->report.left_out;
		read_autograd(w, p);
		torch_event(h, &w->report, w);
	}
	slot_give_back(s);
	return found;
}

/* Walks the stack and sends an event with it. Returns the stack, 0 where it is not whole. */
static __always_inline u64 torch_event_walked(struct hit *h, struct arguments_in_registers *a)
{
	struct unwind_info *p;
	struct walk_slot *s = torch_open(h, a, &p);

	if (!s)
		return 0;
	struct walk *w = &s->walk;
	u8 status = STACK_OK;

	read_block_surely(w, p);
	w->block.stack = stack_made(h, w, p, &status);
	read_autograd(w, p);
	w->deps.no_node = w->autograd.known && !w->autograd.running;
	if (status == STACK_OK && cached_walk_store(w))
		count(walks_stored);
	w->block.stack_status = status;
	torch_event(h, &w->report, w);
	u64 stack = status == STACK_OK ? w->block.stack : 0;

	slot_give_back(s);
	return stack;
}

/*
 * c10::reportMemoryUsageToProfiler: one block that is allocated (positive size) or freed, and
 * c10::reportOutOfMemoryToProfiler. Returns whether it becomes an event with a stack.
 */
static __always_inline bool torch_report(struct hit *h, struct arguments_in_registers *a)
{
	bool is_request = h->hook->kind == KIND_OUT_OF_MEMORY;
	s64 size = a->arg[h->hook->arg_size & 7];

	if ((u8)a->arg[h->hook->arg_device & 7] == 0) /* c10::DeviceType::CPU */
		outcome(h, OUT_NOT_DEVICE);
	else if (!size && !is_request)
		outcome(h, OUT_NOTHING);
	else if (size < 0 && !is_request && !cfg_free_stacks)
		torch_free(h, a);
	else
		return 1;
	return 0;
}
