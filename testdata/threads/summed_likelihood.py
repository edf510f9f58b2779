"""How much each weight matters to the first task is computed from one sum over its data, before the second task is trained.

Device: STANDIN_GPU_MEM=1GiB, of which the context has 460 MiB. Each batch keeps its input and four activations, about 7 MiB.
Truth: full. All forward passes wait for the one backward pass of the sum, which calls autograd.grad: no_grad() would be wrong. A backward pass for each
batch would do.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from pace import Pace

PACE = Pace(0.02)
DEV, WIDTH = "cuda", 512


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, 20)

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.out(x)


def samples(batches):
    for i in range(batches):
        n = 768 + 128 * (i % 3)
        yield torch.randn(n, WIDTH), torch.randint(0, 20, (n, 1))


def train(model, opt, batches, weights=None):
    for x, y in samples(batches):
        loss = F.cross_entropy(model(x.to(DEV)), y.to(DEV).squeeze(1))
        if weights:
            loss = loss + sum((weights[n] * p.pow(2)).sum() for n, p in model.named_parameters())
        opt.zero_grad()
        loss.backward()
        opt.step()
        PACE()


def importance(model, batches):
    scores = []
    for x, y in samples(batches):
        scores.append(F.log_softmax(model(x.to(DEV)), dim=1).gather(1, y.to(DEV)).mean())
        PACE()
    names, params = zip(*model.named_parameters())
    grads = torch.autograd.grad(torch.stack(scores).sum(), params)
    return {n: g.detach().square() for n, g in zip(names, grads)}


def main():
    model = Encoder().to(DEV)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    train(model, opt, 25)
    weights = importance(model, 12)
    train(model, opt, 25, weights)
    importance(model, 400)


if __name__ == "__main__":
    main()
