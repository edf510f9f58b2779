"""A prioritized replay memory: a heap with lazy deletion keeps what the dictionary beside it, of at most 200 items, has dropped.

Truth: a leak of one observation a step, 1 x 4 x 84 x 84 floats = 112,896 B, `agent.memory.heap[...].item.state`. `agent.memory.items` is full.
--fixed: the heap is built anew from the items when it is twice as long.
"""

import heapq
import itertools
import random
import sys
from collections import OrderedDict
from dataclasses import dataclass, field

import torch
from pace import Pace
from torch import nn

PACE = Pace(0.025)


@dataclass
class Item:
    id: int
    state: torch.Tensor
    action: int
    reward: float


@dataclass(order=True)
class Entry:
    priority: float
    item: Item = field(compare=False)


class PriorityMemory:
    def __init__(self, capacity):
        self.capacity = capacity
        self.items = OrderedDict()
        self.heap = []
        self.ids = itertools.count()

    def push(self, state, action, reward, priority):
        item = Item(next(self.ids), state, action, reward)
        self.items[item.id] = item
        heapq.heappush(self.heap, Entry(priority, item))
        if len(self.items) > self.capacity:
            self.items.popitem(last=False)
        if "--fixed" in sys.argv and len(self.heap) > 2 * self.capacity:
            self.heap = [e for e in self.heap if e.item.id in self.items]
            heapq.heapify(self.heap)

    def sample(self, n):
        found = []
        for entry in self.heap[: 8 * n]:
            if entry.item.id in self.items:
                found.append(entry.item)
            if len(found) == n:
                return found
        return found + random.choices(list(self.items.values()), k=n - len(found))

    def update(self, items):
        for item in items[:2]:
            heapq.heappush(self.heap, Entry(random.random(), item))


class Env:
    def observe(self):
        return torch.rand(1, 4, 84, 84)


class QNetwork(nn.Module):
    def __init__(self, actions=6):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(4, 8, 8, stride=4), nn.ReLU(), nn.Conv2d(8, 16, 4, stride=2), nn.ReLU(),
            nn.Flatten(), nn.Linear(16 * 9 * 9, 64), nn.ReLU(), nn.Linear(64, actions))

    def forward(self, x):
        return self.net(x)


class Agent:
    def __init__(self, device):
        self.device = device
        self.env = Env()
        self.q = QNetwork().to(device)
        self.target = QNetwork().to(device)
        self.optimizer = torch.optim.RMSprop(self.q.parameters(), lr=1e-4)
        self.memory = PriorityMemory(200)

    def act(self):
        state = self.env.observe().to(self.device)
        with torch.no_grad():
            action = int(self.q(state).argmax()) % 6
        self.memory.push(state, action, random.gauss(0, 1), -random.random())

    def learn(self, batch_size=16):
        items = self.memory.sample(batch_size)
        states = torch.cat([i.state for i in items])
        actions = torch.tensor([[i.action] for i in items], device=self.device)
        rewards = torch.tensor([i.reward for i in items], device=self.device)
        with torch.no_grad():
            goal = rewards + 0.99 * self.target(states).amax(1)
        loss = nn.functional.smooth_l1_loss(self.q(states).gather(1, actions).squeeze(1), goal)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.memory.update(items)
        return loss.item()


if __name__ == "__main__":
    agent = Agent(torch.device("cuda"))
    for _ in range(16):
        agent.act()
    while PACE():
        agent.act()
        agent.learn()
