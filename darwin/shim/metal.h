/* SPDX-License-Identifier: Apache-2.0 */
/* Metal, by replacing methods of the concrete classes: they differ between GPUs, so they are taken from a live device, from the first
 * heap of each kind and from the first resource. A method that a class inherits is added to it, and calls what it inherited.
 *
 * Every replaced method takes and returns words, at most four beside self and _cmd: all are in registers on both processors, so that
 * one prototype serves all, and registers that a method does not use do no harm. */
#pragma once
#include "call.h"

typedef uint64_t (*method_fn)(id self, SEL name, uint64_t a, uint64_t b, uint64_t c, uint64_t d);
typedef uint64_t (*property_fn)(id self, SEL name);
typedef id (*element_fn)(id self, SEL name, uint64_t index);

#define PURGEABLE_EMPTY 4	  /* MTLPurgeableStateEmpty */
#define COUNTERS_EVERY	10000000u /* nanoseconds */
#define REPLACEMENTS	192
#define DEVICES		16

enum owner { OF_DEVICE, OF_HEAP, OF_RESOURCE };
enum argument { ARGUMENT_NONE, ARGUMENT_FIRST, ARGUMENT_SECOND };

/* A method that is replaced. MTLDevice.h, MTLHeap.h, MTLResource.h; those that a class lacks are left out. */
struct method {
	const char *name;
	enum owner owner;
	enum ring_hook hook;
	enum argument bytes; /* which argument is the size */
	uint64_t flags;
};

static const struct method methods[] = {
	{ "newHeapWithDescriptor:", OF_DEVICE, HOOK_HEAP, ARGUMENT_NONE, 0 },
	{ "newBufferWithLength:options:", OF_DEVICE, HOOK_RESOURCE, ARGUMENT_FIRST, 0 },
	{ "newBufferWithBytes:length:options:", OF_DEVICE, HOOK_RESOURCE, ARGUMENT_SECOND, 0 },
	{ "newBufferWithBytesNoCopy:length:options:deallocator:", OF_DEVICE, HOOK_RESOURCE,
	  ARGUMENT_SECOND, FLAG_IMPORTED },
	{ "newBufferWithLength:options:placementSparsePageSize:", OF_DEVICE, HOOK_RESOURCE,
	  ARGUMENT_FIRST, 0 },
	{ "newTextureWithDescriptor:", OF_DEVICE, HOOK_RESOURCE, ARGUMENT_NONE, 0 },
	{ "newTextureWithDescriptor:iosurface:plane:", OF_DEVICE, HOOK_RESOURCE, ARGUMENT_NONE,
	  FLAG_IMPORTED },
	{ "newSharedTextureWithDescriptor:", OF_DEVICE, HOOK_RESOURCE, ARGUMENT_NONE, 0 },
	{ "newAccelerationStructureWithSize:", OF_DEVICE, HOOK_RESOURCE, ARGUMENT_FIRST, 0 },
	{ "newTensorWithDescriptor:error:", OF_DEVICE, HOOK_RESOURCE, ARGUMENT_NONE, 0 },
	{ "newBufferWithLength:options:", OF_HEAP, HOOK_RESOURCE, ARGUMENT_FIRST, 0 },
	{ "newBufferWithLength:options:offset:", OF_HEAP, HOOK_RESOURCE, ARGUMENT_FIRST, 0 },
	{ "newTextureWithDescriptor:", OF_HEAP, HOOK_RESOURCE, ARGUMENT_NONE, 0 },
	{ "newTextureWithDescriptor:offset:", OF_HEAP, HOOK_RESOURCE, ARGUMENT_NONE, 0 },
	{ "setPurgeableState:", OF_HEAP, HOOK_PURGE, ARGUMENT_NONE, 0 },
	{ "dealloc", OF_HEAP, HOOK_DEALLOC, ARGUMENT_NONE, 0 },
	{ "setPurgeableState:", OF_RESOURCE, HOOK_PURGE, ARGUMENT_NONE, 0 },
	{ "dealloc", OF_RESOURCE, HOOK_DEALLOC, ARGUMENT_NONE, 0 },
};

/* A replacement of a method of one class. */
struct replacement {
	const struct method *method;
	Class class;
	method_fn original;
};

static struct replacement replacements[REPLACEMENTS];
static unsigned replacement_count; /* those before it are complete; written under the lock */
static id devices[DEVICES];
static unsigned device_count;
static uint64_t counters_due;

static void
torch_find(void); /* in torch.h: Metal's first memory is when its allocator can be found */

/* property is what a method without arguments returns; RING_UNKNOWN: there is none. */
static uint64_t property(id object, const char *name)
{
	SEL selector = sel_registerName(name);
	Class class = object_getClass(object);
	if (!class_getInstanceMethod(class, selector))
		return RING_UNKNOWN;
	return ((property_fn)class_getMethodImplementation(class, selector))(object, selector);
}

