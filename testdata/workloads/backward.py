"""Forward and backward passes of many kinds, with what the process itself knows of them: which node each line of forward has made,
and when backward ran it.

--truth FILE gets a JSON line for each run of a node: its number, the line that made it, the thread that runs it, and the times
(CLOCK_BOOTTIME, ns) before and after. Lines are followed by at(), which looks at the graph behind a result.
"""

import argparse
import json
import sys
import threading
import time

import loop
import report
import sidecar
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--truth", metavar="FILE")
    loop.arguments(parser, steps=4)
    return sidecar.arguments(parser).parse_args()


class Truth:
    """Follows the nodes of graphs, each by its number and the thread that made it."""

    def __init__(self, path):
        self.file = open(path, "w") if path else None
        self.lock = threading.Lock()
        self.begun = {}

    def at(self, tensor):
        """The nodes behind a result that are new were made by the caller's line before this one's call."""
        line = sys._getframe(1).f_lineno
        nodes = [tensor.grad_fn]
        while nodes:
            node = nodes.pop()
            if node is None or node.metadata.get("line"):
                continue
            node.metadata["line"] = line
            if node.name() != "torch::autograd::AccumulateGrad":
                self.follow(node, line)
            nodes += [n for n, _ in node.next_functions]
        return tensor

    def follow(self, node, line):
        number = node._sequence_nr()
        key = (line, number, threading.get_native_id())

        def before(gradients):
            self.begun[threading.get_native_id(), key] = time.clock_gettime_ns(time.CLOCK_BOOTTIME)

        def after(inputs, outputs):
            thread = threading.get_native_id()
            self.write(node=number, line=line, thread=thread, begin=self.begun.pop((thread, key)))

        node.register_prehook(before)
        node.register_hook(after)

    def write(self, **what):
        what["end"] = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        if self.file:
            with self.lock:
                self.file.write(json.dumps(what) + "\n")


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2 + ctx.saved_tensors[0] * 0


class Net(nn.Module):
    def __init__(self, truth):
        super().__init__()
        self.truth = truth
        self.words = nn.Embedding(100, 64)
        self.norm = nn.LayerNorm(64)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
        self.conv = nn.Sequential(nn.Conv1d(8, 8, 3), nn.ReLU(inplace=True), nn.Conv1d(8, 8, 3), nn.ReLU(inplace=True))
        self.out = nn.Linear(60, 10)

    def forward(self, tokens):
        at = self.truth.at
        x = at(self.words(tokens))
        x = at(self.norm(x))
        for layer in self.layers:
            x = at(layer(x))
            at(x.relu_())  # makes a node, and allocates nothing
        mask = torch.rand_like(x) > 0.1  # allocates, and makes no node
        x = at(x * mask)
        a, b = (at(part) for part in x.chunk(2, dim=-1))
        x = at(torch.cat([b.sigmoid(), a.exp()], -1))
        x = at(F.dropout(x, 0.1))
        x = at(Scale.apply(x))
        x = at(x + checkpoint(self.wide, x, use_reentrant=False))
        x = at(self.conv(x))
        return at(self.out(x.reshape(x.shape[0], 8, -1)))

    def wide(self, x):
        at = self.truth.at
        x = at(x.square())
        return at(x.clamp(0, 1))


def step(net, truth):
    tokens = torch.randint(0, 100, (4, 8), device="cuda")
    y = net(tokens)
    loss = truth.at(F.cross_entropy(y.flatten(0, 1), tokens.flatten() % 10))
    loss.backward()
    net.zero_grad()
    return loss.detach()


def penalty(truth):
    """The second derivative: its nodes are made in the first backward pass."""
    x = torch.rand(64, 64, device="cuda", requires_grad=True)
    y = truth.at((x * x).sin())
    z = truth.at(y.sum())
    (gradient,) = torch.autograd.grad(z, x, create_graph=True)
    p = gradient.square().sum()
    p.backward()


def main():
    options = parse_arguments()
    side = sidecar.Sidecar(options)
    truth = Truth(options.truth)
    net = Net(truth).cuda()
    progress = report.Progress("backward")
    for number in loop.counted(options):
        loss = step(net, truth)
        penalty(truth)
        other = threading.Thread(target=step, args=(net, truth))
        other.start()
        other.join()
        side.step(number)
        progress.step(number, loss)
    if truth.file:
        truth.file.close()
    progress.result()
    side.finish()


if __name__ == "__main__":
    main()
