"""A checkpoint that was saved from the device is loaded to it, beside the parameters and the optimizer's state that it is to replace
(huggingface/transformers#22123).

Device: STANDIN_GPU_MEM=1GiB, of which the context has 460 MiB. The tables have 4 x 70,000 x 100 floats = 106.8 MiB, Adam's state twice as much, and 7 of the 12
tensors of the checkpoint fit: 187 MiB. With map_location="cpu" it would need nothing.
Truth: out of memory in a step that needs more, in torch.load(): load it to the CPU.
"""

import os
import tempfile

import torch
from pace import Pace
from torch import nn

PACE = Pace(0.025)


class Tables(nn.Module):
    def __init__(self, fields=4, rows=70_000, dim=100):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, dim) for _ in range(fields))
        self.top = nn.Sequential(nn.Linear(fields * dim, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, ids):
        return self.top(torch.cat([t(ids[:, i]) for i, t in enumerate(self.tables)], dim=1)).squeeze(1)


class Plateau:
    """Asks for the last good weights when the schedule says so."""

    def __init__(self, every):
        self.every = every

    def rollback(self, step):
        return step > 0 and step % self.every == 0


class Trainer:
    def __init__(self, device, folder, save_step=20, rollback_every=60):
        self.device = device
        self.path = os.path.join(folder, "last.pt")
        self.save_step = save_step
        self.model = Tables().to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3, foreach=False)
        self.plateau = Plateau(rollback_every)

    def save(self):
        torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, self.path)

    def load(self):
        checkpoint = torch.load(self.path, map_location=self.device)
        self.model.load_state_dict(checkpoint["model"])
        self.optimizer.load_state_dict(checkpoint["optimizer"])

    def step(self):
        PACE()
        ids = torch.randint(70_000, (512, 4)).to(self.device)
        clicks = torch.randint(2, (512,)).float().to(self.device)
        loss = nn.functional.binary_cross_entropy_with_logits(self.model(ids), clicks)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def fit(self, steps):
        for step in range(steps):
            self.step()
            if step == self.save_step:
                self.save()
            if self.plateau.rollback(step):
                self.load()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(torch.device("cuda"), folder)
        trainer.fit(2000)
