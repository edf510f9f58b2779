// Tensors for tests, on the fake allocator, with graphs and views, and the Python type torch._C.TensorBase, by Python's stable ABI.
#include "autograd.h"

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

// Extension is a node of a library of the program's, which make_shared makes.
struct Extension : torch::autograd::Node {
	torch::autograd::SavedVariable kept, other;
	const char *name() const override { return "Extension"; }
	std::vector<std::pair<int, const torch::autograd::SavedVariable *>> saved() const override { return {{-1, &kept}, {-1, &other}}; }
};

using namespace torch::autograd;

at::Tensor filled(int64_t rows, int64_t columns)
{
	auto s = new c10::StorageImpl(size_t(rows * columns * 4), at::mps::GetMPSAllocator(false));
	auto t = new c10::TensorImpl(s, 0, rows, columns);
	s->give();
	return at::Tensor(t);
}

AutogradMeta *metaOf(c10::TensorImpl *t)
{
	if (!t->meta)
		t->meta.reset(new AutogradMeta);
	return static_cast<AutogradMeta *>(t->meta.get());
}

void edge(Node &from, NodePtr to)
{
	from.next_edges.emplace_back();
	from.next_edges.back().function = std::move(to);
}

NodePtr accumulator(c10::TensorImpl *leaf)
{
	metaOf(leaf)->requires_grad = true;
	leaf->refcount++;
	return NodePtr(emplaced<AccumulateGrad>(at::Tensor(leaf)));
}

NodePtr multiplied(int64_t rows, c10::TensorImpl *leaf)
{
	auto node = made<generated::MulBackward0>();
	leaf->refcount++;
	node->other.data = at::Tensor(leaf);
	node->self.data = filled(rows, 8);
	edge(*node, accumulator(leaf));
	return NodePtr(std::move(node));
}

NodePtr sum(NodePtr of)
{
	auto node = made<generated::SumBackward0>();
	edge(*node, std::move(of));
	return NodePtr(std::move(node));
}

PyObject *result(PyObject *type, NodePtr grad_fn)
{
	c10::TensorImpl *t = filled(1, 1).leave();
	metaOf(t)->grad_fn = std::move(grad_fn);
	return wrap(type, t);
}

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
	return wrap(type, filled(rows, columns).leave());
}

// tensor_row is a view of one row.
PyObject *tensor_row(PyObject *type, PyObject *of_, int64_t row)
{
	c10::TensorImpl *t = of(of_);
	return wrap(type, new c10::TensorImpl(t->storage, row * t->sizes[1], 1, t->sizes[1]));
}

// tensor_backward makes a gradient of the tensor's size, which no object of Python has.
void tensor_backward(PyObject *self) { metaOf(of(self))->grad = filled(of(self)->sizes[0], of(self)->sizes[1]); }

// tensor_keep has C++ hold a tensor beside Python.
void tensor_keep(PyObject *self)
{
	of(self)->refcount++;
	native.push_back(of(self));
}

// tensor_stale has what lies behind objects of C++ that are made from now on look like this tensor.
void tensor_stale(PyObject *self) { mac_stale((uint64_t)of(self)); }

// graph_mul is (hidden * leaf).sum(): two tensors are saved, of which Python does not have the first.
PyObject *graph_mul(PyObject *type, PyObject *leaf, int64_t rows)
{
	return result(type, sum(multiplied(rows, of(leaf))));
}

// graph_index is the result of an index by three tensors, of which the second is none.
PyObject *graph_index(PyObject *type, PyObject *leaf, int64_t rows)
{
	auto node = made<generated::IndexBackward0>();
	node->indices = Vector<SavedVariable>(3);
	node->indices[0].data = filled(rows, 1);
	node->indices[2].data = filled(rows + 1, 1);
	edge(*node, accumulator(of(leaf)));
	return result(type, NodePtr(std::move(node)));
}

