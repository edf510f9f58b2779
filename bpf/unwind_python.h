/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * CPython's frames. The interpreter keeps them in a chain of its own, innermost first; the walk
 * pushes those of one activation of the eval loop when it comes to that native frame. How an
 * activation ends depends on the version (enum py_entry). Layouts are found and proved by package
 * cpython.
 */
#pragma once
#include "walk.h"

#define TSTATE_BYTES 1024 /* a thread state is shorter, and no stack begins so near to one */
#define CODE_TAGS    7ull /* the low bits of a pointer to a code object, which 3.14 uses itself */

/*
 * Whether shims lead from one activation to the next, from 3.13 on: before, the cframes do.
 */
static __always_inline bool by_shim(struct unwind_info *p)
{
	return p->python.ts_cframe == NO_FIELD && p->python.entry == PY_ENTRY_SHIM;
}

static __always_inline bool on_c_stack(struct walk *w, u64 addr)
{
	return addr > w->sp && addr < w->stack_top;
}

/*
 * Without a GIL a frame may run its thread's own copy of the bytecode. Returns the same instruction
 * in the code object.
 */
BPF_GLOBAL u64 own_instruction(struct unwind_info *p, u64 code, u64 instr, u32 copy)
{
	u64 list = 0, start = 0;

	if (!p || !copy || target_read(&list, 8, code + p->python.co_copies) ||
	    target_read(&start, 8, list + 8 + 8ull * copy))
		return instr;
	return instr - start + code + p->python.co_start;
}

/* Reads the fields of the frame at f, wherever it lies. A field 0 is read by a copy. */
BPF_GLOBAL int read_frame(struct walk *w, struct unwind_info *p, u64 f)
{
	if (!w || !p)
		return -EINVAL;
	struct python *py = &p->python;
	struct py_frame *s = &w->frame;

	if (read_elsewhere(w, f + py->f_instr, &s->instr) ||
	    read_elsewhere(w, f + py->f_previous, &s->previous) ||
	    read_elsewhere(w, f + py->f_code, &s->code) ||
	    (py->instr_size != 4 && read_elsewhere(w, f + (py->f_owner & ~7), &s->owners)) ||
	    (py->f_copy != NO_FIELD && read_elsewhere(w, f + py->f_copy, &s->copy)))
		return -EFAULT;
	return 0;
}

/* Reads the fields of a frame that lies on one page, without a call. Returns whether it could. */
static __always_inline bool read_frame_in_place(struct walk *w, struct unwind_info *p, u64 f,
						struct py_frame *s)
{
	struct python *py = &p->python;
	u64 at = window_at(&w->mem, ELSEWHERE, f, py->f_size);

	if (!at)
		return 0;
	s->instr = target_shown_word(at + py->f_instr);
	s->previous = target_shown_word(at + py->f_previous);
	s->code = target_shown_word(at + py->f_code);
	if (py->instr_size != 4)
		s->owners = target_shown_word(at + (py->f_owner & ~7));
	if (py->f_copy != NO_FIELD)
		s->copy = target_shown_word(at + py->f_copy);
	return 1;
}

/*
 * Reads the frame at py_frame into *s and goes on to its caller. With `sure` a link to a caller that
 * is 0 is read again by a copy.
 */
static __always_inline int py_step(struct walk *w, struct unwind_info *p, struct py_frame *s,
				   bool sure)
{
	struct python *py = &p->python;
	u64 f = w->py_frame;

	s->pushed = 0;
	s->last = 1;
	if (!f)
		return 0;
	s->owners = s->copy = 0;
	if (!read_frame_in_place(w, p, f, s) || (sure && !s->previous)) {
		w->frame.owners = w->frame.copy = 0;
		if (read_frame(w, p, f))
			return -EFAULT;
		s->instr = w->frame.instr;
		s->previous = w->frame.previous;
		s->code = w->frame.code;
		s->owners = w->frame.owners;
		s->copy = w->frame.copy;
	}
	w->py_frame = s->previous;
	u8 owner = s->owners >> ((py->f_owner & 7) * 8);
	if (py->entry == PY_ENTRY_SHIM && owner >= py->owner_shim) {
		w->py_bound = f;
		return 0;
	}
	s->pushed = 1;
	s->code &= ~CODE_TAGS;
	if (s->copy)
		s->instr = own_instruction(p, s->code, s->instr, s->copy);
	if (py->instr_size == 4)
		s->instr = (u32)s->instr;
	if (py->entry != PY_ENTRY_SHIM)
		s->last = py->instr_size == 4 || owner; /* up to 3.10 each is an activation */
	else if (on_c_stack(w, s->previous))
		w->py_bound = s->previous; /* only a shim lies there: it is read on arrival */
	else
		s->last = 0;
	return 0;
}

