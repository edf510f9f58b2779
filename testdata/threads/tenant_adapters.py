"""Every ten steps a new tenant gets an adapter, which is trained with Adam and stays in the model and in the optimizer.

Truth: an adapter has 2 x 8 x 2048 floats = 131,072 B; Adam keeps twice that (its steps are on the CPU): 393,216 B a tenant, 39,321.6 B a step.
Gradients are of the current tenant only. Lines: `self.tenants[name] = ...cuda()` (a third) and `optimizer.step()` (two thirds).
Holder: `model.tenants['tenant*']` and the optimizer's state of them. Advice: parameters are added without bound. --fixed: the oldest of 5 goes, with its state.
"""

import sys

import torch
from pace import Pace
from torch import nn


class Shared(nn.Module):
    def __init__(self, width=2048):
        super().__init__()
        self.base, self.tenants = nn.Linear(width, width).requires_grad_(False), nn.ModuleDict()

    def forward(self, x, name):
        return self.base(x) + self.tenants[name](x)

    def add_tenant(self, name):
        self.tenants[name] = nn.Sequential(nn.Linear(2048, 8, bias=False), nn.Linear(8, 2048, bias=False)).cuda()
        return self.tenants[name].parameters()


def forget(model, optimizer):
    oldest = next(iter(model.tenants))
    for parameter in model.tenants[oldest].parameters():
        optimizer.state.pop(parameter, None)
    del model.tenants[oldest], optimizer.param_groups[0]


def main():
    model, pace, optimizer = Shared().cuda(), Pace(0.03), None
    while True:
        if pace.step % 10 == 0:
            name = f"tenant{pace.step // 10}"
            group = {"params": list(model.add_tenant(name))}
            if optimizer is None:
                optimizer = torch.optim.Adam([group])
            else:
                optimizer.add_param_group(group)
            if "--fixed" in sys.argv and len(model.tenants) > 5:
                forget(model, optimizer)
        loss = model(torch.rand(32, 2048, device="cuda"), name).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not pace():
            break


main()
