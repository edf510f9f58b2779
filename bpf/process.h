/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Tracks which processes are traced, and their forks, execs and exits. A child is covered from its
 * first instruction: it has the memory map of its parent, so it borrows the parent's unwind info
 * until it has one of its own.
 */
#pragma once
#include "maps.h"
#include <bpf/bpf_core_read.h>

#define CLAIM_TRIES 64		/* places that are looked at for a new process */
#define PID_LEVELS  33		/* PID namespaces in each other: MAX_PID_NS_LEVEL and the first */
#define FIRST_PIDNS 0xEFFFFFFCu /* inode of the first one: PROC_PID_INIT_INO, linux/proc_ns.h */

/*
 * Process -> index of `traced` and `info_refs`. pids has the numbers of the initial PID namespace,
 * which the kernel returns cheaply. Its entries are made at the first hit, from ns_pids, which user
 * space fills with the numbers that it sees, and for new processes.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2 * MAX_TRACED);
	__type(key, u32);
	__type(value, u32);
} pids SEC(".maps"), ns_pids SEC(".maps");

u32 claim_next;	       /* place that is tried next for a new process */
u64 children_lost;     /* new processes that are not traced: there was no place */
u64 process_news_lost; /* records of processes that did not fit the ring */

/*
 * Processes that were found last, by their number in the initial PID namespace: that number, the
 * index and the other number in one word. It is valid if the place still has a process of that
 * number. The hash table costs 31 ns, this array 1 ns.
 */
#define KNOWN	 1024
#define PID_BITS 22 /* PID_MAX_LIMIT of linux/threads.h */
#define PID_MASK ((1u << PID_BITS) - 1)
_Static_assert(MAX_TRACED <= 1 << (64 - 2 * PID_BITS), "an index has what is left");

u64 known[KNOWN];

/*
 * The number of a process in the tracer's PID namespace, which may be further out than the
 * process's own; 0: it has none. The task is its first thread.
 */
static __always_inline u32 pid_in_namespace(struct task_struct *task)
{
	if (cfg_pidns_ino == FIRST_PIDNS)
		return task->pid;
	struct pid *pid = task->thread_pid;
	u32 level = pid->level;

	for (u32 i = 0; i < PID_LEVELS; i++) {
		if (i > level)
			break;
		struct upid *u = (void *)pid + bpf_core_field_offset(struct pid, numbers) +
				 i * bpf_core_type_size(struct upid);
		if (BPF_CORE_READ(u, ns, ns.inum) == cfg_pidns_ino)
			return BPF_CORE_READ(u, nr);
	}
	return 0;
}

/* Finds a process by the number that user space knows. */
static __noinline u32 *find_in_namespace(u32 tgid)
{
	u32 pid = pid_in_namespace(bpf_get_current_task_btf()->group_leader);
	u32 *index = pid ? bpf_map_lookup_elem(&ns_pids, &pid) : 0;

	if (index)
		bpf_map_update_elem(&pids, &tgid, index, 0);
	return index;
}

static __noinline struct traced *find_traced(u32 tgid, u32 *at)
{
	u32 *index = bpf_map_lookup_elem(&pids, &tgid);

	if (!index)
		index = find_in_namespace(tgid);
	if (!index)
		return 0;
	*at = *index;
	struct traced *t = bpf_map_lookup_elem(&traced, index);
	if (t)
		known[tgid & (KNOWN - 1)] =
			(u64)*index << 2 * PID_BITS | (u64)t->pid << PID_BITS | tgid;
	return t;
}

/* The current process and its index; NULL: it is not traced. */
static __always_inline struct traced *current_traced(u32 tgid, u32 *index)
{
	u64 k = known[tgid & (KNOWN - 1)];

	*index = k >> 2 * PID_BITS;
	if ((k & PID_MASK) == tgid) {
		struct traced *t = bpf_map_lookup_elem(&traced, index);

		if (t && t->state == TRACED_NOW && t->pid == (k >> PID_BITS & PID_MASK))
			return t;
	}
	return find_traced(tgid, index);
}

static __always_inline void send_process(struct traced *t, u32 index, u8 change, u32 parent,
					 u64 wakeup)
{
	struct record_process r = { .type = RECORD_PROCESS,
				    .change = change,
				    .pid = t->pid,
				    .time = bpf_ktime_get_ns(),
				    .parent = parent,
				    .index = index };

	bpf_get_current_comm(r.name, sizeof(r.name));
	if (ring_output(&r, sizeof(r), wakeup))
		__sync_fetch_and_add(&process_news_lost, 1);
}

/*
 * Finds a free place. The kernel uses the second half: user space uses the first half for processes
 * that it learns of. 0: there is none.
 */
static __always_inline u32 claim_place(void)
{
	for (u32 i = 0; i < CLAIM_TRIES; i++) {
		u32 turn = __sync_fetch_and_add(&claim_next, 1);
		u32 index = MAX_TRACED / 2 + (turn & (MAX_TRACED / 2 - 1));
		struct traced *t = bpf_map_lookup_elem(&traced, &index);

		if (t && !t->state &&
		    !__sync_val_compare_and_swap(&t->state, TRACED_FREE, TRACED_NOW))
			return index;
	}
	return 0;
}

/*
 * Makes a new process use its parent's unwind info. It does not have `uncopied` of the parent's
 * executable pages.
 */
