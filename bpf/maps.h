/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * All maps and variables. Kernels before 6.0 take no array value above 4 MiB (KMALLOC_MAX_SIZE),
 * and what is not in a map of its own is in one value: so large tables are maps.
 */
#pragma once
#include "types.h"
#include <bpf/bpf_helpers.h>
#include "pagetable.h"
#include "walk.h"

const volatile u32 cfg_free_stacks; /* 1: frees get a stack too */
const volatile u32 cfg_find_vma;    /* 1: the kernel has bpf_find_vma (5.17) */
const volatile u32 cfg_slot_mask;   /* of walk_slots: their number, a power of two, less 1 */
const volatile u32 cfg_rings;	    /* groups of CPUs that have a ring each; 0: all have one */
const volatile u32 cfg_ring_shift;  /* the logarithm of how many CPUs are a group */
const volatile u32 cfg_never;	    /* 0: see USE_STACK_OF_THREAD */
const volatile u64 cfg_code_mask;   /* bits of an address; those above sign a return address */
const volatile u64 cfg_pidns_ino;   /* the tracer's PID namespace, as stat(2) numbers it */
const volatile struct direct_map cfg_direct;

/* 80 KiB. What attach cookies index; user space writes it. */
struct hook_table hooks;

/*
 * Sorted unwind rows of all files, in chunks that are added as they are needed and filled through
 * mmap: 8 bytes a row. A row: pc relative to the file's link-time address in the low half, index of
 * its rule in the high half.
 */
struct row_chunk {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, u32);
	__uint(value_size, ROW_CHUNK * 8);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, MAX_CHUNKS);
	__type(key, u32);
	__array(values, struct row_chunk);
} rows SEC(".maps");

#define ARRAY(name, entries, of)                                                                   \
	struct {                                                                                   \
		__uint(type, BPF_MAP_TYPE_ARRAY);                                                  \
		__uint(max_entries, entries);                                                      \
		__type(key, u32);                                                                  \
		__type(value, of);                                                                 \
	} name SEC(".maps")

ARRAY(rules, MAX_RULES, u64);				     /* 512 KiB: what rows index */
ARRAY(rule_cache, 1 << RULE_CACHE_BITS, struct cached_rule); /* 1 MiB: pc -> rule */
ARRAY(seen_stacks, SEEN_STACKS, u64); /* 2 MiB: hashes of those that were sent */
ARRAY(seen_codes, SEEN_CODES, u64);   /* 256 KiB: the last code object sent, by its address */
ARRAY(unwind_infos, MAX_INFOS, struct unwind_info); /* 82 KiB each; user space sets how many */
ARRAY(info_refs, MAX_TRACED, struct info_ref);	    /* 256 KiB */

/* 1 MiB. User space writes one field of a process that is traced, so it maps the values. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_TRACED);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, u32);
	__type(value, struct traced);
} traced SEC(".maps");

/*
 * 3.3 MiB. The flag is for what else it does: the kernel then has the values begin at a page, so that
 * each lies on as few cache lines as it can.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, CACHED_WALKS);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, u32);
	__type(value, struct cached_walk);
} cached_walks SEC(".maps");

/* Memory for one walk, which a task owns during the walk: 60 KiB each. */
struct walk_slot {
	u32 taken;
	u32 pad;
	struct walk walk;
} __attribute__((aligned(PAGE_BYTES)));

ARRAY(walk_slots, 64, struct walk_slot); /* user space sets how many: twice the CPUs, at least 64 */

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 32 << 20); /* user space sets it */
} ring SEC(".maps");

/*
 * The rings of groups of CPUs, for machines on which many CPUs would wait for the lock of one
 * ring. Their number is a power of two. User space makes them, and merges their records by
 * time.
 */
struct group_ring {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 65536); /* a multiple of every page size */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, MAX_RINGS);
	__type(key, u32);
	__array(values, struct group_ring);
} rings SEC(".maps");

/* The ring of the CPU that this runs on; NULL: there is none. */
static __always_inline void *ring_here(void)
{
	if (!cfg_rings)
		return &ring;
	u32 group = bpf_get_smp_processor_id() >> cfg_ring_shift & (cfg_rings - 1);

	return bpf_map_lookup_elem(&rings, &group);
}

/* As bpf_ringbuf_output. */
static __always_inline long ring_output(void *data, u64 size, u64 flags)
{
	void *to = ring_here();

	return to ? bpf_ringbuf_output(to, data, size, flags) : -ENOSPC;
}

/* Counters of a CPU, so that no two CPUs write one line at each hit. */
#define PERCPU(name, entries, of)                                                                  \
	struct {                                                                                   \
		__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);                                           \
		__uint(max_entries, entries);                                                      \
		__type(key, u32);                                                                  \
		__type(value, of);                                                                 \
	} name SEC(".maps")

PERCPU(stats, MAX_HOOKS, struct hook_stats);
PERCPU(counters, 1, struct cpu_counters);

/*
 * Adds to a counter of this CPU. The program can be moved to another CPU between the lookup and the
 * addition, so it is atomic.
 */
#define count(name)                                                                                \
	do {                                                                                       \
		u32 zero_ = 0;                                                                     \
		struct cpu_counters *c_ = bpf_map_lookup_elem(&counters, &zero_);                  \
		if (c_)                                                                            \
			__sync_fetch_and_add(&c_->name, 1);                                        \
	} while (0)

/* The program that continues if a stack must be walked; user space sets it. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} unwinder SEC(".maps");

/*
 * Has the program run on the thread's own stack. From Linux 6.13 on, functions with 64 bytes or more
 * get a stack of the CPU instead (bpf_enable_priv_stack in kernel/bpf/verifier.c), which is right for
 * kprobes: they are not preempted. A uprobe's program is of the same type and is: the next thread on
 * that CPU would use the same stack in the midst of its run. A program with a tail call is left as it
 * is; this one is never made, and the verifier takes it out. Not for programs that make one.
 */
#define USE_STACK_OF_THREAD(ctx)                                                                   \
	do {                                                                                       \
		if (cfg_never)                                                                     \
			bpf_tail_call(ctx, &unwinder, 0);                                          \
	} while (0)
