"""A preference trainer stores a metric with its graph (huggingface/trl#1526).

Agreed cause: the metric of the NLL loss is moved to the CPU and averaged, but not detached, so that its graph stays until the metrics are logged.
Truth: log_softmax saves its result, 32 x 4096 floats, 524,288 B a step, and the linear layer its input, 32 x 64 floats, 8,192 B, and
gather the labels, 256 B: 532,736 B. Line: in loss(). Holder: the graph of `trainer._stored_metrics['train']['nll_loss']`.
Advice: .detach(). --fixed: .detach() before .cpu().
"""

import sys
from collections import defaultdict

import torch
from pace import Pace
from torch import nn


class PreferenceTrainer:
    def __init__(self):
        self.policy = nn.Linear(64, 4096).cuda()
        self.optimizer = torch.optim.SGD(self.policy.parameters(), lr=1e-4)
        self._stored_metrics = defaultdict(lambda: defaultdict(list))

    def loss(self, batch, labels):
        logps = torch.log_softmax(self.policy(batch), dim=-1)
        return -logps.gather(1, labels).squeeze(1)

    def step(self):
        batch = torch.rand(32, 64, device="cuda")
        labels = torch.randint(0, 4096, (32, 1), device="cuda")
        nll = self.loss(batch, labels)
        kept = nll.detach() if "--fixed" in sys.argv else nll
        self.store_metrics({"nll_loss": kept.cpu().mean()})
        self.optimizer.zero_grad()
        nll.mean().backward(retain_graph=True)
        self.optimizer.step()

    def store_metrics(self, metrics, split="train"):
        for key, value in metrics.items():
            self._stored_metrics[split][key].append(value)


def main():
    trainer, pace = PreferenceTrainer(), Pace()
    while pace():
        trainer.step()


main()
