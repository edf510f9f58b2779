/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once /* what target.h wants, by the kernel's helpers */
#include "maps.h"
#include <bpf/bpf_core_read.h>

static __always_inline int target_read(void *dst, u32 len, u64 addr)
{
	return bpf_probe_read_user(dst, len, (void *)addr) ? -EFAULT : 0;
}

static __always_inline u64 *target_row(u32 index)
{
	u32 chunk = index / ROW_CHUNK, zero = 0;
	void *inner = bpf_map_lookup_elem(&rows, &chunk);

	if (!inner)
		return 0;
	u64 *base = bpf_map_lookup_elem(inner, &zero);
	return base ? base + (index & (ROW_CHUNK - 1)) : 0;
}

static __always_inline u64 target_rule(u32 index)
{
	u64 *rule = bpf_map_lookup_elem(&rules, &index);

	return rule ? *rule : 0;
}

static __always_inline struct cached_rule *target_rule_cache(u64 hash)
{
	u32 index = hash >> (64 - RULE_CACHE_BITS);

	return bpf_map_lookup_elem(&rule_cache, &index);
}

static __always_inline struct cached_walk *target_cached_walk(u32 index)
{
	index &= CACHED_WALKS - 1;
	return bpf_map_lookup_elem(&cached_walks, &index);
}

static __always_inline u32 target_random(void)
{
	return bpf_get_prandom_u32();
}

static __always_inline u64 *seen_stack(u64 hash)
{
	u32 index = hash & (SEEN_STACKS - 1);

	return bpf_map_lookup_elem(&seen_stacks, &index);
}

static __always_inline bool target_stack_sent(u64 hash)
{
	u64 *seen = seen_stack(hash);

	return seen && *seen == hash;
}

static __always_inline bool target_in_place(void)
{
	return cfg_direct.base != 0;
}

/*
 * A task whose pointers are followed. For each pointer field of a trusted task, the verifier
 * searches all types of the kernel for certain names, which takes some milliseconds a load; a
 * pointer from a cast avoids this.
 */
static __always_inline struct task_struct *walked(struct task_struct *task)
{
	return target_in_place()
		       ? bpf_rdonly_cast(task, bpf_core_type_id_kernel(struct task_struct))
		       : task;
}

/*
 * Return probes, ours or another tool's, put the address of a trampoline into the return slot or the
 * link register; the kernel keeps the real one in a list of the task. Several probes on one call
 * chain entries with the same slot: the last has the real address.
 */
static __always_inline u64 target_replaced_return(u64 slot)
{
	struct uprobe_task *utask = walked(bpf_get_current_task_btf())->utask;
	u64 original = 0;

	if (!utask)
		return 0;
	struct return_instance *ri = utask->return_instances;
	for (int i = 0; i < MAX_RETURN_PROBES && ri; i++) {
		if (ri->stack == slot)
			original = ri->orig_ret_vaddr;
		else if (original)
			break;
		ri = ri->next;
	}
	return original;
}

static __always_inline u64 target_unsigned(u64 address)
{
	return HAS_LINK ? address & cfg_code_mask : address;
}

/* Looks at the memory map itself. */
struct vma_check {
	u64 start;
	u64 inode;
	u32 holds;
};

static long check_vma(struct task_struct *task __attribute__((unused)), struct vm_area_struct *vma,
		      struct vma_check *c)
{
	struct file *file = vma->vm_file;

	c->holds = vma->vm_start == c->start && (file ? file->f_inode->i_ino : 0) == c->inode;
	return 0;
}

static __always_inline bool target_mapping_holds(struct mapping *m, u64 pc)
{
	struct vma_check c = { .start = m->start, .inode = m->inode };

	if (!cfg_find_vma)
		return 0;
	bpf_find_vma(bpf_get_current_task_btf(), pc, check_vma, &c, 0); /* an error: holds is 0 */
	return c.holds;
}

static __always_inline int target_show(struct window *v, u64 tables, u64 addr)
{
	return find_page(&cfg_direct, tables, addr, v);
}

static __always_inline u64 target_page_changed(struct window *v)
{
	return page_changed(&cfg_direct, v);
}

static __always_inline u64 target_shown_word(u64 at)
{
	return kernel_word(at);
}
