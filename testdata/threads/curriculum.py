"""A curriculum lengthens its sequences by a token every second step. Healthy.

Truth: steady: nothing is kept from step to step. The peak of a step rises with the length.
"""

import torch
from torch import nn
import torch.nn.functional as F
from pace import Pace

PACE = Pace(0.025)


class Curriculum:
    def __init__(self, start=32, every=2, top=512):
        self.start, self.every, self.top = start, every, top

    def length(self, step):
        return min(self.top, self.start + step // self.every)


class CharModel(nn.Module):
    def __init__(self, vocab=96, d=128):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.head = nn.Linear(d, vocab)

    def forward(self, ids):
        h = self.emb(ids)
        h = h + F.gelu(h.cumsum(1) / h.size(1))
        return self.head(h)


def main():
    model = CharModel().cuda()
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    cur = Curriculum()
    ema = 0.0
    for step in range(3000):
        t = cur.length(step)
        ids = torch.randint(0, 96, (32, t + 1)).cuda()
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        ema = 0.98 * ema + 0.02 * loss.item()
        if not PACE():
            raise SystemExit
        if step % 50 == 0:
            print(step, "len", t, "mem", torch.cuda.memory_allocated(), "peak", torch.cuda.max_memory_allocated(), flush=True)


if __name__ == "__main__":
    main()
