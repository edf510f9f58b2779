#define _GNU_SOURCE
#include "metal.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define PAGE		 16384
#define EMPTY		 4
#define ROUND(n, to)	 (((n) + (to) - 1) / (to) * (to))
#define CLASS(n, parent) static struct objc_class n = { #n, parent, 0, { { 0 } } }

/* AGXBuffer: IOGPUMetalBuffer: IOGPUMetalResource: _MTLResource, and so on (macos.md, 1.4); the GPU's family is in the outer names. */
CLASS(NSObject, NULL);
CLASS(NSArray, &NSObject);
CLASS(IOGPUMetalDevice, &NSObject);
CLASS(AGXG99XFamilyDevice, &IOGPUMetalDevice);
CLASS(MTLHeap, &NSObject);
CLASS(IOGPUMetalHeap, &MTLHeap);
CLASS(AGXG99XFamilyHeap, &IOGPUMetalHeap);
CLASS(IOGPUMetalResource, &NSObject);
CLASS(IOGPUMetalBuffer, &IOGPUMetalResource);
CLASS(AGXG99XFamilyBuffer, &IOGPUMetalBuffer);
CLASS(AGXG99XFamilyTexture, &IOGPUMetalResource);

struct device {
	struct objc_object object;
};

struct heap {
	struct objc_object object;
	uint64_t bytes, used;
	int empty; /* its memory was given back */
};

struct resource {
	struct objc_object object;
	uint64_t length, bytes, offset;
	struct heap *heap; /* NULL: memory of its own */
	int imported;
};

static struct device device = { { &AGXG99XFamilyDevice, 1 } };
static uint64_t in_use;
static FILE *file;
static pid_t owner; /* a fork has no ledger */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void ledger(const char *what, uint64_t object, uint64_t a, uint64_t b, uint64_t c)
{
	pthread_mutex_lock(&lock);
	if (file && getpid() == owner)
		fprintf(file, "%s %" PRIx64 " %" PRIu64 " %" PRIu64 " %" PRIx64 "\n", what, object,
			a, b, c);
	pthread_mutex_unlock(&lock);
}

static void object_dealloc(id self, SEL name)
{
	(void)name;
	free(self);
}

/* The device. */

void (*refuse)(void);

static id new_resource(Class class_, struct heap *heap, uint64_t length, int imported)
{
	struct resource *r = objc_new(class_, sizeof *r);
	r->length = length;
	r->bytes = ROUND(length, PAGE);
	r->imported = imported;
	if (heap) {
		r->heap = (struct heap *)objc_retain(&heap->object);
		r->offset = __atomic_fetch_add(&heap->used, r->bytes, __ATOMIC_RELAXED);
	} else if (!imported) {
		__atomic_fetch_add(&in_use, r->bytes, __ATOMIC_RELAXED);
	}
	ledger(imported ? "imported"
	       : heap	? "placed"
			: "buffer",
	       (uintptr_t)r, length, r->bytes, (uintptr_t)heap);
	return &r->object;
}

static id new_buffer(id self, SEL name, uint64_t length, uint64_t options)
{
	(void)self, (void)name, (void)options;
	if (length > RECOMMENDED_BYTES && refuse) {
		ledger("buffer!", 0, length, 0, 0);
		refuse();
	}
	return length ? new_resource(&AGXG99XFamilyBuffer, NULL, length, 0) : NULL;
}

/* It calls another maker, as the driver does: one allocation. */
static id new_buffer_with_bytes(id self, SEL name, const void *bytes, uint64_t length,
				uint64_t options)
{
	(void)name, (void)bytes;
	return (id)objc_send(self, "newBufferWithLength:options:", length, options, 0, 0);
}

static id new_buffer_no_copy(id self, SEL name, void *bytes, uint64_t length, uint64_t options,
			     id end)
{
	(void)self, (void)name, (void)bytes, (void)options, (void)end;
	return new_resource(&AGXG99XFamilyBuffer, NULL, length, 1);
}

static id new_texture(id self, SEL name, const struct descriptor *d)
{
	(void)self, (void)name;
	return new_resource(&AGXG99XFamilyTexture, NULL, d->bytes, 0);
}

static id new_heap(id self, SEL name, const struct descriptor *d)
{
	struct heap *h = objc_new(&AGXG99XFamilyHeap, sizeof *h);
	(void)self, (void)name;
	h->bytes = d->bytes;
	__atomic_fetch_add(&in_use, h->bytes, __ATOMIC_RELAXED);
	ledger("heap", (uintptr_t)h, h->bytes, h->bytes, 0);
	return &h->object;
}

static uint64_t allocated_size(id self, SEL name)
{
	(void)self, (void)name;
	return __atomic_load_n(&in_use, __ATOMIC_RELAXED) + DRIVER_BYTES;
}

static uint64_t recommended(id self, SEL name)
{
	(void)self, (void)name;
	return RECOMMENDED_BYTES;
}

/* Heaps. */

static uint64_t heap_size(struct heap *h, SEL name)
{
	(void)name;
	return h->bytes;
}

static id heap_buffer(struct heap *h, SEL name, uint64_t length, uint64_t options)
{
	(void)name, (void)options;
	if (h->used + ROUND(length, PAGE) > h->bytes)
		return NULL;
	return new_resource(&AGXG99XFamilyBuffer, h, length, 0);
}

