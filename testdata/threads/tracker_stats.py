"""A trainer's statistics are average meters that get tensors with their graph (visionml/pytracking#313).

Agreed cause: _update_stats is called with values that have gradients, and AverageMeter sums them, graph and all.
Truth: the sum keeps, of each batch, the IoU's inputs that its multiplication saved: two tensors of 64 x 4096 floats, 1,048,576 B each: 2,097,152 B a step,
in `self.stats['train']['iou'].sum` by its graph. `intersection` and `union` (the division saves them, the multiplication the rest).
Advice: detach. --fixed: value.item().
"""

import sys
from collections import OrderedDict

import torch
from pace import Pace
from torch import nn


class AverageMeter:
    def __init__(self):
        self.sum, self.count = 0, 0

    def update(self, value, n=1):
        self.sum = self.sum + value * n
        self.count += n


class Trainer:
    def __init__(self):
        self.net = nn.Linear(128, 4096).cuda()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-4)
        self.stats = OrderedDict(train=OrderedDict(iou=AverageMeter(), loss=AverageMeter()))

    def cycle(self):
        frames = torch.rand(64, 128, device="cuda")
        boxes = self.net(frames)
        truth = torch.rand(64, 4096, device="cuda")
        overlap = torch.sigmoid(boxes) * truth
        loss = boxes.square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self._update_stats({"iou": overlap.mean(), "loss": loss.item()}, 64)

    def _update_stats(self, new, batch):
        for name, value in new.items():
            if "--fixed" in sys.argv and torch.is_tensor(value):
                value = value.item()
            self.stats["train"][name].update(value, batch)


def main():
    trainer, pace = Trainer(), Pace()
    while pace():
        trainer.cycle()


main()
