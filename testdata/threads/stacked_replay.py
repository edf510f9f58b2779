"""A replay buffer on the GPU of which each state is a stack of four frames: its bound is more than the device has.

Thread: cpnota/autonomous-learning-library#144.

Truth: out of memory (1 GiB) in a training step, whichever line asks. Each step stores 4,194,304 B, 4 frames of 16 x 128 x 128 floats, in
`agent.memory.items`, a list that is bounded at 300 = 1.2 GiB: it grows to a bound that the device has no room for. Line:
`torch.cat(self.frames`. Advice: a smaller bound, or the CPU. It is no leak without end.
"""

import random

import torch
from pace import Pace
from torch import nn


class Stack:
    def __init__(self):
        self.frames = [torch.zeros(16, 1, 128, 128, device="cuda")] * 4

    def observe(self):
        self.frames = self.frames[1:] + [torch.rand(16, 1, 128, 128).cuda()]
        return torch.cat(self.frames, dim=1)


class Memory:
    def __init__(self, capacity):
        self.items, self.capacity, self.position = [], capacity, 0

    def store(self, item):
        if len(self.items) < self.capacity:
            self.items.append(item)
        else:
            self.items[self.position] = item
        self.position = (self.position + 1) % self.capacity


class Agent:
    def __init__(self):
        self.memory = Memory(300)
        self.net = nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(4 * 16 * 16, 128), nn.ReLU(), nn.Linear(128, 6)).cuda()
        self.optimizer = torch.optim.Adam(self.net.parameters())

    def learn(self):
        states = torch.cat(random.sample(self.memory.items, 2))
        self.optimizer.zero_grad()
        self.net(states).square().mean().backward()
        self.optimizer.step()


def main():
    stack, agent, pace = Stack(), Agent(), Pace()
    while True:
        agent.memory.store(stack.observe())
        if len(agent.memory.items) > 8:
            agent.learn()
        if not pace():
            break


main()
