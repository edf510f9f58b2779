"""Contrastive learning with a queue of keys that are not detached: the queue has the size that it should have, its graph has not.

Truth: each step keeps the graph of a batch of keys, 327,680 B, in `learner.queue.grad_fn`: 64 x 1024 floats of the encoder, and its input of 64 x 256.
Line: `keys = self.encoder(`. Advice: detach the queue. --fixed: `keys.detach()` goes into the queue.
"""

import copy
import sys

import torch
from pace import Pace
from torch import nn
from torch.nn import functional


class Learner:
    def __init__(self):
        self.queries = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 64)).cuda()
        self.encoder = copy.deepcopy(self.queries)
        self.queue = functional.normalize(torch.randn(1024, 64, device="cuda"), dim=1)

    @torch.no_grad()
    def follow(self):
        for ours, theirs in zip(self.encoder.parameters(), self.queries.parameters()):
            ours.mul_(0.99).add_(theirs, alpha=0.01)

    def loss(self, first, second):
        queries = functional.normalize(self.queries(first), dim=1)
        self.follow()
        keys = self.encoder(second)
        positive = (queries * keys.detach()).sum(1, keepdim=True)
        logits = torch.cat([positive, queries @ self.queue.detach().t()], 1) / 0.2
        kept = keys.detach() if "--fixed" in sys.argv else keys
        self.queue = torch.cat([kept, self.queue], 0)[:1024]
        return functional.cross_entropy(logits, torch.zeros(len(queries), dtype=torch.long, device="cuda"))


def train():
    learner, pace = Learner(), Pace(0.05)
    optimizer = torch.optim.SGD(learner.queries.parameters(), lr=0.03, momentum=0.9)
    while pace():
        batch = torch.rand(64, 256)
        loss = learner.loss(batch.cuda(), batch.flip(-1).cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


train()
