/* SPDX-License-Identifier: Apache-2.0 */
/* PyTorch's MPS allocator: it hands out pooled buffers without a call of Metal, so its own methods are replaced. The object gets a copy
 * of its table of virtual functions with two of them changed: nothing of the code is written to, and no page changes its protection. */
#pragma once
#include "metal.h"

#define TABLE_WORDS 48 /* more than the class has virtual functions */
#define TABLE_HEAD                                                                                 \
	2 /* words before the first function (Itanium C++ ABI, 2.5.2): offset to top, type */
#define ALLOCATORS 4

/* c10::DataPtr (c10/core/Allocator.h): UniqueVoidPtr, whose unique_ptr of libc++ is a pointer and its deleter, and a c10::Device. It is
 * returned in memory, as a struct of C of this size is. */
struct data_ptr {
	void *data, *context;
	void (*deleter)(void *);
	int8_t device_type, device_index;
};
typedef struct data_ptr (*allocate_fn)(void *self, size_t bytes);
typedef void (*deleter_fn)(void *context);
typedef deleter_fn (*raw_deleter_fn)(void *self);
typedef size_t (*total_fn)(void *self);

/* The functions that give the allocator; signatures of several releases. The second argument of none matters. */
static const struct {
	const char *symbol;
	int both; /* it takes a bool: private or shared memory */
} torch_getters[] = {
	{ "_ZN2at3mps15GetMPSAllocatorEb", 1 },
	{ "_ZN2at3mps16getIMPSAllocatorEb", 1 },
	{ "_ZN2at3mps16getIMPSAllocatorEv", 0 },
};

static struct {
	int state; /* 0: not looked at yet, 1: being replaced, 2: done or given up */
	uint32_t images;
	allocate_fn allocate;
	deleter_fn deleter;
	total_fn allocated; /* NULL: it has no such function */
	void *object;
	void *tables[ALLOCATORS][TABLE_WORDS];
	unsigned count;
} torch;

/* torch_note notes a request where gputrace sees it, also when the process is killed within. */
static struct ring_pending *torch_note(const struct thread *t, uint64_t size, uint64_t stack)
{
	for (unsigned i = 0; i < RING_PENDING; i++) {
		struct ring_pending *p = &ring->pending[i];
		uint64_t nobody = 0;
		if (!__atomic_compare_exchange_n(&p->thread, &nobody, t->id, 0, __ATOMIC_ACQUIRE,
						 __ATOMIC_RELAXED))
			continue;
		p->time = now();
		p->size = size;
		p->stack = stack;
		return p;
	}
	return NULL;
}

static void torch_deleter(void *context)
{
	struct thread *t = enter(HOOK_RELEASE);
	struct ring_event e = { .record.what = HOOK_RELEASE,
				.object = (uintptr_t)context,
				.requested = RING_UNKNOWN,
				.size = RING_UNKNOWN,
				.offset = RING_UNKNOWN };
	if (t)
		emit(t, &e);
	torch.deleter(context);
	if (t)
		counters(t, 0);
}

static deleter_fn torch_raw_deleter(void *self)
{
	(void)self;
	return torch_deleter;
}

static void torch_report(struct thread *t, struct data_ptr *d, size_t bytes, uint64_t stack)
{
	struct ring_event e = { .record.what = HOOK_ALLOCATE,
				.object = (uintptr_t)d->context,
				.requested = bytes,
				.offset = RING_UNKNOWN,
				.stack = stack };
	if (!d->context) {
		quiet(HOOK_ALLOCATE, QUIET_NOTHING);
		return;
	}
	if (d->deleter != torch.deleter) {
		quiet(HOOK_ALLOCATE, QUIET_FOREIGN);
		return;
	}
	d->deleter = torch_deleter;
	e.size = property((id)d->context, "length");
	emit(t, &e);
	counters(t, 0);
}

CALL struct data_ptr call_allocate(struct thread *t, void *self, size_t bytes)
{
	t->request.frame = (uintptr_t)__builtin_frame_address(0);
	return torch.allocate(self, bytes);
}

