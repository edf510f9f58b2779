"""A sampler of graph neighbours remembers each node's features in a table of slotted records.

Truth: each training step meets 8 new nodes; a record keeps features of 2048 floats, 8,192 B, and a mask of 2048 bools, 2,048 B, so 81,920 B a step.
Lines: `features = ...` and `mask = ...` in Sampler.look_up. Holder: `sampler.table[*].features` and `.mask`. Advice: none needed, or a bound.
--fixed: the table is cleared when it has 400 records.
"""

import sys

import torch
from pace import Pace
from torch import nn


class Record:
    __slots__ = ("features", "mask")

    def __init__(self, features, mask):
        self.features, self.mask = features, mask


class Sampler:
    def __init__(self):
        self.table = {}

    def look_up(self, node):
        if node not in self.table:
            features = torch.rand(2048, device="cuda")
            mask = features > 0.5
            self.table[node] = Record(features, mask)
        return self.table[node].features


def main():
    sampler, model, pace = Sampler(), nn.Linear(2048, 64).cuda(), Pace()
    optimizer = torch.optim.AdamW(model.parameters())
    while pace():
        batch = torch.stack([sampler.look_up(8 * pace.step + i) for i in range(8)])
        if "--fixed" in sys.argv and len(sampler.table) > 400:
            sampler.table.clear()
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
