// The classes of PyTorch that gputrace's readers know by name, for tests: their bases, and their fields in their order (c10/core/StorageImpl.h,
// TensorImpl.h, ATen/SparseTensorImpl.h, torch/csrc/autograd/node.h, saved_variable.h, variable.h, generated/Functions.h of PyTorch 2.15; with
// NODES_SHARED nodes are counted as to 2.14). What libc++ and macOS have of another size than Linux has theirs: strings, maps, mutexes, functions, and
// what make_shared makes. All of it lies in memory of macOS's malloc.
#pragma once
#include "malloc.h"
#include "tensor.h"

#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

struct PyObject;

struct OfMalloc {
	static void *operator new(size_t n)
	{
		return mac_malloc(n);
	}
	static void operator delete(void *p)
	{
		mac_free(p);
	}
};

template <class T> struct Malloc {
	using value_type = T;
	Malloc() = default;
	template <class U> Malloc(const Malloc<U> &)
	{
	}
	T *allocate(size_t n)
	{
		return static_cast<T *>(mac_malloc(n * sizeof(T)));
	}
	void deallocate(T *p, size_t)
	{
		mac_free(p);
	}
	bool operator==(const Malloc &) const
	{
		return true;
	}
	bool operator!=(const Malloc &) const
	{
		return false;
	}
};
template <class T> using Vector = std::vector<T, Malloc<T>>;

// Of libc++ and macOS.
struct String {
	char bytes[24] = "";
};
struct Mutex {
	long signature = 0x32AAABA7;
	char opaque[56] = "";
};
struct Map {
	uint64_t words[5] = { 0 };
};

namespace std
{
namespace __1
{
namespace __function
{
template <class S> struct __base : OfMalloc {
	virtual ~__base() = default;
};
template <class F, class A, class S> struct __func : __base<S> {
	F f;
	__func(F &&from) : f(std::move(from))
	{
	}
};
} // namespace __function
} // namespace __1
} // namespace std

template <class S> struct Function {
	alignas(16) char buffer[32] = "";
	std::__1::__function::__base<S> *f = nullptr;
	Function() = default;
	template <class F>
	Function(F from)
	    : f(new std::__1::__function::__func<F, std::allocator<F>, S>(std::move(from)))
	{
	}
	Function(Function &&o) : f(std::exchange(o.f, nullptr))
	{
	}
	Function &operator=(Function &&o)
	{
		std::swap(f, o.f);
		return *this;
	}
	~Function()
	{
		delete f;
	}
};

// What make_shared makes: an object behind the count.
template <class T> struct Emplaced : OfMalloc {
	virtual ~Emplaced() = default;
	long owners = 0, weak = 0;
	T object;
	template <class... A> Emplaced(A &&...a) : object(std::forward<A>(a)...)
	{
	}
};

namespace c10
{

struct intrusive_ptr_target : OfMalloc {
	std::atomic<uint32_t> refcount{ 1 }, weakcount{ 1 };
	virtual ~intrusive_ptr_target() = default;
	void give()
	{
		if (--refcount == 0)
			delete this;
	}
};

struct StorageImpl : intrusive_ptr_target {
	DataPtr data;
	int64_t size;
	bool resizable = false, received = false;
	void *allocator;
	void *interpreter = nullptr;
	PyObject *object = nullptr;
	StorageImpl(size_t n, Allocator *a) : data(a->allocate(n)), size(int64_t(n)), allocator(a)
	{
	}
};

struct AutogradMetaInterface : OfMalloc {
	virtual ~AutogradMetaInterface() = default;
};

struct TensorImpl : intrusive_ptr_target {
	StorageImpl *storage;
	std::unique_ptr<AutogradMetaInterface> meta;
	void *extra = nullptr, *version = nullptr, *interpreter = nullptr;
	PyObject *object = nullptr;
	uint64_t dims;
	int64_t sizes[5] = { 0 }, strides[5] = { 0 };
	int64_t offset, elements;
	uint16_t type = 6; // float32
	uint32_t flags = 0;
	uint64_t keys = 0;
	TensorImpl(StorageImpl *s, int64_t at, int64_t rows, int64_t columns)
	    : storage(s), dims(2), offset(at), elements(rows * columns)
	{
		sizes[0] = rows, sizes[1] = columns;
		strides[0] = columns, strides[1] = 1;
		if (s)
			s->refcount++;
	}
	~TensorImpl() override
	{
		meta.reset();
		if (storage)
			storage->give();
	}
};

struct UndefinedTensorImpl final : TensorImpl {
	UndefinedTensorImpl() : TensorImpl(nullptr, 0, 0, 0)
	{
	}
};
inline UndefinedTensorImpl *undefined = new UndefinedTensorImpl;

} // namespace c10