// graph_lstm is the result of a layer for MPS, whose node has lists and tensors behind them.
PyObject *graph_lstm(PyObject *type, PyObject *leaf, int64_t rows)
{
	auto node = made<generated::LstmMpsBackward0>();
	node->hx = Vector<SavedVariable>(2);
	node->params = Vector<SavedVariable>(4);
	for (auto list : {&node->hx, &node->params})
		for (auto &saved : *list)
			saved.data = filled(rows++, 2);
	for (auto saved : {&node->input, &node->result3, &node->result4, &node->result5})
		saved->data = filled(rows++, 3);
	edge(*node, accumulator(of(leaf)));
	return result(type, NodePtr(std::move(node)));
}

// graph_extension is the result of a node of the program's.
PyObject *graph_extension(PyObject *type, PyObject *leaf, int64_t rows)
{
	auto node = emplaced<Extension>();
	node->kept.data = filled(rows, 5);
	node->other.data = filled(rows, 6);
	edge(*node, accumulator(of(leaf)));
	return result(type, NodePtr(std::move(node)));
}

// graph_view is a view of a tensor that Python does not have: the base has a gradient, and is itself the result of a graph.
PyObject *graph_view(PyObject *type, PyObject *leaf, int64_t rows)
{
	at::Tensor base = filled(rows, 16);
	metaOf(base.impl)->grad = filled(rows, 16);
	metaOf(base.impl)->grad_fn = multiplied(rows + 1, of(leaf));
	auto view = new c10::TensorImpl(base.impl->storage, 0, 16, rows);
	auto meta = new DifferentiableViewMeta;
	struct Reverse {
		at::Tensor base;
		int64_t sizes[2];
	};
	meta->is_view = true;
	meta->backward_info.emplace();
	meta->backward_info->base = base.again();
	meta->backward_info->view_fn.reset(new ViewFunc);
	meta->backward_info->rev_view_fn = Function<Variable(const Variable &)>(Reverse{std::move(base), {rows, 16}});
	view->meta.reset(meta);
	return wrap(type, view);
}

// tensor_sparse has its elements in tensors of its own.
PyObject *tensor_sparse(PyObject *type, int64_t rows)
{
	auto t = new at::SparseTensorImpl(rows, rows);
	t->indices = filled(2, rows);
	t->values = filled(1, rows);
	return wrap(type, t);
}

// What leads from a tensor or node to the next one, for who asks Python where a name leads: addresses, 0 for none.
uint64_t native_of(PyObject *self) { return (uint64_t)of(self); }
uint64_t native_buffer(c10::TensorImpl *t) { return t->storage ? (uint64_t)t->storage->data.context : 0; }
uint64_t native_grad(c10::TensorImpl *t) { return t->meta ? (uint64_t)metaOf(t)->grad.impl : 0; }
uint64_t native_grad_fn(c10::TensorImpl *t) { return t->meta ? (uint64_t)metaOf(t)->grad_fn.get() : 0; }
uint64_t native_base(c10::TensorImpl *t)
{
	auto meta = dynamic_cast<DifferentiableViewMeta *>(t->meta.get());
	return meta ? (uint64_t)meta->backward_info->base.impl : 0;
}
uint64_t native_values(c10::TensorImpl *t) { return (uint64_t) static_cast<at::SparseTensorImpl *>(t)->values.impl; }
uint64_t native_indices(c10::TensorImpl *t) { return (uint64_t) static_cast<at::SparseTensorImpl *>(t)->indices.impl; }
const char *node_name(Node *node) { return node->name(); }
uint64_t node_next(Node *node, size_t i) { return i < node->next_edges.size() ? (uint64_t)node->next_edges[i].function.get() : 0; }
uint64_t node_saved(Node *node, size_t i, int *position)
{
	auto saved = node->saved();
	*position = i < saved.size() ? saved[i].first : -2;
	return i < saved.size() ? (uint64_t)saved[i].second->data.impl : 0;
}
}
