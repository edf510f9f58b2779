/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * One native frame: from the rule of its pc to its caller's pc, stack pointer and frame pointer.
 * The inputs of the result (words of the stack, and the frame pointer at the probe) are noted in
 * w->deps for the cache of walks.
 */
#pragma once
#include "unwind_rules.h"
#include "walk.h"

/* Notes that what the walk finds depends on the word at addr. */
static __always_inline void depends_on(struct walk *w, u64 addr)
{
	u64 at = addr - w->first_sp;
	u32 n = w->ndeps;

	barrier_var(n); /* the bound must be checked on what is used */
	if (at >> 19 || (at & 7) || n >= CACHED_WORDS) { /* 16 bits for the word's number */
		w->cacheable = 0;
		return;
	}
	w->dep[n] = at / 8;
	w->ndeps = n + 1;
	if (at + 8 > w->deps.span)
		w->deps.span = at + 8;
}

/* Notes that the walk depends on the frame pointer, whatever its source. */
static __always_inline void depends_on_fp(struct walk *w)
{
	if (w->fp_from)
		depends_on(w, w->fp_from);
	else
		w->deps.needs_fp = 1;
}

/* Notes that the frame [w->sp, cfa) is an eval loop's. */
static __always_inline void note_eval(struct walk *w, u64 cfa)
{
	u32 n = w->deps.nevals;
	u64 from = w->sp - w->first_sp, to = cfa - w->first_sp;

	barrier_var(n);
	if (n >= CACHED_EVALS || to >> 31) {
		w->cacheable = 0;
		return;
	}
	w->deps.eval[n] = (struct cached_eval){ from, to, w->native };
	w->deps.nevals = n + 1;
}

/*
 * The registers that a signal interrupted lie in the frame that the kernel pushed. 0 or -EFAULT,
 * with the status set.
 */
static __always_inline int step_signal(struct walk *w)
{
	u64 frame = w->sp, sp = 0;

	if (read_stack(w, frame + SIGNAL_FP, &w->fp) || read_stack(w, frame + SIGNAL_SP, &sp) ||
	    read_stack(w, frame + SIGNAL_PC, &w->pc) ||
	    (HAS_LINK && read_stack(w, frame + SIGNAL_LINK, &w->link))) {
		w->status = STACK_UNREADABLE;
		return -EFAULT;
	}
	depends_on(w, frame + SIGNAL_FP);
	depends_on(w, frame + SIGNAL_SP);
	depends_on(w, frame + SIGNAL_PC);
	w->fp_from = frame + SIGNAL_FP;
	w->link_from = frame + SIGNAL_LINK;
	w->sp = sp;
	w->caller = 0;
	return 0;
}

/* The canonical frame address: the stack pointer in the caller. 0: not known. */
static __always_inline u64 frame_address(struct walk *w, u64 rule)
{
	u64 cfa = 0, from = w->sp;

	switch (RULE_KIND(rule)) {
	case RULE_SP:
		return w->sp + RULE_CFA(rule);
	case RULE_FP_REG:
		depends_on_fp(w);
		return w->fp + RULE_CFA(rule);
	case RULE_PLT:
		return w->sp + RULE_CFA(rule) +
		       ((w->pc & 15) >= RULE_PLT_FROM(rule) ? RULE_PLT_ADD(rule) : 0);
	case RULE_DEREF_FP:
		depends_on_fp(w);
		from = w->fp;
		break;
	case RULE_DEREF_SP:
		break;
	default:
		return 0;
	}
	depends_on(w, from + RULE_CFA(rule));
	if (read_stack(w, from + RULE_CFA(rule), &cfa))
		w->status = STACK_UNREADABLE;
	return cfa;
}

/* Where the caller's frame pointer is saved; 0: it is in the register. */
static __always_inline u64 saved_fp(struct walk *w, u64 rule, u64 cfa)
{
	if (RULE_KIND(rule) == RULE_PLT || RULE_RETURN_AT_CFA(rule))
		return 0;
	if (RULE_FP_AT_FP(rule)) {
		depends_on_fp(w);
		return w->fp + RULE_FP(rule);
	}
	return RULE_FP_AT_CFA(rule) ? cfa + RULE_FP(rule) : 0;
}

/* Where the return address is saved; 0: it is in the link register. */
static __always_inline u64 saved_return(u64 rule, u64 cfa, u64 fp_at)
{
	if (!HAS_LINK)
		return cfa - 8;
	if (RULE_RETURN_AT_CFA(rule))
		return cfa + RULE_FP(rule);
	return fp_at ? fp_at + 8 : 0; /* a frame record: x29, x30 */
}

/*
 * Goes on to the return address that is still in the link register. 0, or -EFAULT: a caller has
 * overwritten it by its call.
 */
static __always_inline int return_by_link(struct walk *w)
{
	if (w->caller) {
		w->status = STACK_BAD_RULE;
		return -EFAULT;
	}
	if (w->link_from)
		depends_on(w, w->link_from);
	else
		w->deps.needs_fp = 1;
	w->pc = target_unsigned(w->link);
	return 0;
}

/* Goes on to the return address at an address of the stack; 0: in the link register. 0 or -EFAULT. */
static __always_inline int return_from(struct walk *w, u64 at)
{
	if (HAS_LINK && !at)
		return return_by_link(w);
	if (read_stack(w, at, &w->pc)) {
		w->status = STACK_UNREADABLE;
		return -EFAULT;
	}
	w->pc = target_unsigned(w->pc);
	depends_on(w, at);
	return 0;
}

/*
 * Whether a frame can end where it begins: a function that makes no call need not have a byte on the
 * stack where calls leave the return address in a register.
 */
static __always_inline bool leaf_without_frame(struct walk *w)
{
	return HAS_LINK && !w->caller;
}

/* Goes on to the caller of the frame that ends at cfa. 0 or -EFAULT, with the status set. */
static __always_inline int step_to_caller(struct walk *w, u64 rule, u64 cfa)
{
	u64 fp = w->fp, fp_at = saved_fp(w, rule, cfa);

	if (fp_at && read_stack(w, fp_at, &fp)) {
		w->status = STACK_UNREADABLE;
		return -EFAULT;
	}
	if (return_from(w, saved_return(rule, cfa, fp_at)))
		return -EFAULT;
	if (HAS_LINK && fp_at)
		depends_on(w, fp_at);
	if (fp_at)
		w->fp_from = fp_at;
	w->fp = fp;
	w->sp = cfa;
	w->caller = 1;
	return 0;
}

/*
 * Whether a return address that follows no function's code is the first byte of one: no call can
 * return there. The creator of the stack put it there, to run after the outermost function
 * (makecontext of glibc).
 */
static __always_inline bool is_made_stack(struct unwind_info *p, u64 pc)
{
	u64 rule = rule_for(p, pc);

	return RULE_KIND(rule) == RULE_SP && RULE_CFA(rule) == ENTRY_CFA;
}

/*
 * The rule of the current pc. A pending return probe of any tool has replaced the return address:
 * the real address is restored first.
 */
static __always_inline u64 current_rule(struct walk *w, struct unwind_info *p)
{
	u64 rule = rule_for(p, w->pc - w->caller);

	if (RULE_KIND(rule) != RULE_NONE || !w->caller)
		return rule;
	w->cacheable = 0;
	u64 original = target_replaced_return(w->sp - ENTRY_CFA);
	if (!original)
		return is_made_stack(p, w->pc) ? RULE_END : rule;
	w->pc = original;
	return rule_for(p, original - 1);
}
