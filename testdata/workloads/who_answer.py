"""Answers, inside the process, where a path leads: the judge of names that were read from outside.

Questions come as lines through the named pipe ask in a folder; the answer to each is the file answer there, which appears when
it is complete. Both are JSON. A question has paths, lists of steps; each step has a kind and what inspect/holders's steps of that
kind have. An answer has for each path the tensor that it led to, or why it led to none. If the question says so ("all"), it
also has what PyTorch itself knows: the parameters and buffers of all models by their names, all CUDA tensors that the garbage
collector knows, and the allocator's own totals. {"end": true} ends the process's wait.
"""

import contextvars
import ctypes
import gc
import json
import os
import sys
import threading
import types

import torch

CHUNK = 1 << 20


class Desk:
    """Where questions arrive: a named pipe in a folder."""

    def __init__(self, folder, more=None):
        """more has functions for further questions, by their names."""
        self.folder, self.received, self.more = folder, b"", more or {}
        path = os.path.join(folder, "ask")
        os.mkfifo(path)
        self.pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)  # opened for both, it has no end

    def serve(self):
        """Answer questions until one says that it is the last. In between the thread stands still in this frame."""
        os.set_blocking(self.pipe, True)
        while self.answer_one(os.read(self.pipe, CHUNK)):
            pass
        os.set_blocking(self.pipe, False)

    def poll(self):
        """Answer what was asked since the last call."""
        try:
            self.answer_one(os.read(self.pipe, CHUNK))
        except BlockingIOError:
            pass

    def answer_one(self, data):
        """Take what was read of a question, and answer it when it is whole. False: it was the last."""
        self.received += data
        line, newline, rest = self.received.partition(b"\n")
        if not newline:
            return True
        self.received = rest
        question = json.loads(line)
        answers = {name: ask(question) for name, ask in self.more.items() if name in question}
        publish(os.path.join(self.folder, "answer"), {**answer(question), **answers})
        return not question.get("end")


def publish(path, value):
    """Write a JSON file that appears when it is complete."""
    with open(path + ".new", "w") as file:
        json.dump(value, file)
    os.rename(path + ".new", path)


def answer(question):
    out = {"allocated": allocated()}
    if question.get("all"):  # first, and the tensors before the names: one that is saved, or a gradient, gets a Python object when it is asked for
        out["tensors"] = cuda_tensors()
        out["named"] = named_tensors()
    out["paths"] = [follow(path) for path in question.get("paths", [])]
    return out


def allocated():
    return [torch.cuda.memory_allocated(device) for device in range(torch.cuda.device_count())]


class NoExpressionError(Exception):
    """Python cannot get at what a step means."""


def follow(path):
    """The tensor that a path leads to, or the reason why there is none."""
    try:
        return {"tensor": describe(walk(path))}
    except NoExpressionError as error:
        return {"unasked": str(error)}
    except Exception as error:  # noqa: BLE001: a path that leads nowhere is an answer too
        return {"error": f"{type(error).__name__}: {error}"[:300]}


def walk(path):
    """Where a path leads: one object, or a list of those that it can mean."""
    values, before = [None], None
    for step in path:
        if step["kind"] == "elided":
            values = passed(values, step["index"])
        elif step["kind"] != "cell" or before != "local":  # a frame's f_locals have a cell's contents already
            values = [STEPS[step["kind"]](value, step) for value in values]
        before = step["kind"]
    return values[0] if len(values) == 1 else [v for value in values for v in (value if isinstance(value, list) else [value])]


def passed(nodes, count):
    """The nodes of a graph that lie so many steps behind some."""
    for _ in range(count):
        nodes = list({id(n): n for node in nodes for n, _ in node.next_functions if n is not None}.values())
    return nodes


def describe(value):
    if isinstance(value, list):  # a saved tensor whose name the path does not tell
        return [describe(v) for v in value]
    if isinstance(value, Refused):
        return {"refused": True}
    if not isinstance(value, torch.Tensor):
        return {"address": value.untyped().data_ptr() if hasattr(value, "untyped") else value.data_ptr()}
    out = {"id": id(value), "address": value.untyped_storage().data_ptr(), "requires_grad": value.requires_grad}
    out.update(shape=list(value.shape), dtype=str(value.dtype).replace("torch.", ""), leaf=value.is_leaf)
    if value.layout == torch.strided:
        out.update(strides=list(value.stride()), offset=value.storage_offset())
    return out


