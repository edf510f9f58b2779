"""Small jobs that get device memory in every way that PyTorch has.

What stands behind the caching allocator is chosen from outside (PYTORCH_CUDA_ALLOC_CONF, PYTORCH_NO_CUDA_MEMORY_CACHING)
or by --allocator. Every job allocates and frees at random, from a fixed seed, gives unused segments back now and then, and
stands still between steps, so that the side files of sidecar.py are exact.
"""

import argparse
import concurrent.futures
import random

import loop
import pluggable
import sidecar
import torch
from torch import nn

KIB, MIB = 1 << 10, 1 << 20
# Sizes by pool of the native allocator: small blocks, large blocks in segments of 20 MiB, segments of their own.
SIZES = ((1, 512), (513, MIB), (MIB + 1, 10 * MIB), (10 * MIB + 1, 40 * MIB))
TURNS, KEPT = 12, 10  # of a step of Churn
EMPTY_EVERY = 5  # steps between two torch.cuda.empty_cache()


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", choices=sorted(JOBS), default="plain")
    parser.add_argument("--allocator", choices=pluggable.KINDS, help="a pluggable allocator in place of PyTorch's")
    parser.add_argument("--pool-allocator", choices=pluggable.KINDS, help="the allocator of the pools; default: PyTorch's")
    loop.arguments(parser, steps=20)
    return sidecar.arguments(parser).parse_args()


class Churn:
    """Tensors of random sizes that are held for a random while, on one device and stream."""

    def __init__(self, seed=1, device=0, stream=None):
        self.random = random.Random(seed)
        self.device = torch.device("cuda", device)
        self.stream = stream
        self.kept = []

    def step(self, number=0):
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            for _ in range(TURNS):
                self.turn()

    def turn(self):
        size = self.random.randint(*self.random.choice(SIZES))
        self.kept.append(torch.empty(size, dtype=torch.uint8, device=self.device))
        while len(self.kept) > KEPT or self.kept and self.random.random() < 0.2:
            del self.kept[self.random.randrange(len(self.kept))]

    def tensors(self):
        return self.kept


class Training:
    """A small model: its gradients are made on a thread of autograd's, its products by cuBLAS."""

    def __init__(self, device=0):
        self.device = torch.device("cuda", device)
        self.model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def step(self, number):
        loss = self.model(torch.randn(64, 256, device=self.device)).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def tensors(self):
        return [parameter.data for parameter in self.model.parameters()]


class Together:
    """Several jobs, one behind the other."""

    def __init__(self, *parts):
        self.parts = parts

    def step(self, number):
        for part in self.parts:
            part.step(number)

    def tensors(self):
        return [tensor for part in self.parts for tensor in part.tensors()]


class Pinned:
    """Pinned host memory, which the host allocator caches until it is told to give it back."""

    def __init__(self):
        self.random = random.Random(2)
        self.kept = []

    def step(self, number):
        self.kept.append(torch.empty(self.random.randint(1, 4 * MIB), dtype=torch.uint8, pin_memory=True))
        if number % 4 == 0:
            self.kept.clear()
            torch.cuda.synchronize()
            torch._C._host_emptyCache()

    def tensors(self):
        return []


class Threads:
    """A churn on each of several threads, with a stream of its own, over all devices."""

    def __init__(self, count):
        devices = torch.cuda.device_count()
        self.churns = [Churn(n, n % devices, torch.cuda.Stream(n % devices)) for n in range(count)]
        self.workers = [concurrent.futures.ThreadPoolExecutor(max_workers=1) for _ in self.churns]

    def step(self, number):
        pairs = zip(self.workers, self.churns)
        for done in [worker.submit(churn.step, number) for worker, churn in pairs]:
            done.result()

    def tensors(self):
        return [tensor for churn in self.churns for tensor in churn.tensors()]


class RecordStream(Churn):
    """Tensors that another stream still uses when they are freed: their blocks wait for its work (STANDIN_EVENT_US)."""

    def __init__(self):
        super().__init__()
        self.other = torch.cuda.Stream()

    def turn(self):
        super().turn()
        for tensor in self.kept[-3:]:
            tensor.record_stream(self.other)


