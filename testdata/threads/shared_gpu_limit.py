"""A notebook limits itself to 30 % of a shared GPU, and keeps the graphs of all micro-batches until one backward pass.

Device: STANDIN_GPU_MEM=3GiB. Truth: set_per_process_memory_fraction(0.3) allows 921.6 MiB, which the forward pass of a micro-batch exceeds. Nothing
is missing on the device. Holder: `losses` of update, by their graphs. Advice: raise that limit, or a backward pass for each micro-batch.
--fixed: a backward pass for each micro-batch. Its steps have up to 64 of them and take 3 seconds: six seconds cannot call it steady.
"""

import sys

import torch
from pace import Pace
from torch import nn

FIXED = "--fixed" in sys.argv


def share_gpu(part):
    torch.cuda.set_per_process_memory_fraction(part, 0)
    return torch.cuda.get_device_properties(0).total_memory * part


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Forecaster(nn.Module):
    def __init__(self, d=256, depth=6):
        super().__init__()
        self.inp = nn.Linear(24, d)
        self.blocks = nn.ModuleList(Block(d) for _ in range(depth))
        self.out = nn.Linear(d, 1)

    def forward(self, x):
        x = self.inp(x)
        for b in self.blocks:
            x = b(x)
        return self.out(x).squeeze(-1)


def micro_batches(n):
    for _ in range(n):
        yield torch.randn(8, 168, 24, device="cuda"), torch.randn(8, 168, device="cuda")


def update(net, opt, pace, micro=8):
    losses = []
    for x, y in micro_batches(micro):
        loss = (net(x) - y).abs().mean() / micro
        if FIXED:
            loss.backward()
            loss = loss.detach()
        losses.append(loss)
        if not pace():
            return False
    if not FIXED:
        torch.stack(losses).sum().backward()
    opt.step()
    opt.zero_grad()
    return True


if __name__ == "__main__":
    budget = share_gpu(0.3)
    net = Forecaster().cuda()
    opt = torch.optim.NAdam(net.parameters())
    pace, accumulate = Pace(0.04), 4
    while update(net, opt, pace, accumulate):
        accumulate = min(64, accumulate + 4)
