/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Tracks the device on which a thread allocates: the device that it chose, or the device of its
 * current context. A context's device is known if its creation was seen.
 */
#pragma once
#include "calls.h"

struct context_key {
	u64 context;
	u32 pid;
	u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_CONTEXTS);
	__type(key, struct context_key);
	__type(value, u32); /* device + 1 */
} contexts SEC(".maps");

static __always_inline void push_context(struct thread *th)
{
	u32 n = th->nbelow++;

	if (n >= MAX_DEPTH)
		return;
	barrier_var(n);
	th->below[n & (MAX_DEPTH - 1)].context = th->context;
	th->below[n & (MAX_DEPTH - 1)].device = th->device;
}

static __always_inline void pop_context(struct thread *th)
{
	u32 n = th->nbelow;

	th->context = th->device = 0;
	if (!n)
		return;
	th->nbelow = --n;
	if (n >= MAX_DEPTH)
		return;
	barrier_var(n);
	th->context = th->below[n & (MAX_DEPTH - 1)].context;
	th->device = th->below[n & (MAX_DEPTH - 1)].device;
}

static __always_inline void learn_context(struct hit *h, u64 context, u32 device)
{
	struct context_key key = { .context = context, .pid = h->traced->pid };
	u32 value = device + 1;

	if (!bpf_map_lookup_elem(&contexts, &key))
		count(contexts_made);
	bpf_map_update_elem(&contexts, &key, &value, 0);
}

static __always_inline void set_device(struct hit *h, struct thread *th, struct call *c)
{
	u32 device = c->value[VALUE_DEVICE];

	if (c->state == CALL_INNER)
		learn_context(h, c->inner, device);
	else if (th->device != device + 1)
		th->context = 0;
	th->device = device + 1;
}

static __always_inline void set_context(struct hit *h, struct thread *th, u64 context)
{
	struct context_key key = { .context = context, .pid = h->traced->pid };

	if (h->hook->flags & HOOK_PUSH)
		push_context(th);
	u32 *device = bpf_map_lookup_elem(&contexts, &key);
	if (!device && context)
		count(context_unknown);
	th->context = context;
	th->device = device ? *device : 0;
	u32 depth = th->depth;
	struct call *outer = depth ? call_at(th, depth - 1) : 0;
	if (outer && context && hook_of(outer)->kind == KIND_SET_DEVICE) {
		outer->state = CALL_INNER;
		outer->inner = context;
	}
}

/* The thread chose a device or a context: it allocates there from now on. */
static __always_inline void choose_device(struct hit *h, struct thread *th, struct call *c)
{
	outcome(h, OUT_CHOSEN);
	if (h->hook->kind == KIND_SET_DEVICE)
		set_device(h, th, c);
	else if (c->value[VALUE_ADDR] == UNKNOWN)
		pop_context(th);
	else
		set_context(h, th, c->value[VALUE_ADDR]);
}

static __always_inline void made_context(struct hit *h, struct thread *th, struct call *c)
{
	if (c->value[VALUE_DEVICE] == UNKNOWN)
		return;
	learn_context(h, c->value[VALUE_ADDR], c->value[VALUE_DEVICE]);
	if (h->hook->flags & HOOK_CURRENT) {
		push_context(th);
		th->context = c->value[VALUE_ADDR];
		th->device = c->value[VALUE_DEVICE] + 1;
	}
}

/* A context that is destroyed is no longer current (cuCtxDestroy in cuda.h). */
static __always_inline void destroyed_context(struct hit *h, struct thread *th, struct call *c)
{
	if (h->hook->kind == KIND_RESET && th->context && th->context == c->value[VALUE_ADDR])
		pop_context(th);
}
