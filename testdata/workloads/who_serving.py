"""How inference servers and notebooks hold memory, a case each: who_serving.py --list."""

import collections
import code
import dataclasses
import queue
import sys
import threading

import torch
import who_cases
from torch import nn
from who_cases import alone, block, case, expect, floats, hold

LAYERS, BATCH, HEADS, LENGTH, WIDTH = 4, 2, 4, 64, 16


def key_value(length=LENGTH):
    return floats(BATCH, HEADS, length, WIDTH), floats(BATCH, HEADS, length, WIDTH)


@case
def cache_of_tuples():
    """past_key_values as old models have it: a tuple of (key, value) for each layer."""
    past_key_values = tuple(key_value() for _ in range(LAYERS))
    for layer, (key, value) in enumerate(past_key_values):
        expect(key, "past_key_values[%d][0]" % layer)
        expect(value, "past_key_values[%d][1]" % layer)
    del key, value
    hold()


class DynamicCache:
    def __init__(self):
        self.key_cache, self.value_cache = [], []

    def update(self, layer, key, value):
        if layer == len(self.key_cache):
            self.key_cache.append(key)
            self.value_cache.append(value)
        else:
            self.key_cache[layer] = torch.cat([self.key_cache[layer], key], 2)
            self.value_cache[layer] = torch.cat([self.value_cache[layer], value], 2)


@case
def growing_cache():
    cache = DynamicCache()
    for _ in range(3):
        for layer in range(LAYERS):
            cache.update(layer, *key_value())
    for layer in range(LAYERS):
        expect(cache.key_cache[layer], "cache.key_cache[%d]" % layer)
        expect(cache.value_cache[layer], "cache.value_cache[%d]" % layer)
    hold()


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("key_cache", torch.zeros(BATCH, HEADS, LENGTH, WIDTH), persistent=False)
        self.value_cache = None


@case
def static_cache():
    """Caches in the model: a buffer that is not saved, and a plain attribute."""
    model = nn.Sequential(Attention(), Attention()).cuda()
    for layer in model:
        layer.value_cache = torch.zeros(BATCH, HEADS, LENGTH, WIDTH, device="cuda")
    for i in range(2):
        expect(model[i].key_cache, "model[%d].key_cache" % i)
        expect(model[i].value_cache, "model[%d].value_cache" % i)
    del layer
    hold()


@dataclasses.dataclass
class Request:
    __slots__ = ("number", "blocks")
    number: int
    blocks: list


class PagedCache:
    """One large tensor, and the requests that have pages of it."""

    def __init__(self, pages):
        self.pool = floats(pages, 2, LENGTH, WIDTH)
        self.free = list(range(pages))
        self.requests = collections.OrderedDict()

    def admit(self, number, pages):
        views = [self.pool[self.free.pop()] for _ in range(pages)]
        self.requests[number] = Request(number, views)


@case
def paged_cache():
    engine = PagedCache(100)
    for number in range(5):
        engine.admit(number, 3)
    expect(engine.pool, "engine.pool")
    hold()


@case
def abandoned_requests():
    """The pool was replaced; a request that nobody finished keeps the old one."""
    engine = PagedCache(100)
    engine.admit(7, 1)
    expect(engine.pool, "engine.requests[7].blocks[0]")
    engine.pool = floats(2, 2)
    hold()


@case
def batching_server():
    """A worker thread with a queue of requests and the futures of their callers."""
    waiting, results, end = queue.Queue(), {}, threading.Event()

    def worker():
        model = nn.Linear(WIDTH, WIDTH).cuda().eval()
        while True:
            number, prompt = waiting.get()
            with torch.no_grad():
                results[number] = model(prompt)
            waiting.task_done()
            if number == 2:
                break
        expect(model.weight, "worker", "model.weight")
        end.wait()

    threading.Thread(target=worker, daemon=True).start()
    for number in range(3):
        waiting.put((number, floats(5, WIDTH)))
    waiting.join()
    waiting.put((9, block()))
    for number in range(3):
        expect(results[number], "results[%d]" % number)
    expect(waiting.queue[0][1], "waiting", "[1]")
    while len(who_cases._expected) < 5:
        end.wait(0.01)
    hold()
    end.set()


@case
def prompt_cache():
    """An LRU of prefixes."""
    prefixes = collections.OrderedDict()
    for text in ("You are", "Translate", "Summarise"):
        prefixes[hash(text) & 0xFFFF, text] = key_value()
        if len(prefixes) > 2:
            prefixes.popitem(last=False)
    for (number, text), (key, _) in prefixes.items():
        expect(key, "prefixes[(%d, '%s')][0]" % (number, text))
    del key, _
    hold()


# ---- notebooks ----


class Shell(code.InteractiveInterpreter):
    """What IPython does with results, in a few lines: the last three as _, __ and ___, all of them in Out."""

    def __init__(self):
        super().__init__({"__name__": "__main__", "Out": {}, "_": None, "__": None, "___": None})
        self.count = 0

    def cell(self, text):
        self.count += 1
        names = self.locals
        value = eval(compile(text, "<cell %d>" % self.count, "eval"), names)
        names["___"], names["__"], names["_"] = names["__"], names["_"], value
        names["Out"][self.count] = names["_%d" % self.count] = value


@case
def results_of_cells():
    shell = Shell()
    shell.locals["make"] = block
    for _ in range(5):
        shell.cell("make()")
    for number in range(1, 6):
        expect(shell.locals["Out"][number], "Out")
    hold()


@alone
def failed_cell():
    shell = Shell()
    shell.locals["make"] = block
    sys.stderr = open("/dev/null", "w")
    shell.runcode(compile("def train():\n    activations = make()\n    return activations.no_such\ntrain()", "<cell>", "exec"))
    frame = sys.last_value.__traceback__
    while frame.tb_next:
        frame = frame.tb_next
    expect(frame.tb_frame.f_locals["activations"], "sys.last_", "train", "activations")
    del frame
    hold()


@alone
def ipython():
    """The real one: it must be installed."""
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    shell.user_ns["make"] = block
    for _ in range(3):
        shell.run_cell("make()", store_history=True)
    shell.run_cell("kept = [make()]\ndef train():\n    activations = make()\n    raise ValueError('no')", store_history=True)
    shell.run_cell("train()", store_history=True)
    for number in (1, 2, 3):
        expect(shell.user_ns["Out"][number], "Out[%d]" % number)
    expect(shell.user_ns["kept"][0], "kept[0]")
    hold()


if __name__ == "__main__":
    who_cases.main(__doc__)