# ---- what PyTorch itself knows ----


def named_tensors():
    """[name, address, kind] of the parameters, their gradients, and the buffers of every model that is no part of another one."""
    modules = [o for o in gc.get_objects() if is_a(o, torch.nn.Module)]
    parts = {id(child) for module in modules for child in module.children()}
    out = []
    for module in modules:
        if id(module) not in parts:
            kinds = ("parameter", module.named_parameters), ("buffer", module.named_buffers)
            out += [[name, address_of(t), kind] for kind, named in kinds for name, t in named() if t.is_cuda]
            gradients = ((name, p.grad) for name, p in module.named_parameters() if p.grad is not None)
            out += [[name + ".grad", address_of(t), "gradient"] for name, t in gradients if t.is_cuda]
    return out


def cuda_tensors():
    tensors = [o for o in gc.get_objects() if is_a(o, torch.Tensor)]
    return [describe(t) for t in tensors if t.is_cuda and t.layout == torch.strided and has_memory(t)]


def has_memory(tensor):
    """False for a wrapper without a storage of its own."""
    try:
        return tensor.untyped_storage().data_ptr() >= 0
    except RuntimeError:
        return False


def is_a(value, kind):
    """isinstance by the type alone: proxies answer for others."""
    return issubclass(type(value), kind)


def address_of(tensor):
    return tensor.untyped_storage().data_ptr()


# ---- the steps: roots ----


def module(_, step):
    return sys.modules[step["name"]]


def frame(_, step):
    """A frame of a thread, counted from the innermost one: of a thread that answers, from where it waits for questions."""
    wanted = step["frame"]
    frames = frames_of(wanted["thread"])
    found = frames[wanted["depth"]]
    if not is_frame(found, wanted):  # a job that runs is elsewhere by now
        found = one(f for f in frames if is_frame(f, wanted))
    return found


def is_frame(found, wanted):
    code = found.f_code
    return code.co_filename == wanted["file"] and wanted["function"] in (code.co_name, getattr(code, "co_qualname", None))


def frames_of(thread):
    """The frames of a thread, the innermost first, without those of an answer in the making."""
    idents = {t.native_id: t.ident for t in threading.enumerate()}
    idents[threading.get_native_id()] = threading.get_ident()  # PyTorch's own threads are not listed
    top, out = sys._current_frames()[idents[thread]], []
    while top:
        out.append(top)
        top = top.f_back
    mine = [i for i, f in enumerate(out) if f.f_code is Desk.serve.__code__]
    return out[mine[0] :] if mine else out


def exception(_, step):
    if step["frame"]["thread"] != threading.get_native_id():
        raise NoExpressionError("the exception of another thread")
    return sys.exc_info()[1]


def thread_state(_, step):
    """The dictionary of a thread's state (a borrowed reference), or its context."""
    if step["frame"]["thread"] != threading.get_native_id():
        raise NoExpressionError("the state of another thread")
    if step.get("name") == "context":
        return contextvars.copy_context()  # it shares the variables with the one that is copied
    read = ctypes.pythonapi.PyThreadState_GetDict
    read.restype = ctypes.c_void_p
    return ctypes.cast(read(), ctypes.py_object).value


def garbage(_, step):
    return one(o for o in gc.get_objects() if id(o) == step["addr"])


# ---- of Python's objects ----


def local(value, step):
    return value.f_locals[step["name"]]


def attribute(value, step):
    """An attribute, without running code of its class where that is possible."""
    wanted = step["name"]
    own = getattr(value, "__dict__", None)
    if wanted == "__dict__":
        return own
    if own is not None and wanted in own:
        return own[wanted]
    for base_class in type(value).__mro__:
        member = base_class.__dict__.get(wanted)
        if isinstance(member, (types.MemberDescriptorType, types.GetSetDescriptorType)):
            return member.__get__(value)
    return getattr(value, wanted)


def index(value, step):
    if isinstance(value, (list, tuple)):  # of its own storage: a subclass may do more when it is asked
        return type(value).__mro__[-2].__getitem__(value, step["index"])
    return value[step["index"]]


