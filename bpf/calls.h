/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Calls of the driver and the runtime. An entry reads the arguments of the call and notes them in a
 * list of the thread; the return finds them there and reads the results. Calls nest: the runtime
 * calls the driver, which calls itself. Each effect is counted once, in the lowest layer that saw
 * it, under the name of the function that the program called.
 */
#pragma once
#include "stack_raw.h"

/* The state of a call so far. */
enum call_state {
	CALL_OPEN = 0,
	CALL_EMITTED = 1, /* a free: applied at its entry */
	CALL_INNER = 2,	  /* a call inside it, in a lower layer, was counted */
	CALL_OTHER = 3,	  /* not about memory */
	CALL_DONE = 4,	  /* nothing is left for its return */
	CALL_OUTSIDE = 5, /* it began before the trace, or after its end */
};

/* The data of a call that a thread keeps from its entry to its return. */
struct call {
	u64 sp;		       /* of the entry */
	u64 value[MAX_VALUES]; /* of an operand that is read at return: the pointer */
	u64 stack;
	u64 inner; /* the address that the call inside it was about */
	u64 ip;	   /* of the function */
	u16 probe; /* row of the probe at its entry */
	u16 hook;  /* row that says what it does */
	u16 name;  /* of an event: row of the function that the program called */
	u8 kind;   /* of an event */
	u8 stack_status;
	u8 state;
	u8 nested; /* the call before it in the list made it; else the program did */
	u8 pad[6];
};

/* The arguments of the call under the probe. */
struct arguments {
	u64 reg[8];
	u64 sp;
	u64 all[RAW_WORDS]; /* the registers by their DWARF numbers, of a HOOK_POINT */
	u64 request;	    /* bytes of the last HOOK_REQUEST; 0: none, or a report took it */
};

struct thread {
	struct call call[MAX_DEPTH];
	struct arguments args;
	u64 first_sp; /* of the first call that was seen: those around it began before. 0: none */
	u64 context;  /* that the thread chose; 0: not known, or the primary one of the device */
	u32 depth;    /* calls under way */
	u32 device;   /* that the thread chose, + 1; 0: not known */
	struct {
		u64 context;
		u64 device;
	} below[MAX_DEPTH]; /* what a pop of the context brings back */
	u32 nbelow;	    /* more than MAX_DEPTH: the rest is not known */
	u32 pad;
};

_Static_assert(sizeof(struct thread) <= MAX_SCRATCH, "task storage is given to this size only");

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thread);
} threads SEC(".maps");

/*
 * The same for threads without task storage: the kernel refuses it at a thread's first call if
 * another thread on that CPU was interrupted while it asked for some.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_LATE_THREADS);
	__type(key, u64); /* bpf_get_current_pid_tgid */
	__type(value, struct thread);
} late_threads SEC(".maps");

struct thread no_calls; /* zero */

static __always_inline struct thread *find_late_thread(void)
{
	u64 key = bpf_get_current_pid_tgid();

	return bpf_map_lookup_elem(&late_threads, &key);
}

