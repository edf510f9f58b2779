"""A tokenizer learns new words during training, and the embedding grows by 64 rows every 25 steps; the old one is dropped.

Truth: 64 rows of 512 floats are 131,072 B; the embedding is trained with SGD, so there are weights and gradients: 262,144 B every 25 steps, 10,485.8 B a step.
Lines: `grown = nn.Embedding(...)` and `loss.backward()`. Holder: `model.words.weight`, replaced by a longer one each time. --fixed: the size is kept.
"""

import sys

import torch
from pace import Pace
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.tags = nn.Embedding(2000, 512), nn.Linear(512, 32)

    def learn(self, words):
        grown = nn.Embedding(self.words.num_embeddings + words, 512, device="cuda")
        with torch.no_grad():
            grown.weight[: self.words.num_embeddings] = self.words.weight
        self.words = grown

    def forward(self, ids):
        return self.tags(self.words(ids))


def main():
    model, pace = Tagger().cuda(), Pace(0.02)
    while pace():
        if pace.step % 25 == 0 and "--fixed" not in sys.argv:
            model.learn(64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss = model(torch.randint(0, 2000, (64,), device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
