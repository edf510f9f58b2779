"""Runs out of GPU memory for one reason each, and says what PyTorch said of it.

    oom.py --case fragmentation          --list: the cases; --then kill: SIGKILL right after the first failure
"""

import argparse
import json
import os
import signal
import time

import loop
import sidecar
import torch
from torch import nn

MIB = 1 << 20
CASES = {}


def case(function):
    CASES[function.__name__.rstrip("_")] = function
    return function


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--case", default="full")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--then", default="raise", choices=["raise", "kill", "go-on"], help="after the first failure")
    parser.add_argument("--linger", type=float, default=0, help="seconds between the failure and what comes then")
    loop.arguments(parser, steps=60)
    return sidecar.arguments(parser).parse_args()


def stats():
    s = torch.cuda.memory_stats()
    names = ("allocated_bytes", "reserved_bytes", "requested_bytes", "inactive_split_bytes")
    out = {name: s.get(f"{name}.all.current") for name in names}
    return out | {"num_ooms": s["num_ooms"], "num_alloc_retries": s["num_alloc_retries"]}


def report(error):
    free, total = torch.cuda.mem_get_info()
    print("OOM " + json.dumps({"message": str(error), "free": free, "total": total} | stats()), flush=True)


class Net(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.body = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x):
        for layer in self.body:
            x = torch.relu(layer(x))
        return x


class Trainer:
    def __init__(self, width=1024, layers=8):
        self.net = Net(width, layers).cuda()
        self.optimizer = torch.optim.Adam(self.net.parameters())
        self.width = width

    def step(self, batch):
        x = torch.randn(batch, self.width).cuda()
        loss = self.net(x).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


@case
def full(steps):
    """The batch is too large for the device after a few steps: nothing leaks."""
    trainer = Trainer()
    for n in steps:
        trainer.step(1024 if n < 25 else 1 << 18)


@case
def leak(steps):
    """Losses are kept with their graphs."""
    trainer, losses = Trainer(512, 4), []
    for _ in steps:
        x = torch.randn(8192, 512).cuda()
        losses.append(trainer.net(x).square().mean())
        trainer.step(1024)


AT = 25  # the step in which it happens


def train_until(steps, happen):
    """Train a small model; in one step something else happens too."""
    trainer = Trainer(256, 2)
    for n in steps:
        trainer.step(64)
        if n == AT:
            happen()


def fill(step=64 * MIB):
    """Take memory in pieces until there is none."""
    kept = []
    while True:
        kept.append(torch.empty(step, dtype=torch.uint8, device="cuda"))


