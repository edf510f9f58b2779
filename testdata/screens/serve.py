"""A server whose cache of keys and values has an entry for each session, and no limit."""

import time

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width=1024):
        super().__init__()
        self.key, self.value = nn.Linear(width, width), nn.Linear(width, width)


class Engine:
    def __init__(self, layers=8):
        self.layers = nn.ModuleList(Attention() for _ in range(layers)).cuda()
        self.sessions = {}

    def prompt(self, session, length):
        x = torch.randn(length, 1024, device="cuda")
        self.sessions[session] = [(layer.key(x), layer.value(x)) for layer in self.layers]


def main():
    engine = Engine()
    with torch.no_grad():
        for session in range(1 << 20):
            engine.prompt(f"user-{session}", length=256)
            time.sleep(0.05)


main()
