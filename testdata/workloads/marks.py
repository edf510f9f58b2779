"""Loops whose steps no allocation shows, each with a number of steps that it knows.

    marks.py --case silent --steps 40
"""

import argparse

import loop
import sidecar
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH = 16
SIZE = 64


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--case", choices=CASES, required=True)
    loop.arguments(parser, steps=40)
    return sidecar.arguments(parser).parse_args()


def silent(model, options, side):
    """Two backward passes a step, and an optimizer that allocates nothing."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in loop.counted(options):
        for _ in range(2):
            model(torch.randn(BATCH, SIZE).cuda()).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        side.step(step)


def alternating(model, options, side):
    """Two optimizers of one class, stepped in turn by one function."""
    halves = [torch.optim.SGD(part.parameters(), lr=0.1) for part in model]
    for step in loop.counted(options):
        model(torch.randn(BATCH, SIZE).cuda()).sum().backward()
        halves[0].step()
        model(torch.randn(BATCH, SIZE).cuda()).sum().backward()
        halves[1].step()
        side.step(step)


def given(model, options, side):
    """A backward pass that is given its gradient, of weights that are changed by hand."""
    gradient = torch.ones(BATCH, SIZE).cuda()
    for step in loop.counted(options):
        torch.autograd.backward(model(torch.randn(BATCH, SIZE).cuda()), gradient)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(parameter.grad)
                parameter.grad.zero_()
        side.step(step)


def loaded(model, options, side):
    """An evaluation of what a loader gives."""
    data = DataLoader(TensorDataset(torch.randn(BATCH * options.steps, SIZE)), batch_size=BATCH)
    with torch.no_grad():
        for step, (batch,) in enumerate(data, start=1):
            model(batch.cuda()).sum().item()
            side.step(step)


CASES = {f.__name__: f for f in (silent, alternating, given, loaded)}


def main():
    options = parse_arguments()
    # The thread of the backward pass has a context from here on: cuBLAS does not make one on the stand-in where PyTorch 2.1 asks it first.
    torch.ones(1, device="cuda", requires_grad=True).exp().sum().backward()
    side = sidecar.Sidecar(options)
    CASES[options.case](nn.Sequential(nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)).cuda(), options, side)
    side.finish()


if __name__ == "__main__":
    main()
