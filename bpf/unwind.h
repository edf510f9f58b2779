/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The walk: native frames one by one, with the Python frames behind the eval loops that run them.
 * The stack is then in w->rec, and w->status says how complete it is.
 */
#pragma once
#include "unwind_native.h"
#include "unwind_python.h"

/* One native frame, and the Python frames that it runs. Returns 1 when the walk is over. */
BPF_GLOBAL int walk_step(struct walk *w, struct unwind_info *p)
{
	if (!w || !p)
		return 1;
	u64 rule = current_rule(w, p);
	u32 kind = RULE_KIND(rule);

	push_word(w, w->pc);
	w->native++;
	if (kind == RULE_END)
		return 1;
	if (kind == RULE_NONE || kind == RULE_UNSUPPORTED) {
		w->status = rule & RULE_NO_MAPPING ? STACK_NO_MAPPING
			    : kind == RULE_NONE	   ? STACK_NO_ROW
						   : STACK_BAD_RULE;
		return 1;
	}
	if (kind == RULE_SIGNAL)
		return step_signal(w) != 0;

	u64 cfa = frame_address(w, rule);
	if (w->status == STACK_UNREADABLE)
		return 1;
	if (cfa < w->sp || (cfa == w->sp && !leaf_without_frame(w))) {
		w->status = STACK_ORDER;
		return 1;
	}
	if (w->py_state == PY_UNREAD)
		py_start(w, p);
	if (is_eval_frame(w, p, cfa)) {
		note_eval(w, cfa);
		py_run(w, p);
	}
	if (step_to_caller(w, rule, cfa))
		return 1;
	return w->pc == 0; /* some outermost frames have no rule but a zero */
}

/* Sets the fields that a cached walk needs too. */
static __always_inline void walk_open(struct walk *w)
{
	memory_close_windows(&w->mem);
	w->python_hash = 0;
	w->status = 0;
	w->no_node = 0;
}

/* Goes to where the walk begins: to the registers that first_pc and so on hold. */
static __always_inline void walk_begin(struct walk *w, struct unwind_info *p)
{
	walk_open(w);
	w->pc = w->first_pc;
	w->sp = w->first_sp;
	w->fp = w->first_fp;
	w->link = w->first_link;
	w->fp_from = w->link_from = 0;
	w->cacheable = !(w->sp & 7);
	w->cache_key = p->cache_key;
	w->caller = w->native = w->python = w->nqueue = 0;
	w->py_state = PY_UNREAD;
	w->py_bound = w->py_cframe = w->py_frame = 0;
	w->hash = p->stack_seed + p->mappings_stale;
}

DEFINE_STEPS(walk_steps, walk_step)

/* Walks once. Returns whether the memory stayed unchanged. */
static __always_inline bool walk_once(struct walk *w, struct unwind_info *p)
{
	int done = 0;

	walk_begin(w, p);
	w->deps.needs_fp = w->deps.nevals = w->deps.span = w->ndeps = 0;
	w->rec.nwords = 0;
	w->rec.pid = w->pid;
	for (int i = 0; i < MAX_NATIVE / STEP_BATCH; i++) {
		done = walk_steps(w, p);
		if (done)
			break;
	}
	if (!done)
		w->status = STACK_TOO_DEEP;
	u32 claimed = w->python;
	if (done && (w->status != STACK_TOO_DEEP || w->nqueue))
		py_rest(w, p);
	if (w->python != claimed)
		w->cacheable = 0;
	w->rec.hash = hash_add(w->hash, w->python_hash);
	w->rec.status = w->status;
	return memory_was_stable(&w->mem);
}

/* Walks, and repeats the walk by copies if a page was moved meanwhile. Returns the number of walks. */
static __always_inline int walk_stack(struct walk *w, struct unwind_info *p)
{
	if (walk_once(w, p))
		return 1;
	memory_copy_only(&w->mem);
	walk_once(w, p);
	return 2;
}
