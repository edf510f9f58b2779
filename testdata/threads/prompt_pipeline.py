"""A generator pipeline with a look-behind window that was meant to have a bound; the list is a local of the generator's frame.

Truth: each item keeps an image of 3 x 160 x 160 floats, 307,200 B. Line: `image = ...` in decoded. Holder: `seen`, a local of the suspended generator `windowed`
(or of what refers to it, `loader`). --fixed: del seen[:-16].
"""

import sys

import torch
from pace import Pace
from torch import nn


def decoded():
    while True:
        image = torch.rand(3, 160, 160, device="cuda")
        yield image


def windowed(images):
    seen = []
    for image in images:
        seen.append(image)
        if "--fixed" in sys.argv:
            del seen[:-16]
        yield torch.stack(seen[-4:])


class Loader:
    def __init__(self):
        self.stream = windowed(decoded())

    def __iter__(self):
        return self.stream


def main():
    model, loader, pace = nn.Conv2d(3, 4, 1).cuda(), Loader(), Pace()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in loader:
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not pace():
            break


main()
