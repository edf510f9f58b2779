/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Reads the target's memory through windows. A window shows a piece of one page: in place, where
 * the kernel itself has the page (pagetable.h), or as a copy. A walk has two, one for the stack and
 * one for everything else, so that neither moves the other.
 *
 * In place a word is one load. A load that faults gives 0, and so does memory that the kernel has
 * taken out of its own map (memfd_secret): a word 0 is only believed when a copy says the same. The
 * page can be given to another owner while it is read. The kernel changes its page table entry
 * first, so the entry is read again after all loads (memory_was_stable).
 */
#pragma once
#include "target.h"
#include "window.h"

#define PAGE_BYTES  4096
#define PIECE_BYTES 1024      /* of what is no stack that are copied at once */
#define SPAN_BYTES  (1 << 14) /* of a stack that are copied at once, at most */

enum window_of { ON_STACK = 0, ELSEWHERE = 1 };

struct memory {
	struct window window[2];
	u64 tables;   /* the process's page tables */
	u64 moved;    /* not 0: a page was replaced while it was read */
	u32 in_place; /* memory is read without a copy */
	u32 pad;
	u8 stack[SPAN_BYTES]; /* what the windows show, where it is copied */
	u8 other[PAGE_BYTES];
};

static __always_inline void memory_close_windows(struct memory *m)
{
	m->moved = 0;
	for (int i = 0; i < 2; i++) {
		struct window *v = &m->window[i];

		v->lo = v->hi = v->at = v->table = 0;
	}
}

/* Reads by copies from here on. */
static __always_inline void memory_copy_only(struct memory *m)
{
	memory_close_windows(m);
	m->in_place = 0;
}

static __always_inline u8 *copy_of(struct memory *m, u32 which)
{
	return which == ON_STACK ? m->stack : m->other;
}

/* Notes whether the page in a window has stayed the one that was read. */
static __always_inline void window_leave(struct memory *m, struct window *v)
{
	if (v->at)
		m->moved |= target_page_changed(v);
}

/* Whether all words that were read in place came from the target's memory. */
static __always_inline bool memory_was_stable(struct memory *m)
{
	barrier();
	for (u32 i = 0; i < 2; i++)
		if (target_in_place())
			window_leave(m, &m->window[i]);
	return !m->moved;
}

/*
 * Makes a window show the word at addr. A copy never reaches beyond addr's page: one absent page
 * fails the whole copy and costs an exception.
 */
BPF_GLOBAL int window_move(struct memory *m, u32 which, u64 addr)
{
	if (!m)
		return -EINVAL;
	which &= 1;
	struct window *v = &m->window[which];
	u64 end = (addr + PAGE_BYTES) & ~(PAGE_BYTES - 1ull);

	if (target_in_place() && m->in_place) {
		window_leave(m, v);
		if (!target_show(v, m->tables, addr))
			return 0;
	}
	v->at = v->table = 0;
	v->lo = which == ON_STACK ? addr : addr & ~(PIECE_BYTES - 1ull);
	v->hi = which == ON_STACK ? end : v->lo + PIECE_BYTES;
	u32 len = v->hi - v->lo;
	if (len > PAGE_BYTES || target_read(copy_of(m, which), len, v->lo)) {
		v->hi = v->lo;
		return -EFAULT;
	}
	return 0;
}

/* The same without a call where memory is read in place. */
static __always_inline int window_move_near(struct memory *m, u32 which, u64 addr)
{
	struct window *v = &m->window[which];

	if (target_in_place() && m->in_place) {
		window_leave(m, v);
		barrier();
		if (target_show(v, m->tables, addr))
			return -EFAULT;
		barrier();
		return 0;
	}
	return window_move(m, which, addr);
}

/*
 * Makes a window show `len` bytes in place, without a call. Returns the kernel's address of the
 * bytes; 0: there is none, or they span two pages.
 */
static __always_inline u64 window_at(struct memory *m, u32 which, u64 addr, u32 len)
{
	struct window *v = &m->window[which];

	if (!target_in_place() || (addr & 7))
		return 0;
	if (addr - v->lo >= v->hi - v->lo) {
		if (!m->in_place)
			return 0;
		window_leave(m, v);
		if (target_show(v, m->tables, addr))
			return 0;
		barrier();
	}
	u64 at = v->at;

	return at && v->hi - addr >= len ? at + (addr - v->lo) : 0;
}

/*
 * Makes the stack's window show `len` bytes from addr on by one copy, because a call costs more
 * than copying a page. Other functions read the rest.
 */
static __always_inline void window_copy_span(struct memory *m, u64 addr, u32 len)
{
	struct window *v = &m->window[ON_STACK];

	barrier_var(len);
	if ((addr >= v->lo && addr + len <= v->hi) || len > SPAN_BYTES)
		return;
	v->at = v->table = 0;
	v->lo = v->hi = addr;
	if (!target_read(m->stack, len, addr))
		v->hi = addr + len;
}

static __always_inline u64 copied_word(struct memory *m, u32 which, u64 at)
{
	return which == ON_STACK ? *(u64 *)(m->stack + (at & (SPAN_BYTES - 8)))
				 : *(u64 *)(m->other + (at & (PAGE_BYTES - 8)));
}

/* Reads the word at `at` bytes into a window that shows it. */
static __always_inline u64 window_word(struct memory *m, u32 which, u64 at)
{
	struct window *v = &m->window[which];

	if (target_in_place() && v->at)
		return target_shown_word(v->at + at);
	return copied_word(m, which, at);
}

/* Reads the word at addr; it may be 0 where it is not. 0 or -EFAULT. */
static __always_inline int read_word_unsure(struct memory *m, u32 which, u64 addr, u64 *out)
{
	struct window *v = &m->window[which];

	if (addr & 7) /* garbage: not worth a window */
		return target_read(out, 8, addr);
	if (addr - v->lo >= v->hi - v->lo && window_move(m, which, addr))
		return -EFAULT;
	*out = window_word(m, which, addr - v->lo);
	return 0;
}

/* Reads the word at addr. 0 or -EFAULT. */
static __always_inline int read_word(struct memory *m, u32 which, u64 addr, u64 *out)
{
	int err = read_word_unsure(m, which, addr, out);

	if (err || !target_in_place() || *out || !m->window[which].at)
		return err;
	if (target_read(out, 8, addr))
		return -EFAULT;
	m->moved |= *out; /* the kernel does not have the page: the walk is made again by copies */
	return 0;
}

/*
 * Reads a word with as few calls and branches as possible, to compare it with the result of a whole
 * walk: a false 0 then only differs. If memory is read in place, a page that cannot be read in
 * place is not read at all.
 */
static __always_inline int read_word_fast(struct memory *m, u32 which, u64 addr, u64 *out)
{
	struct window *v = &m->window[which];

	if (addr & 7)
		return -EFAULT;
	if (addr - v->lo >= v->hi - v->lo && window_move_near(m, which, addr))
		return -EFAULT;
	if (target_in_place()) {
		if (!v->at)
			return -EFAULT;
		*out = target_shown_word(v->at + (addr - v->lo));
		return 0;
	}
	*out = copied_word(m, which, addr - v->lo);
	return 0;
}
