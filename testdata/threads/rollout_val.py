"""A weather model is validated over 60 steps of a rollout without no_grad; model.eval() was called.

Device: STANDIN_GPU_MEM=1100MiB. Truth: a step of the rollout keeps 12 MiB of its graph, so the first validation, after 150 steps, fails at about the
49th of 60. Steps of the training peak at 26 MiB. Holder: the graph of `state` in rollout. Lines: in Core.forward. Advice: torch.no_grad() in
validate. --fixed: no_grad.
"""

import contextlib
import sys

import torch
from pace import Pace
from torch import nn

FIXED = "--fixed" in sys.argv


class Core(nn.Module):
    def __init__(self, c=32):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(c), nn.Linear(c, 2 * c), nn.Linear(2 * c, c)

    def forward(self, state):
        h = self.up(self.norm(state))
        return state + self.down(nn.functional.gelu(h))


def rollout(core, state, steps):
    for _ in range(steps):
        state = core(state)
        yield state.mean()


class Job:
    def __init__(self, every=150):
        self.core, self.every = Core().cuda(), every
        self.opt = torch.optim.AdamW(self.core.parameters(), lr=1e-3)
        self.callbacks, self.pace = {"step": [], "epoch": [self.validate]}, Pace(0.04)

    def grid(self):
        return torch.randn(2, 64, 128, 32, device="cuda")

    def validate(self, epoch):
        self.core.eval()
        guard = torch.no_grad() if FIXED else contextlib.nullcontext()
        with guard:
            drift = list(rollout(self.core, self.grid(), 60))
        self.core.train()
        return torch.stack(drift).std().item()

    def train_step(self):
        x = self.grid()
        loss = (self.core(x) - x.roll(1, dims=2)).square().mean()
        loss.backward()
        self.opt.step()
        self.opt.zero_grad()

    def run(self):
        epoch = 0
        while True:
            for _ in range(self.every):
                self.train_step()
                if not self.pace():
                    return
            for call in self.callbacks["epoch"]:
                call(epoch)
            epoch += 1


if __name__ == "__main__":
    Job().run()
