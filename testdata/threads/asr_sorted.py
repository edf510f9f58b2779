"""Utterances come in ascending order in the first epoch: the longer ones need more memory, and nothing is kept (speechbrain/speechbrain#841).

Agreed cause: there is no leak. `sorting=ascending` makes each batch longer than the one before, and a later epoch is shuffled.
Truth: no step keeps anything, 0 B a step. The first epoch has 100 steps; the peak of a step and the reserved memory rise until the longest
sentence has come, then stay. Expected, when attached after the first epoch: STEADY. There is no twin.
"""

import random

import torch
from pace import Pace
from torch import nn


class CRDNN(nn.Module):
    def __init__(self, feats=80, d=256, tokens=500):
        super().__init__()
        self.cnn = nn.Sequential(nn.Linear(feats, d), nn.LeakyReLU(), nn.Linear(d, d), nn.LeakyReLU())
        self.dnn = nn.Sequential(nn.Linear(d, d), nn.LeakyReLU())
        self.ctc = nn.Linear(d, tokens)

    def forward(self, wav):
        return self.ctc(self.dnn(self.cnn(wav))).log_softmax(-1)


class Sorted:
    """Batches of 4 utterances: ascending in the first epoch, random later."""

    def __init__(self, n=100):
        rng = random.Random(11)
        self.lengths = sorted(int(rng.lognormvariate(5.6, 0.6)) for _ in range(n))
        self.rng, self.epoch = rng, 0

    def __iter__(self):
        order = list(self.lengths)
        if self.epoch:
            self.rng.shuffle(order)
        self.epoch += 1
        for n in order:
            yield torch.randn(4, min(n, 1500), 80)


class Brain:
    def __init__(self):
        self.modules = CRDNN().cuda()
        self.optimizer = torch.optim.Adadelta(self.modules.parameters())
        self.pace, self.avg = Pace(0.05), 0.0

    def fit_batch(self, batch, i):
        p = self.modules(batch)
        loss = -p[..., 0].mean()
        loss.backward()
        if nn.utils.clip_grad_norm_(self.modules.parameters(), 5.0).isfinite():
            self.optimizer.step()
        self.optimizer.zero_grad()
        self.avg += (float(loss.detach()) - self.avg) / (i + 1)

    def fit(self, train_set):
        while True:
            for i, wav in enumerate(train_set):
                self.fit_batch(wav.cuda(), i)
                if not self.pace():
                    return


if __name__ == "__main__":
    Brain().fit(Sorted())
