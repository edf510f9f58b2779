"""A segmentation network is validated without torch.no_grad(), on whole images (hszhao/semseg#60).

Agreed cause: the validation builds a graph; `with torch.no_grad()` ends it.
Device: STANDIN_GPU_MEM=1000MiB, of which the context has 460 MiB. 60 training steps on crops, then a validation on images of four times the size.
Truth: a training step peaks at about 160 MiB; the validation's forward keeps 18 activations of 8 x 16 x 256 x 256 floats, 33,554,432 B each, and as many inputs:
over 700 MiB. Without the graph three of them at a time are enough. It fails in the first validation step, in `self.blocks`. Nothing grows.
Advice: no_grad. --fixed: so.
"""

import contextlib
import sys

import torch
from pace import Pace
from torch import nn


class PyramidNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 1)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Conv2d(16, 16, 1), nn.Sigmoid()) for _ in range(18))

    def forward(self, images):
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        return x


def train(model, optimizer, pace):
    for _ in range(60):
        loss = model(torch.rand(4, 3, 128, 128, device="cuda")).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pace()


def validate(model, pace):
    for _ in range(20):
        images = torch.rand(8, 3, 256, 256, device="cuda")
        with torch.no_grad() if "--fixed" in sys.argv else contextlib.nullcontext():
            output = model(images)
        del output
        if not pace():
            return False
    return True


def main():
    model, pace = PyramidNet().cuda(), Pace(0.02)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    while True:
        train(model, optimizer, pace)
        if not validate(model, pace):
            break


main()