/*
 * Queues the Python frame at py_frame and goes on to its caller. Returns 1 when the activation ends
 * with it.
 */
BPF_GLOBAL int collect_one(struct walk *w, struct unwind_info *p)
{
	if (!w || !p)
		return 1;
	struct py_frame s;

	if (py_step(w, p, &s, 1)) {
		w->status = STACK_PYTHON_STATE;
		w->py_state = PY_NONE;
		return 1;
	}
	barrier();
	if (!s.pushed)
		return 1;
	u32 n = w->nqueue; /* read where it is checked: 6.1 forgets the bounds of what is spilled */

	barrier_var(n);
	if (n <= 2 * MAX_PYTHON - 2) {
		w->queue[n] = s.code | PYTHON_WORD;
		w->queue[n + 1] = s.instr;
		w->nqueue = n + 2;
	} else {
		w->status = STACK_TOO_DEEP;
		if (!by_shim(p)) /* whose place among the native frames is behind the chain */
			return 1;
	}
	return s.last;
}

/*
 * Queues the frames of one activation and leaves py_frame at the next one's. With shims it also
 * sets py_bound: the shim lies in the C frame of the eval loop itself.
 */
static __always_inline int collect_activation(struct walk *w, struct unwind_info *p)
{
	w->nqueue = 0;
	w->py_bound = 0;
	for (int i = 0; i < MAX_CHAIN; i++) {
		if (collect_one(w, p))
			break;
	}
	return w->py_state == PY_ACTIVE ? 0 : -EFAULT;
}

/* One multiplication after the other instead of two: each has to be waited for. */
static __always_inline u64 hash_python(u64 hash, u64 code, u64 instr)
{
	return hash_add(hash, code ^ instr * HASH_MULT);
}

#define QUEUE_BATCH 32 /* frames that one call appends: the verifier checks so many */
_Static_assert(MAX_PYTHON % QUEUE_BATCH == 0, "MAX_PYTHON frames are appended");

/* Appends some of the queued frames, from number `from` on, of n, to the record. */
BPF_GLOBAL int push_queued(struct walk *w, u32 from, u32 n)
{
	if (!w)
		return -EINVAL;
	u64 hash = w->python_hash;

	for (u32 i = 0; i < QUEUE_BATCH; i++) {
		u32 q = from + i, k = w->rec.nwords + 2 * q, number = w->python + q;

		barrier_var(q);
		barrier_var(k);
		barrier_var(number);
		if (q >= n || q >= MAX_PYTHON || k >= MAX_WORDS - 1 || number >= MAX_PYTHON)
			break;
		u64 code = w->queue[2 * q], instr = w->queue[2 * q + 1];
		w->rec.words[k] = code;
		w->rec.words[k + 1] = instr;
		w->code_word[number] = k;
		hash = hash_python(hash, code, instr);
	}
	w->python_hash = hash;
	return 0;
}