@case
def fragmentation(steps):
    """Every second of many blocks is freed: no segment can be returned, and no hole is large enough."""

    def cut():
        free = torch.cuda.mem_get_info()[0]
        kept = [torch.empty(5 * MIB, dtype=torch.uint8, device="cuda") for _ in range(int(0.9 * free) // (5 * MIB))]
        del kept[::2]
        torch.empty(free // 4, dtype=torch.uint8, device="cuda")

    train_until(steps, cut)


@case
def limit(steps):
    """The program may use a quarter of the device."""
    torch.cuda.set_per_process_memory_fraction(0.25)
    train_until(steps, fill)


@case
def other_process(steps):
    """A child process holds most of the device."""
    train_until(steps, fill)


@case
def neighbour_(steps):
    """Another process holds most of the device, and this one little."""
    train_until(steps, lambda: None)


def neighbour():
    """Start a process that holds two thirds of the device for as long as this one runs."""
    parent = os.getpid()
    ready, holding = os.pipe()
    if os.fork() == 0:
        os.close(ready)
        torch.cuda.init()
        holds = torch.empty(int(torch.cuda.mem_get_info()[0] * 0.66), dtype=torch.uint8, device="cuda")
        os.write(holding, b"x")
        while os.getppid() == parent:
            time.sleep(0.05)
        del holds
        os._exit(0)
    os.close(holding)
    os.read(ready, 1)


def runtime():
    import ctypes

    return ctypes.CDLL(next(line.split()[-1] for line in open("/proc/self/maps") if "libcudart" in line))


def take(library, size):
    """Memory from CUDA itself, as an extension takes it."""
    import ctypes

    pointer = ctypes.c_void_p()
    if code := library.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size)):
        raise RuntimeError(f"cudaMalloc of {size} bytes: error {code}")
    return pointer


@case
def outside_pytorch(steps):
    """An extension takes two thirds of the device by itself."""
    torch.empty(1, device="cuda")
    take(runtime(), int(torch.cuda.mem_get_info()[0] * 0.66))
    train_until(steps, fill)


@case
def private_pool(steps):
    """Most of the memory is free, but in a pool of its own."""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = torch.empty(int(torch.cuda.mem_get_info()[0] * 0.7), dtype=torch.uint8, device="cuda")
    del inside
    train_until(steps, fill)


@case
def absurd_request(steps):
    """One request is larger than the device."""
    train_until(steps, lambda: torch.empty(torch.cuda.mem_get_info()[1] * 3, dtype=torch.uint8, device="cuda"))


@case
def driver_error(steps):
    """CUDA refuses memory to an extension: PyTorch reports nothing."""
    train_until(steps, lambda: take(runtime(), torch.cuda.mem_get_info()[1]))


@case
def caught(steps):
    """The batch is halved until it fits."""
    trainer, batch = Trainer(), 1 << 18
    trainer.step(8)
    for _ in steps:
        try:
            trainer.step(batch)
        except torch.cuda.OutOfMemoryError as error:
            report(error)
            batch //= 2


@case
def lengths(steps):
    """Batches of ever longer sequences, whose outputs are kept for a while: pieces of all sizes remain."""
    recent = []
    for n in steps:
        recent.append(torch.empty((n % 13 + 3) * 6 * MIB, dtype=torch.uint8, device="cuda"))
        recent.append(torch.empty(3 * MIB, dtype=torch.uint8, device="cuda"))
        del recent[: max(0, len(recent) - 40) : 2]
        train_until([n], lambda: None)
        torch.empty((16 * n) * MIB, dtype=torch.uint8, device="cuda")


@case
def evaluation(steps):
    """Training fits; the evaluation behind it keeps all predictions on the device."""
    trainer, predictions = Trainer(512, 4), []
    for _ in zip(range(10), steps):
        trainer.step(1024)
    trainer.net.eval()
    with torch.no_grad():
        while True:
            predictions.append(trainer.net(torch.randn(8192, 512).cuda()))


@case
def evaluation_graphs(steps):
    """Training fits; the evaluation behind it adds up losses with their graphs, in blocks of which two and a rest fill a segment."""
    trainer, total = Trainer(512, 4), 0
    for _ in zip(range(10), steps):
        trainer.step(1024)

    def evaluate():
        nonlocal total
        trainer.net.eval()
        while True:
            total = total + trainer.net(torch.randn(4096, 512).cuda()).square().mean()

    evaluate()


@case
def first_step(steps):
    """Forward and backward fit; the optimizer makes its state in the first step."""
    trainer = Trainer(4096, 7)
    for _ in steps:
        trainer.step(64)


@case
def traceback_(steps):
    """A failure is caught, and its traceback keeps the batch."""
    errors = []

    def attempt():
        batch = torch.empty(int(torch.cuda.mem_get_info()[0] * 0.6), dtype=torch.uint8, device="cuda")
        return batch, torch.empty_like(batch)

    for _ in range(3):
        try:
            attempt()
        except torch.cuda.OutOfMemoryError as error:
            errors.append(error)
        time.sleep(0.3)
    train_until(steps, lambda: fill(16 * MIB))


@case
def backward(steps):
    """The forward pass fits; the gradient of a large intermediate value does not."""
    trainer = Trainer(512, 4)
    for n in steps:
        trainer.step(1024)
        if n == AT:
            room = torch.cuda.mem_get_info()[0]
            x = torch.zeros(int(room * 0.3) // 4, device="cuda", requires_grad=True)
            (x * 2).square().sum().backward()


@case
def checkpoint(steps):
    """Training fits; a second copy of everything, made to be saved, does not."""
    trainer = Trainer(4096, 4)
    for n in steps:
        trainer.step(64)
        if n == AT:
            save(trainer)


def save(trainer):
    states = [dict(trainer.net.state_dict())] + [s for s in trainer.optimizer.state.values()]
    return [{k: v.cuda().clone() for k, v in state.items()} for state in states]


@case
def graphs(steps):
    """CUDA graphs of many shapes, each with a pool of its own."""
    model, kept = Net(1024, 4).cuda(), []
    for n in steps:
        x = torch.zeros(4096 * n, 1024, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            y = model(x)
        kept.append((graph, x, y))


@case
def retry(steps):
    """The batch is cut by a tenth until it fits, in a function of its own, as accelerate's find_executable_batch_size does."""
    trainer = Trainer(1024, 4)

    def train(batch):
        for _ in range(10):
            trainer.step(batch)

    batch = 1 << 18
    for _ in steps:
        try:
            train(batch)
            return
        except torch.cuda.OutOfMemoryError as error:
            report(error)
            batch = batch * 9 // 10


@case
def thread(steps):
    """A thread beside the training runs out of memory, and the training goes on."""
    import threading

    def serve():
        try:
            fill(256 * MIB)
        except torch.cuda.OutOfMemoryError as error:
            report(error)

    def happen():
        other = threading.Thread(target=serve, name="server")
        other.start()
        other.join()

    train_until(steps, happen)


class Items(torch.utils.data.Dataset):
    """Items whose 25th is too large for the device."""

    def __len__(self):
        return 40

    def __getitem__(self, n):
        return torch.zeros((8 << 30) if n == AT else 64 << 10, dtype=torch.uint8, device="cuda").cpu()


@case
def worker(steps):
    """A worker process of a DataLoader runs out of memory."""
    loader = torch.utils.data.DataLoader(Items(), num_workers=1, multiprocessing_context="spawn")
    train_until(steps, lambda: [len(batch) for batch in loader])


@case
def second_device(steps):
    """The first device has room, the second has not."""
    other = []

    def happen():
        with torch.cuda.device(1):
            while True:
                other.append(torch.empty(64 * MIB, dtype=torch.uint8, device="cuda:1"))

    train_until(steps, happen)


@case
def communicators(steps):
    """Every step makes a process group of its own."""
    import torch.distributed as dist

    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    groups = []

    def happen():
        while True:
            groups.append(dist.new_group([0]))
            dist.all_reduce(torch.zeros(8, device="cuda"), group=groups[-1])

    train_until(steps, happen)


@case
def recovered(steps):
    """The cache is full of blocks of another size: what fails is given when they are returned."""
    size = torch.cuda.mem_get_info()[0] // 4
    for n in steps:
        torch.empty(size - (n % 2) * 64 * MIB, dtype=torch.uint8, device="cuda")
        torch.empty(size * 7 // 2, dtype=torch.uint8, device="cuda")


def main():
    options = parse_arguments()
    if options.list:
        print("\n".join(CASES))
        return
    if options.case in ("other_process", "neighbour"):
        neighbour()
    side = sidecar.Sidecar(options)
    try:
        CASES[options.case](loop.counted(options))
    except (torch.cuda.OutOfMemoryError, RuntimeError) as error:
        if options.then == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        report(error)
        time.sleep(options.linger)
        if options.then == "raise":
            raise
        torch.zeros(8, device="cuda")
    side.finish()


if __name__ == "__main__":
    main()
