// libtorch_cpu for tests: c10::Allocator and at::mps::MPSAllocator with their virtual functions in PyTorch's order, over pools of buffers
// in heaps as PyTorch's MPS allocator has them: heaps of 8 MiB for requests to 1 MiB, of 32 MiB below 10 MiB, else of the request rounded
// to 2 MiB. A free buffer that is larger than the request is handed out whole.
#include "metal.h"
#include "tensor.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace at {
namespace mps {

struct IMPSAllocator : c10::Allocator {
	virtual void emptyCache() const = 0;
	virtual size_t getCurrentAllocatedMemory() const = 0;
};

struct Buffer {
	id buffer;
	id heap;
	uint64_t bytes;
	bool used;
};

struct Heap {
	id heap;
	uint64_t bytes, used;
};

struct Pools {
	std::recursive_mutex lock;
	std::vector<Buffer> buffers;
	std::vector<Heap> heaps;
	uint64_t reserved = 0;
	std::atomic<uint64_t> allocated{0};
	std::vector<c10::DataPtr> spare; // what a callback for ALLOCATION_FAILED frees
	id device = nullptr;

	void open()
	{
		if (device)
			return;
		id all = MTLCopyAllDevices();
		device = (id)objc_send(all, "objectAtIndex:", 0, 0, 0, 0);
	}

	Buffer *find(uint64_t n)
	{
		Buffer *best = nullptr;
		for (auto &b : buffers)
			if (!b.used && b.bytes >= n && b.bytes <= n + (32 << 20) && (!best || b.bytes < best->bytes))
				best = &b;
		return best;
	}

	static uint64_t limit()
	{
		const char *ratio = getenv("PYTORCH_MPS_HIGH_WATERMARK_RATIO");
		return uint64_t((ratio ? atof(ratio) : 1.7) * RECOMMENDED_BYTES);
	}

	// spared has the callbacks free what they can: within the request, by the same thread (trigger_memory_callbacks).
	bool spared()
	{
		std::vector<c10::DataPtr> freed;
		freed.swap(spare);
		bool some = !freed.empty();
		freed.clear();
		if (some)
			empty();
		return some;
	}

	Buffer *make(uint64_t n)
	{
		uint64_t bytes = (n + 16383) / 16384 * 16384;
		for (auto &h : heaps)
			if (h.used + bytes <= h.bytes)
				return place(h, bytes);
		uint64_t size = n <= (1 << 20) ? 8 << 20 : n < (10 << 20) ? 32 << 20 : (n + (2 << 20) - 1) / (2 << 20) * (2 << 20);
		if (objc_send(device, "currentAllocatedSize", 0, 0, 0, 0) + bytes > limit())
			return nullptr;
		descriptor d = {size};
		heaps.push_back({(id)objc_send(device, "newHeapWithDescriptor:", (uint64_t)&d, 0, 0, 0), size, 0});
		reserved += size;
		return place(heaps.back(), bytes);
	}

	Buffer *place(Heap &h, uint64_t bytes)
	{
		h.used += bytes;
		buffers.push_back({(id)objc_send(h.heap, "newBufferWithLength:options:", bytes, 0, 0, 0), h.heap, bytes, false});
		return &buffers.back();
	}

	// empty gives back what is free: buffers first, then heaps without one.
	void empty()
	{
		std::vector<Buffer> kept;
		for (auto &b : buffers)
			if (b.used)
				kept.push_back(b);
			else
				objc_release(b.buffer);
		buffers = kept;
		std::vector<Heap> left;
		for (auto &h : heaps) {
			bool busy = false;
			for (auto &b : buffers)
				busy = busy || b.heap == h.heap;
			if (busy) {
				left.push_back(h);
				continue;
			}
			reserved -= h.bytes;
			objc_send(h.heap, "setPurgeableState:", 4, 0, 0, 0);
			objc_release(h.heap);
		}
		heaps = left;
	}
};

static Pools pools;

namespace HeapAllocator {

struct MPSHeapAllocatorImpl {
	__attribute__((noinline)) id malloc(size_t n, uint32_t usage);
	__attribute__((noinline)) void free(void *p);
};

id MPSHeapAllocatorImpl::malloc(size_t n, uint32_t)
{
	std::lock_guard<std::recursive_mutex> guard(pools.lock);
	pools.open();
	Buffer *b = pools.find(n);
	if (!b)
		b = pools.make(n);
	if (!b && pools.spared())
		b = pools.make(n);
	if (!b) {
		ledger("torch!", 0, n, 0, 0);
		throw std::runtime_error("MPS backend out of memory");
	}
	b->used = true;
	pools.allocated += b->bytes;
	ledger("torch", (uintptr_t)b->buffer, n, b->bytes, (uintptr_t)b->heap);
	return b->buffer;
}

void MPSHeapAllocatorImpl::free(void *p)
{
	std::lock_guard<std::recursive_mutex> guard(pools.lock);
	for (auto &b : pools.buffers)
		if (b.buffer == p) {
			ledger("torch-", (uintptr_t)p, b.bytes, 0, 0);
			b.used = false;
			pools.allocated -= b.bytes;
		}
}

static MPSHeapAllocatorImpl impl;

} // namespace HeapAllocator

struct MPSAllocator final : IMPSAllocator {
	static void Delete(void *p) { HeapAllocator::impl.free(p); }

