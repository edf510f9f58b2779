//go:build ignore

// SPDX-License-Identifier: GPL-2.0
//
// Reads a word of the process that runs it in the way of direct.h, by what is to be proved.
#include "types.h"
#include <bpf/bpf_helpers.h>
#include "direct.h"

char LICENSE[] SEC("license") = "GPL";

struct direct_map candidate;
u64 wanted; // address of the word
u64 tables; // of the process
u64 word;
u32 found;

SEC("raw_tp/")
int prove(void *ctx __attribute__((unused)))
{
	struct view v = {};

	tables = (u64)bpf_get_current_task_btf()->mm->pgd;
	FORGET();
	found = 0;
	if (!candidate.base || find_page(&candidate, tables, wanted, &v))
		return 0;
	word = kernel_word(v.at + ((wanted - v.lo) & ~7ull));
	found = still_shown(&candidate, &v);
	return 0;
}
