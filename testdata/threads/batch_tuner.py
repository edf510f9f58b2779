"""A tuner doubles the batch until it does not fit, keeps the error of that attempt, and the batch that did fit fails (pytorch/pytorch#18853).

Device: STANDIN_GPU_MEM=1GiB, of which the context has 460 MiB. 512 clouds of 256 points run for 20 steps and peak at 332 MiB; 1,024 do not fit, which is expected
and caught. `tuner.tried[1024]` is the exception, whose traceback keeps the frames of the failed forward pass: 6 activations of 1024 x 256 x 80 floats = 83,886,080 B
each and the input, 483.3 MiB. Then the training with 512 fails in its first step. With str(error) it runs.
--fixed: str(error).
"""

import sys

import torch
import torch.nn.functional as F
from pace import Pace
from torch import nn


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.local, self.head = nn.ModuleList([nn.Linear(3, 80), nn.Linear(80, 80), nn.Linear(80, 80)]), nn.Linear(80, 16)

    def forward(self, points):
        h = points
        for layer in self.local:
            h = F.gelu(layer(h))
        return self.head(h.amax(dim=1))


class Trainer:
    def __init__(self):
        self.model = PointNet().cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def step(self, size):
        points, labels = torch.randn(size, 256, 3).cuda(), torch.randint(0, 16, (size,)).cuda()
        loss = F.cross_entropy(self.model(points), labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


class Tuner:
    def __init__(self, trainer):
        self.trainer, self.tried = trainer, {}

    def fits(self, size, pace):
        try:
            for _ in range(20):
                self.trainer.step(size)
                pace()
            self.tried[size] = None
        except torch.cuda.OutOfMemoryError as error:
            self.tried[size] = str(error) if "--fixed" in sys.argv else error
            self.trainer.optimizer.zero_grad()
            torch.cuda.empty_cache()
        return self.tried[size] is None


def main():
    trainer, pace, size = Trainer(), Pace(0.1), 32
    tuner = Tuner(trainer)
    while tuner.fits(size, pace):
        size *= 2
    while pace():
        trainer.step(size // 2)


main()
