"""An evaluation loop stores what each step returns (Lightning-AI/pytorch-lightning#8453).

Agreed cause: what validation_step returns is kept on the GPU for validation_epoch_end, also where nobody has one.
Truth: 64 x 1024 floats of predictions, 262,144 B, and a loss of 4 B, a step: 262,148 B. Holder: `loop.outputs`. Line: in validation_step.
--fixed: the step returns nothing.
"""

import sys

import torch
from pace import Pace
from torch import nn


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(128, 1024)

    def validation_step(self, batch):
        output = self.layer(batch)
        loss = (output - 1).square().mean()
        return None if "--fixed" in sys.argv else {"x": loss, "output": output}


class EvaluationLoop:
    def __init__(self, module):
        self.module, self.outputs = module, []

    @torch.no_grad()
    def advance(self, batch):
        output = self.module.validation_step(batch)
        if output is not None:
            self.outputs.append(output)

    def run(self, batches):
        for batch in batches:
            self.advance(batch)


def loader(pace):
    while pace():
        yield torch.rand(64, 128, device="cuda")


def main():
    module, pace = Module().cuda(), Pace()
    loop = EvaluationLoop(module)
    loop.run(loader(pace))


main()
