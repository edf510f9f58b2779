/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Finds a page of the current process where the kernel itself sees it: in the direct map of all
 * physical memory, at the place that the process's page tables name. Each word is then one load;
 * bpf_probe_read_user costs 60 to 80 ns a call whatever it reads, and a stack wants a dozen.
 *
 * The layout of page tables is the processor's (Intel SDM volume 3A, chapter 4; AMD APM volume 2,
 * chapter 5). Where the direct map begins and which bits of an entry are an address is read from the
 * kernel, and proved by the tracer on memory of its own before it is believed (tracer/directmap).
 *
 * A load from an address that is not mapped gives 0: the kernel has an entry for it in its
 * exception table, as for every load of a BPF program from the kernel's memory.
 *
 * Page tables that the walk goes through are not freed under it where they are freed behind an RCU
 * grace period, since a program runs in an RCU read section: always since Linux 6.15, before in
 * guests. The tracer asks for that (tracer/directmap/mode.go) and has memory copied where it is not so.
 */
#pragma once
#include "window.h"

#define PTE_PRESENT_BIT	 0
#define PTE_USER_BIT	 2
#define PTE_PWT_BIT	 3 /* write-through and ... */
#define PTE_PCD_BIT	 4 /* ... uncached: no plain memory */
#define PTE_LARGE_BIT	 7 /* not in an entry of the last level */
#define PTE_PROTNONE_BIT 8 /* of an entry that is not present: the page is there all the same */
#define PTE_SPECIAL_BIT	 9 /* no memory of the kernel: _PAGE_SPECIAL */

#define PTE_PRESENT (1ull << PTE_PRESENT_BIT)
#define PTE_USER    (1ull << PTE_USER_BIT)
#define PTE_LARGE   (1ull << PTE_LARGE_BIT)

/*
 * Where the direct map begins, which bits of an entry are a physical address, where physical memory
 * ends, how many levels of tables there are. Nothing behind the end is read, whatever an entry
 * says.
 */
struct direct_map {
	u64 base; /* 0: memory is copied */
	u64 mask;
	u64 end;
	u32 levels;
	u32 pad;
};

#ifdef __bpf__
/* Any kernel type that begins with a number of 8 bytes: what an address is taken for. */
struct timespec64 {
	s64 tv_sec;
} RELOCATED;

/* Linux 6.2 and later. */
extern void *bpf_rdonly_cast(const void *obj, u32 btf_id) __attribute__((section(".ksyms"), weak));

static __always_inline u64 kernel_word(u64 addr)
{
	void *at = bpf_rdonly_cast((void *)addr, __builtin_btf_type_id(*(struct timespec64 *)0, 1));
	u64 word;

	/*
	 * Not in C: the compiler would make one load of this and another one, and the verifier
	 * wants each to have its kind.
	 */
	asm volatile("%0 = *(u64 *)(%1 + 0)" : "=r"(word) : "r"(at));
	return word;
}
#else
static u64 kernel_word(u64 addr);
#endif

/*
 * The physical address that an entry of a page names, in *phys. NUMA balancing takes the access to
 * a page away for a moment, to see who uses it: the entry is not present then, and its address is
 * kept with all bits inverted (arch/x86/include/asm/pgtable-invert.h). Returns whether it names a
 * page of plain memory. By bits instead of conditions: the verifier goes each way of a condition.
 */
static __always_inline bool pte_names_page(const volatile struct direct_map *d, u64 entry,
					   u64 *phys)
{
	u64 present = entry >> PTE_PRESENT_BIT, user = entry >> PTE_USER_BIT;
	u64 hidden = entry >> PTE_PROTNONE_BIT & ~present & 1;
	u64 odd = entry >> PTE_PWT_BIT | entry >> PTE_PCD_BIT | entry >> PTE_SPECIAL_BIT;

	*phys = (entry ^ (0 - hidden)) & d->mask;
	return *phys < d->end && ((((present & user) | hidden) & ~odd) & 1);
}

/*
 * Finds the page of user memory at an address, in the page tables from `table` on, or in that of the
 * page in the window where both lie in the same 2 MiB. One loop for all levels: what is executed at
 * each hit pushes the program's own code out of the processor's caches. 0, or -EFAULT: it is not
 * there, or not plain memory.
 */
static __always_inline int find_page(const volatile struct direct_map *d, u64 table, u64 addr,
				     struct window *v)
{
	u64 at, entry, phys;
	u32 shift = 12 + 9 * (d->levels - 1);

	if (addr >> (shift + 8)) /* the kernel's half */
		return -EFAULT;
	if (v->table && !((addr ^ v->lo) >> 21)) {
		table = v->table;
		shift = 12;
	}
#pragma nounroll
	for (u32 level = 0;; level++) {
		if (level > 4)
			return -EFAULT;
		at = table + (addr >> shift & 511) * 8;
		entry = kernel_word(at);
		if (shift == 12 || (shift <= 30 && (entry & PTE_LARGE)))
			break;
		phys = entry & d->mask;
		if ((entry & (PTE_PRESENT | PTE_USER)) != (PTE_PRESENT | PTE_USER) ||
		    phys >= d->end)
			return -EFAULT;
		table = d->base + phys;
		shift -= 9;
	}
	v->entry_at = at;
	v->entry = entry;
	v->table = shift == 12 ? at & ~4095ull : 0;
	v->hi = 1ull << shift;
	barrier(); /* the verifier forgets at which level it was */
	u64 size = v->hi;

	v->lo = v->hi = addr & ~(size - 1);
	if (!pte_names_page(d, v->entry, &phys)) {
		v->at = v->table = 0;
		return -EFAULT;
	}
	v->hi += size;
	v->at = d->base + (phys & ~(size - 1));
	return 0;
}

/* Not 0: the page is not any more the one that was found. */
static __always_inline u64 page_changed(const volatile struct direct_map *d, struct window *v)
{
	return (kernel_word(v->entry_at) ^ v->entry) & (d->mask | PTE_PRESENT | PTE_LARGE);
}
