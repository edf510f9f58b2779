// Tensors for tests, on the fake allocator: the classes of PyTorch that its readers know by name, with its fields in its order (c10/core/
// StorageImpl.h, TensorImpl.h, torch/csrc/autograd/variable.h), and the Python type torch._C.TensorBase, by Python's stable ABI.
#include "tensor.h"

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

extern "C" {
struct PyObject {
	intptr_t count;
	PyObject *type;
};
struct PyType_Slot {
	int slot;
	void *function;
};
struct PyType_Spec {
	const char *name;
	int basic, item;
	unsigned flags;
	PyType_Slot *slots;
};
PyObject *PyType_FromSpec(PyType_Spec *);
PyObject *PyType_GenericAlloc(PyObject *type, intptr_t items);
void *PyType_GetSlot(PyObject *type, int slot);
void Py_IncRef(PyObject *);
void Py_DecRef(PyObject *);
extern PyObject _Py_NoneStruct;
}

namespace c10 {

struct intrusive_ptr_target {
	std::atomic<uint32_t> refcount{1}, weakcount{1};
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
	StorageImpl(size_t n, Allocator *a) : data(a->allocate(n)), size(int64_t(n)), allocator(a) {}
};

struct AutogradMetaInterface {
	virtual ~AutogradMetaInterface() = default;
};

struct TensorImpl : intrusive_ptr_target {
	StorageImpl *storage;
	std::unique_ptr<AutogradMetaInterface> meta;
	void *extra = nullptr, *version = nullptr, *interpreter = nullptr;
	PyObject *object = nullptr;
	uint64_t dims;
	int64_t sizes[5] = {0}, strides[5] = {0};
	int64_t offset, elements;
	uint16_t type = 6; // float32
	TensorImpl(StorageImpl *s, int64_t at, int64_t rows, int64_t columns) : storage(s), dims(2), offset(at), elements(rows * columns)
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
	UndefinedTensorImpl() : TensorImpl(nullptr, 0, 0, 0) {}
};
static UndefinedTensorImpl *undefined = new UndefinedTensorImpl;

} // namespace c10

namespace torch {
namespace autograd {

struct Node {
	virtual ~Node() = default;
};

struct AutogradMeta : c10::AutogradMetaInterface {
	std::string name;
	c10::TensorImpl *grad = c10::undefined;
	std::shared_ptr<Node> grad_fn;
	std::weak_ptr<Node> grad_accumulator;
	std::vector<void *> hooks;
	bool requires_grad = true;
	~AutogradMeta() override
	{
		if (grad != c10::undefined)
			grad->give();
	}
};

} // namespace autograd
} // namespace torch

namespace {

struct THPVariable {
	PyObject head;
	bool borrowed;
	c10::TensorImpl *tensor;
};

void end(PyObject *self)
{
	auto v = reinterpret_cast<THPVariable *>(self);
	PyObject *type = self->type;
	if (v->tensor) {
		v->tensor->object = nullptr;
		v->tensor->give();
	}
	const int tp_free = 74;
	reinterpret_cast<void (*)(void *)>(PyType_GetSlot(type, tp_free))(self);
	Py_DecRef(type);
}

PyObject *wrap(PyObject *type, c10::TensorImpl *t)
{
	PyObject *self = PyType_GenericAlloc(type, 0);
	reinterpret_cast<THPVariable *>(self)->tensor = t;
	t->object = self;
	return self;
}

c10::TensorImpl *of(PyObject *self) { return reinterpret_cast<THPVariable *>(self)->tensor; }

std::vector<c10::TensorImpl *> native; // held by C++ alone

} // namespace

extern "C" {

PyObject *tensor_base()
{
	static PyType_Slot slots[] = {{52, (void *)end}, {0, nullptr}};
	static PyType_Spec spec = {"torch._C.TensorBase", sizeof(THPVariable), 0, 1u << 10 | 1u << 18, slots};
	return PyType_FromSpec(&spec);
}

PyObject *tensor_empty(PyObject *type, int64_t rows, int64_t columns)
{
	auto s = new c10::StorageImpl(size_t(rows * columns * 4), at::mps::GetMPSAllocator(false));
	auto t = new c10::TensorImpl(s, 0, rows, columns);
	s->give();
	return wrap(type, t);
}

// tensor_row is a view of one row.
PyObject *tensor_row(PyObject *type, PyObject *of_, int64_t row)
{
	c10::TensorImpl *t = of(of_);
	return wrap(type, new c10::TensorImpl(t->storage, row * t->sizes[1], 1, t->sizes[1]));
}

// tensor_backward makes a gradient of the tensor's size, which no object of Python has.
void tensor_backward(PyObject *self)
{
	c10::TensorImpl *t = of(self);
	auto meta = new torch::autograd::AutogradMeta;
	auto s = new c10::StorageImpl(size_t(t->elements * 4), at::mps::GetMPSAllocator(false));
	meta->grad = new c10::TensorImpl(s, 0, t->sizes[0], t->sizes[1]);
	s->give();
	t->meta.reset(meta);
}

// tensor_keep has C++ hold a tensor beside Python.
void tensor_keep(PyObject *self)
{
	of(self)->refcount++;
	native.push_back(of(self));
}

uint64_t tensor_buffer(PyObject *self) { return (uint64_t)of(self)->storage->data.context; }

uint64_t tensor_grad_buffer(PyObject *self)
{
	auto meta = static_cast<torch::autograd::AutogradMeta *>(of(self)->meta.get());
	return meta ? (uint64_t)meta->grad->storage->data.context : 0;
}
}
