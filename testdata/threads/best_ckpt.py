"""A classifier whose batch grows in a warm-up, with averaged weights and a copy of the best weights.

Truth: nothing grows after the warm-up of 80 steps: the copy of the best weights, 6.0 MiB, is replaced after each validation that is better, and never
added to. Expected, when attached after step 100: STEADY. There is no twin.
"""

import copy

import torch
from pace import Pace
from torch import nn


class Ema:
    def __init__(self, net, decay=0.99):
        self.shadow = copy.deepcopy(net).requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, net):
        for s, p in zip(self.shadow.parameters(), net.parameters()):
            s.lerp_(p, 1 - self.decay)


class BestKeeper:
    """A callback that keeps the best weights on the device."""

    def __init__(self):
        self.best, self.state, self.log = -1.0, None, []

    def on_validation_end(self, epoch, score, net):
        self.log.append((epoch, score))
        if score > self.best:
            self.best = score
            self.state = copy.deepcopy(net.state_dict())


def validate(net, epoch):
    net.eval()
    with torch.no_grad():
        for _ in range(3):
            net(torch.randn(64, 768, device="cuda")).argmax(-1)
    net.train()
    return epoch // 3 + (0.1 if epoch < 8 else 0.0) * epoch


def fit():
    net = nn.Sequential(nn.Linear(768, 1024), nn.GELU(), nn.Dropout(0.1), nn.Linear(1024, 768)).cuda()
    opt = torch.optim.AdamW(net.parameters(), lr=3e-4)
    warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 80))
    ema, keeper, pace = Ema(net), BestKeeper(), Pace(0.04)
    step = epoch = 0
    while True:
        for _ in range(12):
            n = min(128, 8 * (1 + step // 5))
            x = torch.randn(n, 768, device="cuda")
            loss = (net(x) - x).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            warm.step()
            ema.update(net)
            step += 1
            if not pace():
                return keeper
        keeper.on_validation_end(epoch, validate(ema.shadow, epoch), net)
        epoch += 1


if __name__ == "__main__":
    fit()
