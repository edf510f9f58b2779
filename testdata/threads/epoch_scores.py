"""Change detection whose evaluation collects the scores of an epoch on the device, and drops them at its end. Healthy.

Truth: the first 20 steps train, and the 2,000 batches of the evaluation after them keep 147,456 B each in `scores` and `targets` of `meter`, until `meter.reset()`.
Who sees only a part of the evaluation cannot know that. It has no twin.
"""

import torch
from pace import Pace
from torch import nn
from torch.nn import functional


class EpochMeter:
    def __init__(self):
        self.reset()

    def reset(self):
        self.scores, self.targets = [], []

    def update(self, scores, target):
        self.scores.append(scores)
        self.targets.append(target)

    def compute(self):
        order = torch.cat(self.scores)[:, 1].flatten().argsort(descending=True)
        return torch.cat(self.targets).flatten()[order].float().cumsum(0).mean().item()


def batches(count, size=4):
    for _ in range(count):
        before = torch.rand(size, 3, 32, 128)
        yield before, before.roll(3, -1), (torch.rand(size, 32, 128) > 0.9).to(torch.uint8)


class ChangeDetector(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(6, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 1))

    def forward(self, before, after):
        return self.net(torch.cat([before, after], 1))


def train(model, optimizer, pace):
    for before, after, changed in batches(20):
        loss = functional.cross_entropy(model(before.cuda(), after.cuda()), changed.cuda().long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pace()


@torch.no_grad()
def evaluate(model, meter, pace):
    for before, after, changed in batches(2000):
        meter.update(model(before.cuda(), after.cuda()).softmax(1), changed.cuda())
        if not pace():
            return False
    print(meter.compute())
    meter.reset()
    return True


def main():
    pace, model, meter = Pace(), ChangeDetector().cuda(), EpochMeter()
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer, pace)
    while evaluate(model, meter, pace):
        train(model, optimizer, pace)


main()
