"""Leaks with one known repair each, small enough to be read in seconds: advice.py PATTERN [--fixed].

Truth: every pattern keeps more memory with each step, by the line that is marked `# grows`, and --fixed, its repair, keeps none.
Each names a part of the advice that it must get; a pattern with None is a near miss, which grows and must get none.
"""

import argparse
import functools
import os
import threading
import time

import torch
from torch import nn

PATTERNS, SENTENCES = {}, {}
WARM_UP = 3  # steps before it says that it is ready


def pattern(sentence):
    def add(function):
        name = function.__name__
        PATTERNS[name], SENTENCES[name] = function, sentence
        return function

    return add


class Job:
    """A small training job: a step trains, then does what the pattern does."""

    def __init__(self, fixed):
        self.fixed = fixed
        self.net = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256)).cuda()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-3)
        self.n = 0

    def rows(self):
        return torch.randn(256, 256, device="cuda")

    def train(self):
        self.optimizer.zero_grad()
        loss = self.net(self.rows()).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss


@pattern(".item()")
def graph(job):
    """Validation losses are kept with their graphs."""
    history = []

    def step():
        job.train()
        loss = job.net(job.rows()).square().mean()  # grows
        history.append(loss.item() if job.fixed else loss)

    return step


@pattern(".item()")
def scalars(job):
    losses = []

    def step():
        loss = job.train().detach().clone()  # grows
        losses.append(loss.item() if job.fixed else loss)

    return step


@pattern("on this thread")
def thread(job):
    """torch.no_grad() of the main thread does not hold for the one that it starts."""
    scores, turn, done = [], threading.Semaphore(0), threading.Semaphore(0)

    def score():
        out = job.net(job.rows())  # grows
        scores.append(out.mean())

    def work():
        while True:
            turn.acquire()
            if job.fixed:
                with torch.no_grad():
                    score()
            else:
                score()
            if len(scores) > 16 and job.fixed:
                scores.clear()
            done.release()

    threading.Thread(target=work, daemon=True).start()

    def step():
        job.train()
        with torch.no_grad():
            turn.release()
            done.acquire()

    return step


@pattern("torch.autograd.grad")
def create_graph(job):
    def step():
        job.train()
        points = torch.rand(256, 256, device="cuda", requires_grad=True)
        total = torch.tanh(points).sum()
        if job.fixed:
            torch.autograd.grad(total, points, create_graph=True)
        else:
            total.backward(create_graph=True)  # grows

    return step


@pattern("autocast")
def autocast(job):
    """An autocast region that is entered once and never left keeps a copy of each weight that it ever cast."""
    if not job.fixed:
        torch.autocast("cuda", dtype=torch.float16).__enter__()

    def step():
        with torch.autocast("cuda", enabled=not job.fixed, dtype=torch.float16):
            adapted = torch.randn(256, 256, device="cuda", requires_grad=True)
            nn.functional.linear(job.rows(), adapted).float().mean().backward()  # grows

    return step


class KeepsOutput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, fixed):
        y = torch.exp(x)  # grows
        if fixed:
            ctx.save_for_backward(y)
        else:
            ctx.y = y
        return y

    @staticmethod
    def backward(ctx, grad):
        y = ctx.saved_tensors[0] if ctx.saved_tensors else ctx.y
        return grad * y, None


@pattern("save_for_backward")
def ctx(job):
    """An output that is an attribute of its own node: a cycle through C++."""

    def step():
        job.train()
        KeepsOutput.apply(job.net(job.rows()), job.fixed).mean().backward()

    return step


@pattern("refers to kept, whose graph keeps the hook")
def own_hook(job):
    """A hook refers to the tensor that has it: a cycle through C++."""

    def step():
        h = job.net(job.rows())  # grows
        kept = h.detach() if job.fixed else h
        h.register_hook(lambda grad: grad * (kept.abs() < 1))
        h.square().mean().backward()

    return step


class Node:
    def __init__(self, state, parent):
        self.state, self.parent = state, parent


@pattern("x.parent = None")
def linked(job):
    """The root of a search moves on, and keeps its parent."""
    root = None

    def step():
        nonlocal root
        job.train()
        root = Node(job.rows(), root)  # grows
        if job.fixed:
            root.parent = None

    return step


