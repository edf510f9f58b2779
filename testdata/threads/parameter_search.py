"""A search for hyper-parameters in one process keeps every trial, with its model.

Truth: a model has 784 x 512 + 512 + 512 x 10 + 10 floats, requested 1,628,200 B, and SGD with momentum as much; a trial takes 15 steps. The study keeps
trial.model, not the optimizer; gradients stay with the parameters, so 2 x 1,628,200 B = 3,256,400 B a trial, 217,093.3 B a step.
Lines: `model = ...cuda()` and `loss.backward()`. Holder: `study.trials[*].model`. --fixed: the study keeps the score and the best model only.
"""

import dataclasses
import sys

import torch
from pace import Pace
from torch import nn


@dataclasses.dataclass
class Trial:
    rate: float
    score: float
    model: nn.Module = None


class Study:
    def __init__(self):
        self.trials, self.pace, self.running = [], Pace(0.03), True

    def objective(self, rate):
        model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
        for _ in range(15):
            loss = model(torch.rand(128, 784, device="cuda")).logsumexp(1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            self.running = self.pace()
        return Trial(rate, 1 / rate, model)

    def optimize(self):
        while self.running:
            trial = self.objective(0.1 / (1 + len(self.trials) % 7))
            if "--fixed" in sys.argv:
                trial.model = None
            self.trials.append(trial)


study = Study()
study.optimize()
