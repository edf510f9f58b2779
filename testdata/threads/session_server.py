"""An asyncio server keeps the session of each request, and nothing removes one.

Truth: a request keeps `hidden`, 256 x 512 floats, 524,288 B, in a record with slots under a key of 32 characters in
`app.state.sessions`, to which nothing but a local of a coroutine leads. Line: `hidden = self.model(`. --fixed: the session is removed at its end.
"""

import asyncio
import sys
import uuid

import torch
from pace import Pace
from torch import nn


class State:
    pass


class Session:
    __slots__ = ("hidden", "id")

    def __init__(self, hidden):
        self.id, self.hidden = uuid.uuid4().hex, hidden


class App:
    def __init__(self):
        layers = [layer for _ in range(4) for layer in (nn.Linear(512, 512), nn.ReLU())]
        self.model, self.state, self.pace = nn.Sequential(*layers).cuda(), State(), Pace(0)
        self.state.sessions, self.open = {}, True

    async def handle(self):
        with torch.no_grad():
            text = torch.rand(256, 512, device="cuda")
            await asyncio.sleep(0.01)
            hidden = self.model(text)
        session = Session(hidden)
        self.state.sessions[session.id] = session
        await asyncio.sleep(0.005)
        if "--fixed" in sys.argv:
            del self.state.sessions[session.id]

    async def client(self):
        while self.open:
            await self.handle()
            self.open = self.pace() and self.open
            await asyncio.sleep(0.05)


async def main():
    await asyncio.gather(App().client())


asyncio.run(main())
