"""Sequences of different lengths, some kept for a while, on two streams, with an empty_cache now and then: it fragments the allocator."""

import argparse
import collections
import random

import loop
import report
import sidecar
import torch
from torch import nn


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--longest", type=int, default=4096, help="tokens of a sample")
    parser.add_argument("--kept", type=int, default=12, help="results that are kept, the last ones")
    parser.add_argument("--empty", type=int, default=0, help="call empty_cache before every so many steps; 0: never")
    loop.arguments(parser, steps=30)
    return sidecar.arguments(parser).parse_args()


class Lengths:
    def __init__(self, options):
        self.options, self.chance = options, random.Random(7)
        self.embed = nn.Embedding(1000, options.width).cuda()
        self.model = nn.Sequential(nn.Linear(options.width, 4 * options.width), nn.GELU(), nn.Linear(4 * options.width, options.width)).cuda()
        self.optimizer = torch.optim.AdamW(list(self.model.parameters()) + list(self.embed.parameters()))
        self.kept = collections.deque(maxlen=options.kept)
        self.side = torch.cuda.Stream()

    def train_step(self):
        self.optimizer.zero_grad()
        length = self.chance.randrange(16, self.options.longest)
        tokens = torch.zeros(self.options.batch, length, dtype=torch.int64, device="cuda")
        y = self.model(self.embed(tokens))
        y.square().mean().backward()
        self.optimizer.step()
        self.keep(y.detach())

    def keep(self, y):
        """Keep a part of a result, and one that was made on another stream and is used on this one."""
        self.kept.append(y[: 1 + self.chance.randrange(self.options.batch)].clone())
        with torch.cuda.stream(self.side):
            moved = torch.empty(self.chance.randrange(1, 1 << 22), device="cuda")
        moved.record_stream(torch.cuda.current_stream())
        if self.chance.random() < 0.5:
            self.kept.append(moved)


def train(trainer, options, side):
    progress = report.Progress("lengths")
    for step in loop.counted(options):
        if options.empty and step % options.empty == 0:
            torch.cuda.empty_cache()
        trainer.train_step()
        side.step(step)
        progress.step(step, torch.zeros(()))
    progress.result()


def main():
    options = parse_arguments()
    torch.manual_seed(1)
    side = sidecar.Sidecar(options)
    train(Lengths(options), options, side)
    side.finish()


if __name__ == "__main__":
    main()
