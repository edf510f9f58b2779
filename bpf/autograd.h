/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Where autograd is at an allocation: in forward, the number that this thread's next node gets; in
 * backward, the number of the node that runs. PyTorch keeps both in thread-local memory of
 * libtorch_cpu. An operator makes its node before it allocates, so the two numbers link an
 * allocation in the backward pass to the line that made its node.
 *
 *   thread pointer ─► tcb: | self | dtv | ...        glibc, see DTV_OF_TCB
 *                                   │
 *                                   ▼
 *                            | [module]: address of the thread's memory of that library | ... |
 *
 * The address and PyTorch's number of the thread never change during a thread, so both are cached
 * by thread. A node runs only below autograd's own functions, so the same native frames always have
 * one or never: a cached walk notes which, and the node is read only if there is one.
 */
#pragma once
#include "stack.h"

#define TLS_BLOCKS	1024 /* threads whose memory is kept; another one is looked up again */
#define DTV_ENTRY	16
#define DTV_UNALLOCATED (~0ull)

/* Direct mapped, without a lock: `check` holds key ^ address ^ number. */
struct tls_block {
	u64 check;
	u64 addr;
	u64 thread; /* as PyTorch numbers it; 0: it had no number yet */
	u64 pad;
};

struct tls_block tls_blocks[TLS_BLOCKS];

/*
 * Identifies a thread, even if it has the stack and number of an earlier thread, or has become
 * another program.
 */
static __always_inline u64 thread_key(struct walk *w, struct unwind_info *p)
{
	return (w->thread_start * HASH_MULT ^ p->cache_key) * HASH_MULT ^ w->tp;
}

static __always_inline u64 tls_check(u64 key, u64 addr, u64 thread)
{
	return key ^ addr ^ thread << 40 ^ thread >> 24;
}

/* Reads a word of thread-local memory or of a node: in place, or by a copy of no more than it. */
static __always_inline int autograd_word(struct walk *w, u64 addr, u64 *out)
{
	if (target_in_place() && w->mem.in_place)
		return read_word_fast(&w->mem, ELSEWHERE, addr, out);
	return target_read(out, 8, addr);
}

/* Finds and caches the thread's memory of libtorch_cpu, and its number. 0 or -EFAULT. */
static __always_inline int find_tls_block(struct walk *w, struct autograd_layout *l,
					  struct tls_block *b, u64 key)
{
	u64 dtv, addr, thread;

	if (autograd_word(w, w->tp + DTV_OF_TCB, &dtv) ||
	    autograd_word(w, dtv + l->module * DTV_ENTRY, &addr) || addr == DTV_UNALLOCATED ||
	    !addr || autograd_word(w, addr + l->thread, &thread) || !memory_was_stable(&w->mem))
		return -EFAULT;
	b->check = tls_check(key, addr, thread);
	b->addr = addr;
	b->thread = thread;
	w->tls = addr;
	w->autograd.thread = thread;
	return 0;
}

/* Returns the cached address of the thread's memory of libtorch_cpu. 0 or -EFAULT. */
static __always_inline int tls_block_of(struct walk *w, struct unwind_info *p)
{
	u64 key = thread_key(w, p);
	struct tls_block *b = &tls_blocks[(key >> 32) & (TLS_BLOCKS - 1)];
	u64 addr = b->addr, thread = b->thread;

	if (!addr || !thread || b->check != tls_check(key, addr, thread))
		return find_tls_block(w, &p->autograd, b, key);
	w->tls = addr;
	w->autograd.thread = thread;
	return 0;
}

static __always_inline void autograd_unknown(struct autograd *a)
{
	a->next = a->node = UNKNOWN;
	a->node_class = a->thread = a->node_thread = 0;
	a->running = a->known = 0;
}

/* Reads the node that runs: its class, its number, and the thread that made it. */
static __always_inline int read_node(struct walk *w, struct autograd_layout *l, u64 node)
{
	struct autograd *a = &w->autograd;
	u64 thread;

	a->running = 1;
	if (autograd_word(w, node, &a->node_class) ||
	    autograd_word(w, node + l->node_number, &a->node) ||
	    autograd_word(w, node + l->node_thread, &thread))
		return -EFAULT;
	a->node_thread = thread;
	return 0;
}

static __always_inline int read_thread(struct walk *w, struct unwind_info *p)
{
	struct autograd_layout *l = &p->autograd;
	u64 node;

	if (tls_block_of(w, p) || autograd_word(w, w->tls + l->next, &w->autograd.next))
		return -EFAULT;
	if (w->no_node)
		return 0;
	if (autograd_word(w, w->tls + l->node, &node))
		return -EFAULT;
	return node ? read_node(w, l, node) : 0;
}

/* Notes in the walk where autograd is. A value that could not be read, or that changed meanwhile, is unknown. */
BPF_GLOBAL int read_autograd(struct walk *w, struct unwind_info *p)
{
	if (!w || !p)
		return -EINVAL;
	autograd_unknown(&w->autograd);
	if (!p->autograd.module)
		return 0;
	if (read_thread(w, p) || !memory_was_stable(&w->mem))
		autograd_unknown(&w->autograd);
	else
		w->autograd.known = 1;
	return 0;
}
