"""Trials with a LambdaLR whose lambda is bound to the object that owns it (pytorch/pytorch#47589).

Agreed cause: object, scheduler and optimizer refer to each other, so a trial that is over is freed only by Python's cycle collector.
Truth: a trial has weights of 1024 x 768 + 768 floats, 3,148,800 B, their gradient, and Adam's state of twice that, 12.6 MB in all. They are garbage as soon as
the next trial begins. The program has switched the collector off while it trains, as some trainers do, and runs it every 4,000 steps.
Advice: gc.collect(). Line: in Trial.__init__ and step. --fixed: no lambda bound to self.
"""

import gc
import sys

import torch
from pace import Pace
from torch import nn


class Trial:
    def __init__(self, base):
        self.base = base
        self.net = nn.Linear(1024, 768).cuda()
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-3)
        rule = (lambda step, base=base: base / (step + 1)) if "--fixed" in sys.argv else (lambda step: self.base / (step + 1))
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lr_lambda=rule)

    def run(self, pace):
        for _ in range(5):
            loss = self.net(torch.rand(16, 1024, device="cuda")).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            if not pace():
                return False
        return True


def main():
    gc.disable()
    pace, trials = Pace(), 0
    while Trial(1.0).run(pace):
        trials += 1
        if trials % 800 == 0 or "--fixed" in sys.argv:
            gc.collect()


main()
