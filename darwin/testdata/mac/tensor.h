// c10::DataPtr and c10::Allocator (c10/core/Allocator.h), for the fake libtorch_cpu.
#pragma once
#include <cstddef>
#include <cstdint>

namespace c10
{

using DeleterFnPtr = void (*)(void *);

// The order of unique_ptr's two fields is libc++'s; the destructor makes it be returned in memory, as there.
struct DataPtr {
	void *data;
	void *context;
	DeleterFnPtr deleter;
	int8_t type, index;
	DataPtr(void *p, DeleterFnPtr d) : data(p), context(p), deleter(d), type(13), index(0)
	{
	}
	DataPtr(DataPtr &&o)
	    : data(o.data), context(o.context), deleter(o.deleter), type(o.type), index(o.index)
	{
		o.context = nullptr;
	}
	~DataPtr()
	{
		if (context)
			deleter(context);
	}
};

struct Allocator {
	virtual ~Allocator() = default;
	virtual DataPtr allocate(size_t n) = 0;
	virtual bool is_simple_data_ptr(const DataPtr &d) const
	{
		return d.data == d.context;
	}
	virtual DeleterFnPtr raw_deleter() const
	{
		return nullptr;
	}
	virtual void copy_data(void *, const void *, size_t) const = 0;
};

} // namespace c10

namespace at
{
namespace mps
{
c10::Allocator *GetMPSAllocator(bool shared);
}
} // namespace at
