"""A chat server holds the key-value cache of each session; sessions whose client went away without a goodbye are never closed.

Truth: in each tick 3 sessions open, 2 close and 1 is lost: 4 layers x 2 x 128 x 512 floats = 2,097,152 B a session, gross 6,291,456 B, net 2,097,152 B a tick.
Line: `self.cache = [...]` in Session.__init__. Holder: `server.sessions['s*'].cache[*]`. --fixed: a session idle for 20 ticks is closed.
The oldest sessions are closed first, so what leaves in the first ticks after an attach is from before it.
"""

import sys

import torch
from pace import Pace
from torch import nn


class Session:
    def __init__(self, tick):
        self.tick = tick
        self.cache = [torch.zeros(2, 128, 512, device="cuda") for _ in range(4)]


class Server:
    def __init__(self):
        self.model, self.sessions, self.polite, self.opened = nn.Linear(512, 512).cuda().eval(), {}, [], 0

    @torch.no_grad()
    def tick(self, tick, fixed):
        for i in range(3):
            key = f"s{self.opened:06d}"
            self.sessions[key] = Session(tick)
            self.opened += 1
            if i < 2:
                self.polite.append(key)
        for session in list(self.sessions.values())[-8:]:
            session.cache[0][0, tick % 128] = self.model(torch.rand(1, 512, device="cuda"))[0]
        while len(self.polite) > 60:
            self.sessions.pop(self.polite.pop(0), None)
        if fixed:
            for key in [key for key, session in self.sessions.items() if tick - session.tick > 40]:
                del self.sessions[key]


def main():
    server, pace = Server(), Pace(0.05)
    while pace():
        server.tick(pace.step, "--fixed" in sys.argv)


main()
