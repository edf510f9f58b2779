"""A cache of 32 answers has a timer for each: what it drops stays until its timer fires, half an hour later.

Truth: a leak of one answer a request, 64 x 512 floats = 131,072 B, by the timers of asyncio's loop (call_later). The cache itself is bounded.
--fixed: the timer is handed the key alone.
"""
import asyncio
import itertools
import sys
from collections import OrderedDict

import torch
import torch.nn as nn
from pace import Pace

PACE = Pace(0)


class TextTower(nn.Module):
    def __init__(self, vocab=12000, dim=256, out=512):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.mix = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, out))

    def forward(self, ids):
        return self.mix(self.tok(ids))


class ExpiringLRU:
    def __init__(self, capacity, ttl):
        self.capacity, self.ttl = capacity, ttl
        self.items = OrderedDict()

    def get(self, key):
        if key in self.items:
            self.items.move_to_end(key)
            return self.items[key]
        return None

    def put(self, key, value):
        self.items[key] = value
        if len(self.items) > self.capacity:
            self.items.popitem(last=False)
        held = None if "--fixed" in sys.argv else value
        asyncio.get_running_loop().call_later(self.ttl, self._expire, key, held)

    def _expire(self, key, value):
        if value is None or self.items.get(key) is value:
            self.items.pop(key, None)


class Service:
    def __init__(self, max_batch=4):
        self.model = TextTower().cuda().eval()
        self.cache = ExpiringLRU(capacity=32, ttl=1800.0)
        self.inbox = asyncio.Queue(maxsize=64)
        self.max_batch = max_batch
        self.served = 0

    async def embed(self, doc_id, ids):
        hit = self.cache.get(doc_id)
        if hit is not None:
            return hit
        fut = asyncio.get_running_loop().create_future()
        await self.inbox.put((doc_id, ids, fut))
        return await fut

    @torch.inference_mode()
    def compute(self, ids):
        return self.model(ids.cuda())

    async def worker(self):
        while True:
            jobs = [await self.inbox.get()]
            while len(jobs) < self.max_batch and not self.inbox.empty():
                jobs.append(self.inbox.get_nowait())
            for doc_id, ids, fut in jobs:
                vecs = self.compute(ids)
                self.cache.put(doc_id, vecs)
                fut.set_result(vecs)
            self.served += len(jobs)


async def client(service, numbers, limit):
    for n in numbers:
        if n >= limit:
            return
        ids = torch.randint(0, 12000, (64,))
        vecs = await service.embed(f"doc-{n}", ids)
        again = await service.embed(f"doc-{n}", ids)
        assert again is vecs
        if n % 100 == 0:
            print("served", n, tuple(vecs.shape), flush=True)
        await asyncio.sleep(0.03)
        if not PACE():
            return


async def main():
    service = Service()
    worker = asyncio.create_task(service.worker())
    await client(service, itertools.count(), limit=1 << 30)
    worker.cancel()


if __name__ == "__main__":
    asyncio.run(main())
