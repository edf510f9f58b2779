"""A translator with teacher forcing keeps the attention weights of every sentence, by epoch, for plots.

Truth: 32 x steps x source floats a batch, block by block: the lengths come from a cycle of four batches (3, 5, 4, 6 target words; 320 source words),
each word has 32 x 320 floats = 40,960 B: on the average 4.5 words, 184,320 B a step. An epoch is 40 steps.
Line: `weights = torch.softmax(...)` in Decoder.forward. Holder: `decoder.attention[*]` by epoch. --fixed: the current epoch only.
"""

import sys

import torch
from pace import Pace
from torch import nn


class Decoder(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.cell, self.out = nn.GRUCell(2 * width, width), nn.Linear(width, 200)
        self.attention, self.epoch = {}, 0

    def forward(self, memory, words):
        hidden, loss = memory.mean(1), 0
        for word in words.unbind(1):
            weights = torch.softmax((memory @ hidden[:, :, None]).squeeze(2), dim=1)
            self.attention.setdefault(self.epoch, []).append(weights.detach())
            context = (weights[:, :, None] * memory).sum(1)
            hidden = self.cell(torch.cat([context, word], 1), hidden)
            loss = loss + self.out(hidden).logsumexp(1).mean()
        return loss


def main():
    decoder, encoder, pace = Decoder().cuda(), nn.Linear(64, 64).cuda(), Pace(0.03)
    optimizer = torch.optim.Adam([*decoder.parameters(), *encoder.parameters()])
    while True:
        count = (3, 5, 4, 6)[pace.step % 4]
        memory = encoder(torch.rand(32, 320, 64, device="cuda"))
        loss = decoder(memory, torch.rand(32, count, 64, device="cuda"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not pace():
            break
        if pace.step % 40 == 0:
            decoder.epoch += 1
            if "--fixed" in sys.argv:
                decoder.attention.clear()


main()
