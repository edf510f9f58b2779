"""Proximal policy optimisation: rollouts are stored for the update, and the update clears all fields but one.

Truth: an iteration has 12 environment steps and 3 updates; each environment step stores observation (16 x 1024 floats, 65,536 B), value (64 B) and hidden state
(16 x 256 floats, 16,384 B). Buffer.clear forgets `hidden`: 12 x 16,384 = 196,608 B an iteration, 65,536 B an update. Line: `hidden = self.core(...)`.
Holder: `buffer.fields['hidden']`. --fixed: hidden is cleared too.
"""

import sys

import torch
from pace import Pace
from torch import nn


class Buffer:
    def __init__(self):
        self.fields = {"observations": [], "values": [], "hidden": []}

    def add(self, **entry):
        for name, value in entry.items():
            self.fields[name].append(value)

    def clear(self):
        for name in ["observations", "values"] + (["hidden"] if "--fixed" in sys.argv else []):
            self.fields[name].clear()


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.core, self.value = nn.Linear(1024, 256), nn.Linear(256, 1)

    def act(self, observation):
        with torch.no_grad():
            hidden = self.core(observation)
            return hidden, self.value(hidden)


def main():
    policy, buffer, pace = Policy().cuda(), Buffer(), Pace(0.01)
    optimizer = torch.optim.Adam(policy.parameters())
    running = True
    while running:
        for _ in range(12):
            observation = torch.rand(16, 1024, device="cuda")
            hidden, value = policy.act(observation)
            buffer.add(observations=observation, values=value, hidden=hidden)
        for _ in range(3):
            batch = torch.cat(buffer.fields["observations"])
            loss = policy.value(policy.core(batch)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            running = pace()
        buffer.clear()


main()
