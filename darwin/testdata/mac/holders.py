"""A program with tensors of many holders on the fake MPS device. It waits for the file ask, which has names of holders, a line of JSON, and
writes where each of them leads, by the interpreter itself, into the file answer: the MTLBuffer of the tensor."""
import ctypes
import json
import os
import re
import sys
import threading
import time

lib = ctypes.PyDLL(os.environ["GPUTRACE_FAKE_TORCH"])
O, N, P, I = ctypes.py_object, ctypes.c_int64, ctypes.c_uint64, ctypes.POINTER(ctypes.c_int)
for name, result, arguments in [
    ("tensor_base", O, []), ("tensor_empty", O, [O, N, N]), ("tensor_row", O, [O, O, N]), ("tensor_backward", None, [O]),
    ("tensor_keep", None, [O]), ("tensor_stale", None, [O]), ("tensor_sparse", O, [O, N]),
    ("graph_mul", O, [O, O, N]), ("graph_index", O, [O, O, N]), ("graph_lstm", O, [O, O, N]), ("graph_extension", O, [O, O, N]), ("graph_view", O, [O, O, N]),
    ("native_of", P, [O]), ("native_buffer", P, [P]), ("native_grad", P, [P]), ("native_grad_fn", P, [P]), ("native_base", P, [P]),
    ("native_values", P, [P]), ("native_indices", P, [P]), ("node_name", ctypes.c_char_p, [P]), ("node_next", P, [P, N]),
    ("node_saved", P, [P, N, I]), ("torch_empty", ctypes.c_void_p, [ctypes.c_size_t, ctypes.c_int]),
]:
    function = getattr(lib, name)
    function.restype, function.argtypes = result, arguments


class Parts:
    """What leads on from a tensor, by what PyTorch itself has."""

    grad = property(lambda self: Native(lib.native_grad(self.impl)))
    _base = property(lambda self: Native(lib.native_base(self.impl)))
    parts = property(lambda self: [lib.native_indices(self.impl), lib.native_values(self.impl)])


class Native(Parts):
    """A tensor without an object."""

    def __init__(self, impl):
        self.impl = impl


class Tensor(lib.tensor_base(), Parts):
    impl = property(lambda self: lib.native_of(self))


class Parameter(Tensor):
    pass


def nodes_of(node):
    """The nodes that follow one."""
    i = 0
    while lib.node_next(node, i):
        yield lib.node_next(node, i)
        i += 1


def saved_by(node, position):
    """The buffers of what a node saved: alone, or at a place of a list."""
    i, at = 0, ctypes.c_int()
    while True:
        impl = lib.node_saved(node, i, ctypes.byref(at))
        if at.value == -2:
            return
        if at.value == position and lib.native_buffer(impl):
            yield lib.native_buffer(impl)
        i += 1


def through_graph(tensor, names, position):
    """What the last of a chain of nodes saved."""
    nodes = [lib.native_grad_fn(tensor.impl)]
    for n, name in enumerate(names):
        if n:
            nodes = [below for node in nodes for below in nodes_of(node)]
        nodes = [node for node in nodes if lib.node_name(node).decode() == name]
    return [b for node in nodes for b in saved_by(node, position)]


def empty(rows, columns, kind=Tensor):
    return lib.tensor_empty(kind, rows, columns)


class Module:
    def __init__(self):
        self._parameters, self._buffers, self._modules = {}, {}, {}

    def __getattr__(self, name):
        for part in ("_parameters", "_buffers", "_modules"):
            if name in self.__dict__[part]:
                return self.__dict__[part][name]
        raise AttributeError(name)

    def __getitem__(self, i):
        return self._modules[str(i)]


class Linear(Module):
    def __init__(self, n):
        super().__init__()
        self._parameters["weight"], self._parameters["bias"] = empty(n, n, Parameter), empty(1, n, Parameter)
        self._buffers["scale"] = empty(1, n + 1)


class Sequential(Module):
    def __init__(self, *modules):
        super().__init__()
        self._modules.update((str(i), m) for i, m in enumerate(modules))


class Model(Module):
    def __init__(self, layers):
        super().__init__()
        self._modules["layers"] = Sequential(*(Linear(100 + i) for i in range(layers)))
        self.cache = {"keys": [empty(7, 9), empty(7, 10)], ("a", 1): empty(3, 3)}


