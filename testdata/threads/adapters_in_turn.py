"""Many LoRA adapters are evaluated one after the other on one base model (huggingface/peft#738).

Agreed cause: load_adapter adds the weights of each adapter to the model and nothing deletes them; the maintainers added delete_adapter.
Truth: an adapter has 2 x 16 x 1024 floats in each of 6 layers = 786,432 B; an evaluation is 8 batches, so 98,304 B a batch.
Lines: `self.lora_A[name] = ...` and `self.lora_B[name] = ...`. Holder: `base[*].lora_A['task*']` and lora_B of all layers.
Advice: delete the adapter. --fixed: delete_adapter after each evaluation.
"""

import sys

import torch
from pace import Pace
from torch import nn


class LoraLinear(nn.Module):
    def __init__(self, width, rank=16):
        super().__init__()
        self.width, self.rank, self.weight = width, rank, nn.Linear(width, width)
        self.lora_A, self.lora_B = nn.ModuleDict(), nn.ModuleDict()

    def load_adapter(self, name):
        self.lora_A[name] = nn.Linear(self.width, self.rank, bias=False).cuda()
        self.lora_B[name] = nn.Linear(self.rank, self.width, bias=False).cuda()

    def delete_adapter(self, name):
        del self.lora_A[name], self.lora_B[name]

    def forward(self, x, name):
        return self.weight(x) + self.lora_B[name](self.lora_A[name](x))


@torch.no_grad()
def evaluate(base, name, pace):
    total = torch.zeros((), device="cuda")
    for _ in range(8):
        x = torch.rand(16, 1024, device="cuda")
        for layer in base:
            x = layer(x, name)
        total += x.mean()
        running = pace()
    return running


def main():
    base, pace, task = nn.ModuleList(LoraLinear(1024) for _ in range(6)).cuda(), Pace(0.02), 0
    while True:
        name = f"task{task}"
        for layer in base:
            layer.load_adapter(name)
        if not evaluate(base, name, pace):
            break
        if "--fixed" in sys.argv:
            for layer in base:
                layer.delete_adapter(name)
        task += 1


main()