def key(value, step):
    if not isinstance(value, dict):  # the tables of contextvars have no expression
        return referred(value, step)
    if "key_path" in step:
        return dict.__getitem__(value, walk(step["key_path"]))
    return one(v for k, v in dict.items(value) if is_key(k, step))


def is_key(k, step):
    kind = step["key_kind"]
    if kind == "object":
        return id(k) == step["key_addr"]
    wanted = step["name"] if kind == "string" else step["index"]
    return isinstance(k, str if kind == "string" else int) and k == wanted


def key_itself(value, step):
    return one(k for k in value if id(k) == step["addr"])


def one(values):
    found = list(values)
    if len(found) != 1:
        raise LookupError(f"{len(found)} of them")
    return found[0]


def cell(value, _):
    return value.cell_contents


def attributes(value, step):
    if isinstance(value, threading.local):  # its __dict__ belongs to the thread that asks
        return referred(value, step)
    return value.__dict__


def suspended(value, _):
    for name in ("gi_frame", "cr_frame", "ag_frame"):
        if hasattr(value, name):
            return getattr(value, name)
    raise LookupError(f"a {type(value).__name__} has no frame")


def itself(value, _):
    return value


def referred(value, step):
    """What an object refers to at an address; anonymous objects in between are allowed."""
    if isinstance(value, torch.Tensor) and value.layout == torch.sparse_coo:  # it is C++ that refers to them
        return [value._indices(), value._values()]
    if type(value).__name__ == "SavedTensor":
        if not hasattr(value, "data"):
            raise NoExpressionError("what a SavedTensor has, in older versions of PyTorch")
        return value.data
    level = [value]
    for _ in range(3):
        level = [o for v in level for o in gc.get_referents(v)]
        for o in level:
            if id(o) == step["addr"]:
                return o
    raise LookupError(f"a {type(value).__name__} does not refer to {step['addr']:#x}")


# ---- of tensors and autograd graphs ----


def grad(value, _):
    return value.grad


def grad_fn(value, _):
    return value.grad_fn


def next_node(value, step):
    for number in step["indices"]:
        value = value.next_functions[number][0]
    return value


def saved(value, step):
    """A saved tensor by its name; without one, all of the node's."""
    names = ["_saved_" + step["name"]] if step.get("name") else saved_names(value)
    if not names:
        raise NoExpressionError(f"what a {value.name()} has saved")
    found = [t for name in names for t in unpacked(value, name, step["index"])]
    return one(found) if step.get("name") else found


class Refused:
    """Stands for a saved tensor that PyTorch does not hand out any more: it was changed since."""


def unpacked(value, name, number):
    try:
        return tensors_of(getattr(value, name), number)
    except RuntimeError:
        return [Refused()]


def saved_names(value):
    return [name for name in dir(value) if name.startswith("_saved_") or name == "saved_tensors"]


def tensors_of(value, number):
    if isinstance(value, (tuple, list)):
        items = value if number < 0 else value[number : number + 1]
        return [t for t in items if isinstance(t, torch.Tensor)]
    return [value] if isinstance(value, torch.Tensor) else []


def variable(value, _):
    return value.variable


def base(value, _):
    return value._base


def hook(value, step):
    """An object that a hook holds. Python shows a tensor's hooks; those of a node only C++ refers to."""
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        hooks = getattr(value, name, None)
        for o in [hooks, *(hooks or {}).values()]:
            if id(o) == step["addr"]:
                return o
    if isinstance(value, torch.Tensor):
        return referred(value, step)
    return one(o for o in gc.get_objects() if id(o) == step["addr"])


def no_expression(value, step):
    raise NoExpressionError(f"a step of kind {step['kind']}")


STEPS = {
    "module": module,
    "frame": frame,
    "exception": exception,
    "thread_state": thread_state,
    "garbage": garbage,
    "native": no_expression,
    "temporary": no_expression,
    "local": local,
    "attribute": attribute,
    "index": index,
    "key": key,
    "key_itself": key_itself,
    "cell": cell,
    "dict": attributes,
    "suspended": suspended,
    "frame_object": itself,
    "slot": referred,
    "grad": grad,
    "grad_fn": grad_fn,
    "next": next_node,
    "saved": saved,
    "variable": variable,
    "base": base,
    "hook": hook,
    "context": itself,
    "node": itself,
    "storage": itself,
}