class Slots:
    __slots__ = ("held",)


def frame_of(function, name):
    for f in sys._current_frames().values():
        while f:
            if f.f_code.co_name == function and name in f.f_locals:
                return f
            f = f.f_back


def value(name):
    local = re.fullmatch(r"\S+:\d+ (?:\S+\.)?(\w+)\(\) (?:thread \S+ )?(?:local )?((\w+).*)", name)
    if local:
        f = frame_of(local[1], local[3])
        return eval(local[2], f.f_globals, f.f_locals)
    return eval(name, globals())


def lead(name):
    """The buffers that a name may lead to, by the interpreter and by PyTorch."""
    graph = re.fullmatch(r"(.+)\.grad_fn(?:<([^>]+)>)?((?: > \w+)*) saved by (\w+)(?:\[(\d+)\])?", name)
    if graph:
        names = [graph[2]] * bool(graph[2]) + graph[3].split(" > ")[1:] + [graph[4]]
        return through_graph(value(graph[1]), names, int(graph[5] or -1))
    inner = re.fullmatch(r"(.+)\.<SparseTensorImpl\+\d+>", name)
    if inner:
        return [lib.native_buffer(part) for part in value(inner[1]).parts]
    return [lib.native_buffer(value(name).impl)]


def batches(n):
    for i in range(n):
        pending = empty(50 + i, 11)
        yield pending


def work(ready, stop):
    private = {"x": [empty(21, 22)]}
    ready.set()
    stop.wait()
    del private


def churn(stop):
    while not stop.is_set():
        pile = [empty(8, 8) for _ in range(20)]
        pile.clear()
        time.sleep(0.001)


def serve(folder):
    open(os.path.join(folder, "ready"), "w").close()
    path = os.path.join(folder, "ask")
    while not os.path.exists(path):
        time.sleep(0.01)
    names = json.load(open(path))
    out = []
    for name in names:
        try:
            out.append(lead(name))
        except Exception as e:
            out.append(f"{type(e).__name__}: {e}")
    with open(os.path.join(folder, "answer.new"), "w") as f:
        json.dump(out, f)
    os.rename(os.path.join(folder, "answer.new"), os.path.join(folder, "answer"))


def train(folder):
    batch = empty(64, 64)
    rows = [lib.tensor_row(Tensor, batch, i) for i in range(3)]
    kept = [empty(10, i + 1) for i in range(40)]
    loader = batches(3)
    first = next(loader)
    holder = Slots()
    holder.held = empty(13, 17)
    only = lib.tensor_row(Tensor, empty(33, 34), 5)  # of the block there is a view alone
    serve(folder)
    return batch, rows, kept, first, only


first = empty(1, 1)  # with it the device is made, and PyTorch's allocator found
if "late" in sys.argv:  # gputrace comes when something is allocated
    open(os.path.join(sys.argv[1], "waits"), "w").close()
    while not os.path.exists(os.path.join(sys.argv[1], "begin")):
        time.sleep(0.01)
model = Model(8)
for layer in model.layers._modules.values():
    lib.tensor_backward(layer.weight)
leaf = empty(4, 4, Parameter)
decoy = empty(12, 21)
lib.tensor_stale(decoy)
losses = [lib.graph_mul(Tensor, leaf, 30 + i) for i in range(5)]
picked = lib.graph_index(Tensor, leaf, 40)
output = lib.graph_lstm(Tensor, leaf, 50)
extended = lib.graph_extension(Tensor, leaf, 55)
piece = lib.graph_view(Tensor, leaf, 60)
coo = lib.tensor_sparse(Tensor, 70)
history = [empty(5, 5), {"deep": (empty(6, 6),)}]
lost = empty(77, 1)
lib.tensor_keep(lost)
del lost
lib.torch_empty(123_456, 0)  # no tensor has it
ready, stop = threading.Event(), threading.Event()
thread = threading.Thread(target=work, args=(ready, stop))
thread.start()
ready.wait()
if "busy" in sys.argv:
    threading.Thread(target=churn, args=(stop,)).start()
train(sys.argv[1])
stop.set()
thread.join()
