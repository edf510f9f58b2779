"""The process of a run that crashed still has memory of the GPU when the next run begins (rwth-i6/returnn#1649).

Agreed cause: the old process never ended, and its memory is missing. Device: STANDIN_GPU_MEM=2304MiB, shared by STANDIN_SHM=FILE.
Truth: a child has 18 x 50 MiB, 900 MiB, and its context. The training itself has 460 MiB when it fails in the forward or backward pass, and sequences
get longer by 12 frames a step for 60 steps. Holder: the other process. Advice: end that process. --fixed: there is no old process.
"""

import multiprocessing as mp
import sys
import time

import torch
from pace import Pace
from torch import nn

FIXED = "--fixed" in sys.argv


def stale_run(ready):
    """What the first run left: it holds its memory and waits for a lock for ever."""
    weights = [torch.zeros(50, 1024, 1024, dtype=torch.int8, device="cuda") for _ in range(18)]
    ready.set()
    time.sleep(600)
    del weights


class Encoder(nn.Module):
    def __init__(self, d=512):
        super().__init__()
        self.inp = nn.Linear(80, d)
        self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(6))

    def forward(self, x):
        x = self.inp(x)
        for layer in self.layers:
            x = torch.relu(layer(x)) + x
        return x


def batches():
    lengths = [200, 300, 400, 300, 200]
    i = 0
    while True:
        yield torch.randn(16, lengths[i % 5] + 12 * min(i, 60), 80)
        i += 1


def train(old):
    model = Encoder().cuda()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    pace = Pace(0.05)
    for x in batches():
        out = model(x.cuda())
        loss = out.square().mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        if not pace():
            return


if __name__ == "__main__":
    old = None
    if not FIXED:
        ctx = mp.get_context("spawn")
        ready = ctx.Event()
        old = ctx.Process(target=stale_run, args=(ready,), daemon=True)
        old.start()
        ready.wait()
    train(old)