/* torch_allocate can be run within itself: where there is no memory, the allocator has its callbacks free some. */
static struct data_ptr torch_allocate(void *self, size_t bytes)
{
	struct thread *t = enter(HOOK_ALLOCATE);
	struct ring_pending *slot;
	struct call outer, *c;
	struct data_ptr d;
	uint64_t stack;
	if (!t)
		return torch.allocate(self, bytes);
	c = &t->request;
	outer = *c;
	stack = stack_here(t);
	*c = (struct call){ .hook = HOOK_ALLOCATE, .size = bytes, .stack = stack };
	c->slot = slot = torch_note(t, bytes, stack);
	d = call_allocate(t, self, bytes);
	c->slot = slot; /* one within that failed may have been noted over it */
	call_end(c);
	*c = outer;
	torch_report(t, &d, bytes, stack);
	return d;
}

/* torch_slot is which entry of a table is a function, by its name in the symbol table; -1: none. */
static int torch_slot(void **table, const char *name)
{
	for (int i = 0; i < TABLE_WORDS - TABLE_HEAD; i++) {
		struct dl_info info = { 0 };
		if (!table[i])
			return -1;
		if (dladdr(table[i], &info) && info.symbol && info.start == table[i] &&
		    text_find(info.symbol, name))
			return i;
	}
	return -1;
}

/* torch_replace gives an allocator its changed table. */
static int torch_replace(void ***object)
{
	void **table = *object, **copy = torch.tables[torch.count];
	int allocate = torch_slot(table, "12MPSAllocator8allocateEm"),
	    raw = torch_slot(table, "12MPSAllocator11raw_deleterEv"),
	    total = torch_slot(table, "12MPSAllocator25getCurrentAllocatedMemoryEv");
	if (torch.count == ALLOCATORS || allocate < 0 || raw < 0) {
		words("torch",
		      "its allocator has no functions allocate and raw_deleter that are known");
		return 0;
	}
	torch.allocate = (allocate_fn)table[allocate];
	torch.deleter = ((raw_deleter_fn)table[raw])(object);
	torch.allocated = total < 0 ? NULL : (total_fn)table[total];
	torch.object = object;
	for (int i = 0; i < TABLE_WORDS; i++)
		copy[i] = table[i - TABLE_HEAD];
	copy[TABLE_HEAD + allocate] = (void *)torch_allocate;
	copy[TABLE_HEAD + raw] = (void *)torch_raw_deleter;
	torch.count++;
	__atomic_store_n(object, copy + TABLE_HEAD, __ATOMIC_RELEASE);
	return 1;
}

/* torch_totals is of blocks: what was allocated before the shim came is in no event. The function reads a figure, and takes no lock. */
static void torch_totals(struct ring_event *e)
{
	if (torch.allocated && (e->record.what == HOOK_ALLOCATE || e->record.what == HOOK_RELEASE))
		e->allocated = torch.allocated(torch.object);
}

/* torch_handle finds libtorch_cpu, which Python loads for itself, so that a search among all does not see it; NULL: not yet. */
static void *torch_handle(void)
{
	for (uint32_t i = 0, n = _dyld_image_count(); i < n; i++) {
		const char *path = _dyld_get_image_name(i);
		if (path && text_find(path, "/libtorch_cpu.dylib"))
			return dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
	}
	return NULL;
}

static int torch_install(void *handle)
{
	for (unsigned i = 0; i < sizeof torch_getters / sizeof *torch_getters; i++) {
		void ***(*get)(int);
		void ***one, ***other;
		*(void **)&get = dlsym(handle, torch_getters[i].symbol);
		if (!get)
			continue;
		one = get(0);
		other = torch_getters[i].both ? get(1) : one;
		if (!one || !torch_replace(one) || (other && other != one && !torch_replace(other)))
			return 0;
		words("torch", "blocks are traced");
		return 1;
	}
	words("torch", "libtorch_cpu has no function that gives its allocator");
	return 0;
}

/* torch_find replaces the allocator once PyTorch is there. It is called when Metal has given memory: to ask for the allocator earlier
 * would begin the construction of the device that is being constructed. */
static void torch_find(void)
{
	int none = 0;
	uint32_t images;
	void *handle;
	if (__atomic_load_n(&torch.state, __ATOMIC_ACQUIRE) == 2)
		return;
	images = _dyld_image_count();
	if (images == torch.images ||
	    !__atomic_compare_exchange_n(&torch.state, &none, 1, 0, __ATOMIC_ACQ_REL,
					 __ATOMIC_RELAXED))
		return;
	torch.images = images;
	handle = torch_handle();
	if (handle)
		torch_install(handle);
	__atomic_store_n(&torch.state, handle ? 2 : 0, __ATOMIC_RELEASE);
}
