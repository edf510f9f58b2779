"""A message-passing layer keeps what its backward pass needs in a tuple on ctx, with the output among it. The training has turned the collector off.

Truth: a leak of each step's graph. The node keeps its ctx, and the output on it keeps the node: 524288 + 65536 + 512 B of the layer and 131072 B of the edges, in each of
two layers. --fixed: the output is not kept.
"""
import gc
import sys

import torch
import torch.nn as nn
from pace import Pace

PACE = Pace(0.02)
DEV, WIDTH, NODES, EDGES = "cuda", 128, 1024, 4096


class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, messages, edges):
        out = messages.new_zeros(NODES, messages.size(1)).index_add_(0, edges[1], messages[edges[0]])
        ctx.kept = (edges, messages.shape) if "--fixed" in sys.argv else (edges, messages.shape, out)
        return out

    @staticmethod
    def backward(ctx, grad):
        edges, shape = ctx.kept[:2]
        return grad.new_zeros(shape).index_add_(0, edges[0], grad[edges[1]]), None


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.send = nn.Linear(WIDTH, WIDTH)

    def forward(self, h, edges):
        return Scatter.apply(self.send(h), edges)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Layer(), Layer()
        self.head = nn.Linear(WIDTH, 8)

    def forward(self, h, edges):
        return self.head(self.second(self.first(h, edges), edges))


def main():
    gc.disable()
    net = Network().to(DEV)
    opt = torch.optim.Adam(net.parameters())
    while True:
        edges = torch.randint(0, NODES, (2, EDGES)).to(DEV)
        net(torch.randn(NODES, WIDTH, device=DEV), edges).square().mean().backward()
        opt.step()
        opt.zero_grad()
        PACE()


if __name__ == "__main__":
    main()
