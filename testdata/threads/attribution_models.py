"""Attributions of one model after another; each keeps its last input and output (jmschrei/tangermeme#84).

Agreed cause: the hooks store module.input and module.output; clearing the hooks does not clear these.
Truth: a model whose attribution is done keeps the input and the output of its first part, 64 x 1024 floats each, and of its last, 64 x 512 floats each:
786,432 B, every 5 steps. All models share their weights. Line: `module.input = ` and `module.output = ` (or what made them).
Holder: the attributes .input and .output of modules of `models`. --fixed: del module.input, module.output.
"""

import sys

import torch
from pace import Pace
from torch import nn


class Regulator(nn.Module):
    def __init__(self, trunk):
        super().__init__()
        self.trunk = trunk
        self.stem = nn.Sequential(nn.Identity())
        self.head = nn.Sequential(nn.Identity())

    def forward(self, x):
        return self.head(self.trunk(self.stem(x)))


def keep(module, inputs, output):
    module.input = inputs[0].clone().detach()
    module.output = output.clone().detach()


def attribute(model, pace):
    handles = [m.register_forward_hook(keep) for m in (model.stem, model.head)]
    alive = True
    for _ in range(5):
        model(torch.rand(64, 1024, device="cuda")).sum().backward()
        model.zero_grad()
        alive = alive and pace()
    for h in handles:
        h.remove()
    if "--fixed" in sys.argv:
        for m in (model.stem, model.head):
            del m.input, m.output
    return alive


def main():
    trunk, pace = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 512)).cuda(), Pace()
    models = [Regulator(trunk) for _ in range(4000)]
    for model in models:
        if not attribute(model, pace):
            break


main()
