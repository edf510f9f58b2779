//go:build ignore

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The programs with which tracer/directmap finds the kernel's direct map, and proves the answer.
 * Each program is loaded by itself: a kernel can lack what another one needs.
 */
#include "types.h"
#include <bpf/bpf_helpers.h>
#include "pagetable.h"

char LICENSE[] SEC("license") = "GPL";

struct direct_map candidate;
u64 wanted; /* address of the word */
u64 tables; /* of the process */
u64 word;
u32 found;

/*
 * The last two page tables on the way to a page, of which the kernel has both addresses: it
 * follows pointers into them while it handles a page fault.
 */
u64 upper_entry; /* of the upper table, as the processor reads it: it has the physical address of
		    the lower one */
u64 lower_at;	 /* where the kernel sees the page's entry in the lower one */

/*
 * Only what is used of them; the places are relocated. The names are those of Linux 5.17 and
 * later (mm_types.h, mm.h).
 */
struct vm_fault {
	struct vm_area_struct *vma;
	unsigned long address, real_address; /* of the page, and of the word */
	void *pmd, *pud;
} RELOCATED;

struct task_struct___stack {
	void *stack;
} RELOCATED;

/* Reads a word of the calling process as pagetable.h does, with the values to be proved. */
SEC("raw_tp/")
int prove(void *ctx __attribute__((unused)))
{
	struct window v = {};

	tables = (u64)bpf_get_current_task_btf()->mm->pgd;
	barrier();
	found = 0;
	if (!candidate.base || find_page(&candidate, tables, wanted, &v))
		return 0;
	word = kernel_word(v.at + ((wanted - v.lo) & ~7ull));
	found = !page_changed(&candidate, &v);
	return 0;
}

/* Finds the page tables of the calling process: no candidate may begin above them. */
SEC("raw_tp/")
int find_tables(void *ctx __attribute__((unused)))
{
	tables = (u64)bpf_get_current_task_btf()->mm->pgd;
	return 0;
}

/* Reads a variable of the kernel. */
SEC("raw_tp/")
int read_variable(void *ctx __attribute__((unused)))
{
	found = !bpf_probe_read_kernel(&word, sizeof(word), (void *)wanted);
	return 0;
}

/*
 * The minimum size of a thread's kernel stack (THREAD_SIZE), less the bytes that are read from one
 * place.
 */
#define STACK_WORDS ((16384 - 256) / 8)

/*
 * Whether what the kernel has noted of the page fault in hand lies at an address. `wanted` is our
 * page, which was never touched before; the words around it must fit to it too, before a pointer
 * among them is followed.
 */
static __always_inline bool look_at(struct vm_fault *fault)
{
	struct vm_area_struct *vma = 0;
	void *upper = 0;
	u64 address = 0, word_at = 0, start = 0;

	bpf_probe_read_kernel(&address, sizeof(address), &fault->address);
	if (address != wanted)
		return 0;
	bpf_probe_read_kernel(&word_at, sizeof(word_at), &fault->real_address);
	bpf_probe_read_kernel(&lower_at, sizeof(lower_at), &fault->pmd);
	if (word_at >> 12 != wanted >> 12 || !lower_at)
		return 0;
	bpf_probe_read_kernel(&vma, sizeof(vma), &fault->vma);
	bpf_probe_read_kernel(&start, sizeof(start), &vma->vm_start);
	if (start != wanted)
		return 0;
	bpf_probe_read_kernel(&upper, sizeof(upper), &fault->pud);
	return !bpf_probe_read_kernel(&upper_entry, sizeof(upper_entry), upper);
}

/* For bpf_loop: 1 ends it. */
static long look_at_word(u32 i, u64 *stack)
{
	if (!look_at((struct vm_fault *)(*stack + i * 8)))
		return 0;
	found = 1; /* never cleared: another thread of ours may be looking too */
	return 1;
}

/*
 * Runs when the kernel gets itself a page, which it does for one that we touch. What it has noted
 * of that page fault lies on its stack of our thread, with pointers into both page tables.
 */
SEC("tp_btf/mm_page_alloc")
int page_fault(void *ctx __attribute__((unused)))
{
	struct task_struct *task = bpf_get_current_task_btf();
	u64 stack = (u64)((struct task_struct___stack *)task)->stack;

	if (!found && (u64)task->mm->pgd == tables)
		bpf_loop(STACK_WORDS, look_at_word, &stack, 0);
	return 0;
}
