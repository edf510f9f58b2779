//go:build ignore

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The programs of the kernel side. Each probe has a row of the hook table, which its attach cookie
 * names and which describes the function: a new function needs a row in package hook, but no code
 * here.
 *
 *   limits.h types.h records.h tables.h   what both sides share; the tables say what is where
 *   target.h window.h memory.h pagetable.h  reads the target's memory, in place or by copies
 *   walk.h unwind_*.h unwind.h            the walk of a stack; compiles for the host, too
 *   walk_cache.h                          walks that need not be repeated
 *   maps.h target_bpf.h                   the maps, and what the unwinder wants of the kernel
 *   process.h hit.h stack.h stack_raw.h   who is traced; one run of a probe; its stack
 *   torch.h marks.h calls.h context.h     what the probes do
 */
#include "types.h"
#include "context.h"
#include "marks.h"

char LICENSE[] SEC("license") = "GPL"; /* bpf_probe_read_user is for GPL programs */

/*
 * A separate program walks stacks, and the other programs jump to it: the verifier checks the walk
 * once, apart from the programs that jump there. A jump fails if that program is missing, which
 * never happens while probes are attached.
 */
#define GO_ON_AND_WALK(ctx) bpf_tail_call(ctx, &unwinder, 0)

/* A report of PyTorch's caching allocator, or what can be the beginning of a step. */
SEC("uprobe")
int report(struct pt_regs *ctx)
{
	struct hit h;

	if (hit_begin(&h, ctx))
		return 0;
	if (torch_hit(&h)) {
		GO_ON_AND_WALK(ctx);
		drop(&h, DROP_NO_SCRATCH);
	}
	hit_end(&h);
	return 0;
}

/* The entry of a call of the runtime, the driver or an allocator above them. */
SEC("uprobe")
int enter(struct pt_regs *ctx)
{
	struct hit h;

	if (hit_begin(&h, ctx))
		return 0;
	if (call_enter(&h)) {
		if (leaves_out(&h, KIND_ALLOC)) {
			call_walk(&h, 1);
		} else {
			GO_ON_AND_WALK(ctx);
			call_not_walked(&h);
		}
	}
	hit_end(&h);
	return 0;
}

/* Walks the stack for either, and sends the event. */
SEC("uprobe")
int unwind(struct pt_regs *ctx)
{
	struct hit h;

	USE_STACK_OF_THREAD(ctx);
	if (hit_go_on(&h, ctx))
		return 0;
	if (h.hook->program == PROGRAM_TORCH)
		torch_walk(&h);
	else
		call_walk(&h, 0);
	hit_end(&h);
	return 0;
}

/* The return of a call. */
SEC("uprobe")
int leave(struct pt_regs *ctx)
{
	struct hit h;

	USE_STACK_OF_THREAD(ctx);
	if (hit_begin(&h, ctx))
		return 0;
	call_return(&h);
	hit_end(&h);
	return 0;
}

/*
 * The dynamic linker tells debuggers that it has added or removed libraries by calling a function
 * that does nothing (r_brk of link.h): after the mapping, before any code of a new library runs.
 */
SEC("uprobe")
int libraries_changed(void *ctx)
{
	USE_STACK_OF_THREAD(ctx);
	u32 index;
	struct traced *t = current_traced(bpf_get_current_pid_tgid() >> 32, &index);
	struct info_ref *ref = t ? bpf_map_lookup_elem(&info_refs, &index) : 0;
	struct unwind_info *p = ref ? info_of(ref) : 0;

	if (t && p)
		check_code(t, ref, p, walked(bpf_get_current_task_btf())->mm);
	return 0;
}

/* Registers the child of a process whose children are traced, before the child runs. */
SEC("tp_btf/sched_process_fork")
int process_forked(u64 *args)
{
	struct task_struct *child = (struct task_struct *)args[1];
	u32 index;
	struct traced *t = current_traced(bpf_get_current_pid_tgid() >> 32, &index);

	if (t && t->children && child->pid == child->tgid)
		trace_child(t, index, child);
	return 0;
}

/* The process becomes another program, in which nothing is where it was. */
SEC("tp_btf/sched_process_exec")
int program_replaced(void *ctx __attribute__((unused)))
{
	u32 tgid = bpf_get_current_pid_tgid() >> 32, index;
	struct traced *t = current_traced(tgid, &index);

	if (!t)
		return 0;
	forget_thread();
	process_execed(t, index, tgid);
	return 0;
}

/*
 * A thread ends: its pending calls will not return. The process ends with its last
 * thread.
 */
SEC("tp_btf/sched_process_exit")
int thread_exit(void *ctx __attribute__((unused)))
{
	struct task_struct *task = bpf_get_current_task_btf();
	u32 tgid = bpf_get_current_pid_tgid() >> 32, index;
	struct traced *t = current_traced(tgid, &index);

	if (!t)
		return 0;
	struct thread *th = bpf_task_storage_get(&threads, task, 0, 0);
	if (!th)
		th = find_late_thread();
	if (th)
		abandon_calls(th, t, 0, th->depth);
	forget_thread();
	if (!task->signal->live.counter)
		process_ended(t, index, tgid);
	return 0;
}

/* Types that no map or variable has, kept in the BTF for the Go side. */
union keep_types {
	struct record_event event;
	struct record_free free;
	struct record_stack stack;
	struct record_code code;
	struct record_code_changed code_changed;
	struct record_process process;
	struct record_call call;
	struct record_raw_page raw_page;
	enum process_change process_change;
	enum traced_state traced_state;
	enum event_object object;
	enum operand_name operand_name;
	enum operand_from operand_from;
	enum hook_flag hook_flag;
	enum hook_program hook_program;
	enum record_type record_type;
	enum event_kind kind;
	enum event_layer layer;
	enum stack_status stack_status;
	enum outcome outcome;
	enum py_entry py_entry;
	enum raw_word raw_word;
	enum code_chunk code_chunk;
};
const union keep_types *keep_types __attribute__((unused));