namespace at
{

// Tensor takes over the reference that it is made with.
struct Tensor {
	c10::TensorImpl *impl;
	Tensor(c10::TensorImpl *t = c10::undefined) : impl(t)
	{
	}
	Tensor(Tensor &&o) : impl(std::exchange(o.impl, c10::undefined))
	{
	}
	Tensor &operator=(Tensor &&o)
	{
		std::swap(impl, o.impl);
		return *this;
	}
	~Tensor()
	{
		if (impl != c10::undefined)
			impl->give();
	}
	c10::TensorImpl *leave()
	{
		return std::exchange(impl, c10::undefined);
	}
	Tensor again() const
	{
		impl->refcount++;
		return Tensor(impl);
	}
};

struct SparseTensorImpl : c10::TensorImpl {
	int64_t sparse_dim = 1, dense_dim = 0;
	Tensor indices, values;
	bool coalesced = false;
	SparseTensorImpl(int64_t rows, int64_t columns) : TensorImpl(nullptr, 0, rows, columns)
	{
	}
};

} // namespace at

namespace torch
{
namespace autograd
{

using Variable = at::Tensor;
struct Node;

#ifdef NODES_SHARED
using NodePtr = std::shared_ptr<Node>;
using WeakNode = std::weak_ptr<Node>;
struct Counted : std::enable_shared_from_this<Node>, OfMalloc {
};
template <class T> std::shared_ptr<T> made()
{
	return std::shared_ptr<T>(new T);
} // as generated code does
template <class T, class... A> std::shared_ptr<T> emplaced(A &&...a)
{
	std::shared_ptr<Emplaced<T>> whole(new Emplaced<T>(std::forward<A>(a)...));
	return std::shared_ptr<T>(whole, &whole->object);
}
#else
using Counted = c10::intrusive_ptr_target;
struct NodePtr {
	c10::intrusive_ptr_target *p = nullptr;
	NodePtr() = default;
	template <class T> NodePtr(T *from) : p(from)
	{
	}
	NodePtr(NodePtr &&o) : p(std::exchange(o.p, nullptr))
	{
	}
	NodePtr &operator=(NodePtr &&o)
	{
		std::swap(p, o.p);
		return *this;
	}
	~NodePtr()
	{
		if (p)
			p->give();
	}
	Node *get() const
	{
		return reinterpret_cast<Node *>(p);
	}
};
struct WeakNode {
	Node *p = nullptr;
};
template <class T> T *made()
{
	return new T;
}
template <class T, class... A> T *emplaced(A &&...a)
{
	return new T(std::forward<A>(a)...);
}
#endif

struct Edge {
	NodePtr function;
	uint32_t input_nr = 0;
};

struct SavedVariable {
	Variable data;
	std::shared_ptr<void> fw_grad;
	WeakNode weak_grad_fn;
	void *version_counter = nullptr;
	uint32_t saved_version = 0, output_nr = 0;
	bool was_default_constructed = true, is_inplace_on_view = false, saved_original = false,
	     is_leaf = false, is_output = false;
	std::unique_ptr<int> hooks;
	NodePtr grad_fn, grad_accumulator;
	bool requires_grad = false;
	SavedVariable() = default;
	SavedVariable(Variable v) : data(std::move(v)), was_default_constructed(false)
	{
	}
};

struct InputMetadata {
	uint64_t words[12] = { 0 };
};

struct Node : Counted {
	virtual ~Node() = default;
	virtual const char *name() const = 0;
	// saved is for the test: what the node saved, a list's elements by their position.
	virtual std::vector<std::pair<int, const SavedVariable *>> saved() const
	{
		return {};
	}
	virtual const Variable *leaf() const
	{
		return nullptr;
	}

