// Reads the memory of the current process where the kernel itself sees it: in the direct map of all physical memory, at the
// place that the process's page tables name. Each word is then one load. bpf_probe_read_user costs 60 to 80 ns a call whatever
// it reads, and a stack wants a dozen.
//
// The layout of page tables is the processor's (Intel SDM volume 3A, chapter 4; AMD APM volume 2, chapter 5). Where the direct
// map begins and which bits of an entry are an address is proved by the tracer on memory of its own before it is believed
// (tracer/direct.go); where that fails, or the kernel has no bpf_rdonly_cast (before 6.2), memory is copied. A load from an
// address that is not there gives 0 and does no harm.
//
// A page can be moved or replaced while it is being read. So its entry is looked at again behind all loads (still_shown): the
// kernel changes it before it gives the page away.
#pragma once
#include "event.h"

#define PAGE_PRESENT (1ull << 0)
#define PAGE_USER    (1ull << 2)
#define PAGE_LARGE   (1ull << 7) // not in an entry of the last level
#define PAGE_ODD                                                                                                       \
	(1ull << 3 | 1ull << 4 | 1ull << 9) // not cached as memory is, or no memory of the kernel (_PAGE_SPECIAL)

// Any kernel type that begins with a number of 8 bytes: what an address is taken for.
struct timespec64 {
	s64 tv_sec;
} RELOCATED;

extern void *bpf_rdonly_cast(const void *obj, u32 btf_id) __attribute__((section(".ksyms"), weak));

static __always_inline u64 kernel_word(u64 addr)
{
	void *at = bpf_rdonly_cast((void *)addr, __builtin_btf_type_id(*(struct timespec64 *)0, 1));
	u64 word;

	// Not in C: the compiler would make one load of this and another one, and the verifier wants each to have its kind.
	asm volatile("%0 = *(u64 *)(%1 + 0)" : "=r"(word) : "r"(at));
	return word;
}

// Where the direct map begins (0: memory is copied), which bits of an entry are a physical address, and how many levels of
// page tables there are.
struct direct_map {
	u64 base, mask;
	u32 levels;
	u32 pad;
};

// Finds the page of user memory at an address, in the page tables from `table` on. -1: it is not there, or not plain memory.
static __always_inline int find_page(const volatile struct direct_map *d, u64 table, u64 addr, struct view *v)
{
	if (addr >> (12 + 9 * d->levels - 1)) // the kernel's half
		return -1;
#pragma unroll
	for (int shift = 48; shift >= 12; shift -= 9) {
		if (shift == 48 && d->levels == 4)
			continue;
		u64 at = table + (addr >> shift & 511) * 8, entry = kernel_word(at), size = 1ull << shift;
		if ((entry & (PAGE_PRESENT | PAGE_USER)) != (PAGE_PRESENT | PAGE_USER))
			return -1;
		table = d->base + (entry & d->mask);
		if (shift > 12 && (shift > 30 || !(entry & PAGE_LARGE)))
			continue;
		if (entry & PAGE_ODD)
			return -1;
		v->lo = addr & ~(size - 1);
		v->hi = v->lo + size;
		v->at = table & ~(size - 1);
		v->table = shift == 12 ? at & ~4095ull : 0;
		v->entry_at = at;
		v->entry = entry;
		return 0;
	}
	return -1;
}

// The same for a page whose entry lies beside that of the page in view, in one page table of 2 MiB. -1: it does not, or is not
// there.
static __always_inline int find_beside(const volatile struct direct_map *d, u64 addr, struct view *v)
{
	if (!v->table || (addr ^ v->lo) >> 21)
		return -1;
	u64 at = v->table + (addr >> 12 & 511) * 8, entry = kernel_word(at);
	if ((entry & (PAGE_PRESENT | PAGE_USER | PAGE_ODD)) != (PAGE_PRESENT | PAGE_USER))
		return -1;
	v->lo = addr & ~4095ull;
	v->hi = v->lo + 4096;
	v->at = d->base + (entry & d->mask);
	v->entry_at = at;
	v->entry = entry;
	return 0;
}

// Whether the page is still the one that was found.
static __always_inline bool still_shown(const volatile struct direct_map *d, struct view *v)
{
	return !((kernel_word(v->entry_at) ^ v->entry) & (d->mask | PAGE_PRESENT | PAGE_LARGE));
}
