"""A network that is too deep for the device, from the first step with a larger batch on."""

import time

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width=2048, layers=24):
        super().__init__()
        self.body = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x):
        for layer in self.body:
            x = torch.relu(layer(x))
        return x


def train(net, optimizer, batch):
    optimizer.zero_grad()
    net(torch.randn(batch, 2048, device="cuda")).sum().backward()
    optimizer.step()


def main():
    net = Net().cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    for step in range(60):
        train(net, optimizer, batch=4096 if step < 40 else 32768)
        time.sleep(0.05)


main()
