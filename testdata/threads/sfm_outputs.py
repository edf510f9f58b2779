"""The outputs of each training step are kept for a whole epoch, and a metric among them keeps its graph (TRI-ML/packnet-sfm#47).

Agreed cause: outputs are appended without .detach(). The epoch has 4,000 steps.
Truth: a step keeps the graph of `smooth`, which no backward pass frees, 782,344 B (1,042,440 B with PyTorch 2.1.2). Holder: `outputs[*]`, by `grad_fn`.
Lines: `return torch.sigmoid(` and those of smoothness, about 256 KiB each. Advice: .detach(). --fixed: detaches. It still keeps two numbers, 8 B
a step, until the epoch ends.
"""

import sys

import torch
import torch.nn.functional as F
from pace import Pace
from torch import nn

FIXED = "--fixed" in sys.argv


class DepthNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Linear(16, 16)
        self.c2 = nn.Linear(16, 1)

    def forward(self, img):
        return torch.sigmoid(self.c2(torch.relu(self.c1(img)))).squeeze(-1)


def smoothness(depth, img):
    gx = depth[:, :, 1:] - depth[:, :, :-1]
    weight = torch.exp(-(img[:, :, 1:, 0] - img[:, :, :-1, 0]).abs())
    return (gx.abs() * weight).mean()


class SelfSup(nn.Module):
    def __init__(self):
        super().__init__()
        self.depth = DepthNet()

    def training_step(self, batch, progress):
        depth = self.depth(batch)
        photo = F.l1_loss(depth, batch[..., 0])
        with_edges = smoothness(depth.detach() * self.depth.c2.weight.mean(), batch)
        return {"loss": photo, "metrics": {"photo": photo.detach(), "smooth": with_edges, "progress": progress}}


def detached(x):
    if torch.is_tensor(x):
        return x.detach()
    if isinstance(x, dict):
        return {k: detached(v) for k, v in x.items()}
    return x


class Trainer:
    def __init__(self, epoch_len=4000):
        self.epoch_len, self.pace = epoch_len, Pace(0.04)

    def fit(self, module):
        opt = torch.optim.Adam(module.parameters(), lr=2e-4)
        while self.train(module, opt):
            pass

    def train(self, module, opt):
        outputs = []
        for i in range(self.epoch_len):
            batch = torch.rand(8, 64, 128, 16, device="cuda")
            opt.zero_grad()
            output = module.training_step(batch, i / self.epoch_len)
            output["loss"].backward()
            opt.step()
            output["loss"] = output["loss"].detach()
            outputs.append(detached(output) if FIXED else output)
            if not self.pace():
                return None
        return torch.stack([o["loss"] for o in outputs]).mean()


if __name__ == "__main__":
    Trainer().fit(SelfSup().cuda())