@pattern("h = h.detach()")
def chain(job):
    """The state of a recurrence that is never detached."""
    cell = nn.GRUCell(256, 256).cuda()
    h = torch.zeros(256, 256, device="cuda")

    def step():
        nonlocal h
        job.train()
        h = cell(job.rows(), h)  # grows
        if job.fixed:
            h = h.detach()

    return step


@pattern("gc.collect()")
def cycle(job):
    import gc

    gc.set_threshold(50000)

    class Experiment:
        def __init__(self):
            self.data = torch.randn(256, 256, device="cuda")  # grows
            self.again = lambda: self.data

    def step():
        job.train()
        Experiment()
        if job.fixed and job.n % 10 == 0:
            gc.collect()

    return step


class Quality:
    """A metric, as those of torchmetrics and torcheval are made."""

    def __init__(self):
        self.preds = []

    def update(self, p):
        self.preds.append(p.detach() * 2)  # grows

    def compute(self):
        return sum(p.mean() for p in self.preds)

    def reset(self):
        self.preds.clear()


@pattern("reset()")
def metric(job):
    quality = Quality()

    def step():
        job.train()
        with torch.no_grad():
            quality.update(job.net(job.rows()))
        if job.fixed and job.n % 10 == 0:
            quality.reset()

    return step


@pattern("bound")
def cache(job):
    table = {}

    def step():
        job.train()
        key = "seq%d" % (job.n % 8 if job.fixed else job.n)
        if key not in table:
            table[key] = torch.randn(256, 256, device="cuda")  # grows

    return step


@pattern("maxsize")
def lru(job):
    @functools.lru_cache(maxsize=8 if job.fixed else None)
    def mask(n):
        return torch.full((256, 256), float(n), device="cuda")  # grows

    def step():
        job.train()
        mask(job.n)

    return step


@pattern("remove()")
def hooks(job):
    def step():
        scale = torch.rand(256, 256, device="cuda")  # grows
        handle = job.net[0].register_forward_hook(lambda module, x, y, scale=scale: None)
        job.train()
        if job.fixed:
            handle.remove()

    return step


@pattern("optimizer")
def optimizers(job):
    """A new optimizer for each phase, the old ones are kept."""
    made = []

    def step():
        if job.n % 2 == 0:
            if job.fixed:
                made.clear()
            made.append(torch.optim.Adam(job.net.parameters()))
        job.net(job.rows()).mean().backward()
        made[-1].step()  # grows

    return step


@pattern("parameters")
def parameters(job):
    """A head for each task, which the optimizer gets too."""
    heads, optimizer = nn.ModuleDict(), torch.optim.Adam(job.net.parameters())

    def step():
        if not job.fixed or not heads:
            head = nn.Linear(256, 256).cuda()  # grows
            heads["task%d" % job.n] = head
            optimizer.add_param_group({"params": head.parameters()})
        x = job.net(job.rows())
        sum(h(x).mean() for h in list(heads.values())[-2:]).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@pattern("pinned")
def pinned(job):
    staged = []

    def step():
        job.train()
        staged.append(torch.empty(1 << 18, pin_memory=True))  # grows
        if job.fixed:
            staged.clear()

    return step


@pattern(None)
def plain_list(job):
    """Large tensors without a graph in a list: nothing but the line and the list is proved."""
    kept = []

    def step():
        job.train()
        kept.append(torch.randn(256, 256, device="cuda"))  # grows
        if job.fixed:
            kept.clear()

    return step


@pattern(None)
def hook_list(job):
    """One hook, registered once, that appends: not a hook that is registered again."""
    kept = []
    job.net[1].register_forward_hook(lambda module, x, y: kept.append(y.detach().clone()))  # grows

    def step():
        job.train()
        if job.fixed:
            kept.clear()

    return step


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("pattern", choices=PATTERNS)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--pause", type=float, default=0.03)
    options = parser.parse_args()
    torch.manual_seed(1)
    job = Job(options.fixed)
    step = PATTERNS[options.pattern](job)
    end = float("inf")
    while time.time() < end:
        step()
        job.n += 1
        if job.n == WARM_UP:
            print("ready", os.getpid(), flush=True)
            end = time.time() + options.seconds
        time.sleep(options.pause)


if __name__ == "__main__":
    main()
