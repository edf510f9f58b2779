"""The tokens of all clips are extracted to the device, then a head is trained on them: the bank's entries, each beside what a forward pass freed, have cut the memory
into pieces.

Device: STANDIN_GPU_MEM=1GiB, of which the context has 460 MiB. 30 entries of 8.1 MiB lie in segments of 16 MiB, the rest of which fits no other.
Truth: fragmentation, 237.6 MiB free in pieces, in the first step of the training. The bank does not grow any more. With expandable_segments:True, or a bank that is
allocated at once, it runs to its end.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F
from pace import Pace

PACE = Pace(0.2)

D, PATCHES, FRAMES, COORD = 512, 256, 16, 8


class MlpBlock(nn.Module):
    def __init__(self, dim, ratio=4):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, dim * ratio)
        self.fc2 = nn.Linear(dim * ratio, dim)

    def forward(self, x):
        return x + self.fc2(F.relu(self.fc1(self.norm(x)), inplace=True))


class FrozenBackbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Linear(48, D)
        self.blocks = nn.Sequential(MlpBlock(D), MlpBlock(D))

    def forward(self, clip):
        return self.blocks(self.patch(clip))


class TokenBank:
    """Tokens of every clip, with normalised coordinates appended."""

    def __init__(self, device):
        self.device = device
        self.clips = {}

    def add(self, name, tokens, coords):
        entry = torch.empty(FRAMES, PATCHES, D + COORD, device=self.device)
        entry[..., :D] = tokens
        entry[..., D:] = coords
        self.clips[name] = entry


class ActionHead(nn.Module):
    def __init__(self, classes=12, width=256):
        super().__init__()
        self.reduce = nn.Linear(D + COORD, width)
        self.out = nn.Linear(width, classes)

    def forward(self, x):
        return self.out(F.relu(self.reduce(x)).mean((1, 2)))


@torch.no_grad()
def extract(backbone, bank, names):
    coords = torch.linspace(0, 1, PATCHES * COORD, device=bank.device).view(PATCHES, COORD)
    for i, name in enumerate(names):
        clip = torch.randn(FRAMES, PATCHES, 48).to(bank.device, torch.half)
        bank.add(name, backbone(clip), coords)
        if i % 5 == 0:
            print(f"tokens for {i + 1} clips", flush=True)
        PACE()


def train_head(bank, names, epochs=3, batch=8):
    head = ActionHead().to(bank.device)
    opt = torch.optim.SGD(head.parameters(), lr=1e-2)
    for epoch in range(epochs):
        for start in range(0, len(names), batch):
            group = names[start:start + batch]
            x = torch.stack([bank.clips[n] for n in group])
            y = torch.randint(0, 12, (len(group),), device=bank.device)
            loss = F.cross_entropy(head(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        print("epoch", epoch, loss.item(), flush=True)


if __name__ == "__main__":
    torch.manual_seed(9)
    cuda = torch.device("cuda")
    names = [f"clip_{i:03d}" for i in range(30)]
    backbone = FrozenBackbone().to(cuda).half().eval()
    bank = TokenBank(cuda)
    extract(backbone, bank, names)
    del backbone
    train_head(bank, names)