/* counters reads the device's own figures, not too often. */
static void counters(const struct thread *t, int always)
{
	struct ring_counters r = { .record = { .type = RECORD_COUNTER, .what = HOOK_COUNTERS },
				   .thread = t->id };
	struct piece piece = { &r, sizeof r };
	uint64_t at = now(), due = __atomic_load_n(&counters_due, __ATOMIC_RELAXED);
	if (!device_count || (at < due && !always))
		return;
	__atomic_store_n(&counters_due, at + COUNTERS_EVERY, __ATOMIC_RELAXED);
	count(&ring->counters[HOOK_COUNTERS].hits);
	r.device = (uintptr_t)devices[0];
	r.allocated = property(devices[0], "currentAllocatedSize");
	r.recommended = property(devices[0], "recommendedMaxWorkingSetSize");
	r.largest = property(devices[0], "maxBufferLength");
	ring_lock();
	r.time = now();
	count(ring_put(&r.record, &piece, 1)
		      ? &ring->counters[HOOK_COUNTERS].emitted
		      : &ring->counters[HOOK_COUNTERS].dropped[DROP_NO_ROOM]);
	ring_unlock();
}

static void replace_methods(Class class, enum owner owner);

/* made reports a new heap or resource, or that there is none. */
static void made(const struct thread *t, const struct method *m, id object, uint64_t requested)
{
	struct ring_event e = { .record.what = (uint16_t)m->hook,
				.requested = requested,
				.size = RING_UNKNOWN,
				.offset = RING_UNKNOWN };
	uint64_t heap;
	e.flags = m->flags;
	e.stack = t->making.stack;
	if (!object) {
		e.flags |= FLAG_FAILED;
		emit(t, &e);
		return;
	}
	replace_methods(object_getClass(object), m->hook == HOOK_HEAP ? OF_HEAP : OF_RESOURCE);
	e.object = (uintptr_t)object;
	if (m->hook == HOOK_HEAP) {
		e.size = property(object, "size");
	} else {
		heap = property(object, "heap");
		e.heap = heap == RING_UNKNOWN ? 0 : heap;
		e.offset = e.heap ? property(object, "heapOffset") : RING_UNKNOWN;
		e.size = property(object, "allocatedSize");
	}
	emit(t, &e);
	counters(t, m->hook == HOOK_HEAP); /* heaps are rare, and most of what there is */
}

/* call_maker calls the replaced method and reports its result. It counts as inside until then: what Metal allocates for a property is not
 * the program's. */
CALL uint64_t call_maker(struct thread *t, const struct replacement *r, id self, SEL name,
			 const uint64_t *a)
{
	uint64_t result;
	t->making.frame = (uintptr_t)__builtin_frame_address(0);
	result = r->original(self, name, a[0], a[1], a[2], a[3]);
	made(t, r->method, (id)(uintptr_t)result, t->making.size);
	return result;
}

static uint64_t run_maker(const struct replacement *r, id self, SEL name, const uint64_t *a)
{
	const struct method *m = r->method;
	uint64_t result;
	struct thread *t = enter(m->hook);
	if (!t)
		return r->original(self, name, a[0], a[1], a[2], a[3]);
	if (t->making.frame) {
		quiet(m->hook, QUIET_NESTED);
		return r->original(self, name, a[0], a[1], a[2], a[3]);
	}
	t->making = (struct call){
		.hook = m->hook,
		.size = m->bytes == ARGUMENT_NONE ? RING_UNKNOWN : a[m->bytes - ARGUMENT_FIRST],
		.flags = m->flags,
		.stack = stack_here(t),
	};
	result = call_maker(t, r, self, name, a);
	call_end(&t->making);
	torch_find();
	return result;
}

/* run_end reports the end before it happens: then nobody else can have the address yet. */
static uint64_t run_end(const struct replacement *r, id self, SEL name, const uint64_t *a)
{
	enum ring_hook hook = r->method->hook;
	struct ring_event e = { .record.what = (uint16_t)hook,
				.object = (uintptr_t)self,
				.requested = RING_UNKNOWN,
				.size = RING_UNKNOWN,
				.offset = RING_UNKNOWN };
	struct thread *t = enter(hook);
	if (t && hook == HOOK_PURGE && a[0] != PURGEABLE_EMPTY)
		quiet(hook, QUIET_NOTHING);
	else if (t)
		emit(t, &e);
	return r->original(self, name, a[0], a[1], a[2], a[3]);
}

static uint64_t run_replacement(unsigned i, id self, SEL name, uint64_t a, uint64_t b, uint64_t c,
				uint64_t d)
{
	const struct replacement *r = &replacements[i];
	uint64_t arguments[] = { a, b, c, d };
	if (r->method->hook == HOOK_DEALLOC || r->method->hook == HOOK_PURGE)
		return run_end(r, self, name, arguments);
	return run_maker(r, self, name, arguments);
}

