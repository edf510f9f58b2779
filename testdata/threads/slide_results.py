"""The results of each step hold the input image, and the loop keeps the results until the epoch ends (microsoft/hi-ml#293).

Agreed cause: results[ResultsKey.IMAGE] is kept of each step, so that the whole dataset gathers on the GPU within an epoch.
Truth: a step keeps 8 x 3 x 256 x 256 floats, 6,291,456 B. 100 steps fit a device of 800 MiB; the epoch has 400. Holder: `epoch_outputs`. Line: `images = torch.rand`.
--fixed: the image is left out, and what is left is moved to the CPU. Without that the loop still keeps 68 B a step until the epoch ends.
"""

import sys

import torch
from pace import Pace
from torch import nn


class DeepMIL(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Conv2d(3, 4, 16, stride=16)
        self.head = nn.Linear(4, 2)

    def shared_step(self, images):
        scores = self.head(self.encoder(images).mean(dim=(2, 3)))
        results = {"loss": scores.square().mean(), "scores": scores.detach(), "image": images}
        if "--fixed" in sys.argv:
            del results["image"]
        return results


def train_epoch(module, optimizer, pace):
    epoch_outputs = []
    for _ in range(400):
        images = torch.rand(8, 3, 256, 256, device="cuda")
        results = module.shared_step(images)
        optimizer.zero_grad()
        results["loss"].backward()
        optimizer.step()
        results["loss"] = results["loss"].detach()
        if "--fixed" in sys.argv:
            results = {name: value.cpu() for name, value in results.items()}
        epoch_outputs.append(results)
        if not pace():
            return False
    return True


def main():
    module, pace = DeepMIL().cuda(), Pace(0.05)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-4)
    while train_epoch(module, optimizer, pace):
        pass


main()
