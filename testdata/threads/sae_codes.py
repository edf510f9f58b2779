"""A log of a sparse autoencoder keeps every tenth row of the codes, as a view of all of them (KempnerInstitute/overcomplete#5).

Agreed cause: z.detach()[::10] is a view, so the whole storage stays; move the slice to the CPU or clone it.
Truth: a step keeps 512 x 1024 floats, 2,097,152 B, of which the log shows a tenth. Holder: `logs['z']`. Line: `z = torch.relu(`.
Advice: the slice keeps the whole tensor, .clone() it. --fixed: .cpu() of the slice.
"""

import sys
from collections import defaultdict

import torch
from pace import Pace
from torch import nn

FIXED = "--fixed" in sys.argv


class SAE(nn.Module):
    def __init__(self, d, k):
        super().__init__()
        self.enc = nn.Linear(d, k)
        self.dec = nn.Linear(k, d, bias=False)

    def encode(self, x):
        z = torch.relu(self.enc(x))
        return z

    def forward(self, x):
        z = self.encode(x)
        return z, self.dec(z)


def log_metrics(monitoring, logs, z, loss, opt):
    logs["lr"].append(opt.param_groups[0]["lr"])
    if monitoring > 1:
        logs["loss"].append(float(loss.detach().cpu()))
        part = z.detach()[::10]
        logs["z"].append(part.cpu() if FIXED else part)


def train(model, opt, data, monitoring=2):
    pace, logs = Pace(0.05), defaultdict(list)
    epoch = 0
    while True:
        for x in data:
            opt.zero_grad()
            z, rec = model(x)
            loss = (rec - x).square().mean() + 1e-3 * z.abs().mean()
            loss.backward()
            opt.step()
            log_metrics(monitoring, logs, z, loss, opt)
            if not pace():
                return logs
        epoch += 1


if __name__ == "__main__":
    torch.manual_seed(0)
    sae = SAE(256, 1024).cuda()
    batches = [torch.randn(512, 256, device="cuda") for _ in range(16)]
    train(sae, torch.optim.Adam(sae.parameters(), lr=1e-4), batches)
