"""A running average of the loss is computed on tensors, without a detach (alexhernandezgarcia/gflownet#133).

Agreed cause: the average keeps the graph of every loss that went into it; the repair computes it outside of PyTorch.
Truth: each step keeps what the loss's graph saved: the batch (32 x 256 floats, 32,768 B), the hidden layer after tanh (32 x 2048 floats, 262,144 B),
the difference (32 x 16 floats, 2,048 B), and small scalars: 512 B are rounding. About 297,000 B a step.
Line: of those, `nn.functional.tanh(...)` has most. Holder: the graph of `agent.loss_average`. Advice: .item() or .detach(). --fixed: .item().
"""

import sys

import torch
from pace import Pace
from torch import nn


class Agent:
    def __init__(self):
        self.first, self.second = nn.Linear(256, 2048).cuda(), nn.Linear(2048, 16).cuda()
        self.optimizer = torch.optim.SGD([*self.first.parameters(), *self.second.parameters()], lr=1e-4)
        self.loss_average = 0.0

    def step(self):
        states, target = torch.rand(32, 256, device="cuda"), torch.rand(32, 16, device="cuda")
        hidden = torch.tanh(self.first(states))
        difference = self.second(hidden) - target
        loss = (difference * difference).mean()
        self.optimizer.zero_grad()
        loss.backward(retain_graph=True)
        self.optimizer.step()
        seen = loss.item() if "--fixed" in sys.argv else loss
        self.loss_average = 0.9 * self.loss_average + 0.1 * seen


def main():
    agent, pace = Agent(), Pace()
    while pace():
        agent.step()


main()