static void heap_give_back(struct heap *h)
{
	if (!h->empty) {
		__atomic_fetch_sub(&in_use, h->bytes, __ATOMIC_RELAXED);
		ledger("heap-", (uintptr_t)h, h->bytes, 0, 0);
	}
	h->empty = 1;
}

static uint64_t heap_purgeable(struct heap *h, SEL name, uint64_t state)
{
	(void)name;
	if (state == EMPTY)
		heap_give_back(h);
	return 2; /* it was not purgeable */
}

static void heap_dealloc(struct heap *h, SEL name)
{
	(void)name;
	heap_give_back(h);
	objc_super(&h->object, &IOGPUMetalHeap, "dealloc");
}

/* Resources. */

static uint64_t resource_length(struct resource *r, SEL name)
{
	(void)name;
	return r->length;
}

static uint64_t resource_bytes(struct resource *r, SEL name)
{
	(void)name;
	return r->bytes;
}

static id resource_heap(struct resource *r, SEL name)
{
	(void)name;
	return r->heap ? &r->heap->object : NULL;
}

static uint64_t resource_offset(struct resource *r, SEL name)
{
	(void)name;
	return r->offset;
}

static uint64_t resource_purgeable(struct resource *r, SEL name, uint64_t state)
{
	(void)r, (void)name;
	return state;
}

static void resource_dealloc(struct resource *r, SEL name)
{
	struct heap *h = r->heap;
	(void)name;
	if (!h && !r->imported)
		__atomic_fetch_sub(&in_use, r->bytes, __ATOMIC_RELAXED);
	ledger(r->imported ? "imported-"
	       : h	   ? "placed-"
			   : "buffer-",
	       (uintptr_t)r, r->length, r->bytes, (uintptr_t)h);
	objc_super(&r->object, &IOGPUMetalResource, "dealloc");
	if (h)
		objc_release(&h->object);
}

static void buffer_dealloc(struct resource *r, SEL name)
{
	(void)name;
	objc_super(&r->object, &IOGPUMetalBuffer, "dealloc");
}

/* Arrays. */

static uint64_t array_count(id self, SEL name)
{
	(void)self, (void)name;
	return 1;
}

static id array_element(id self, SEL name, uint64_t index)
{
	(void)self, (void)name, (void)index;
	return &device.object;
}

#define METHOD(class_, name, f) objc_add(&class_, name, (IMP)(f))

__attribute__((constructor(101))) static void make_classes(void)
{
	const char *path = getenv("GPUTRACE_FAKE_LEDGER");
	METHOD(NSObject, "dealloc", object_dealloc);
	METHOD(NSArray, "count", array_count);
	METHOD(NSArray, "objectAtIndex:", array_element);
	METHOD(IOGPUMetalDevice,
	       "newTextureWithDescriptor:", new_texture); /* the concrete class inherits it */
	METHOD(IOGPUMetalDevice, "currentAllocatedSize", allocated_size);
	METHOD(AGXG99XFamilyDevice, "newBufferWithLength:options:", new_buffer);
	METHOD(AGXG99XFamilyDevice, "newBufferWithBytes:length:options:", new_buffer_with_bytes);
	METHOD(AGXG99XFamilyDevice,
	       "newBufferWithBytesNoCopy:length:options:deallocator:", new_buffer_no_copy);
	METHOD(AGXG99XFamilyDevice, "newHeapWithDescriptor:", new_heap);
	METHOD(AGXG99XFamilyDevice, "recommendedMaxWorkingSetSize", recommended);
	METHOD(AGXG99XFamilyDevice, "maxBufferLength", recommended);
	METHOD(IOGPUMetalHeap, "size", heap_size);
	METHOD(IOGPUMetalHeap, "dealloc", heap_dealloc);
	METHOD(IOGPUMetalHeap, "setPurgeableState:", heap_purgeable);
	METHOD(AGXG99XFamilyHeap, "newBufferWithLength:options:", heap_buffer);
	METHOD(IOGPUMetalResource, "allocatedSize", resource_bytes);
	METHOD(IOGPUMetalResource, "heap", resource_heap);
	METHOD(IOGPUMetalResource, "heapOffset", resource_offset);
	METHOD(IOGPUMetalResource, "setPurgeableState:", resource_purgeable);
	METHOD(IOGPUMetalResource, "dealloc", resource_dealloc);
	METHOD(IOGPUMetalBuffer, "length", resource_length);
	METHOD(IOGPUMetalBuffer, "dealloc", buffer_dealloc);
	owner = getpid();
	if (path)
		file = fopen(path, "we");
	if (file)
		setvbuf(file, NULL, _IOLBF, 0);
}

id real_copy_all_devices(void)
{
	return objc_new(&NSArray, sizeof(struct objc_object));
}

id real_create_default_device(void)
{
	return &device.object;
}

id (*copy_all_devices)(void) = real_copy_all_devices;
id (*create_default_device)(void) = real_create_default_device;

id MTLCopyAllDevices(void)
{
	return copy_all_devices();
}

id MTLCreateSystemDefaultDevice(void)
{
	return create_default_device();
}