/* Each replacement is a function of its own, which knows its number: a method is not passed what it replaces. */
#define REPLACEMENT(n)                                                                             \
	static uint64_t replacement_##n(id self, SEL name, uint64_t a, uint64_t b, uint64_t c,     \
					uint64_t d)                                                \
	{                                                                                          \
		return run_replacement(0x##n, self, name, a, b, c, d);                             \
	}
/* clang-format off */
#define SIXTEEN(each, n) \
	each(n##0) each(n##1) each(n##2) each(n##3) each(n##4) each(n##5) each(n##6) each(n##7) \
	each(n##8) each(n##9) each(n##a) each(n##b) each(n##c) each(n##d) each(n##e) each(n##f)
#define ALL(each) \
	SIXTEEN(each, 0) SIXTEEN(each, 1) SIXTEEN(each, 2) SIXTEEN(each, 3) SIXTEEN(each, 4) SIXTEEN(each, 5) \
	SIXTEEN(each, 6) SIXTEEN(each, 7) SIXTEEN(each, 8) SIXTEEN(each, 9) SIXTEEN(each, a) SIXTEEN(each, b)
#define NAME(n) replacement_##n,
/* clang-format on */
ALL(REPLACEMENT)
static const method_fn replacement_functions[] = { ALL(NAME) };
_Static_assert(sizeof replacement_functions / sizeof *replacement_functions == REPLACEMENTS,
	       "one a replacement");

static int is_replaced(Class class, const struct method *m)
{
	unsigned n = __atomic_load_n(&replacement_count, __ATOMIC_ACQUIRE);
	for (unsigned i = 0; i < n; i++)
		if (replacements[i].class == class && replacements[i].method->hook == m->hook &&
		    text_equal(replacements[i].method->name, m->name))
			return 1;
	return 0;
}

/* replace_method needs the lock that is held while classes change. */
static void replace_method(Class class, const struct method *m)
{
	SEL name = sel_registerName(m->name);
	Method found = class_getInstanceMethod(class, name);
	unsigned i = replacement_count;
	IMP old;
	if (!found || is_replaced(class, m))
		return;
	if (i == REPLACEMENTS) {
		words("replace", "no more methods can be replaced");
		return;
	}
	replacements[i] =
		(struct replacement){ m, class,
				      (method_fn)class_getMethodImplementation(class, name) };
	old = class_replaceMethod(class, name, (IMP)replacement_functions[i],
				  method_getTypeEncoding(found));
	if (old)
		replacements[i].original = (method_fn)old;
	__atomic_store_n(&replacement_count, i + 1, __ATOMIC_RELEASE);
}

static char class_lock_word;

/* replace_methods replaces what a class has of an owner's methods, once. */
static void replace_methods(Class class, enum owner owner)
{
	const unsigned n = sizeof methods / sizeof *methods;
	static const char *first[] = { "newHeapWithDescriptor:", "dealloc", "dealloc" };
	unsigned i;
	for (i = 0; i < n; i++)
		if (methods[i].owner == owner && text_equal(methods[i].name, first[owner]))
			break;
	if (is_replaced(class, &methods[i]))
		return;
	while (__atomic_test_and_set(&class_lock_word, __ATOMIC_ACQUIRE))
		sched_yield();
	if (!is_replaced(class, &methods[i])) {
		words(owner == OF_DEVICE ? "device class"
		      : owner == OF_HEAP ? "heap class"
					 : "resource class",
		      class_getName(class));
		for (unsigned k = 0; k < n; k++)
			if (methods[k].owner == owner)
				replace_method(class, &methods[k]);
	}
	__atomic_clear(&class_lock_word, __ATOMIC_RELEASE);
}

/* use_device begins to trace what a device makes. */
static void use_device(id device)
{
	struct thread *t;
	unsigned known;
	if (!device)
		return;
	ring_start();
	if (!active())
		return;
	replace_methods(object_getClass(device), OF_DEVICE);
	t = thread_here();
	ring_lock();
	for (known = 0; known < device_count && devices[known] != device;)
		known++;
	if (known == device_count && known < DEVICES)
		devices[device_count++] = device;
	ring_unlock();
	if (t)
		counters(t, 0);
}

static void use_devices(id array)
{
	SEL element = sel_registerName("objectAtIndex:");
	uint64_t n = array ? property(array, "count") : 0;
	if (!n || n == RING_UNKNOWN || !class_getInstanceMethod(object_getClass(array), element))
		return;
	for (uint64_t i = 0; i < n; i++)
		use_device(((element_fn)class_getMethodImplementation(object_getClass(array),
								      element))(array, element, i));
}

static id copy_all_devices(void)
{
	id array = MTLCopyAllDevices();
	use_devices(array);
	return array;
}

static id create_default_device(void)
{
	id device = MTLCreateSystemDefaultDevice();
	use_device(device);
	return device;
}

/* dyld calls the first of each pair wherever another image calls the second (dyld, DYLD_INTERPOSE). */
__attribute__((used, section("__DATA,__interpose"))) static const struct {
	void *replacement, *original;
} interposed[] = {
	{ (void *)copy_all_devices, (void *)MTLCopyAllDevices },
	{ (void *)create_default_device, (void *)MTLCreateSystemDefaultDevice },
};
