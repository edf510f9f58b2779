"""A validation appends to a list that nobody clears (Lightning-AI/pytorch-lightning#14270).

Agreed cause: self.val_accuracy_results is appended to for ever.
Truth: an epoch has 8 steps and a validation of 3 batches, each of which keeps 32 x 24 x 3 floats of joints, 9,216 B, and 32 x 2048 floats of vertices, 262,144 B:
814,080 B every 8 steps of the program. Holder: `evaluator.val_accuracy_results`. Line: in validate(). --fixed: the list is cleared after each validation.
"""

import sys

import torch
from pace import Pace
from torch import nn


class Trainer:
    def __init__(self):
        self.body = nn.Linear(128, 2048).cuda()
        self.joints = nn.Linear(2048, 72).cuda()
        self.optimizer = torch.optim.Adam([*self.body.parameters(), *self.joints.parameters()], lr=1e-4)
        self.val_accuracy_results = []

    def train(self, pace):
        for _ in range(8):
            loss = self.joints(self.body(torch.rand(32, 128, device="cuda"))).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if not pace():
                return False
        return True

    @torch.no_grad()
    def validate(self):
        for _ in range(3):
            vertices = self.body(torch.rand(32, 128, device="cuda"))
            joints = self.joints(vertices)
            self.val_accuracy_results.append((vertices, joints))
        if "--fixed" in sys.argv:
            self.val_accuracy_results.clear()


def main():
    evaluator, pace = Trainer(), Pace()
    while evaluator.train(pace):
        evaluator.validate()


main()
