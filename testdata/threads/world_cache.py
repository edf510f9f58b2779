"""lru_cache on a method keeps a world that was deleted, and with it the agent and its model (facebookresearch/ParlAI#2487).

Agreed cause: the cache holds `self`; do not cache methods. Device: STANDIN_GPU_MEM=1700MiB.
Truth: after 128 steps `del self.world, self.agent` frees nothing: 256 MiB of parameters and 512 MiB of Adam's state stay, and the final model of 512 MiB
fails in Agent.__init__ with 448 MiB of it made. Holder: the cache of World.num_examples. Advice: clear that cache.
--fixed: calls the method that is not cached.
"""

import sys
from functools import lru_cache

import torch
from pace import Pace
from torch import nn

FIXED = "--fixed" in sys.argv
WIDTH, LAYERS = 4096, 4


class Agent:
    def __init__(self, training, layers=LAYERS):
        self.model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)]).to("meta")
        self.model = self.model.to_empty(device="cuda")
        self.optim = torch.optim.Adam(self.model.parameters(), lr=1e-5, foreach=False) if training else None

    def act(self, obs):
        out = self.model(obs)
        if self.optim is not None:
            loss = out.square().mean()
            loss.backward()
            self.optim.step()
            self.optim.zero_grad()
        return out.shape[0]


class World:
    def __init__(self, agent, examples=64):
        self.agent, self.examples = agent, examples

    @lru_cache(maxsize=1)
    def num_examples(self):
        return self.examples

    def plain_num_examples(self):
        return self.examples

    def parley(self):
        return self.agent.act(torch.randn(8, WIDTH, device="cuda"))


class TrainLoop:
    def __init__(self):
        self.agent = Agent(training=True)
        self.world = World(self.agent)
        self.pace = Pace(0.03)

    def train(self, epochs=2):
        count = self.world.plain_num_examples if FIXED else self.world.num_examples
        parleys = 0
        while parleys < epochs * count():
            self.world.parley()
            parleys += 1
            self.pace()

    def validate(self):
        del self.world, self.agent
        agent = Agent(training=False, layers=2 * LAYERS)
        world = World(agent)
        with torch.no_grad():
            while self.pace():
                world.parley()


if __name__ == "__main__":
    loop = TrainLoop()
    loop.train()
    loop.validate()
