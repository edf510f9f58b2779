"""Each fold's report keeps a bound method of its model, so that the models of all folds, and their gradients, stay on the device.

Device: STANDIN_GPU_MEM=1GiB, of which the context has 460 MiB. A model has 120,000 x 128 floats = 58.6 MiB, and as much in gradients; 4 x 117.2 MiB are of folds that have ended.
Truth: a leak of 117.2 MiB a fold of 60 steps, `reports[*].predict.__self__`; the fifth fold's first backward pass fails.
"""
from typing import Callable, NamedTuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from pace import Pace

PACE = Pace(0.03)

SETTINGS = {"users": 90_000, "items": 30_000, "dim": 128, "batch": 512, "steps_per_fold": 60, "folds": 5}


class FoldReport(NamedTuple):
    fold: int
    rmse: float
    curve: list
    predict: Callable


class EarlyStopping:
    def __init__(self, patience):
        self.patience, self.best, self.bad = patience, float("inf"), 0

    def __call__(self, value):
        if value < self.best:
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        return False


class MatrixFactorization(nn.Module):
    def __init__(self, users, items, dim):
        super().__init__()
        self.user = nn.Embedding(users, dim)
        self.item = nn.Embedding(items, dim)
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, u, i):
        return (self.user(u) * self.item(i)).sum(-1) + self.bias

    @torch.no_grad()
    def predict(self, u, i):
        return self(u.cuda(), i.cuda()).cpu()


def interactions(n, seed):
    g = torch.Generator().manual_seed(seed)
    u = torch.randint(0, SETTINGS["users"], (n,), generator=g)
    i = torch.randint(0, SETTINGS["items"], (n,), generator=g)
    return u, i, torch.rand(n, generator=g) * 5


def run_fold(fold, data):
    s = SETTINGS
    u, i, r = data
    model = MatrixFactorization(s["users"], s["items"], s["dim"]).to("cuda")
    opt = torch.optim.SGD(model.parameters(), lr=0.5)
    stop, curve = EarlyStopping(patience=10), []
    for step in range(s["steps_per_fold"]):
        pick = torch.randint(0, len(r), (s["batch"],))
        loss = F.mse_loss(model(u[pick].cuda(), i[pick].cuda()), r[pick].cuda())
        opt.zero_grad(set_to_none=False)
        loss.backward()
        opt.step()
        curve.append(loss.item())
        if stop(curve[-1]):
            break
        PACE()
    rmse = (model.predict(u[:2048], i[:2048]) - r[:2048]).pow(2).mean().sqrt().item()
    return FoldReport(fold, rmse, curve, model.predict)


def cross_validate():
    reports = []
    for fold in range(SETTINGS["folds"]):
        report = run_fold(fold, interactions(20_000, seed=fold))
        reports.append(report)
        print(f"fold {fold}: rmse {report.rmse:.4f} after {len(report.curve)} steps", flush=True)
    u, i, _ = interactions(1000, seed=99)
    return torch.stack([rep.predict(u, i) for rep in reports]).mean(0)


if __name__ == "__main__":
    torch.manual_seed(0)
    print(cross_validate().shape)