/* Appends the queued frames to the record. */
static __always_inline void push_queue(struct walk *w)
{
	u32 n = w->nqueue / 2, at = w->rec.nwords, first = w->python;

	if (!n)
		return;
	w->python_hash = hash_add(w->python_hash, w->native);
	if (first + n > MAX_PYTHON) {
		w->status = STACK_TOO_DEEP;
		n = first < MAX_PYTHON ? MAX_PYTHON - first : 0;
	}
	if (at + 2 * n > MAX_WORDS) {
		w->status = STACK_TOO_DEEP;
		n = at < MAX_WORDS ? (MAX_WORDS - at) / 2 : 0;
	}
	for (u32 i = 0; i < MAX_PYTHON / QUEUE_BATCH; i++) {
		if (i * QUEUE_BATCH >= n)
			break;
		push_queued(w, i * QUEUE_BATCH, n);
	}
	w->rec.nwords = at + 2 * n;
	w->python = first + n;
	w->nqueue = 0;
}

static __always_inline int py_broken(struct walk *w)
{
	w->status = STACK_PYTHON_STATE;
	w->py_state = PY_NONE;
	return -EFAULT;
}

/*
 * Reads where the thread's state is, in place and without a call; it may be 0 where it is not.
 * Returns whether it could.
 */
static __always_inline bool thread_state_in_place(struct walk *w, struct unwind_info *p, u64 *state)
{
	struct python *py = &p->python;
	u64 at = window_at(&w->mem, ELSEWHERE, w->tp + py->tls, 8);

	if (!at)
		return 0;
	*state = target_shown_word(at);
	if (py->tls_block == NO_FIELD || !*state)
		return 1;
	at = window_at(&w->mem, ELSEWHERE, *state + py->tls_block, 8);
	if (!at)
		return 0;
	*state = target_shown_word(at);
	return 1;
}

/* The result of pthread_self: on arm64 the descriptor lies below the thread pointer. */
static __always_inline u64 thread_id(struct walk *w, struct python *py)
{
	return HAS_LINK ? w->tp - py->pthread_bytes : w->tp;
}

/* py_find_thread in place and without a call. Returns whether it could. */
static __always_inline bool find_thread_in_place(struct walk *w, struct unwind_info *p)
{
	struct python *py = &p->python;
	u64 state = 0;

	w->py_state = PY_NONE;
	w->py_frame = w->py_cframe = 0;
	if (!py->enabled)
		return 1;
	if (!thread_state_in_place(w, p, &state))
		return 0;
	if (!state)
		return 1;
	u64 at = window_at(&w->mem, ELSEWHERE, state, py->ts_size);
	if (!at || target_shown_word(at + py->ts_thread_id) != thread_id(w, py))
		return 0;
	if (py->ts_frame != NO_FIELD)
		w->py_frame = target_shown_word(at + py->ts_frame);
	if (py->ts_cframe != NO_FIELD)
		w->py_cframe = target_shown_word(at + py->ts_cframe);
	w->py_thread = state;
	w->py_state = PY_ACTIVE;
	return 1;
}

/*
 * Finds this thread's PyThreadState through its pthread key (right with the GIL released too),
 * proves it by its thread id, and takes the head of the frame chain.
 */
BPF_GLOBAL int py_find_thread(struct walk *w, struct unwind_info *p)
{
	if (!w || !p)
		return -EFAULT;
	struct python *py = &p->python;
	u64 *state = &w->py_thread, *thread = &w->frame.code;

	w->py_state = PY_NONE;
	w->py_frame = w->py_cframe = 0;
	if (!py->enabled)
		return 0;
	if (read_elsewhere(w, w->tp + py->tls, state) || !*state)
		return 0; /* not a thread that runs Python */
	if (py->tls_block != NO_FIELD &&
	    (read_elsewhere(w, *state + py->tls_block, state) || !*state))
		return 0;
	if (read_elsewhere(w, *state + py->ts_thread_id, thread) || *thread != thread_id(w, py) ||
	    (py->ts_frame != NO_FIELD && read_elsewhere(w, *state + py->ts_frame, &w->py_frame)) ||
	    (py->ts_cframe != NO_FIELD && read_elsewhere(w, *state + py->ts_cframe, &w->py_cframe)))
		return py_broken(w);
	w->py_state = PY_ACTIVE;
	return 0;
}

BPF_GLOBAL int py_start(struct walk *w, struct unwind_info *p)
{
	if (!w || !p || py_find_thread(w, p))
		return -EFAULT;
	if (w->py_state == PY_ACTIVE && by_shim(p))
		return collect_activation(w, p);
	return 0;
}

