"""A classic leak: losses are kept in a list with their graphs, until the device is full."""

import argparse

import loop
import report
import sidecar
import torch
from torch import nn


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=512)
    loop.arguments(parser, steps=0)
    return sidecar.arguments(parser).parse_args()


class Trainer:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.history = []

    def step(self, batch):
        x = torch.randn(batch, 1024, device="cuda")
        loss = (self.model(x) - x).square().mean()
        self.history.append(loss)  # the leak: loss.item() was meant
        loss.backward(retain_graph=True)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


def train(trainer, options, side):
    progress = report.Progress("leak")
    for step in loop.counted(options):
        loss = trainer.step(options.batch)
        side.step(step)
        progress.step(step, loss)
    progress.result()


def main():
    options = parse_arguments()
    side = sidecar.Sidecar(options)
    trainer = Trainer()
    try:
        train(trainer, options, side)
    except torch.cuda.OutOfMemoryError as error:
        print(f"OOM after {len(trainer.history)} steps: {str(error)[:300]}", flush=True)
    side.finish()


if __name__ == "__main__":
    main()
