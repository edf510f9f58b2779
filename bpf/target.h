/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The functions that the unwinder needs from outside. target_bpf.h defines them on the kernel side,
 * testdata/host.c for tests on the host, so both use the same unwinder.
 *
 * Conventions of all files here. A function that can fail returns 0 or -errno; one that answers a
 * question returns bool. BPF_GLOBAL marks a function that the verifier checks once, by itself and
 * for any arguments, instead of at each call: that keeps its work small, and is why such a function
 * checks its pointers for NULL though no caller passes it. A call costs about 9 ns where returns
 * are protected against speculation, so what runs at each hit is inlined instead.
 */
#pragma once
#include "tables.h"

#define HASH_MULT 0x9E3779B97F4A7C15ull /* 2^64 / golden ratio, odd: Fibonacci hashing */

struct cached_walk;
struct window;

/* Copies the target's memory: 0 or -EFAULT. Never faults a page in. */
static __always_inline int target_read(void *dst, u32 len, u64 addr);

/* Unwind row, rule, and the cache of rules by pc; NULL when out of range. */
static __always_inline u64 *target_row(u32 index);
static __always_inline u64 target_rule(u32 index);
static __always_inline struct cached_rule *target_rule_cache(u64 hash);

/* Whether the kernel's memory map has the mapping at pc. */
static __always_inline bool target_mapping_holds(struct mapping *m, u64 pc);

/*
 * The return address that a return probe replaced: in the stack slot or, with a link register, of
 * the frame that ends at the CFA. 0: none did.
 */
static __always_inline u64 target_replaced_return(u64 slot);

/* A return address without its signature (pointer authentication of arm64). */
static __always_inline u64 target_unsigned(u64 address);

/* A place of the cache of walks, of any index; NULL: there is none. */
static __always_inline struct cached_walk *target_cached_walk(u32 index);
static __always_inline u32 target_random(void);

/* Whether user space has the stack. */
static __always_inline bool target_stack_sent(u64 hash);

/* Whether memory can be read in place at all; then the others are called. */
static __always_inline bool target_in_place(void);
static __always_inline int target_show(struct window *v, u64 tables, u64 addr);
static __always_inline u64 target_page_changed(struct window *v); /* not 0: it has */
static __always_inline u64 target_shown_word(u64 at);

static __always_inline u64 hash_add(u64 hash, u64 word)
{
	hash = (hash ^ word) * HASH_MULT;
	return hash ^ hash >> 29;
}
