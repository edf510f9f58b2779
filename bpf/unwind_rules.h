/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * From a pc to the rule that leads to its caller: the mapping that the pc is in, the row of the
 * file's unwind table, the rule that the row names. Rules are made of .eh_frame (package
 * symbolize).
 */
#pragma once
#include "target.h"

/* A rule is one word; Rule in package symbolize says the same. */
#define RULE_KIND(r)	  ((u32)(r) & 15)
#define RULE_FP_AT_CFA(r) ((r) & (1ull << 4))
#define RULE_FP_AT_FP(r)  ((r) & (1ull << 5))
/* On arm64: the frame pointer is unchanged, the return address is saved where RULE_FP says. */
#define RULE_RETURN_AT_CFA(r) (HAS_LINK && ((r) >> 4 & 3) == 3)
#define RULE_CFA(r)	      (((s64)((r) << 32)) >> 40) /* bits 8-31, signed */
#define RULE_FP(r)	      (((s64)((r) << 8)) >> 40)	 /* bits 32-55, signed */
#define RULE_PLT_FROM(r)      (((r) >> 32) & 0xff)
#define RULE_PLT_ADD(r)	      (((r) >> 40) & 0xff)
#define RULE_NO_MAPPING	      (1ull << 63) /* added at lookup: the pc is in no mapping */

enum rule_kind {
	RULE_NONE = 0,
	RULE_SP = 1,	   /* CFA = rsp + n */
	RULE_FP_REG = 2,   /* CFA = rbp + n */
	RULE_PLT = 3,	   /* CFA = rsp + n, or more behind the push of a PLT entry */
	RULE_DEREF_FP = 4, /* CFA = *(rbp + n): a realigned stack */
	RULE_DEREF_SP = 5, /* CFA = *(rsp + n) */
	RULE_SIGNAL = 6,   /* the frame that the kernel made for a signal handler */
	RULE_END = 7,	   /* outermost frame */
	RULE_UNSUPPORTED = 15,
};

/*
 * One step of a binary search in [lo, hi): the target is `beyond` after the middle entry, or before
 * it if negative. It uses bits instead of conditions, because the verifier follows both branches of
 * each condition in each step.
 */
static __always_inline void search_step(u32 *lo, u32 *hi, s64 beyond)
{
	u32 mid = (*lo + *hi) >> 1, up = ~(beyond >> 63);

	barrier_var(up);
	*lo += (mid + 1 - *lo) & up;
	*hi += (mid - *hi) & ~up;
}

/* The number of the mapping that holds pc; MAX_MAPPINGS: none does. */
BPF_GLOBAL u32 mapping_number(struct unwind_info *p, u64 pc)
{
	if (!p)
		return MAX_MAPPINGS;
	u32 lo = 0, hi = p->nmappings;

	for (int i = 0; i < 12; i++) { /* 2^11 = MAX_MAPPINGS */
		if (lo >= hi)
			break;
		u32 mid = (lo + hi) >> 1;
		if (mid >= MAX_MAPPINGS)
			return MAX_MAPPINGS;
		search_step(&lo, &hi, pc - p->mapping[mid].start);
	}
	if (lo == 0 || lo > MAX_MAPPINGS)
		return MAX_MAPPINGS;
	return pc < p->mapping[(lo - 1) & (MAX_MAPPINGS - 1)].end ? lo - 1 : MAX_MAPPINGS;
}

static __always_inline struct mapping *find_mapping(struct unwind_info *p, u64 pc)
{
	u32 i = mapping_number(p, pc);

	return i < MAX_MAPPINGS ? &p->mapping[i & (MAX_MAPPINGS - 1)] : 0;
}

/*
 * The rule of what lies `rel` bytes behind a file's first byte, by its rows [lo, hi). A function of
 * its own, because the function that reads the memory map has a callback: Linux 6.18 fails to track
 * the dependencies of a loop through a callback ("verifier bug").
 */
BPF_GLOBAL u64 rule_of_row(u32 lo, u32 hi, u64 rel)
{
	u32 first = lo;

	for (int i = 0; i < 26; i++) { /* up to 2^26 rows in all */
		if (lo >= hi)
			break;
		u64 *row = target_row((lo + hi) >> 1);
		if (!row)
			return 0;
		search_step(&lo, &hi, rel - (u32)*row);
	}
	if (lo <= first)
		return 0;
	u64 *row = target_row(lo - 1);
	return row ? target_rule(*row >> 32) : 0;
}

/* Two binary searches: for the mapping, then for the row. */
BPF_GLOBAL u64 find_rule(struct unwind_info *p, u64 pc)
{
	if (!p)
		return 0;
	struct mapping *m = find_mapping(p, pc);
	if (!m || (p->mappings_stale && !target_mapping_holds(m, pc)))
		return RULE_NO_MAPPING;
	return rule_of_row(m->row_lo, m->row_hi, pc - m->bias);
}

static __always_inline u64 rule_for(struct unwind_info *p, u64 pc)
{
	u64 key = pc ^ p->cache_key;
	struct cached_rule *c = target_rule_cache(key * HASH_MULT);

	if (!c)
		return find_rule(p, pc);
	u64 rule = c->rule;
	if ((c->check ^ rule) == key)
		return rule;
	rule = find_rule(p, pc);
	c->rule = rule;
	c->check = key ^ rule;
	return rule;
}
