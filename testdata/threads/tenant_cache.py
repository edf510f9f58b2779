"""An asyncio service has a cache of at most 384 prefixes, and it is not full yet. Healthy.

Truth: a request of a new tenant keeps 128 x 256 floats, 131,072 B, in `service.prefixes`, an OrderedDict that `prefix()` keeps below `MAX_PREFIXES`: 48 MiB when it is
full, after 384 requests. Inference.
"""

import asyncio
from collections import OrderedDict

import torch
from pace import Pace
from torch import nn


class Service:
    MAX_PREFIXES = 384

    def __init__(self):
        self.embed, self.mix = nn.Embedding(4000, 256).cuda(), nn.Linear(256, 256).cuda()
        self.prefixes, self.served = OrderedDict(), 0

    def prefix(self, tenant):
        if tenant in self.prefixes:
            self.prefixes.move_to_end(tenant)
            return self.prefixes[tenant]
        self.prefixes[tenant] = self.embed(torch.randint(0, 4000, (128,)).cuda())
        if len(self.prefixes) > self.MAX_PREFIXES:
            self.prefixes.popitem(last=False)
        return self.prefixes[tenant]

    async def handle(self, tenant):
        with torch.inference_mode():
            ids = torch.randint(0, 4000, (1, 256)).cuda()
            await asyncio.sleep(0.005)
            answer = self.mix(self.embed(ids) + self.prefix(tenant).mean(0))
        self.served += 1
        return answer.shape


async def client(service, pace):
    while pace():
        await service.handle("tenant-%d" % service.served)
        await asyncio.sleep(0.04)


async def main():
    await asyncio.gather(asyncio.create_task(client(Service(), Pace(0))))


asyncio.run(main())
