"""A server of language models in miniature, whose weights and cache can sleep: vLLM's worker in shape, on the real allocators.

    server.py FOLDER SAVER [late]    SAVER: torch or preload, the modes of torch_memory_saver; cumem, vLLM's; plain

It waits for the file "go" in the folder, loads weights, runs a profile, makes the KV cache, captures a graph and serves; then it sleeps and
wakes three times, sleeps once more and waits for "hold". With "late" it waits when it has captured the graph. After each stage it prints

    STAGE NAME BOOTTIME DEVICE ALLOCATED RESERVED

the bytes that the driver has handed out, and PyTorch's totals.
"""

import gc
import os
import sys
import time
from contextlib import contextmanager

import torch

HIDDEN = 2048
folder, saver = sys.argv[1:3]
late = sys.argv[3:] == ["late"]


class Plain:
    """Nothing sleeps."""

    @contextmanager
    def region(self, tag):
        yield

    def sleep(self, level):
        pass

    def wake(self):
        pass


class Saver:
    """SGLang's way: regions with tags, which are paused and resumed by tag."""

    def __init__(self, mode):
        from torch_memory_saver import configure_subprocess, torch_memory_saver

        if mode == "preload" and "torch_memory_saver" not in os.environ.get("LD_PRELOAD", ""):
            with configure_subprocess():
                os.execv(sys.executable, [sys.executable, *sys.argv])
        self.saver = torch_memory_saver
        self.saver.hook_mode = mode

    def region(self, tag):
        return self.saver.region(tag=tag, enable_cpu_backup=tag == "weights")

    def sleep(self, level):
        self.saver.pause("kv_cache")
        self.saver.pause("weights")

    def wake(self):
        self.saver.resume("weights")
        self.saver.resume("kv_cache")


class CuMem:
    """vLLM's way: the extension calls back, and Python keeps what the tags are of."""

    def __init__(self):
        import cumem_allocator

        self.module, self.allocations, self.tag, self.pools = cumem_allocator, {}, None, []
        self.callbacks = self.allocated, self.freed  # the extension borrows them

    def allocated(self, handle):
        self.allocations[handle[2]] = [handle, self.tag, None]

    def freed(self, address):
        return self.allocations.pop(address)[0]

    @contextmanager
    def region(self, tag):
        self.tag = tag
        self.module.init_module(*self.callbacks)
        allocator = torch.cuda.memory.CUDAPluggableAllocator(self.module.__file__, "my_malloc", "my_free")
        pool = torch.cuda.memory.MemPool(allocator._allocator)
        self.pools.append((pool, allocator))
        with torch.cuda.memory.use_mem_pool(pool):
            yield

    def sleep(self, level):
        for allocation in self.allocations.values():
            handle, tag, _ = allocation
            if level == 1 and tag == "weights":
                allocation[2] = torch.empty(handle[1], dtype=torch.uint8, pin_memory=True)
            self.module.python_unmap_and_release(*handle)
        gc.collect()
        torch.cuda.empty_cache()

    def wake(self):
        for allocation in self.allocations.values():
            self.module.python_create_and_map(*allocation[0])
            allocation[2] = None


def stage(name):
    free, total = torch.cuda.mem_get_info()
    now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    print("STAGE", name, now, total - free, torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), flush=True)


def wait(name):
    while not os.path.exists(os.path.join(folder, name)):
        time.sleep(0.01)


def load_model():
    return [torch.nn.Linear(HIDDEN, HIDDEN, device="cuda") for _ in range(8)]


def allocate_kv_cache():
    return [torch.zeros(2, 1024, 16, 512, dtype=torch.float16, device="cuda") for _ in range(4)]


@torch.no_grad()
def execute_model(batch):
    for layer in model:
        batch = torch.relu(layer(batch))
    return batch


def capture_model():
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = execute_model(torch.empty(64, HIDDEN, device="cuda"))
    return graph, out


def serve(requests):
    for _ in range(requests):
        execute_model(torch.empty(256, HIDDEN, device="cuda"))
        graphs[0].replay()
        time.sleep(0.01)


memory = {"plain": Plain, "cumem": CuMem}.get(saver, lambda: Saver(saver))()
first = torch.zeros(1, device="cuda")


def begin():
    print("READY", os.getpid(), flush=True)
    wait("go")
    stage("start")


if not late:
    begin()
with memory.region("weights"):
    model = load_model()
stage("loaded")
execute_model(torch.empty(2048, HIDDEN, device="cuda"))
torch.cuda.empty_cache()
stage("profiled")
with memory.region("kv_cache"):
    cache = allocate_kv_cache()
stage("cached")
graphs = capture_model()
stage("captured")
if late:
    begin()
kept = []
serve(20)
for i in range(3):
    memory.sleep(1 + i % 2)
    stage("asleep")
    time.sleep(0.1)
    memory.wake()
    stage("awake")
    kept.append(torch.empty(24 << 20, dtype=torch.uint8, device="cuda"))  # what a cycle leaves
    serve(20)
memory.sleep(1)
stage("held")
print("DONE", flush=True)
wait("hold")
