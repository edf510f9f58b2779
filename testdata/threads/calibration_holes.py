"""A calibration collects 115 activations of 4 MiB, keeps every fifth and drops the rest; then a request of 100 MiB finds holes of 16 MiB, with 1 GiB.

Truth: fragmentation: 92 MiB live, 368 MiB free in the segments of the pool. Line: `gram = torch.zeros(...)`. Holder of what is left: `q.calib.kept`;
it was `q.calib.seen` before. Expandable segments do not help: each page of 20 MiB keeps one of the blocks.
"""

import time

import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self, d=256):
        super().__init__()
        self.inp = nn.Linear(64, d)
        self.out = nn.Linear(d, d)

    def forward(self, x):
        return self.out(torch.relu(self.inp(x)))


class Calibration:
    def __init__(self, keep_every=5):
        self.seen = []
        self.kept = []
        self.keep_every = keep_every

    def hook(self, module, args, output):
        self.seen.append(output)

    def select(self):
        self.kept = self.seen[::self.keep_every]
        self.seen = []


class Quantizer:
    def __init__(self, rows=4096, device="cuda"):
        self.device, self.rows = device, rows
        self.model = Encoder().to(device).eval()
        self.calib = Calibration()

    @torch.no_grad()
    def calibrate(self, batches):
        h = self.model.out.register_forward_hook(self.calib.hook)
        for i in range(batches):
            self.model(torch.randn(self.rows, 64).to(self.device))
            time.sleep(0.02)
        h.remove()
        print("collected", len(self.calib.seen), "mem", torch.cuda.memory_allocated(), "reserved", torch.cuda.memory_reserved(), flush=True)
        self.calib.select()
        print("kept", len(self.calib.kept), "mem", torch.cuda.memory_allocated(), "reserved", torch.cuda.memory_reserved(), flush=True)

    @torch.no_grad()
    def solve(self, n=5120):
        gram = torch.zeros(n, n, device=self.device)
        for act in self.calib.kept:
            gram[:256, :256] += act.T @ act
        return torch.linalg.cholesky(gram[:256, :256] + torch.eye(256, device=self.device))


def main():
    q = Quantizer()
    q.calibrate(115)
    for step in range(40):
        for act in q.calib.kept:
            q.model(torch.randn(64, 64).to("cuda"))
        time.sleep(0.03)
    print(q.solve().shape)


if __name__ == "__main__":
    main()