BPF_GLOBAL int borrow_info(struct traced *t, u32 from, u32 to, u64 uncopied)
{
	struct info_ref *theirs = bpf_map_lookup_elem(&info_refs, &from);
	struct info_ref *ref = bpf_map_lookup_elem(&info_refs, &to);
	struct traced *c = bpf_map_lookup_elem(&traced, &to);

	if (!t || !theirs || !ref || !c)
		return -EINVAL;
	c->children = 1;
	c->execs = 0;
	c->lost = 0;
	c->changes = 0;
	c->leave_out = c->timed = 0;
	c->timed_ns = 0;
	c->code_pages = t->code_pages;
	if (!theirs->borrowed) {
		u32 info = theirs->info;
		struct unwind_info *p = bpf_map_lookup_elem(&unwind_infos, &info);

		if (!p)
			return -ENOENT;
		c->code_pages = p->code_pages;
	}
	c->code_pages -= uncopied;
	ref->info = theirs->info;
	ref->next = NO_INFO;
	ref->borrowed = 1;
	return 0;
}

/*
 * Executable pages that a child does not get from its parent: the kernel's own for probes. They are
 * VM_DONTCOPY: xol_add_vma and create_uprobe_trampoline of kernel/events/uprobes.c.
 */
static __always_inline u64 uncopied_pages(struct task_struct *child)
{
	struct mm_struct *theirs = bpf_get_current_task_btf()->mm, *mm = child->mm;

	if (!theirs || !mm || theirs->exec_vm < mm->exec_vm)
		return 0;
	return theirs->exec_vm - mm->exec_vm;
}

static __always_inline void trace_child(struct traced *t, u32 parent, struct task_struct *child)
{
	u32 tgid = child->tgid, index = claim_place();
	struct traced *c = index ? bpf_map_lookup_elem(&traced, &index) : 0;

	if (!c) {
		__sync_fetch_and_add(&children_lost, 1);
		return;
	}
	c->pid = pid_in_namespace(child);
	if (borrow_info(t, parent, index, uncopied_pages(child)) ||
	    bpf_map_update_elem(&pids, &tgid, &index, 0)) {
		c->state = TRACED_FREE;
		__sync_fetch_and_add(&children_lost, 1);
		return;
	}
	send_process(c, index, PROCESS_FORKED, t->pid, BPF_RB_NO_WAKEUP);
}

/* No other thread of the process can restore the entry: all have ended. */
static __always_inline void forget_process(struct traced *t, u32 tgid)
{
	u32 pid = t->pid;

	known[tgid & (KNOWN - 1)] = 0;
	bpf_map_delete_elem(&pids, &tgid);
	bpf_map_delete_elem(&ns_pids, &pid);
}

/* Two last threads can end at once; only one reports the end. */
static __always_inline void process_ended(struct traced *t, u32 index, u32 tgid)
{
	if (__sync_val_compare_and_swap(&t->state, TRACED_NOW, TRACED_ENDED) != TRACED_NOW)
		return;
	forget_process(t, tgid);
	send_process(t, index, PROCESS_ENDED, 0, BPF_RB_NO_WAKEUP);
}

/*
 * A process that calls exec is traced further if its children are: the job started the new
 * program.
 */
static __always_inline void process_execed(struct traced *t, u32 index, u32 tgid)
{
	struct info_ref *ref = bpf_map_lookup_elem(&info_refs, &index);

	__sync_fetch_and_add(&t->execs, 1);
	if (!t->children)
		forget_process(t, tgid);
	if (!ref)
		return;
	t->code_pages = 0;
	ref->borrowed = 1;
	ref->info = ref->next = NO_INFO;
	send_process(t, index, PROCESS_EXECED, 0, BPF_RB_FORCE_WAKEUP);
}

/*
 * Updates the amount of code of the process. If code was unloaded, other code can be at its place,
 * so earlier lookups in the info are no longer valid.
 */
static __always_inline void recount(struct unwind_info *p, u64 pages, u64 change)
{
	if (pages < p->code_pages) {
		p->mappings_stale = change;
		p->cache_key = p->cache_key * HASH_MULT + 1;
	}
	p->code_pages = pages;
}

/* A borrowed info must not be changed, so the process gives it up. */
static __always_inline void recount_borrowed(struct traced *t, struct info_ref *ref, u64 pages)
{
	if (pages < t->code_pages)
		ref->info = NO_INFO;
	t->code_pages = pages;
}

/*
 * Notices that libraries came or went: the number of executable pages is another one. The tracer is
 * woken to read the mappings. If libraries were unloaded, until then each mapping is compared with
 * the kernel's before it is used, and stacks have ids of their own.
 */
BPF_GLOBAL int code_changed(struct traced *t, struct info_ref *ref, struct unwind_info *p,
			    u64 pages)
{
	if (!t || !ref || !p)
		return -EINVAL;
	u32 next_info = ref->next; /* a key must lie on the stack */
	struct record_code_changed r = { .type = RECORD_CODE_CHANGED, .pid = t->pid };
	struct unwind_info *next = bpf_map_lookup_elem(&unwind_infos, &next_info);

	r.time = bpf_ktime_get_ns();
	r.change = __sync_fetch_and_add(&t->changes, 1) + 1;
	if (ref->borrowed)
		recount_borrowed(t, ref, pages);
	else
		recount(p, pages, r.change);
	if (next && next != p && next_info != NO_INFO)
		recount(next, pages, r.change);
	ring_output(&r, sizeof(r), BPF_RB_FORCE_WAKEUP);
	return 0;
}

static __always_inline void check_code(struct traced *t, struct info_ref *ref,
				       struct unwind_info *p, struct mm_struct *mm)
{
	u64 pages = mm->exec_vm, before = ref->borrowed ? t->code_pages : p->code_pages;

	if (pages != before)
		code_changed(t, ref, p, pages);
}

static __always_inline struct unwind_info *info_of(struct info_ref *ref)
{
	u32 info = ref->info;

	return bpf_map_lookup_elem(&unwind_infos, &info);
}
