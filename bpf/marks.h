/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Marks the beginning of steps: ranges that PyTorch names, and calls of the backward pass. PyTorch
 * and users name many ranges; most of them begin no step and are dropped here.
 *
 * A mark occurs once a step, when the processor's caches no longer contain anything of a walk. So its
 * stack is walked until it was the same MARK_SAME times in a row, and then each MARK_AGAIN-th time.
 */
#pragma once
#include "torch.h"

#define MARKS	   256 /* of threads, functions and names whose stack is kept */
#define MARK_SAME  16
#define MARK_AGAIN 16

/* Direct mapped, without a lock: `check` holds key ^ stack. */
struct mark_seen {
	u64 check;
	u64 stack;
	u32 same;    /* how often in a row the stack was this one */
	u32 skipped; /* since it was walked */
};

struct mark_seen marks[MARKS];

/* The beginning of a name, as two words. */
#define RANGE_STEP_0 0x657a696d6974704full /* Optimize */
#define RANGE_STEP_1 0x0023706574732e72ull /* r.step# */
#define RANGE_NEXT_0 0x746172656d756e65ull /* enumerat */
#define RANGE_NEXT_1 0x6f4c617461442865ull /* e(DataLo */
#define SEVEN_BYTES  0x00ffffffffffffffull

/*
 * Whether a range is a call of an optimizer's step, or of a DataLoader's next: a number that tells
 * such names from each other, 0: it is neither. `name` is the address of a std::string, whose first
 * word leads to its text, in the old ABI too.
 */
BPF_GLOBAL u64 step_range(u64 name)
{
	u64 text, word[3];

	if (target_read(&text, 8, name) || target_read(word, 24, text))
		return 0;
	if ((word[0] == RANGE_STEP_0 && (word[1] & SEVEN_BYTES) == RANGE_STEP_1) ||
	    (word[0] == RANGE_NEXT_0 && word[1] == RANGE_NEXT_1))
		return (word[1] ^ word[2] * HASH_MULT) | 1;
	return 0;
}

/* Identifies one call site of a loop. */
static __always_inline u64 mark_key(struct hit *h, u64 range)
{
	u64 hash = hash_add(h->task->start_time ^ (u64)h->task->pid << 32, range);

	return hash_add(hash_add(hash, PROBE_SP(h->ctx)), PROBE_PC(h->ctx));
}

/* An event with a stack that is known. */
static __always_inline void mark_again(struct hit *h, u64 stack)
{
	struct record_event *e = ring_reserve(sizeof(*e));

	if (!e) {
		drop(h, ring_refused());
		return;
	}
	fill_event(e, h->traced, h->hook, h->row, h->task->pid);
	e->stack = stack;
	submit(h, e);
}

static __always_inline struct mark_seen *mark_place(u64 key)
{
	return &marks[key >> 32 & (MARKS - 1)];
}

/* The stack of a mark that need not be walked; 0: it is. */
BPF_GLOBAL u64 mark_known(u64 key)
{
	struct mark_seen *m = mark_place(key);
	u64 stack = m->stack;

	if ((m->check ^ stack) != key || m->same < MARK_SAME || m->skipped >= MARK_AGAIN - 1)
		return 0;
	m->skipped++;
	return stack;
}

/* Notes the stack of a mark; 0: it has none. */
BPF_GLOBAL int mark_note(u64 key, u64 stack)
{
	struct mark_seen *m = mark_place(key);

	m->same = stack && m->stack == stack && (m->check ^ stack) == key ? m->same + 1 : 0;
	m->skipped = 0;
	m->check = key ^ stack;
	m->stack = stack;
	return 0;
}

/*
 * Puts the key of a mark into an argument slot without a register, because the stack of BPF is
 * full. Returns whether the mark can begin a step.
 */
static __always_inline bool take_mark(struct hit *h, struct arguments_in_registers *a)
{
	if (h->hook->arg_ptr != ARG_NONE)
		a->arg[6] = step_range(a->arg[h->hook->arg_ptr & 7]);
	if (!a->arg[6])
		return 0;
	a->arg[6] = mark_key(h, a->arg[6]);
	return 1;
}

/* Returns whether the mark becomes an event whose stack is still unknown. */
static __always_inline bool torch_mark(struct hit *h, struct arguments_in_registers *a)
{
	if (!take_mark(h, a)) {
		outcome(h, OUT_OTHER);
		return 0;
	}
	u64 stack = mark_known(a->arg[6]);

	if (stack)
		mark_again(h, stack);
	return !stack;
}

/*
 * Handles a hit in PyTorch's layer: a report of its allocator, or a mark. Returns whether its stack
 * must be walked first.
 */
static __always_inline bool torch_hit(struct hit *h)
{
	bool is_mark = h->hook->kind == KIND_MARK;
	struct arguments_in_registers a;
	u64 stack;

	take_arguments(h, &a);
	if (h->hook->flags & HOOK_OFF) {
		outcome(h, OUT_OUTSIDE);
	} else if (is_mark ? torch_mark(h, &a) : torch_report(h, &a)) {
		if (!torch_event_recalled(h, &a, &stack))
			return 1;
		if (h->hook->kind == KIND_MARK)
			mark_note(a.arg[6], stack);
	}
	return 0;
}

/* Walks the stack of what torch_hit did not send, and sends it. */
static __always_inline void torch_walk(struct hit *h)
{
	struct arguments_in_registers a;

	take_arguments(h, &a);
	if (h->hook->kind == KIND_MARK)
		take_mark(h, &a);
	u64 stack = torch_event_walked(h, &a);

	if (h->hook->kind == KIND_MARK)
		mark_note(a.arg[6], stack);
}
