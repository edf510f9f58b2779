"""A checkpoint of an averaged model copies it first, and the copies stay a while (lucidrains/ema-pytorch#35).

Agreed cause: deepcopy of a module that leads back to itself: a copy is freed only by Python's cycle collector.
Truth: a copy has 1024 x 512 + 512 numbers, as halves 1,049,600 B (as floats twice that for a moment), every 4 steps. Nothing leads to old ones: they are garbage.
Line: `copy.deepcopy(self.ema)`. Advice: gc.collect(), or no reference back. --fixed: the state is copied to the CPU.
"""

import copy
import sys

import torch
from pace import Pace
from torch import nn


class KarrasEMA(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.average = copy.deepcopy(model)
        self.restore = self.average.register_load_state_dict_post_hook(lambda module, keys: self.loaded(keys))
        self.register_state_dict_pre_hook(KarrasEMA.saved)
        self.owner = [self]

    def loaded(self, keys):
        pass

    def saved(self, prefix, keep_vars):
        pass

    @torch.no_grad()
    def update(self, model):
        for mine, theirs in zip(self.average.parameters(), model.parameters()):
            mine.lerp_(theirs, 0.01)


class PostHocEMA:
    def __init__(self, model):
        self.model, self.ema = model, KarrasEMA(model)

    def checkpoint(self):
        if "--fixed" in sys.argv:
            return {k: v.to("cpu", copy=True) for k, v in self.ema.state_dict().items()}
        return copy.deepcopy(self.ema).half().state_dict()


def main():
    model, pace = nn.Linear(1024, 512).cuda(), Pace()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    emas, step = PostHocEMA(model), 0
    while pace():
        step += 1
        optimizer.zero_grad()
        model(torch.rand(16, 1024, device="cuda")).square().mean().backward()
        optimizer.step()
        emas.ema.update(model)
        if step % 4 == 0:
            emas.checkpoint()


main()
