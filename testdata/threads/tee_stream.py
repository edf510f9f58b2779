"""Batches for a calibration are taken from one of two iterators of itertools.tee(), which is read no further and stays.

Truth: a leak of one clip a step, 4 x 1 x 64 x 128 floats = 131,072 B, `pipeline.calibration`, which keeps what it has not read. `trainer.recent` is a full deque.
--fixed: the iterator is dropped after the calibration.
"""

import itertools
import sys
from collections import deque

import torch
from pace import Pace
from torch import nn

PACE = Pace(0.025)


class Spectrograms:
    def __init__(self, device):
        self.device = device

    def __iter__(self):
        while PACE():
            clip = torch.randn(4, 1, 64, 128).pin_memory()
            yield clip.to(self.device, non_blocking=True)


class Normalizer:
    def __init__(self):
        self.mean = self.std = None

    def fit(self, batches):
        values = torch.stack([torch.stack((b.mean(), b.std())) for b in batches])
        self.mean, self.std = values.mean(0)

    def __call__(self, x):
        return (x - self.mean) / (self.std + 1e-5)


class Pipeline:
    def __init__(self, source, calibration_batches=10):
        self.stream, self.calibration = itertools.tee(source)
        self.normalizer = Normalizer()
        self.normalizer.fit(itertools.islice(self.calibration, calibration_batches))
        if "--fixed" in sys.argv:
            del self.calibration

    def __iter__(self):
        for clip in self.stream:
            yield self.normalizer(clip)


class Encoder(nn.Module):
    def __init__(self, dim=128):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 8, 5, stride=4, padding=2), nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(),
            nn.Linear(16 * 8 * 16, dim))

    def forward(self, x):
        return self.net(x)


class Trainer:
    def __init__(self, device):
        self.encoder = Encoder().to(device)
        self.optimizer = torch.optim.Adam(self.encoder.parameters(), lr=3e-4)
        self.recent = deque(maxlen=64)

    def step(self, clip):
        embedding = self.encoder(clip + 0.05 * torch.randn_like(clip))
        other = self.encoder(clip)
        negatives = torch.cat(list(self.recent)) if self.recent else embedding.detach()
        positive = (embedding * other).sum(1, keepdim=True)
        logits = torch.cat([positive, embedding @ negatives.t()], dim=1)
        loss = nn.functional.cross_entropy(logits, torch.zeros(len(clip), dtype=torch.long, device=clip.device))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.recent.append(embedding.detach().clone())
        return loss


def main():
    device = torch.device("cuda")
    pipeline = Pipeline(Spectrograms(device))
    trainer = Trainer(device)
    for clip in pipeline:
        trainer.step(clip)


if __name__ == "__main__":
    main()
