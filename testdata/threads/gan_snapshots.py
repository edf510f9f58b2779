"""A GAN keeps a copy of its generator every 20 steps, to compute scores later.

Truth: the generator has 128 x 1024 + 1024 + 1024 x 3072 + 3072 floats = 13,123,584 B; a copy every 20 steps, so 656,179.2 B a step.
Line: `self.snapshots.append((step, copy.deepcopy(self.generator)))`. Holder: `self.snapshots[*][1]` (run.snapshots). Advice: none needed, or keep them on the CPU.
--fixed: the last three copies.
"""

import copy
import sys

import torch
from pace import Pace
from torch import nn


class Run:
    def __init__(self):
        self.generator = nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 3072)).cuda()
        self.critic = nn.Sequential(nn.Linear(3072, 256), nn.ReLU(), nn.Linear(256, 1)).cuda()
        self.g_optimizer = torch.optim.Adam(self.generator.parameters(), lr=2e-4)
        self.c_optimizer = torch.optim.Adam(self.critic.parameters(), lr=2e-4)
        self.snapshots = []

    def step(self, step):
        noise, real = torch.randn(32, 128, device="cuda"), torch.rand(32, 3072, device="cuda")
        fake = self.generator(noise)
        self.c_optimizer.zero_grad()
        (self.critic(fake.detach()).mean() - self.critic(real).mean()).backward()
        self.c_optimizer.step()
        self.g_optimizer.zero_grad()
        (-self.critic(fake).mean()).backward()
        self.g_optimizer.step()
        if step % 20 == 0:
            self.snapshots.append((step, copy.deepcopy(self.generator)))
            if "--fixed" in sys.argv:
                del self.snapshots[:-3]


def main():
    run, pace = Run(), Pace(0.02)
    while pace():
        run.step(pace.step)


main()