	c10::DataPtr allocate(size_t n) override
	{
		return c10::DataPtr(n ? HeapAllocator::impl.malloc(n, 0) : nullptr, &Delete);
	}
	c10::DeleterFnPtr raw_deleter() const override;
	void copy_data(void *, const void *, size_t) const override {}

	void emptyCache() const override
	{
		std::lock_guard<std::recursive_mutex> guard(pools.lock);
		pools.empty();
	}

	size_t getCurrentAllocatedMemory() const override { return pools.allocated; }
};

c10::DeleterFnPtr MPSAllocator::raw_deleter() const
{
	return &Delete;
}

c10::Allocator *GetMPSAllocator(bool shared)
{
	static MPSAllocator one, other;
	return shared ? &other : &one;
}

} // namespace mps
} // namespace at

// What a Python program calls.
extern "C" {

// torch_empty makes a tensor's memory; NULL: out of memory, by the exception that was expected and with nothing of the caller lost.
void *torch_empty(size_t n, int shared)
{
	struct Counted {
		int *n;
		~Counted() { ++*n; }
	};
	volatile size_t kept = n;
	int ended = 0;
	try {
		Counted counted{&ended};
		return new c10::DataPtr(at::mps::GetMPSAllocator(shared)->allocate(n));
	} catch (const std::runtime_error &e) {
		if (std::string(e.what()) != "MPS backend out of memory" || ended != 1 || kept != n)
			abort();
		return nullptr;
	}
}

// torch_spare has a tensor be freed when there is no memory, rather than by its owner.
void torch_spare(void *tensor)
{
	auto d = static_cast<c10::DataPtr *>(tensor);
	std::lock_guard<std::recursive_mutex> guard(at::mps::pools.lock);
	at::mps::pools.spare.push_back(std::move(*d));
	delete d;
}

void torch_free(void *tensor)
{
	delete static_cast<c10::DataPtr *>(tensor);
}

// torch_raw says whether raw_deallocate would take a tensor's memory (c10/core/Allocator.h: it compares the deleters).
int torch_raw(void *tensor)
{
	return static_cast<c10::DataPtr *>(tensor)->deleter == at::mps::GetMPSAllocator(false)->raw_deleter();
}

uint64_t torch_buffer(void *tensor)
{
	return (uint64_t) static_cast<c10::DataPtr *>(tensor)->context;
}

void torch_empty_cache()
{
	static_cast<at::mps::IMPSAllocator *>(at::mps::GetMPSAllocator(false))->emptyCache();
}

// metal_refuse is an exception of Objective-C, as Metal's validation throws them.
static void metal_refuse() { throw std::length_error("length > maxBufferLength"); }
__attribute__((constructor)) static void set_refuse() { refuse = metal_refuse; }

// Metal as a program uses it without PyTorch.
void *metal_buffer(size_t n)
{
	try {
		return (void *)objc_send(MTLCreateSystemDefaultDevice(), "newBufferWithLength:options:", n, 0, 0, 0);
	} catch (const std::length_error &) {
		return nullptr;
	}
}
void *metal_buffer_with_bytes(size_t n) { return (void *)objc_send(MTLCreateSystemDefaultDevice(), "newBufferWithBytes:length:options:", 0, n, 0, 0); }
void *metal_buffer_no_copy(size_t n) { return (void *)objc_send(MTLCreateSystemDefaultDevice(), "newBufferWithBytesNoCopy:length:options:deallocator:", 0, n, 0, 0); }
void *metal_texture(size_t n)
{
	descriptor d = {n};
	return (void *)objc_send(MTLCreateSystemDefaultDevice(), "newTextureWithDescriptor:", (uint64_t)&d, 0, 0, 0);
}
void metal_purgeable(void *p, uint64_t state) { objc_send((id)p, "setPurgeableState:", state, 0, 0, 0); }
void metal_release(void *p) { objc_release((id)p); }
}
