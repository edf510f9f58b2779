"""Allocate GPU memory in one of several ways, write down PyTorch's own view of it, and wait.

    oracle.py SCENARIO FILE

FILE gets, as JSON, the totals and the snapshot of torch.cuda. Then "ready" is printed. The program ends when its standard
input does; the busy scenarios allocate until then.
"""

import ctypes
import itertools
import json
import os
import sys
import threading

if "ORACLE_LIBRARY" in os.environ:  # instead of the library of the same name that PyTorch would load
    ctypes.CDLL(os.environ["ORACLE_LIBRARY"], mode=ctypes.RTLD_GLOBAL)

import torch

MIB = 1 << 20
held = []


def keep(*sizes):
    held.extend(torch.empty(n, dtype=torch.uint8, device="cuda") for n in sizes)


def plain():
    keep(1, 512, 1000, MIB, MIB + 1, 5 * MIB, 10 * MIB, 300 * MIB)
    keep(*(7 * MIB for _ in range(20)))
    del held[1], held[3], held[10]


def many():
    keep(*(512 * (1 + n % 37) for n in range(int(os.environ.get("ORACLE_BLOCKS", "100_000")))))
    del held[::3]


def streams():
    plain()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        keep(10, 3 * MIB, 30 * MIB)
    for tensor in held[:3]:
        tensor.record_stream(side)
    del tensor, held[:2]  # pending: the stand-in's events take long


def graphs():
    plain()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        keep(100, 40 * MIB)
        torch.empty(400 * MIB, dtype=torch.uint8, device="cuda")  # leaves a free segment in the private pool
    held.append(graph)


def mixed():
    graphs()
    streams()  # last: a capture waits for pending blocks


def pools():
    for n in (1, 2):
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            keep(n * 100, n * 40 * MIB)
            torch.empty(400 * MIB, dtype=torch.uint8, device="cuda")
        held.append(pool)
    plain()


def everywhere():
    """Private pools and pending blocks on two of three devices."""
    for part in (graphs, streams):
        for device in (1, 2):
            with torch.cuda.device(device):
                part()


def devices():
    keep(1000, 3 * MIB)
    with torch.cuda.device(2):
        keep(77, 30 * MIB)


def nothing():
    pass


def initialised():
    torch.cuda.init()


def emptied():
    keep(100, 30 * MIB)
    held.clear()
    torch.cuda.empty_cache()


def reset():
    plain()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()


def train(model, optimizer):
    x = torch.randn(64, 512, device="cuda")
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def busy():
    """Train; the first step is over when it returns."""
    layers = [layer for _ in range(8) for layer in (torch.nn.Linear(512, 512), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer)
    return lambda: train(model, optimizer)


def storm(live=500):
    """Allocate as fast as the interpreter can, of changing sizes."""
    passing = []
    number = itertools.count()

    def step():
        n = next(number)
        passing.append(torch.empty(512 * (1 + n % 4099), dtype=torch.uint8, device="cuda"))
        if len(passing) > live:
            del passing[:: 1 + n % 3]

    return step


def flood():
    """The same beside 10,000 small blocks."""
    keep(*(512 * (1 + n % 37) for n in range(10_000)))
    return storm()


def threads():
    """The same from four threads, two of them on streams of their own."""

    def run(stream):
        step = storm(100)
        with torch.cuda.stream(stream):
            while True:
                step()

    for stream in (None, None, torch.cuda.Stream(), torch.cuda.Stream()):
        threading.Thread(target=run, args=(stream,), daemon=True).start()
    return None


def oracle():
    count = torch.cuda.device_count() if torch.cuda.is_initialized() else 0
    fraction = os.environ.get("ORACLE_FRACTION")
    backend = getattr(torch.cuda, "get_allocator_backend", lambda: "native")  # since 2.0
    native = backend() == "native"
    return {
        "version": torch.__version__,
        "allocated": [torch.cuda.memory_allocated(d) for d in range(count)],
        "reserved": [torch.cuda.memory_reserved(d) for d in range(count)],
        "limits": [int(float(fraction) * torch.cuda.mem_get_info(d)[1]) for d in range(count)] if fraction else [],
        "sizes": [torch.cuda.get_device_properties(d).total_memory for d in range(count)],
        "held": [[t.data_ptr(), t.numel()] for t in held if torch.is_tensor(t)],
        "segments": torch.cuda.memory_snapshot() if count and native else [],
    }


def main():
    scenario, path = sys.argv[1:]
    if scenario in ("busy", "storm", "flood", "threads"):
        plain()
    if "ORACLE_FRACTION" in os.environ:
        for device in range(torch.cuda.device_count()):
            torch.cuda.set_per_process_memory_fraction(float(os.environ["ORACLE_FRACTION"]), device)
    step = globals()[scenario]()
    with open(path, "w") as f:
        json.dump(oracle(), f)
    print("ready", flush=True)
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    while not ended.is_set():
        step() if step else ended.wait()
    os._exit(0)  # threads may still allocate


if __name__ == "__main__":
    main()
