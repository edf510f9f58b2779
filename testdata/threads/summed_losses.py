"""The losses of an update's micro-batches are summed before one backward pass (lhoyer/DAFormer#48).

Device: STANDIN_GPU_MEM=1GiB, of which the context has 460 MiB. The activations of a micro-batch are about 40 MiB, and all of an update are in use at once; every 40
updates two more are added. 12 peak at 501 MiB and fit, 14 do not. Nothing grows between updates. With a backward pass of each it peaks at 56 MiB.
--fixed: a backward pass for each micro-batch.
"""

import sys

import torch
import torch.nn.functional as F
from pace import Pace
from torch import nn


class MixerBlock(nn.Module):
    def __init__(self, tokens, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(tokens, tokens), nn.GELU(), nn.Linear(tokens, tokens))
        self.channels = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Trainer:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(48, 128), *[MixerBlock(64, 128) for _ in range(4)], nn.Flatten(), nn.Linear(8192, 100)).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def micro_batch(self):
        return torch.rand(32, 64, 48).cuda(), torch.randint(0, 100, (32,)).cuda()

    def update(self, count):
        self.optimizer.zero_grad()
        total = 0
        for _ in range(count):
            patches, labels = self.micro_batch()
            loss = F.cross_entropy(self.model(patches), labels) / count
            if "--fixed" in sys.argv:
                loss.backward()
            else:
                total = total + loss
        if "--fixed" not in sys.argv:
            total.backward()
        self.optimizer.step()


def main():
    trainer, pace = Trainer(), Pace(0.005)
    while pace():
        trainer.update(min(16, 2 + 2 * (pace.step // 40)))


main()
