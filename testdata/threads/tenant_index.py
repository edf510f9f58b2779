"""A retrieval service caches encoded documents, and an index by tenant keeps what the cache has dropped (pytorch/serve#1003 has the symptom).

Truth: a request misses the cache in seven of ten cases and keeps 96 x 256 floats = 98,304 B in `service.cache.by_tenant[tenant]`. The cache itself has a capacity of
40 documents and is full before the attach; purge() is never called. A step is a request: 68,813 B on the average. Line: `return self.norm(...)`.
--fixed: what the cache drops is removed from the index.
"""

import collections
import sys

import torch
from pace import Pace
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.mix, self.norm = nn.Embedding(4000, 256), nn.Linear(256, 256), nn.LayerNorm(256)

    @torch.inference_mode()
    def forward(self, tokens):
        return self.norm(self.mix(self.embed(tokens)))


class DocumentCache:
    def __init__(self, capacity):
        self.capacity, self.entries, self.by_tenant = capacity, collections.OrderedDict(), collections.defaultdict(list)

    def put(self, key, states):
        self.entries[key] = states
        self.by_tenant[key[0]].append(states)
        while len(self.entries) > self.capacity:
            (tenant, _), dropped = self.entries.popitem(last=False)
            if "--fixed" in sys.argv:
                self.by_tenant[tenant] = [s for s in self.by_tenant[tenant] if s is not dropped]

    def purge(self, tenant):
        self.by_tenant.pop(tenant, None)
        for key in [k for k in self.entries if k[0] == tenant]:
            del self.entries[key]


class Service:
    def __init__(self):
        self.encoder, self.cache = Encoder().cuda().eval(), DocumentCache(40)

    def handle(self, tenant, document):
        key = (tenant, document)
        if key not in self.cache.entries:
            self.cache.put(key, self.encoder(torch.randint(0, 4000, (96,), device="cuda")))
        return self.cache.entries[key].sum(dim=-1).max().item()


def main():
    service, pace, document = Service(), Pace(0.02), 0
    while pace():
        if pace.step % 10 not in (3, 6, 9):
            document += 1
        service.handle(("acme", "globex", "initech")[document % 3], document)


main()
