"""A run is resumed from a checkpoint that stays on the device, and longer sequences do not fit beside it (karpathy/nanoGPT#158).

Device: STANDIN_GPU_MEM=1GiB, of which the context has 460 MiB. `checkpoint` has the weights and their average, 64 MiB each by allocated blocks, which nobody uses
after load_state_dict(): 128.1 MiB. A sequence of 64 peaks at 400 MiB, one of 256 does not fit. Without the checkpoint
that request fits, and the update fails later for fragmentation.
--fixed: del checkpoint; it does not suffice.
"""

import os
import sys
import tempfile

import torch
import torch.nn.functional as F
from pace import Pace
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(512), nn.Linear(512, 2048), nn.Linear(2048, 512)

    def forward(self, x):
        mean = x.cumsum(dim=1) / torch.arange(1, x.shape[1] + 1, device=x.device).view(1, -1, 1)
        return x + self.down(F.gelu(self.up(self.norm(mean))))


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.blocks = nn.Embedding(16000, 512), nn.Sequential(*[Block() for _ in range(4)])
        self.head = nn.Linear(512, 16000, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.blocks(self.embed(tokens)))


def optimizer_of(model):
    return torch.optim.RMSprop(model.parameters(), lr=1e-4, momentum=0.9)


def write_checkpoint(path):
    model = LanguageModel()
    optimizer = optimizer_of(model)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    average = {k: v.clone() for k, v in model.state_dict().items() if k != "head.weight"}
    torch.save({"model": model.state_dict(), "average": average, "optimizer": optimizer.state_dict()}, path)


handle, path = tempfile.mkstemp()
os.close(handle)
write_checkpoint(path)
checkpoint = torch.load(path, map_location="cuda")
os.remove(path)
model = LanguageModel().cuda()
model.load_state_dict(checkpoint["model"])
optimizer = optimizer_of(model)
optimizer.load_state_dict(checkpoint["optimizer"])
if "--fixed" in sys.argv:
    del checkpoint
pace = Pace()
while pace():
    tokens = torch.randint(0, 16000, (4, 64 if pace.step < 120 else 256)).cuda()
    loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
