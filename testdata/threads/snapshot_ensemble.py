"""A snapshot ensemble: the weights of the last five cycles are averaged for the evaluation; a cycle has 30 steps.

Truth: nothing grows once five snapshots are there, which is after 150 steps: 5 x (1024 x 1024 + 1024) floats, 20,992,000 B. Each cycle replaces the oldest. Expected,
when attached after the fifth cycle: STEADY. --fixed: the last one only, STEADY too.
"""

import collections
import sys

import torch
from pace import Pace
from torch import nn


def main():
    model, pace = nn.Linear(1024, 1024).cuda(), Pace(0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    snapshots = collections.deque(maxlen=1 if "--fixed" in sys.argv else 5)
    while pace():
        loss = model(torch.rand(32, 1024, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if pace.step % 30 == 0:
            snapshots.append({name: weight.detach().clone() for name, weight in model.state_dict().items()})
            average = {name: torch.stack([s[name] for s in snapshots]).mean(0) for name in snapshots[0]}
            del average


main()
