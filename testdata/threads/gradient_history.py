"""Gradients are made with a graph and never cleared, so that they keep all earlier iterations (pytorch/pytorch#1346).

Agreed cause: .grad is never detached and accumulates the graphs of all iterations; zero_grad() ends it.
Truth: a step keeps what the derivative of the derivative needs, 256 x 256 floats, 262,144 B, by PyTorch's counters. Holder: the gradient of `scale` or its graph. Advice: create_graph, or zero_grad(). --fixed: the gradient is set to None.
"""

import sys

import torch
from pace import Pace


def main():
    pace = Pace()
    scale = torch.rand(256, 256, device="cuda", requires_grad=True)
    while pace():
        batch = torch.rand(256, 256, device="cuda")
        energy = (scale**3 * batch).sum()
        energy.backward(create_graph=True)
        penalty = scale.grad.square().mean().item()
        assert penalty >= 0
        if "--fixed" in sys.argv:
            scale.grad = None


main()
