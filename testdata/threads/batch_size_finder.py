"""The batch size is searched before the training; the optimizer of the search stays (Lightning-AI/pytorch-lightning#6570).

Agreed cause: the trainer keeps the search's optimizer wrapper after tune(), and with it the state of AdamW: with SGD nothing leaks.
Truth: 10 layers of 2048 x 2048 weights = 167,772,160 B; the state that stays is twice that, 335,544,320 B. With 1,300 MiB
(STANDIN_GPU_MEM=1300MiB, of which the context has 460 MiB) fit() fails in the first optimizer.step(); without the old state it fits.
Holder: `trainer.lightning_optimizers[0].optimizer.state[*]['exp_avg']` and ['exp_avg_sq']. Advice: none, or drop the old optimizer.
--fixed: lightning_optimizers is cleared.
"""

import sys

import torch
from pace import Pace
from torch import nn


class LightningOptimizer:
    def __init__(self, optimizer):
        self.optimizer = optimizer


class Trainer:
    def __init__(self, model):
        self.model, self.lightning_optimizers, self.pace = model, [], Pace(0.05)

    def steps(self, rows, count):
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, foreach=False)
        self.lightning_optimizers.append(LightningOptimizer(optimizer))
        for _ in range(count):
            loss = self.model(torch.rand(rows, 2048, device="cuda")).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if not self.pace():
                return

    def tune(self):
        for rows in (8, 16, 32, 64):
            self.lightning_optimizers.clear()
            self.steps(rows, 10)
        self.model.zero_grad()

    def fit(self):
        if "--fixed" in sys.argv:
            self.lightning_optimizers.clear()
        self.steps(64, 1000000)


def main():
    trainer = Trainer(nn.Sequential(*(nn.Linear(2048, 2048, bias=False) for _ in range(10))).cuda())
    trainer.tune()
    trainer.fit()


main()
