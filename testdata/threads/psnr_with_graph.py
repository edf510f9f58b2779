"""A metric object that is fed tensors with their graph (Lightning-AI/torchmetrics#2597).

Agreed cause: PSNR was updated with `fake`, which is attached to the generator's graph; the metric's running sum then keeps a chain of graphs.
Truth: 16 x 3 x 64 x 64 floats = 786,432 B a step: the difference, which the square saved for its backward pass.
Line: `difference = prediction - target` in PeakSignalNoiseRatio.update. Holder: the graph of `metrics['psnr'].sum_squared_error`.
Advice: detach what the metric gets. --fixed: fake.detach().
"""

import sys

import torch
from pace import Pace
from torch import nn


class PeakSignalNoiseRatio(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("sum_squared_error", torch.tensor(0.0))
        self.register_buffer("total", torch.tensor(0))

    def update(self, prediction, target):
        difference = prediction - target
        self.sum_squared_error = self.sum_squared_error + (difference * difference).sum()
        self.total += target.numel()


def main():
    generator = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 3, 3, padding=1)).cuda()
    optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4)
    metrics, pace = nn.ModuleDict({"psnr": PeakSignalNoiseRatio()}).cuda(), Pace()
    while True:
        real = torch.rand(16, 3, 64, 64, device="cuda")
        fake = generator(real)
        loss = nn.functional.l1_loss(fake, real)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        metrics["psnr"].update(fake.detach() if "--fixed" in sys.argv else fake, real)
        if not pace():
            break


main()
