"""A DQN with a replay memory on the GPU, a deque with a maxlen of 260, which fills soon after the attach. Healthy.

Truth: steady: at most that the memory fills until it has 260 chunks.
"""

import copy
import random
from collections import deque, namedtuple

import torch
from torch import nn
import torch.nn.functional as F
from pace import Pace

PACE = Pace(0.025)

Chunk = namedtuple("Chunk", "obs action reward next_obs done")


class VecEnv:
    def __init__(self, n=64, dim=256, seed=0):
        self.n, self.dim = n, dim
        self.gen = torch.Generator().manual_seed(seed)

    def reset(self):
        return torch.rand(self.n, self.dim, generator=self.gen).cuda()

    def step(self, action):
        obs = torch.rand(self.n, self.dim, generator=self.gen).cuda()
        reward = torch.rand(self.n, generator=self.gen).cuda()
        done = (torch.rand(self.n, generator=self.gen) < 0.02).float().cuda()
        return obs, reward, done


class ReplayMemory:
    def __init__(self, capacity):
        self.chunks = deque(maxlen=capacity)

    def push(self, *args):
        self.chunks.append(Chunk(*args))

    def sample(self, k):
        picked = random.sample(self.chunks, k)
        return [torch.cat(col) for col in zip(*picked)]

    def __len__(self):
        return len(self.chunks)


class QNet(nn.Module):
    def __init__(self, dim=256, actions=6):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(dim, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
        self.adv, self.val = nn.Linear(128, actions), nn.Linear(128, 1)

    def forward(self, x):
        h = self.body(x)
        a = self.adv(h)
        return self.val(h) + a - a.mean(1, keepdim=True)


class Agent:
    def __init__(self, capacity=260, gamma=0.98):
        self.q = QNet().cuda()
        self.target = copy.deepcopy(self.q).requires_grad_(False)
        self.opt = torch.optim.RMSprop(self.q.parameters(), 5e-4)
        self.memory = ReplayMemory(capacity)
        self.gamma, self.updates = gamma, 0

    @torch.no_grad()
    def act(self, obs):
        return self.q(obs).argmax(1)

    def learn(self):
        obs, act, rew, nxt, done = self.memory.sample(4)
        with torch.no_grad():
            best = self.target(nxt).max(1).values
            goal = rew + self.gamma * (1 - done) * best
        loss = F.smooth_l1_loss(self.q(obs).gather(1, act[:, None])[:, 0], goal)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.updates += 1
        if self.updates % 50 == 0:
            self.target.load_state_dict(self.q.state_dict())


def main(steps=5000):
    env, agent = VecEnv(), Agent()
    obs = env.reset()
    for t in range(steps):
        action = agent.act(obs)
        nxt, reward, done = env.step(action)
        agent.memory.push(obs, action, reward, nxt, done)
        obs = nxt
        if len(agent.memory) >= 16:
            agent.learn()
        if not PACE():
            raise SystemExit
        if t % 20 == 0:
            print(t, "memory", len(agent.memory), "mem", torch.cuda.memory_allocated(), flush=True)


if __name__ == "__main__":
    main()
