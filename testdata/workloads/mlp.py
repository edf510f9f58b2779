"""MLP classifier on synthetic data: DataLoader with pinned memory, AdamW, cross entropy."""

import argparse

import loop
import report
import sidecar
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

INPUTS, CLASSES, SAMPLES = 784, 10, 8192


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=4096)
    loop.arguments(parser, steps=300)
    return sidecar.arguments(parser).parse_args()


class MLP(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(INPUTS, hidden),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Dropout(0.1),
        )
        self.head = nn.Linear(hidden, CLASSES)

    def forward(self, x):
        return self.head(self.body(x))


def make_loader(options):
    data = TensorDataset(torch.randn(SAMPLES, INPUTS), torch.randint(0, CLASSES, (SAMPLES,)))
    return DataLoader(
        data, batch_size=options.batch, shuffle=True, pin_memory=True, num_workers=options.workers, drop_last=True
    )


def train_step(model, optimizer, x, y):
    x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


def train(model, optimizer, loader, options, side):
    progress = report.Progress("mlp")
    stream = loop.batches(loader)
    for step in loop.counted(options):
        loss = train_step(model, optimizer, *next(stream))
        side.step(step)
        progress.step(step, loss)
    progress.result()


def main():
    options = parse_arguments()
    torch.manual_seed(1)
    side = sidecar.Sidecar(options)
    model = MLP(options.hidden).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    train(model, optimizer, make_loader(options), options, side)
    side.finish()


if __name__ == "__main__":
    main()
