"""Continual learning makes a new optimizer for each task, and a table of schedulers keeps the old ones.

Truth: a task of 10 steps makes an Adam with two states of 1,193,488 floats: 9,547,904 B, 954,790.4 B a step on average. Holder:
`schedulers[task].optimizer.state`. Line: `opt.step()`. Advice: drop the old optimizers. --fixed: keeps the last learning rate only.
"""

import functools
import sys

import torch
from pace import Pace
from torch import nn

FIXED = "--fixed" in sys.argv


def decay(factor, epoch):
    return factor ** epoch


def on_task_end(fn):
    @functools.wraps(fn)
    def wrapper(self, name, *args, **kwargs):
        try:
            return fn(self, name, *args, **kwargs)
        finally:
            self.finished.append(name)
            del self.finished[:-20]
    return wrapper


class Trainer:
    def __init__(self, width=768):
        self.net = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 16)).cuda()
        self.width, self.schedulers, self.finished, self.pace = width, {}, [], Pace(0.05)

    def examples(self, n):
        for _ in range(n):
            yield torch.randn(48, self.width, device="cuda"), torch.zeros(48, dtype=torch.long, device="cuda")

    @on_task_end
    def learn(self, name, steps=10):
        opt = torch.optim.Adam(self.net.parameters(), lr=1e-3)
        sched = torch.optim.lr_scheduler.LambdaLR(opt, functools.partial(decay, 0.9))
        self.schedulers[name] = sched.get_last_lr()[0] if FIXED else sched
        for x, y in self.examples(steps):
            loss = nn.functional.cross_entropy(self.net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if not self.pace():
                return False
        sched.step()
        return True


def tasks():
    i = 0
    while True:
        yield f"task-{i}"
        i += 1


if __name__ == "__main__":
    trainer = Trainer()
    for name in tasks():
        if not trainer.learn(name):
            break
