"""An evaluation keeps the outputs of all clips on the GPU until its end (facebookresearch/SlowFast#411).

Agreed cause: the meter's list of predictions and labels stays in GPU memory, and a large validation set does not fit.
Device: STANDIN_GPU_MEM=1GiB, of which the context has 460 MiB. 60 training steps, then an evaluation of 400 clips without gradients.
Truth: each clip keeps predictions of 64 x 8192 floats, 2,097,152 B, in `meter.predictions`; a training step peaks far below. It fails in the evaluation.
Line: `logits = model(clips)`. Advice: move them to the CPU, or compute the metric as it goes (--fixed: .cpu()).
"""

import sys

import torch
from pace import Pace
from torch import nn


class ValMeter:
    def __init__(self):
        self.predictions, self.labels = [], []

    def update(self, predictions, labels):
        self.predictions.append(predictions)
        self.labels.append(labels)


def train_epoch(model, optimizer, pace):
    for _ in range(60):
        loss = model(torch.rand(64, 256, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not pace():
            return False
    return True


@torch.no_grad()
def eval_epoch(model, meter, pace):
    for _ in range(400):
        clips, labels = torch.rand(64, 256, device="cuda"), torch.zeros(64, device="cuda")
        logits = model(clips)
        if "--fixed" in sys.argv:
            logits, labels = logits.cpu(), labels.cpu()
        meter.update(logits, labels)
        if not pace():
            return False
    return True


def main():
    model, pace = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 8192)).cuda(), Pace(0.02)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    while train_epoch(model, optimizer, pace) and eval_epoch(model, ValMeter(), pace):
        pass


main()
