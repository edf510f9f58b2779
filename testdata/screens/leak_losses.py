"""A training loop that keeps the graph of each step's loss: losses.append(loss) in place of loss.item()."""

import time

import torch
from torch import nn

losses, metrics = [], []


def main():
    model = nn.Sequential(nn.Linear(1024, 2048), nn.GELU(), nn.Linear(2048, 1024)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    while True:
        x = torch.randn(256, 1024, device="cuda")
        optimizer.zero_grad()
        loss = ((model(x) - x) ** 2).mean()
        loss.backward(retain_graph=True)
        optimizer.step()
        losses.append(loss)
        metrics.append(x.mean(dim=1, keepdim=True))
        time.sleep(0.05)


main()
