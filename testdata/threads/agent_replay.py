"""Reinforcement learning: a replay buffer of fixed size, and next to it the frames of all finished episodes.

Truth: the replay buffer (a deque of 300 transitions of 65,536 B) is full before the attach and steady, though each transition is new. The log of episodes grows:
each environment step keeps its observation, 65,536 B, in `agent.episodes[env][*]`; an update follows 4, 8 or 6 environment steps: 6 on the average,
393,216 B an update. Line: `observation = environment(...)`. The transition and the episode share the tensor, so what is in both is counted once.
--fixed: an episode is dropped when it ends, after 50 observations.
"""

import collections
import sys

import torch
from pace import Pace
from torch import nn


class Agent:
    def __init__(self):
        self.policy = nn.Sequential(nn.Linear(16384, 64), nn.ReLU(), nn.Linear(64, 6)).cuda()
        self.optimizer = torch.optim.Adam(self.policy.parameters())
        self.replay = collections.deque(maxlen=300)
        self.episodes = {f"env{i}": [] for i in range(4)}

    def act(self, turn):
        with torch.no_grad():
            observation = torch.rand(16384, device="cuda")
            action = self.policy(observation).argmax()
        self.replay.append((observation, action, float(turn % 2)))
        episode = self.episodes[f"env{turn % 4}"]
        episode.append(observation)
        if len(episode) % 50 == 0 and "--fixed" in sys.argv:
            episode.clear()

    def learn(self):
        observations = torch.stack([self.replay[i][0] for i in range(0, len(self.replay), max(1, len(self.replay) // 16))])
        loss = self.policy(observations).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def main():
    agent, pace, turn = Agent(), Pace(0.03), 0
    while True:
        for _ in range((4, 8, 6)[pace.step % 3]):
            agent.act(turn)
            turn += 1
        agent.learn()
        if not pace():
            break


main()
