"""Training and validation keep the outputs of one model in two containers: one line allocates both.

Truth: each step keeps 65,536 B in `runner.train_outputs` and 196,608 B in `runner.val_outputs`, 64 and 192 rows of 256 numbers. Line:
`return self.body(x)`. The screen has a row for each container. --fixed: both keep one mean on the CPU.
"""

import sys

import torch
from pace import Pace
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))

    def forward(self, x):
        return self.body(x)


class Runner:
    def __init__(self):
        self.net, self.fixed = Net().cuda(), "--fixed" in sys.argv
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.train_outputs, self.val_outputs = [], {}

    def kept(self, y):
        return y.mean().item() if self.fixed else y.detach()

    def train(self):
        y = self.net(torch.randn(64, 256, device="cuda"))
        self.optimizer.zero_grad()
        y.square().mean().backward()
        self.optimizer.step()
        self.train_outputs.append(self.kept(y))

    @torch.no_grad()
    def validate(self, step):
        self.val_outputs[f"step{step}"] = self.kept(self.net(torch.randn(192, 256, device="cuda")))


runner, pace = Runner(), Pace()
while True:
    runner.train()
    runner.validate(pace.step)
    if not pace():
        break
