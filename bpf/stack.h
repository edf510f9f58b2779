/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The stack of a hit: found in the cache of walks, else walked and, when user space does not have
 * it, sent before its event, in the same ring, so that a reader always knows it.
 */
#pragma once
#include "hit.h"
#include "unwind.h"
#include "walk_cache.h"

_Static_assert(sizeof(struct record_code) <= PAGE_BYTES,
	       "a code record is built in the copy of Python's memory");

/*
 * Takes memory for a walk. A program can be preempted, so memory cannot belong to a CPU: a task
 * keeps its slot until its run ends. Each CPU begins its search at its own slots, which stay in its
 * caches. NULL: all slots that were tried are taken.
 */
static __always_inline struct walk_slot *slot_take(void)
{
	u32 first = bpf_get_smp_processor_id() * 2;

	for (u32 i = 0; i < SLOT_TRIES; i++) {
		u32 index = (first + i) & cfg_slot_mask;
		struct walk_slot *s = bpf_map_lookup_elem(&walk_slots, &index);

		if (s && !s->taken && !__sync_val_compare_and_swap(&s->taken, 0, 1))
			return s;
	}
	count(no_slot);
	return 0;
}

static __always_inline void slot_give_back(struct walk_slot *s)
{
	barrier();
	*(volatile u32 *)&s->taken = 0;
}

/* Goes to the registers at the probe. */
static __always_inline void stack_begin(struct hit *h, struct walk *w, struct info_ref *ref,
					struct unwind_info *p)
{
	struct task_struct *task = h->task;
	struct mm_struct *mm = walked(task)->mm;

	check_code(h->traced, ref, p, mm);
	w->first_pc = PROBE_PC(h->ctx);
	w->first_sp = PROBE_SP(h->ctx);
	w->first_fp = PROBE_FP(h->ctx);
	w->first_link = PROBE_LINK(h->ctx);
	w->tp = THREAD_POINTER(task);
	w->thread_start = task->start_time ^ (u64)task->pid << 32;
	w->mem.tables = (u64)mm->pgd;
	w->mem.in_place = target_in_place();
	w->stack_top = w->tp; /* glibc puts a thread's descriptor on top of its stack */
	if (w->tp < w->first_sp || w->tp - w->first_sp > (1ull << 32))
		w->stack_top = mm->start_stack;
	w->pid = h->traced->pid;
	walk_open(w);
}

/*
 * Takes memory for a walk of the process's stack and goes to where it begins. The info is in *p.
 * NULL: there is no info, or no memory.
 */
static __always_inline struct walk_slot *stack_open(struct hit *h, struct unwind_info **p)
{
	struct info_ref *ref = bpf_map_lookup_elem(&info_refs, &h->index);

	*p = ref ? info_of(ref) : 0;
	struct walk_slot *s = *p ? slot_take() : 0;

	if (s)
		stack_begin(h, &s->walk, ref, *p);
	return s;
}

/*
 * Copies what lies at `addr`: all of `len`, or up to the end of the page when the next one is not
 * there. Returns the bytes.
 */
static __always_inline u32 copy_chunk(u8 *dst, u32 len, u64 addr)
{
	if (!target_read(dst, len, addr))
		return len;
	u32 in_page = PAGE_BYTES - (addr & (PAGE_BYTES - 1));
	if (in_page >= len)
		return 0;
	barrier_var(in_page);
	if (in_page >= len)
		return 0;
	return target_read(dst, in_page, addr) ? 0 : in_page;
}

/* The pointer field at `off` of the code object in the record. */
static __always_inline u64 code_field(struct record_code *r, u16 off)
{
	return *(u64 *)(r->object + (off & (CODE_OBJECT_BYTES - 8)));
}

static __always_inline u64 hash_words_of(u64 id, u8 *from, u32 n)
{
	for (u32 i = 0; i < n; i++)
		id = (id ^ *(u64 *)(from + i * 8) ^ id >> 29) * HASH_MULT;
	return id;
}

/*
 * Distinguishes a code object from an earlier one at the same address, whose parts may have had the
 * same addresses too: by the addresses of its parts, and by the beginning of its name and of its
 * line table, after their headers.
 */
static __always_inline u64 code_id(struct record_code *r, struct python *py, u64 addr)
{
	u64 line = code_field(r, py->co_firstlineno & ~7) >> ((py->co_firstlineno & 4) * 8);
	u32 head = py->object_head & 48; /* behind it: sizes or constants and names, by version */
	u64 id = hash_words_of((addr ^ (u32)line) * HASH_MULT, r->object + head, 3);

	id = hash_words_of(id, (u8 *)&r->addr[CODE_QUALNAME], CODE_CHUNKS - CODE_QUALNAME);
	id = hash_words_of(id, r->qualname + head + 24, 6);
	id = hash_words_of(id, r->linetable + head, 1);
	return hash_words_of(id, r->linetable + head + 16, 6);
}

