"""Small jobs, each of which makes people ask one question about GPU memory: questions.py --case ranks."""

import argparse
import os
import time

import loop
import torch
from torch import nn

MIB = 1 << 20
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


class Net(nn.Module):
    def __init__(self, width=1024, layers=4):
        super().__init__()
        self.body = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x):
        for layer in self.body:
            x = torch.relu(layer(x))
        return x


def train_step(model, optimizer, batch=256):
    optimizer.zero_grad()
    model(torch.randn(batch, 1024, device="cuda")).square().mean().backward()
    optimizer.step()


def load_checkpoint(path):
    return torch.load(path)  # it was saved from cuda:0, and is put there again


@case
def ranks(options):
    """Each rank loads a checkpoint before it chooses its device."""
    path, rank = os.path.join(options.folder, "checkpoint.pt"), int(os.environ["RANK"])
    if rank == 0:
        torch.save(Net().cuda().state_dict(), path + ".new")
        os.rename(path + ".new", path)
    while not os.path.exists(path):
        time.sleep(0.05)
    state = load_checkpoint(path)
    torch.cuda.set_device(rank)
    model = Net().cuda()
    model.load_state_dict(state)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(options.steps):
        train_step(model, optimizer)
    meet(options.folder, rank)


def meet(folder, rank):
    """Wait for all ranks, so that all hold their memory at once."""
    open(os.path.join(folder, "done%d" % rank), "w").close()
    while not all(os.path.exists(os.path.join(folder, "done%d" % n)) for n in range(int(os.environ["WORLD_SIZE"]))):
        time.sleep(0.05)


@case
def before(options):
    """A training script in its old version."""
    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(options.steps):
        train_step(model, optimizer)


@case
def after(options):
    """The same with another optimizer, and a copy of the weights that is averaged."""
    model, average = Net().cuda(), Net().cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(options.steps):
        train_step(model, optimizer)
        for a, p in zip(average.parameters(), model.parameters()):
            a.data.lerp_(p.data, 0.1)


class Engine:
    """A server of a language model: weights, a cache of keys and values of what is left of its share, and graphs of a few batch sizes."""

    def __init__(self, share):
        self.model = Net(2048, 8).cuda()
        self.peak = self.profile_run()
        free, total = torch.cuda.mem_get_info()
        room = int(total * share) - (total - free) - self.peak
        self.kv_cache = [torch.empty(room // 8, dtype=torch.uint8, device="cuda") for _ in range(8)]
        self.graphs = {}
        for batch in (64, 256, 1024):
            self.capture(batch)

    @torch.no_grad()
    def profile_run(self):
        self.model(torch.zeros(8192, 2048, device="cuda"))
        peak = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
        torch.cuda.empty_cache()
        return peak

    @torch.no_grad()
    def capture(self, batch):
        x, graph = torch.zeros(batch, 2048, device="cuda"), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = self.model(x)
        self.graphs[batch] = graph, x, y

    @torch.no_grad()
    def generate(self, tokens):
        return self.model(torch.zeros(tokens, 2048, device="cuda"))


@case
def serving(options):
    engine = Engine(0.9)
    for n in range(options.steps):
        engine.generate(512 * (n % 8 + 1))
        time.sleep(0.02)


class Sleeper:
    """A model that goes to sleep between generations, and a cache of what its encoder has seen, which does not."""

    def __init__(self):
        self.encoder_cache = {}

    def wake_up(self):
        self.model = Net(1024, 4).cuda()

    def sleep(self):
        self.model = None
        torch.cuda.empty_cache()

    @torch.no_grad()
    def generate(self, request):
        pixel_values = torch.zeros(256, 1024, device="cuda")
        self.encoder_cache[request] = self.model(pixel_values)


@case
def sleep(options):
    sleeper = Sleeper()
    for n in range(options.steps):
        sleeper.wake_up()
        sleeper.generate(n)
        sleeper.sleep()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=sorted(CASES), default="before")
    parser.add_argument("--folder", default=".", help="where the processes of a case meet")
    loop.arguments(parser, steps=40)
    options = parser.parse_args()
    CASES[options.case](options)
    print("DONE", flush=True)


if __name__ == "__main__":
    main()
