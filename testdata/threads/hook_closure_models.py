"""A module whose forward hook refers to the module itself, made again in a loop (pytorch/pytorch#46386).

Agreed cause: the hook's closure on self makes a cycle of references; a model that is replaced is freed only when Python's cycle collector gets to it.
Truth: 4,198,400 B a model (1024 x 1024 weights and 1,024 biases). Nothing in the program leads to the old ones: they are garbage.
Line: `net = LeakyModule().cuda()` (or, in --fixed, the same, steady). Advice: gc.collect(), or no strong reference from the hook.
--fixed: a weak reference. The twin has one or two models at a time.
"""

import sys
import weakref

import torch
from pace import Pace
from torch import nn


class LeakyModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(1024, 1024)
        owner = weakref.proxy(self) if "--fixed" in sys.argv else self
        self.calls = 0

        def count(module, inputs, output):
            owner.calls += 1

        self.body.register_forward_hook(count)

    def forward(self, x):
        return self.body(x)


def main():
    pace, fold = Pace(0.1), 0
    while pace():
        fold += 1
        net = LeakyModule().cuda()
        with torch.no_grad():
            for _ in range(4):
                net(torch.rand(32, 1024, device="cuda"))


main()