/* Whether the code object was not sent before; then its slot is in *seen. */
static __always_inline bool code_is_new(u64 addr, u64 id, u64 **seen)
{
	u32 index = ((addr * HASH_MULT) >> 40) & (SEEN_CODES - 1);

	*seen = bpf_map_lookup_elem(&seen_codes, &index);
	return *seen && **seen != id;
}

/*
 * Sends a code object unless it was sent before. The record is built in the copy of Python's
 * memory, which the walk no longer needs. Sent objects are noted by address, so the tracer has the
 * last object at each address: an object that comes back is sent again.
 */
BPF_GLOBAL int send_code(struct walk *w, struct unwind_info *p, u64 addr)
{
	if (!w || !p)
		return -EINVAL;
	struct record_code *r = (struct record_code *)w->mem.other;
	struct python *py = &p->python;

	r->len[CODE_OBJECT] = copy_chunk(r->object, CODE_OBJECT_BYTES, addr);
	if (r->len[CODE_OBJECT] < CODE_OBJECT_NEEDED)
		return -EFAULT;
	r->addr[CODE_OBJECT] = addr;
	r->addr[CODE_QUALNAME] = code_field(r, py->co_qualname);
	r->addr[CODE_NAME] = code_field(r, py->co_name);
	r->addr[CODE_FILENAME] = code_field(r, py->co_filename);
	r->addr[CODE_LINETABLE] = code_field(r, py->co_linetable);
	r->len[CODE_QUALNAME] =
		copy_chunk(r->qualname, CODE_QUALNAME_BYTES, r->addr[CODE_QUALNAME]);
	r->len[CODE_LINETABLE] =
		copy_chunk(r->linetable, CODE_LINETABLE_BYTES, r->addr[CODE_LINETABLE]);
	u64 id = code_id(r, py, addr) ^ p->stack_seed, *seen;
	if (!code_is_new(addr, id, &seen))
		return 0;
	r->type = RECORD_CODE;
	r->pid = w->rec.pid;
	r->len[CODE_NAME] = copy_chunk(r->name, CODE_NAME_BYTES, r->addr[CODE_NAME]);
	r->len[CODE_FILENAME] =
		copy_chunk(r->filename, CODE_FILENAME_BYTES, r->addr[CODE_FILENAME]);
	r->time = bpf_ktime_get_ns();
	if (ring_output(r, sizeof(*r), BPF_RB_NO_WAKEUP))
		return -ENOSPC;
	*seen = id;
	return 0;
}

/* Sends the code object of the Python frame of a number. Returns 1 when there is no such frame. */
BPF_GLOBAL int send_code_of(struct walk *w, struct unwind_info *p, u32 number)
{
	if (!w || !p || number >= w->python || number >= MAX_PYTHON)
		return 1;
	u32 at = w->code_word[number];
	if (at < MAX_WORDS)
		send_code(w, p, w->rec.words[at] & ~PYTHON_WORD);
	return 0;
}

/* Sends the code objects of some frames, from a number on. Returns 1 when there is no such frame. */
BPF_GLOBAL int send_some_codes(struct walk *w, struct unwind_info *p, u32 from)
{
	if (!w || !p)
		return 1;
	for (u32 i = 0; i < STEP_BATCH; i++) {
		if (send_code_of(w, p, from + i))
			return 1;
	}
	return 0;
}

/* Sends the code objects of the stack. */
BPF_GLOBAL int send_codes(struct walk *w, struct unwind_info *p)
{
	if (!w || !p)
		return -EINVAL;
	for (u32 i = 0; i < MAX_PYTHON / STEP_BATCH; i++) {
		if (send_some_codes(w, p, i * STEP_BATCH))
			break;
	}
	w->mem.window[ELSEWHERE].hi = w->mem.window[ELSEWHERE].lo; /* its copy is overwritten */
	return 0;
}

/* Sends the words of a stack as a record of its type. 0 or -ENOSPC. */
static __always_inline int send_words(struct walk *w)
{
	u32 n = w->rec.nwords;

	if (n > MAX_WORDS)
		return -E2BIG;
	w->rec.time = bpf_ktime_get_ns();
	return ring_output(&w->rec, __builtin_offsetof(struct record_stack, words) + n * 8,
			   BPF_RB_NO_WAKEUP)
		       ? -ENOSPC
		       : 0;
}

/* Sends the stack unless it was sent before. It is marked as sent only after success. */
static __always_inline void send_stack(struct walk *w, struct unwind_info *p)
{
	u64 *seen = seen_stack(w->rec.hash);

	if (!seen || *seen == w->rec.hash)
		return;
	if (w->python)
		send_codes(w, p);
	w->rec.type = RECORD_STACK;
	if (send_words(w))
		w->status = STACK_LOST;
	else
		*seen = w->rec.hash;
}

/* Walks and sends the stack. Returns its status. */
BPF_GLOBAL int stack_walk(struct walk *w, struct unwind_info *p)
{
	if (!w || !p)
		return STACK_NO_SCRATCH;
	count(walks_made);
	if (walk_stack(w, p) > 1)
		count(walks_by_copy);
	send_stack(w, p);
	return w->status;
}
