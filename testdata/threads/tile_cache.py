"""Features of satellite tiles in a cache of at most 150 entries, which is full after about 160 steps.

Truth: 150 x 256 KiB, 37.5 MiB; each new entry replaces the oldest. Expected, when attached after step 220: STEADY. There is no twin.
"""

import random
from collections import OrderedDict, namedtuple
from functools import partial

import torch
from pace import Pace
from torch import nn

Tile = namedtuple("Tile", "row col zoom")


class TileCache:
    def __init__(self, limit=150):
        self.limit, self.items, self.hits, self.misses = limit, OrderedDict(), 0, 0

    def get(self, key, make):
        if key in self.items:
            self.items.move_to_end(key)
            self.hits += 1
            return self.items[key]
        self.misses += 1
        value = make()
        self.items[key] = value
        if len(self.items) > self.limit:
            self.items.popitem(last=False)
        return value


def stream(seed):
    rng = random.Random(seed)
    while True:
        yield Tile(rng.randrange(40), rng.randrange(40), rng.choice((12, 13)))


@torch.no_grad()
def features(backbone, tile):
    gen = torch.Generator(device="cpu").manual_seed(tile.row * 1000 + tile.col)
    image = torch.rand(256, 192, generator=gen).cuda()
    return backbone(image)


def main():
    backbone = nn.Sequential(nn.Linear(192, 512), nn.ReLU(), nn.Linear(512, 256)).cuda().eval()
    head = nn.Linear(256, 12).cuda()
    opt = torch.optim.RMSprop(head.parameters(), lr=1e-4)
    cache, pace = TileCache(), Pace(0.035)
    for tile in stream(5):
        fmap = cache.get(tile, partial(features, backbone, tile))
        loss = torch.logsumexp(head(fmap), -1).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if not pace():
            break
    return cache.hits, cache.misses


if __name__ == "__main__":
    main()
