"""A cross-batch memory, a list of at most 330 batches, which fills soon after the attach. Healthy.

Truth: steady: at most that the memory fills until it has 330 elements of 131,072 B of embeddings and 512 B of labels, 41.4 MiB.
"""

import torch
from pace import Pace
from torch import nn

PACE = Pace(0.025)


class CrossBatchMemory:
    def __init__(self, size):
        self.size = size
        self.entries = []

    def update(self, embeddings, labels):
        entry = embeddings.detach().clone()
        self.entries.append((entry, labels))
        while len(self.entries) > self.size:
            self.entries.pop(0)

    def negatives(self, count=8):
        picked = self.entries[-count:]
        return torch.cat([e for e, _ in picked]), torch.cat([l for _, l in picked])


class Embedder(nn.Module):
    def __init__(self, features=1024, dim=512):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(features, 256), nn.ReLU(), nn.Linear(256, dim))

    def forward(self, x):
        return nn.functional.normalize(self.trunk(x), dim=1)


class ContrastiveLoss(nn.Module):
    def __init__(self, margin=0.5):
        super().__init__()
        self.margin = margin

    def forward(self, a, la, b, lb):
        sim = a @ b.t()
        same = la.unsqueeze(1) == lb.unsqueeze(0)
        return torch.where(same, 1.0 - sim, (sim - self.margin).clamp(min=0)).mean()


class Trainer:
    def __init__(self, device, memory_size=330):
        self.device = device
        self.model = Embedder().to(device)
        self.loss = ContrastiveLoss()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4)
        self.memory = CrossBatchMemory(memory_size)

    def batch(self):
        return torch.randn(64, 1024).to(self.device), torch.randint(100, (64,)).to(self.device)

    def step(self):
        x, y = self.batch()
        z = self.model(x)
        loss = self.loss(z, y, z, y)
        if self.memory.entries:
            loss = loss + self.loss(z, y, *self.memory.negatives())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.memory.update(z, y)
        return loss.item()


if __name__ == "__main__":
    trainer = Trainer(torch.device("cuda"))
    while PACE():
        trainer.step()
