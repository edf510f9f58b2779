"""Documents of 100 to 180 tokens are batched by 12, and one of 1,100 tokens makes a whole batch as long, with 1 GiB.

Truth: out of memory in the forward of one step: its scores are 232,320,000 B; nothing grew before. Where it begins: the line that copies the batch.
"""

import random
import time
from dataclasses import dataclass

import torch
from torch import nn
import torch.nn.functional as F


@dataclass
class Cfg:
    dim: int = 64
    heads: int = 4
    batch: int = 12
    docs: int = 12 * 100
    outlier_at: int = 12 * 60 + 5
    outlier_len: int = 1100


class Corpus:
    def __init__(self, cfg):
        rng = random.Random(0)
        self.lengths = [rng.randint(100, 180) for _ in range(cfg.docs)]
        self.lengths[cfg.outlier_at] = cfg.outlier_len

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        n = self.lengths[i]
        return torch.arange(n) % 500, torch.tensor(i % 4)


def collate(items):
    n = max(len(t) for t, _ in items)
    ids = torch.zeros(len(items), n, dtype=torch.long)
    for row, (t, _) in enumerate(items):
        ids[row, :len(t)] = t
    return ids, torch.stack([y for _, y in items])


class SelfAttention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.h = cfg.heads
        self.qkv = nn.Linear(cfg.dim, cfg.dim * 3)
        self.proj = nn.Linear(cfg.dim, cfg.dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / (d // self.h) ** 0.5
        att = scores.softmax(-1)
        return self.proj((att @ v).transpose(1, 2).reshape(b, t, d))


class Classifier(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.emb = nn.Embedding(500, cfg.dim)
        self.att = nn.ModuleList(SelfAttention(cfg) for _ in range(2))
        self.norm = nn.LayerNorm(cfg.dim)
        self.out = nn.Linear(cfg.dim, 4)

    def forward(self, ids):
        x = self.emb(ids)
        for a in self.att:
            x = x + a(self.norm(x))
        return self.out(x.mean(1))


def main():
    cfg = Cfg()
    loader = torch.utils.data.DataLoader(Corpus(cfg), batch_size=cfg.batch, collate_fn=collate)
    model = Classifier(cfg).cuda()
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    for epoch in range(2):
        for step, (ids, y) in enumerate(loader):
            loss = F.cross_entropy(model(ids.cuda()), y.cuda())
            opt.zero_grad()
            loss.backward()
            opt.step()
            time.sleep(0.03)
            if step % 20 == 0:
                print(epoch, step, "mem", torch.cuda.memory_allocated(), "peak", torch.cuda.max_memory_allocated(), flush=True)


if __name__ == "__main__":
    main()
