"""Five small jobs whose requests differ in kind, for what-if replays: variants.py --case lengths|streams|retried|checkpointing|server"""

import argparse
import random

import loop
import sidecar
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

MIB = 1 << 20
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, width=384, layers=6, recompute=False):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.recompute = recompute

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return x


def train(model, optimizer, x):
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def trainer(**options):
    model = Model(**options).cuda()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4)


@case
def lengths(steps):
    """Sequences whose lengths vary from batch to batch, with a state that is carried over."""
    draw, (model, optimizer), carried = random.Random(3), trainer(), None
    for _ in steps:
        x = torch.randn(draw.choice((4, 8)), draw.randrange(32, 1400), 384, device="cuda")
        if carried is not None:
            x = torch.cat([x, carried[: x.shape[0]].expand(x.shape[0], -1, -1)], dim=1)
        train(model, optimizer, x)
        carried = x[:1, : draw.randrange(16, 256)].clone()


@case
def streams(steps):
    """Batches are copied on one stream and used on another, as a prefetcher does."""
    draw, (model, optimizer) = random.Random(5), trainer()
    loads, waiting = torch.cuda.Stream(), []
    for _ in steps:
        with torch.cuda.stream(loads):
            waiting.append(torch.randn(draw.randrange(2, 9), draw.randrange(100, 900), 384, device="cuda"))
        if len(waiting) < 3:
            continue
        x = waiting.pop(0)
        torch.cuda.current_stream().wait_stream(loads)
        x.record_stream(torch.cuda.current_stream())
        train(model, optimizer, x)


@case
def retried(steps):
    """A batch that is too large for any device is cut until it fits."""
    model, optimizer = trainer()
    for n in steps:
        batch = 1 << 21 if n == 3 else 24
        while True:
            try:
                train(model, optimizer, torch.randn(batch, 256, 384, device="cuda"))
                break
            except torch.cuda.OutOfMemoryError:
                batch //= 4


@case
def checkpointing(steps):
    """Activations are computed again in the backward pass."""
    draw, (model, optimizer) = random.Random(7), trainer(layers=10, recompute=True)
    for _ in steps:
        train(model, optimizer, torch.randn(16, draw.randrange(128, 1024), 384, device="cuda"))


@case
def server(steps):
    """Requests of different sizes grow caches of their own, and end at different times. No step of an optimizer."""
    draw, model, active = random.Random(11), Model().cuda().eval(), []
    for _ in steps:
        with torch.inference_mode():
            active.append([torch.zeros(1, draw.randrange(64, 6000), 384, device="cuda"), draw.randrange(2, 9)])
            for request in active:
                request[0] = torch.cat([request[0], model(request[0][:, -64:])], dim=1)
                request[1] -= 1
            active = [request for request in active if request[1] > 0]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=sorted(CASES), default="lengths")
    loop.arguments(parser, steps=25)
    options = sidecar.arguments(parser).parse_args()
    side = sidecar.Sidecar(options)
    CASES[options.case](loop.counted(options))
    side.finish()


if __name__ == "__main__":
    main()
