"""jacobgil/pytorch-grad-cam#71: hooks append the output and the gradient of a layer to lists at every step; only explain() empties them.

Truth: 2 x 16 x 64 x 14 x 14 floats, 1,605,632 B a step. Lines: `x = self.conv3(x)` and its backward pass.
Holder: `tuner.cam.store.activations` and `tuner.cam.store.gradients`.
"""

import argparse

import torch
from torch import nn
import torch.nn.functional as F
from pace import Pace
from torch.utils.data import DataLoader, Dataset

PACE = Pace(0.03)


class Plants(Dataset):
    def __init__(self, n=512):
        g = torch.Generator().manual_seed(1)
        self.x = torch.randn(n, 3, 28, 28, generator=g)
        self.y = torch.randint(0, 12, (n,), generator=g)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Backbone(nn.Module):
    def __init__(self, classes=12):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.conv3 = nn.Conv2d(32, 64, 3, padding=1)
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = self.conv3(x)
        x = F.relu(x).mean((2, 3))
        return self.head(x)


class ActivationsAndGradients:
    def __init__(self, layer):
        self.activations = []
        self.gradients = []
        layer.register_forward_hook(self.save_activation)

    def save_activation(self, module, inputs, output):
        self.activations.append(output)
        if output.requires_grad:
            output.register_hook(self.save_gradient)

    def save_gradient(self, grad):
        self.gradients = [grad] + self.gradients

    def reset(self):
        self.activations, self.gradients = [], []


class GradCAM:
    def __init__(self, model, layer):
        self.model = model
        self.store = ActivationsAndGradients(layer)

    def explain(self, x, cls):
        self.store.reset()
        self.model.zero_grad()
        self.model(x)[:, cls].sum().backward()
        w = self.store.gradients[0].mean((2, 3), keepdim=True)
        return F.relu((w * self.store.activations[0]).sum(1)).detach().cpu()


class FineTuner:
    def __init__(self, args):
        self.args = args
        self.model = Backbone().cuda()
        self.cam = GradCAM(self.model, self.model.conv3)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=args.lr, momentum=0.9)
        self.loader = DataLoader(Plants(), batch_size=args.batch, shuffle=True, drop_last=True)
        self.steps = 0

    def step(self, x, y):
        x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
        loss = F.cross_entropy(self.model(x), y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()

    def fit(self):
        for epoch in range(self.args.epochs):
            for x, y in self.loader:
                loss = self.step(x, y)
                self.steps += 1
                if not PACE():
                    raise SystemExit
                if self.steps % 50 == 0:
                    print(f"ep {epoch} step {self.steps} loss {loss:.3f} mem {torch.cuda.memory_allocated()}", flush=True)


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=200)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--lr", type=float, default=0.01)
    tuner = FineTuner(p.parse_args())
    tuner.fit()