	uint64_t sequence = 1, topological = 1;
	bool has_parent = false, fired = false;
	uint64_t thread = 1;
	Mutex mutex;
	Vector<Edge> next_edges;
	PyObject *object = nullptr;
	std::unique_ptr<int> anomaly_metadata;
	Vector<void *> pre_hooks, tensor_pre_hooks;
	Map retains_grad_hooks;
	Vector<void *> post_hooks;
	InputMetadata *metadata = nullptr;
	uint32_t metadata_size = 0, metadata_capacity = 2;
	InputMetadata metadata_inline[2];
};

struct TraceableFunction : Node {
};

struct AccumulateGrad : Node {
	Variable variable;
	AccumulateGrad(Variable v) : variable(std::move(v))
	{
	}
	const char *name() const override
	{
		return "AccumulateGrad";
	}
	const Variable *leaf() const override
	{
		return &variable;
	}
};

namespace generated
{

struct SumBackward0 : TraceableFunction {
	Vector<int64_t> self_sym_sizes;
	const char *name() const override
	{
		return "SumBackward0";
	}
};

struct MulBackward0 : TraceableFunction {
	SavedVariable other;
	int8_t other_scalar_type = 6;
	SavedVariable self;
	int8_t self_scalar_type = 6;
	const char *name() const override
	{
		return "MulBackward0";
	}
	std::vector<std::pair<int, const SavedVariable *>> saved() const override
	{
		return { { -1, &other }, { -1, &self } };
	}
};

inline void list(std::vector<std::pair<int, const SavedVariable *>> &out,
		 const Vector<SavedVariable> &v)
{
	for (size_t i = 0; i < v.size(); i++)
		out.push_back({ int(i), &v[i] });
}

struct IndexBackward0 : TraceableFunction {
	Vector<SavedVariable> indices;
	bool indices_released = false;
	uint64_t self_options[2] = { 0 };
	Vector<int64_t> self_sym_sizes;
	const char *name() const override
	{
		return "IndexBackward0";
	}
	std::vector<std::pair<int, const SavedVariable *>> saved() const override
	{
		std::vector<std::pair<int, const SavedVariable *>> out;
		list(out, indices);
		return out;
	}
};

struct LstmMpsBackward0 : TraceableFunction {
	bool batch_first = false, bidirectional = false;
	double dropout = 0;
	bool has_biases = true;
	Vector<SavedVariable> hx;
	bool hx_released = false;
	SavedVariable input;
	int64_t num_layers = 1;
	Vector<SavedVariable> params;
	bool params_released = false, train = true;
	SavedVariable result3, result4, result5;
	size_t hx_size = 2, params_size = 4;
	const char *name() const override
	{
		return "LstmMpsBackward0";
	}
	std::vector<std::pair<int, const SavedVariable *>> saved() const override
	{
		std::vector<std::pair<int, const SavedVariable *>> out{
			{ -1, &input }, { -1, &result3 }, { -1, &result4 }, { -1, &result5 }
		};
		list(out, hx);
		list(out, params);
		return out;
	}
};

} // namespace generated

struct AutogradMeta : c10::AutogradMetaInterface {
	String name;
	Variable grad;
	NodePtr grad_fn;
	WeakNode grad_accumulator;
	std::shared_ptr<void> fw_grad;
	Vector<void *> hooks;
	std::shared_ptr<void> cpp_hooks_list;
	std::unique_ptr<int> post_acc_grad_hooks;
	bool requires_grad = false, retains_grad = false, is_view = false;
	uint32_t output_nr = 0;
	std::optional<int8_t> grad_dtype;
	bool allow_grad_dtype_mismatch = false;
	Mutex mutex;
};

struct ViewFunc : OfMalloc {
	virtual ~ViewFunc() = default;
};

struct ViewInfo {
	Variable base;
	std::unique_ptr<ViewFunc> view_fn;
	Function<Variable(const Variable &)> rev_view_fn;
};

struct DifferentiableViewMeta : AutogradMeta {
	std::optional<ViewInfo> backward_info, forward_info;
	bool shared_view_info = true;
	uint32_t attr_version = 0;
	uint8_t creation_meta = 0;
};

} // namespace autograd
} // namespace torch