class Graphs:
    """CUDA graphs with private pools: captured, replayed, and reset; the second shares the pool of the first."""

    def __init__(self):
        self.graphs, self.outputs = [], []
        self.input = torch.zeros(64, 256, device="cuda")
        self.layer = nn.Linear(256, 256, device="cuda")
        self.layer(self.input)  # brings up cuBLAS, which a capture cannot

    def step(self, number):
        if number % 6 == 0:
            self.drop()
        elif number % 6 <= 2:
            self.capture()
        for graph in self.graphs:
            graph.replay()

    def capture(self):
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph, pool=self.graphs[0].pool() if self.graphs else None):
            self.outputs.append(self.layer(self.input))
            self.outputs.append(torch.empty(30 * MIB + len(self.outputs), dtype=torch.uint8, device="cuda"))
            torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
        self.graphs.append(graph)

    def drop(self):
        for graph in self.graphs:
            graph.reset()
        self.graphs.clear()
        self.outputs.clear()

    def tensors(self):
        return self.outputs


class Pools:
    """Memory pools: made, used, left with live tensors, and dropped."""

    def __init__(self, allocator):
        self.allocator = allocator
        self.pools, self.churns = [], []

    def step(self, number):
        if number % 3 == 1:
            self.pools.append(torch.cuda.MemPool(self.allocator))
            self.churns.append(Churn(number))
        for pool, churn in zip(self.pools, self.churns):
            with torch.cuda.use_mem_pool(pool):
                churn.step()
        if len(self.pools) > 2:
            del self.churns[0], self.pools[0], pool, churn

    def tensors(self):
        return [tensor for churn in self.churns for tensor in churn.tensors()]


class Full:
    """Asks for more than there is, each step: the allocator gives back what it can, tries again, and refuses."""

    def __init__(self):
        self.kept, self.refused = [], 0
        torch.cuda.synchronize()  # brings up the context, for which there is no room later

    def step(self, number):
        try:
            while True:
                self.kept.append(torch.empty((100 + number) * MIB, dtype=torch.uint8, device="cuda"))
        except torch.cuda.OutOfMemoryError:
            self.refused += 1
        del self.kept[:: 2 if number % 2 else 1]

    def tensors(self):
        return self.kept


class Switch(Churn):
    """Expandable segments are turned on and off while the job runs, as large models do around their evaluation."""

    def step(self, number):
        if number % 4 == 1:
            torch.cuda.memory._set_allocator_settings(f"expandable_segments:{number % 8 == 1}")
        super().step(number)


def devices():
    return range(torch.cuda.device_count())


def with_devices(options):
    return Together(*(Together(Churn(device, device), Training(device)) for device in devices()))


JOBS = {
    "plain": lambda options: Together(Churn(), Training(), Pinned()),
    "devices": with_devices,
    "streams": lambda options: Together(*(Churn(n, 0, torch.cuda.Stream()) for n in range(4))),
    "threads": lambda options: Threads(6),
    "record_stream": lambda options: Together(RecordStream(), Training()),
    "graphs": lambda options: Together(Graphs(), Churn()),
    "pools": lambda options: Together(Pools(pool_allocator(options)), Churn()),
    "switch": lambda options: Switch(),
    "full": lambda options: Full(),
}


def pool_allocator(options):
    return pluggable.allocator(options.pool_allocator).allocator() if options.pool_allocator else None


def main():
    options = parse_arguments()
    if options.allocator:
        torch.cuda.memory.change_current_allocator(pluggable.allocator(options.allocator))
    side = sidecar.Sidecar(options)
    job = JOBS[options.job](options)
    for step in loop.counted(options):
        job.step(step)
        if step % EMPTY_EVERY == 0:
            torch.cuda.empty_cache()
        side.step(step, job.tensors())
    side.finish()


if __name__ == "__main__":
    main()
