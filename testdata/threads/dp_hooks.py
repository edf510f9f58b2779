"""A forward hook keeps the inputs of layers, and the backward hook that removes them never runs in an evaluation (meta-pytorch/opacus#176).

Agreed cause: the model is still in train mode while it is evaluated under no_grad, so the hook appends and nothing pops.
Truth: the evaluation of a step keeps the inputs of 3 layers, 128 x 256 and twice 128 x 512 floats: 655,360 B. Holder: `model[0, 2, 4].activations`.
Lines: `score = model(x)` (524,288 B) and `x = torch.randn(128` (131,072 B). --fixed: model.eval() for the evaluation.
"""

import functools
import sys

import torch
from pace import Pace
from torch import nn

FIXED = "--fixed" in sys.argv


def capture(module, inputs, output):
    if not module.training:
        return
    if not hasattr(module, "activations"):
        module.activations = []
    module.activations.append(inputs[0].detach())


def per_sample(norms, module, grad_in, grad_out):
    a = module.activations.pop()
    norms.append(float((a.norm(dim=1) * grad_out[0].norm(dim=1)).sum()))
    del norms[:-100]


class GradSampler:
    def __init__(self, model):
        self.model, self.norms, self.handles = model, [], []
        for m in model.modules():
            if isinstance(m, nn.Linear):
                self.handles.append(m.register_forward_hook(capture))
                self.handles.append(m.register_full_backward_hook(functools.partial(per_sample, self.norms)))


def build():
    return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)).cuda()


def evaluate(model):
    if FIXED:
        model.eval()
    with torch.no_grad():
        x = torch.randn(128, 256, device="cuda")
        score = model(x).softmax(-1).max().item()
    model.train()
    return score


def main():
    model = build()
    sampler = GradSampler(model)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    pace, best = Pace(0.04), 0.0
    while pace():
        x = torch.randn(64, 256, device="cuda", requires_grad=True)
        loss = model(x).logsumexp(-1).mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        best = max(best, evaluate(model))


if __name__ == "__main__":
    main()