/* Allocates memory for a thread at its first call; NULL: there is none. */
static __noinline struct thread *new_thread(void)
{
	u64 key = bpf_get_current_pid_tgid();
	struct thread *th = find_late_thread();

	if (th)
		return th;
	th = bpf_task_storage_get(&threads, bpf_get_current_task_btf(), 0,
				  BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (th)
		return th;
	bpf_map_update_elem(&late_threads, &key, &no_calls, 0);
	return bpf_map_lookup_elem(&late_threads, &key);
}

static __always_inline struct thread *find_thread(void)
{
	struct thread *th = bpf_task_storage_get(&threads, bpf_get_current_task_btf(), 0, 0);

	return th ? th : new_thread();
}

/* Frees the memory of a thread that ends or becomes another program. */
static __always_inline void forget_thread(void)
{
	u64 key = bpf_get_current_pid_tgid();

	bpf_task_storage_delete(&threads, bpf_get_current_task_btf());
	bpf_map_delete_elem(&late_threads, &key);
}

static __always_inline struct call *call_at(struct thread *th, u32 i)
{
	barrier_var(i); /* or the compiler drops the mask, and the verifier does not see why */
	return &th->call[i & (MAX_DEPTH - 1)];
}

static __always_inline struct hook *hook_of(struct call *c)
{
	return &hooks.row[c->hook & (MAX_HOOKS - 1)];
}

static __always_inline u64 argument_or_word(struct arguments *a, u32 n)
{
	u64 word = UNKNOWN;

	if (n < REGISTER_ARGUMENTS)
		return a->reg[n & 7];
	target_read(&word, 8, a->sp + STACK_ARGUMENTS + (n - REGISTER_ARGUMENTS) * 8);
	return word;
}

/* Truncates a value to a width: two bits for the number of bytes, one for the sign. */
static __always_inline u64 narrowed(u64 v, u8 width)
{
	switch (width) {
	case 0:
		return (u8)v;
	case 1:
		return (u16)v;
	case 2:
		return (u32)v;
	case 4:
		return (s64)(s8)v;
	case 5:
		return (s64)(s16)v;
	case 6:
		return (s64)(s32)v;
	default:
		return v;
	}
}

/* Reads an operand of a probe that the library itself contains (USDT). */
static __always_inline u64 resolve_point(struct arguments *a, struct operand *o)
{
	u64 v = a->all[o->arg & 31 & POINT_REGISTERS];

	if (o->from == FROM_CONSTANT)
		return (u64)o->offset << (o->arg & 63);
	if (o->from == FROM_MEMORY && target_read(&v, 8, v + (s64)(s16)o->offset))
		return UNKNOWN;
	return narrowed(v, o->arg >> 5);
}

static __always_inline u64 resolve(struct arguments *a, struct operand *o)
{
	u64 v = UNKNOWN;

	if (o->from == FROM_NONE || o->from == FROM_RETURN || o->from == FROM_RETURNED)
		return v;
	if (o->from == FROM_REQUEST) {
		v = a->request;
		a->request = 0;
		return v;
	}
	if (o->from >= FROM_REGISTER)
		return resolve_point(a, o);
	u64 base = argument_or_word(a, o->arg);
	switch (o->from) {
	case FROM_ARG32:
		return (u32)base;
	case FROM_FIELD:
		target_read(&v, 8, base + o->offset);
		return v;
	case FROM_FIELD32:
		if (!target_read(&v, 4, base + o->offset))
			v = (u32)v;
		return v;
	default: /* FROM_ARG; FROM_OUT: where it will be */
		return base;
	}
}

/* Fills the call's values, at its entry. Returns whether it is about memory. */
BPF_GLOBAL int resolve_values(struct arguments *a, struct hook *k, struct call *c)
{
	if (!a || !k || !c)
		return 0;
	for (u32 i = 0; i < MAX_VALUES; i++)
		c->value[i] = resolve(a, &k->operand[i]);
	return k->guard.from == FROM_NONE || resolve(a, &k->guard) == k->guard_value;
}

/* Reads the results of the call at its return. 0 or -EFAULT. */
BPF_GLOBAL int read_results(struct hook *k, struct call *c, u64 returned)
{
	if (!k || !c)
		return -EINVAL;
	for (u32 i = 0; i < MAX_VALUES; i++) {
		struct operand *o = &k->operand[i];

		if (o->from == FROM_RETURN)
			c->value[i] = returned;
		if (o->from == FROM_RETURNED) {
			c->value[i] = 0;
			if (returned && target_read(&c->value[i], 8, returned + o->offset))
				return -EFAULT;
		}
		if (o->from == FROM_OUT && target_read(&c->value[i], 8, c->value[i] + o->offset))
			return -EFAULT;
	}
	return 0;
}

/* The file's mapping that a pc is in; NULL: none with unwind information. */
static __always_inline struct mapping *code_at(struct unwind_info *p, u64 pc)
{
	struct mapping *m = find_mapping(p, pc);

	return m && m->row_lo < m->row_hi ? m : 0;
}

/*
 * Whether the caller of a function is in the same file as another function. 1 if that is not known:
 * a function that was jumped to can have the kernel's return probe as its return address.
 */
BPF_GLOBAL int called_from(struct unwind_info *p, u64 caller, u64 ip)
{
	if (!p)
		return 1;
	struct mapping *from = code_at(p, caller);
	struct mapping *in = code_at(p, ip);
	return !from || !in || from->bias == in->bias;
}

/*
 * These calls free memory: they are applied at their entry, because the freed memory can be
 * allocated again before they return.
 */
static __always_inline bool frees_memory(u8 kind)
{
	return kind == KIND_FREE || kind == KIND_UNMAP || kind == KIND_RESET;
}

/* Whether a call has the same effect as a call inside it. */
static __always_inline bool same_effect(struct call *outer, struct hook *k, u64 addr)
{
	struct hook *ok = hook_of(outer);

	if (outer->state == CALL_OTHER || outer->state == CALL_OUTSIDE || ok->kind != k->kind ||
	    ok->object != k->object)
		return 0;
	return frees_memory(k->kind) ? outer->value[VALUE_ADDR] == addr : ok->layer == k->layer;
}

/*
 * Marks the calls around the one at `depth` that have the same effect: it was counted. Returns the
 * row of the outermost of those that are under way: the function that the program called.
 */
BPF_GLOBAL int mark_outer_counted(struct thread *th, u32 depth, struct hook *k, u64 addr, u32 row)
{
	u32 name = row, nested = 1;

	if (!th || !k)
		return row;
	for (u32 i = 0; i < MAX_DEPTH; i++) {
		if (i >= depth)
			break;
		nested &= call_at(th, depth - i)->nested;
		struct call *o = call_at(th, depth - i - 1);
		if (!same_effect(o, k, addr))
			continue;
		o->state = CALL_INNER;
		o->inner = addr;
		if (nested)
			name = o->hook;
	}
	return name;
}

/* Whether a call around the one at `depth` applied the same free already. */
BPF_GLOBAL int freed_outside(struct thread *th, u32 depth, struct hook *k, u64 addr)
{
	if (!th || !k)
		return 0;
	for (u32 i = 0; i < MAX_DEPTH; i++) {
		if (i >= depth || !call_at(th, depth - i)->nested)
			break;
		struct call *o = call_at(th, depth - i - 1);
		if (o->state == CALL_EMITTED && same_effect(o, k, addr))
			return 1;
	}
	return 0;
}

/*
 * Sends an event of c->kind and c->name, seen by the probe of a row. Returns whether it could; else
 * the event is counted as lost.
 */
BPF_GLOBAL int emit_call(struct thread *th, struct traced *t, struct call *c, u32 row)
{
	if (!th || !t || !c)
		return 0;
	struct hook_stats *s = stats_of(row & (MAX_HOOKS - 1));
	struct record_call *r = ring_reserve(sizeof(*r));

	if (!r) {
		__sync_fetch_and_add(&t->lost, 1);
		count(events_lost);
		if (s)
			count_outcome(s, ring_refused());
		return 0;
	}
	fill_event(&r->event, t, hook_of(c), row, (u32)bpf_get_current_pid_tgid());
	r->event.type = RECORD_CALL;
	r->event.meaning = c->hook;
	r->event.kind = c->kind;
	r->event.call = c->name;
	r->event.device_index = (s32)th->device - 1;
	r->event.addr = c->value[VALUE_ADDR];
	r->event.size = UNKNOWN;
	r->event.stack = c->stack;
	r->event.stack_status = c->stack_status;
	r->context = th->context ? th->context : UNKNOWN;
	__builtin_memcpy(r->value, c->value, sizeof(r->value));
	bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
	if (s)
		count_outcome(s, OUT_EMITTED);
	return 1;
}

static __always_inline int emit(struct hit *h, struct thread *th, struct call *c, u8 kind, u16 name)
{
	c->kind = kind;
	c->name = name;
	return emit_call(th, h->traced, c, h->row);
}

/*
 * Reports frees that were applied at their entry and whose calls never returned as failed frees.
 * That is right if the call was left before the library did anything; otherwise the next allocation
 * of the address shows the free. Each counts as a run of the return probe, which did not run.
 */
BPF_GLOBAL int abandon_calls(struct thread *th, struct traced *t, u32 from, u32 to)
{
	if (!th || !t)
		return 0;
	for (u32 i = 0; i < MAX_DEPTH; i++) {
		struct call *c = call_at(th, i);

		if (i < from || i >= to || c->state != CALL_EMITTED)
			continue;
		c->state = CALL_DONE;
		c->kind = KIND_FREE_FAILED;
		u32 row = (c->probe + 1) & (MAX_HOOKS - 1);
		struct hook_stats *s = stats_of(row);
		if (s)
			__sync_fetch_and_add(&s->hits, 1);
		emit_call(th, t, c, row);
	}
	return 0;
}

/*
 * Forgets calls whose frame has ended: an exception or longjmp skipped their return. A function
 * that jumped here can have the same return address on the stack. Returns the depth.
 */
static __always_inline u32 drop_left_calls(struct hit *h, struct thread *th, u64 sp)
{
	u32 depth = th->depth, before = depth, applied = 0;

	for (int i = 0; i < MAX_DEPTH; i++) {
		if (depth == 0 || depth > MAX_DEPTH)
			break;
		struct call *c = call_at(th, depth - 1);
		if (c->sp > sp || (c->sp == sp && c->probe != h->row))
			break;
		applied |= c->state == CALL_EMITTED;
		depth--;
	}
	if (applied)
		abandon_calls(th, h->traced, depth, before);
	th->depth = depth;
	return depth;
}

/*
 * Whether the previous call in the list makes the call that begins. If not, longjmp or an exception
 * ended the previous call and all before it, and the program went on further down the stack.
 */
static __always_inline bool is_nested(struct hit *h, struct thread *th, u32 depth)
{
	struct info_ref *ref = bpf_map_lookup_elem(&info_refs, &h->index);
	u64 caller = 0;

	if (depth && h->hook->flags & HOOK_POINT)
		return 1;
	if (!depth || return_address(h->ctx, &caller))
		return 0;
	if (!ref || called_from(info_of(ref), caller, call_at(th, depth - 1)->ip))
		return 1;
	abandon_calls(th, h->traced, 0, depth);
	return 0;
}

/* Adds a call that begins to the thread's list. NULL: the call is lost, and counted. */
static __always_inline struct call *push_call(struct hit *h, struct thread *th)
{
	u64 sp = PROBE_SP(h->ctx);

	if (!th->first_sp)
		th->first_sp = sp;
	u32 depth = drop_left_calls(h, th, sp);
	u8 nested = is_nested(h, th, depth);
	if (!nested && depth > MAX_DEPTH / 2)
		depth = 0; /* makes room */
	if (depth >= MAX_DEPTH) {
		drop(h, DROP_DEPTH);
		return 0;
	}
	struct call *c = call_at(th, depth);
	c->sp = sp;
	c->probe = c->hook = h->row;
	c->state = CALL_OPEN;
	c->stack_status = STACK_OK;
	c->stack = c->inner = 0;
	c->ip = PROBE_PC(h->ctx);
	c->nested = nested;
	th->depth = depth + 1;
	return c;
}

/* Reads what the call was given, by the row of its probe or the other one. Returns whether it is
 * about memory. */
static __always_inline bool read_call(struct hit *h, struct thread *th, struct call *c)
{
	struct arguments *a = &th->args;
	u64 sp = PROBE_SP(h->ctx);

	/* Or it is read below by an address in the context, which the verifier refuses. */
	barrier_var(sp);
	a->sp = sp;
	register_arguments(h->ctx, a->reg);
	if (h->hook->flags & HOOK_POINT)
		raw_registers(h->ctx, a->all);
	if (resolve_values(a, h->hook, c))
		return 1;
	if (!h->hook->other)
		return 0;
	c->hook = h->hook->other;
	h->hook = hook_of(c);
	return resolve_values(a, h->hook, c);
}

/* Sends the free of a call before the library executes it. */
static __always_inline void apply_free(struct hit *h, struct thread *th, struct call *c)
{
	c->state = emit_call(th, h->traced, c, h->row) ? CALL_EMITTED : CALL_DONE;
}

/*
 * Handles the entry of a call that frees memory. Returns whether its stack must be walked before
 * the event is sent.
 */
static __always_inline bool enter_free(struct hit *h, struct thread *th, struct call *c)
{
	struct hook *k = h->hook;
	u64 addr = c->value[VALUE_ADDR];
	u32 depth = th->depth - 1;

	if (!addr) { /* free(NULL) */
		c->state = CALL_DONE;
		outcome(h, OUT_NOTHING);
		return 0;
	}
	if (freed_outside(th, depth, k, addr)) {
		c->state = CALL_INNER;
		outcome(h, OUT_NESTED);
		return 0;
	}
	if (k->flags & HOOK_DEFER) {
		outcome(h, OUT_ENTERED);
		return 0;
	}
	c->kind = k->kind;
	c->name = mark_outer_counted(th, depth, k, addr, c->hook);
	if (!cfg_free_stacks) {
		apply_free(h, th, c);
		return 0;
	}
	c->stack_status = STACK_NO_SCRATCH; /* until it is walked */
	return 1;
}

/*
 * Sends the event of the report that was noted last, and removes it from the list: its return has
 * nothing to do.
 */
BPF_GLOBAL int send_report(struct thread *th, struct traced *t, u32 row)
{
	if (!th || !t || !th->depth)
		return 0;
	struct call *c = call_at(th, --th->depth);
	c->kind = hook_of(c)->kind;
	c->name = c->hook;
	return emit_call(th, t, c, row);
}

/* Handles the entry of a report. Returns whether its stack must be walked before the event is sent. */
static __always_inline bool enter_report(struct hit *h, struct thread *th, struct call *c)
{
	if (!c->value[VALUE_ADDR]) {
		th->depth--;
		outcome(h, OUT_NOTHING);
		return 0;
	}
	if (h->hook->kind == KIND_ALLOC || cfg_free_stacks) {
		c->stack_status = STACK_NO_SCRATCH; /* until it is walked */
		return 1;
	}
	send_report(th, h->traced, h->row);
	return 0;
}

/* The entry of a call. Returns whether its stack must be walked. */
static __always_inline bool call_enter(struct hit *h)
{
	struct thread *th = find_thread();

	if (!th) {
		drop(h, DROP_NO_SCRATCH);
		return 0;
	}
	struct call *c = push_call(h, th);
	if (!c)
		return 0;
	if (h->hook->flags & HOOK_OFF) {
		c->state = CALL_OUTSIDE;
		outcome(h, OUT_OUTSIDE);
		return 0;
	}
	if (!read_call(h, th, c)) {
		c->state = CALL_OTHER;
		if (h->hook->flags & HOOK_REPORT)
			th->depth--;
		outcome(h, OUT_OTHER);
		return 0;
	}
	if (h->hook->flags & HOOK_REQUEST) {
		th->args.request = c->value[VALUE_DIMS];
		th->depth--;
		outcome(h, OUT_ENTERED);
		return 0;
	}
	if (h->hook->flags & HOOK_REPORT)
		return enter_report(h, th, c);
	if (frees_memory(h->hook->kind))
		return enter_free(h, th, c);
	if (h->hook->kind != KIND_ALLOC) {
		outcome(h, OUT_ENTERED);
		return 0;
	}
	c->stack_status = STACK_NO_SCRATCH; /* until it is walked */
	return 1;
}

/*
 * Walks the stack of the call that call_enter noted last, or leaves it out, and sends the call if it
 * is a free or a report.
 */
static __always_inline void call_walk(struct hit *h, bool left_out)
{
	struct thread *th = find_thread();
	u8 status = STACK_LEFT_OUT;

	if (!th || !th->depth) {
		drop(h, DROP_NO_SCRATCH);
		return;
	}
	struct call *c = call_at(th, th->depth - 1);
	if (!left_out)
		c->stack = stack_of_call(h, &status);
	c->stack_status = status;
	if (hook_of(c)->flags & HOOK_REPORT)
		send_report(th, h->traced, h->row);
	else if (frees_memory(hook_of(c)->kind))
		apply_free(h, th, c);
	else
		outcome(h, OUT_ENTERED);
}

/* Handles a call whose stack cannot be walked, because the program for it is missing. */
static __always_inline void call_not_walked(struct hit *h)
{
	if (h->hook->flags & HOOK_REPORT)
		drop(h, DROP_NO_SCRATCH);
	else
		outcome(h, OUT_ENTERED);
}

/*
 * Removes the call that returns now from the thread's list. Its entry probe has the row before this
 * one. NULL: the entry was not seen.
 */
static __always_inline struct call *pop_call(struct hit *h, struct thread *th)
{
	u64 sp = SP_OF_ENTRY(h->ctx);
	u32 depth = th->depth;

	for (int i = 0; i < MAX_DEPTH; i++) {
		if (depth == 0 || depth > MAX_DEPTH)
			break;
		depth--;
		struct call *c = call_at(th, depth);
		if (c->sp > sp)
			break;
		if (c->sp == sp && c->probe + 1 == h->row) {
			if (depth + 1 < th->depth) /* those above it never returned */
				abandon_calls(th, h->traced, depth + 1, th->depth);
			th->depth = depth;
			return c;
		}
	}
	return 0;
}

/* The thread chose its device or context: context.h. */
static __always_inline void choose_device(struct hit *h, struct thread *th, struct call *c);
static __always_inline void made_context(struct hit *h, struct thread *th, struct call *c);
static __always_inline void destroyed_context(struct hit *h, struct thread *th, struct call *c);

/* Whether a call says that it failed: CUresult, cudaError_t, hipError_t and ze_result_t are ints, 0
 * is success. */
static __always_inline bool failed(struct hook *k, u64 returned)
{
	return !(k->flags & HOOK_NO_STATUS) && (u32)returned;
}

/* Handles the return of a call that frees memory. */
static __always_inline void leave_free(struct hit *h, struct thread *th, struct call *c,
				       bool refused)
{
	switch (c->state) {
	case CALL_EMITTED:
		if (!refused)
			destroyed_context(h, th, c);
		if (refused) /* what was freed at its entry is put back */
			emit(h, th, c, KIND_FREE_FAILED, c->name);
		else
			outcome(h, OUT_RETURNED);
		return;
	case CALL_INNER:
		outcome(h, OUT_NESTED);
		return;
	case CALL_OPEN: /* the library below did not see it after all */
		if (refused)
			outcome(h, OUT_CALL_FAILED);
		else
			emit(h, th, c, h->hook->kind, c->hook);
		return;
	default:
		outcome(h, OUT_RETURNED);
	}
}

/*
 * CUDA_ERROR_OUT_OF_MEMORY, cudaErrorMemoryAllocation and hipErrorOutOfMemory;
 * ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY.
 */
static __always_inline bool is_out_of_memory(u32 rc)
{
	return rc == 2 || rc == 0x70000003;
}

/* Handles the return of a call that failed to allocate. */
static __always_inline void alloc_failed(struct hit *h, struct thread *th, struct call *c, u32 rc)
{
	struct hook *k = h->hook;

	if (c->state == CALL_INNER) {
		outcome(h, OUT_NESTED);
		return;
	}
	if (k->kind != KIND_ALLOC || (k->layer != LAYER_DEVICE && k->layer != LAYER_HOST) ||
	    !is_out_of_memory(rc)) {
		outcome(h, OUT_CALL_FAILED);
		return;
	}
	c->value[VALUE_ADDR] = 0;
	emit(h, th, c, KIND_OUT_OF_MEMORY, mark_outer_counted(th, th->depth, k, 0, c->hook));
}

/*
 * Handles the return of a call that allocates memory, an address or a reference: the lowest layer
 * that saw it counts it, under the name of the call that the program made.
 */
static __always_inline void leave_alloc(struct hit *h, struct thread *th, struct call *c,
					u64 returned)
{
	struct hook *k = h->hook;

	if (failed(k, returned)) {
		alloc_failed(h, th, c, returned);
		return;
	}
	if (read_results(k, c, returned)) {
		drop(h, DROP_UNREADABLE);
		return;
	}
	u64 addr = c->value[VALUE_ADDR];
	if (k->kind == KIND_SET_CONTEXT || k->kind == KIND_SET_DEVICE) {
		choose_device(h, th, c);
		return;
	}
	if (c->state == CALL_INNER && c->inner == addr) {
		outcome(h, OUT_NESTED);
		return;
	}
	if (!addr) {
		outcome(h, OUT_NOTHING);
		return;
	}
	if (k->object == OBJECT_CONTEXT)
		made_context(h, th, c);
	emit(h, th, c, k->kind, mark_outer_counted(th, th->depth, k, addr, c->hook));
}

/* The return of a call. */
static __always_inline void call_return(struct hit *h)
{
	struct thread *th = find_thread();
	u64 sp = SP_OF_ENTRY(h->ctx);
	u64 returned = PROBE_RETURNED(h->ctx);

	if (!th) {
		drop(h, DROP_NO_SCRATCH);
		return;
	}
	struct call *c = pop_call(h, th);
	if (c)
		h->hook = hook_of(c);
	if (!c && (!th->first_sp || sp > th->first_sp))
		outcome(h, OUT_OUTSIDE);
	else if (!c)
		drop(h, DROP_UNPAIRED);
	else if (c->state == CALL_OTHER)
		outcome(h, OUT_OTHER);
	else if (c->state == CALL_OUTSIDE)
		outcome(h, OUT_OUTSIDE);
	else if (frees_memory(h->hook->kind))
		leave_free(h, th, c, failed(h->hook, returned));
	else
		leave_alloc(h, th, c, returned);
}