/* Goes past the cframe at `at`: to the next cframe, and to the frames of this one. */
BPF_GLOBAL int read_cframe(struct walk *w, struct unwind_info *p, u64 at)
{
	if (!w || !p)
		return -EINVAL;
	struct python *py = &p->python;

	if (read_stack(w, at + py->cf_previous, &w->py_cframe) ||
	    (py->cf_frame != NO_FIELD && read_stack(w, at + py->cf_frame, &w->py_frame)))
		return -EFAULT;
	return 0;
}

/* Pushes the frames of the next activation. */
BPF_GLOBAL int py_run(struct walk *w, struct unwind_info *p)
{
	if (!w || !p)
		return -EINVAL;
	struct python *py = &p->python;

	if (py->entry == PY_ENTRY_CODE) {
		if (!w->py_frame) /* none: those before it may have got their callers' */
			w->status = STACK_PYTHON_STATE;
	} else if (by_shim(p)) {
		u64 shim = w->py_bound;

		push_queue(w);
		if (w->py_frame == shim && read_stack(w, shim + py->f_previous, &w->py_frame))
			return py_broken(w);
	} else {
		u64 cframe = w->py_cframe;

		w->py_cframe = 0;
		if (read_cframe(w, p, cframe))
			return py_broken(w);
	}
	if (collect_activation(w, p))
		return -EFAULT;
	if (!by_shim(p))
		push_queue(w);
	return 0;
}

/* Where on the C stack the eval loop lies whose Python frames come next; 0: not known. */
static __always_inline u64 py_boundary(struct walk *w, struct unwind_info *p)
{
	if (p->python.entry == PY_ENTRY_CODE)
		return 0;
	return by_shim(p) ? w->py_bound : w->py_cframe;
}

/* Whether the C frame's code is the eval loop's. */
static __always_inline bool in_eval_loop(struct walk *w, struct unwind_info *p)
{
	u64 pc = w->pc - w->caller;

	for (int i = 0; i < EVAL_PARTS; i++)
		if (pc >= p->python.eval[i].start && pc < p->python.eval[i].end)
			return 1;
	return 0;
}

/* Whether the C frame [w->sp, cfa) is the eval loop whose Python frames come next. */
static __always_inline bool is_eval_frame(struct walk *w, struct unwind_info *p, u64 cfa)
{
	if (w->py_state != PY_ACTIVE)
		return 0;
	if (p->python.entry == PY_ENTRY_CODE)
		return in_eval_loop(w, p);
	u64 at = py_boundary(w, p);

	return at >= w->sp && at < cfa;
}

/* Whether there are Python frames that were not pushed. */
static __always_inline bool py_pending(struct walk *w, struct unwind_info *p)
{
	if (w->py_state != PY_ACTIVE)
		return 0;
	if (p->python.entry == PY_ENTRY_CODE)
		return w->py_frame != 0;
	if (by_shim(p))
		return w->nqueue || w->py_bound;
	if (w->py_cframe - w->py_thread < TSTATE_BYTES) /* the outermost is no activation's */
		return 0;
	return w->py_cframe && (p->python.cf_frame != NO_FIELD || w->py_frame);
}

/* Pushes one activation that no native frame claimed. Returns 1 if none is left. */
BPF_GLOBAL int py_rest_one(struct walk *w, struct unwind_info *p)
{
	if (!w || !p || w->python >= MAX_PYTHON || !py_pending(w, p))
		return 1;
	if (p->python.entry == PY_ENTRY_CODE && !w->status)
		w->status = STACK_PYTHON_STATE; /* a frame without an activation */
	py_run(w, p);
	return 0;
}

DEFINE_STEPS(py_rest_some, py_rest_one)

/* Pushes the Python frames that no native frame claimed: they matter if the native walk broke off. */
static __always_inline void py_rest(struct walk *w, struct unwind_info *p)
{
	for (int i = 0; i < MAX_PYTHON / STEP_BATCH; i++) {
		if (py_rest_some(w, p))
			break;
	}
}
