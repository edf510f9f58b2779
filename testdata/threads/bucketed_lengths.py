"""Sentences in buckets of many lengths, a curriculum that makes them longer over the first minute, and gradient accumulation over 1 to 4 batches.

Truth: nothing is kept. What is in use between steps is the same; the peak of a step grows with the longest sentence until the curriculum ends. Expected: STEADY.
--fixed: the same without the curriculum, STEADY too.
"""

import sys

import torch
from pace import Pace
from torch import nn


def main():
    words, encoder = nn.Embedding(4000, 128).cuda(), nn.Sequential(nn.Linear(128, 512), nn.Tanh(), nn.Linear(512, 128)).cuda()
    optimizer, pace = torch.optim.Adam([*words.parameters(), *encoder.parameters()]), Pace(0.02)
    while pace():
        longest = 200 if "--fixed" in sys.argv else min(200, 20 + pace.step // 5)
        for part in range(1 + pace.step % 4):
            length = 5 + (37 * pace.step + 11 * part) % longest
            output = encoder(words(torch.zeros(16, length, dtype=torch.long, device="cuda")))
            output.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


main()
