"""A search tree whose nodes know their parent, in a process that calls gc.disable().

Truth: each move leaves a tree of 13 nodes with 16 x 64 x 64 floats each, 3,407,872 B, a cycle of parent and children that nobody collects.
Holder: garbage, `Node.planes`. Line: `planes = torch.roll(` (12 of 13). Advice: gc.collect(), or a weak reference to the parent.
--fixed: the parent is a weak reference.
"""

import gc
import sys
import weakref

import torch
from pace import Pace
from torch import nn

FIXED = "--fixed" in sys.argv


class Node:
    __slots__ = ("parent", "children", "planes", "visits", "value", "__weakref__")

    def __init__(self, planes, parent=None):
        self.planes, self.children, self.visits, self.value = planes, {}, 0, 0.0
        self.parent = weakref.ref(parent) if FIXED and parent is not None else parent

    def expand(self, moves):
        for m in moves:
            planes = torch.roll(self.planes, m, dims=0)
            self.children[m] = Node(planes, self)

    def backup(self, value):
        node = self
        while node is not None:
            node.visits += 1
            node.value += value
            node = node.parent() if FIXED and node.parent is not None else node.parent


class Evaluator(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(0), nn.Linear(16 * 64 * 64, 32), nn.Tanh(), nn.Linear(32, 1))

    @torch.inference_mode()
    def forward(self, planes):
        return self.body(planes).item()


class SelfPlay:
    def __init__(self):
        self.net, self.values = Evaluator().cuda(), []

    def search(self, width=12):
        with torch.inference_mode():
            root = Node(torch.zeros(16, 64, 64, device="cuda"))
            root.expand(range(1, width + 1))
        for child in root.children.values():
            child.backup(self.net(child.planes))
        return max(root.children, key=lambda m: root.children[m].visits)

    def play(self):
        pace = Pace(0.08)
        while pace():
            self.values.append(self.search())


if __name__ == "__main__":
    gc.disable()
    SelfPlay().play()
