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
O, N = ctypes.py_object, ctypes.c_int64
for name, result, arguments in [
    ("tensor_base", O, []), ("tensor_empty", O, [O, N, N]), ("tensor_row", O, [O, O, N]), ("tensor_backward", None, [O]),
    ("tensor_keep", None, [O]), ("tensor_buffer", ctypes.c_uint64, [O]), ("tensor_grad_buffer", ctypes.c_uint64, [O]),
    ("torch_empty", ctypes.c_void_p, [ctypes.c_size_t, ctypes.c_int]),
]:
    function = getattr(lib, name)
    function.restype, function.argtypes = result, arguments


class Tensor(lib.tensor_base()):
    @property
    def grad(self):
        return Buffer(lib.tensor_grad_buffer(self))


class Parameter(Tensor):
    pass


class Buffer(int):
    """A tensor without an object: where its memory is."""


def where(x):
    return int(x) if isinstance(x, Buffer) else lib.tensor_buffer(x)


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


def lead(name):
    """Where a name leads, by the interpreter."""
    local = re.fullmatch(r"\S+:\d+ (?:\S+\.)?(\w+)\(\) (?:thread \S+ )?(?:local )?((\w+).*)", name)
    if local:
        f = frame_of(local[1], local[3])
        return where(eval(local[2], f.f_globals, f.f_locals))
    return where(eval(name, globals()))


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
