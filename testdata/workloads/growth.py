"""Programs whose memory grows by a known amount each step, or not at all, though much of it comes and goes.

    growth.py --case older_queue --steps 200

What older_queue and older_full_queue hold at first is allocated before READY: before the attach.
"""

import argparse
import collections
import gc
import time

import loop
import sidecar
import torch
from torch import nn


class Case:
    """A small model, trained in each step."""

    def __init__(self):
        self.net = nn.Linear(64, 64).cuda()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.kept = []

    def train(self, passes=1):
        self.optimizer.zero_grad()
        for _ in range(passes):
            loss = self.net(torch.randn(8, 64, device="cuda")).square().mean()
            loss.backward()
        self.optimizer.step()
        return loss

    def step(self, step):
        self.train()


class OlderFullQueue(Case):
    """A queue that was full before the attach."""

    stays = 0  # of each so many that are added, one stays

    def __init__(self):
        super().__init__()
        self.queue = collections.deque(torch.zeros(1 << 14, device="cuda") for _ in range(300))

    def step(self, step):
        self.train()
        self.queue.append(torch.zeros(1 << 14, device="cuda"))
        if not self.stays or step % self.stays:
            self.queue.popleft()


class OlderQueue(OlderFullQueue):
    """The same, of which each second stays: 32 KiB a step."""

    stays = 2


class Passes(Case):
    """The number of backward passes varies, the last steps have many; 4 KiB a step are kept."""

    def step(self, step):
        self.train(50 if step > 190 else 1 + step % 5)
        self.kept.append(torch.zeros(1 << 10, device="cuda"))


class Curve(Case):
    """A number is kept now and then, which will never matter."""

    def step(self, step):
        loss = self.train()
        time.sleep(0.02)  # a step of a real job takes at least this long: 512 B each half a second fill 24 GiB in 290 days
        if step % 25 == 0:
            self.kept.append(loss.detach())


class Collected(Case):
    """1 MiB a step waits in a cycle for the collector, 64 KiB a step are kept, both by one line."""

    def __init__(self):
        super().__init__()
        gc.disable()

    def step(self, step):
        self.train()
        for size in (1 << 14, 1 << 18):
            made = [torch.zeros(size, device="cuda")]
            made.append(made)
            if size == 1 << 14:
                self.kept.append(made)
        if step % 20 == 0:
            gc.collect()


class Loops(Case):
    """The first half keeps 1 MiB a step on one line, the second half on another; there is no optimizer."""

    def warm_up(self):
        x = [torch.empty(1 << 10, device="cuda") for _ in range(6)]
        self.kept.append(torch.empty(1 << 18, device="cuda"))
        del x

    def serve(self):
        x = [torch.empty(1 << 10, device="cuda") for _ in range(6)]
        self.kept.append(torch.empty(1 << 18, device="cuda"))
        del x

    def step(self, step):
        self.warm_up() if step <= 90 else self.serve()
        time.sleep(0.01)  # a loop lasts until its lines have names


CASES = {"older_full_queue": OlderFullQueue, "older_queue": OlderQueue, "passes": Passes, "curve": Curve, "collected": Collected, "loops": Loops}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--case", choices=[*CASES], required=True)
    loop.arguments(parser, steps=200)
    options = sidecar.arguments(parser).parse_args()
    case = CASES[options.case]()
    side = sidecar.Sidecar(options)
    for step in loop.counted(options):
        case.step(step)
        side.step(step)
    side.finish()


main()
