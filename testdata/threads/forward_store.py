"""A pipeline's schedule keeps an output of each micro-batch, with its graph, until the mini-batch is over (verl-project/verl#7874).

Agreed cause: what is in forward_data_store pins the graph of its micro-batch, so memory grows with the number of micro-batches; detach what is reported.
Device: STANDIN_GPU_MEM=760MiB, of which the context has 460 MiB. Step 80 has 64 micro-batches, all before 4 to 8.
Truth: a micro-batch keeps 64 x 16384 floats, 4,194,304 B, and its input of 131,072 B. A usual step peaks at 8 of them, step 80 would at 64.
From step to step nothing grows. It fails in step 80. Holder: `store[*]['logits']`, by its graph. --fixed: detach.
"""

import sys

import torch
from pace import Pace
from torch import nn


def forward_backward(model, micro_batches):
    store = []
    for _ in range(micro_batches):
        output = model(torch.rand(64, 512, device="cuda"))
        loss = output.square().mean()
        loss.backward(retain_graph=True)
        store.append({"loss": loss.item(), "logits": output.detach() if "--fixed" in sys.argv else output})
    return sum(entry["loss"] for entry in store)


def main():
    model = nn.Sequential(nn.Linear(512, 16384), nn.Sigmoid(), nn.Linear(16384, 32)).cuda()
    optimizer, pace = torch.optim.SGD(model.parameters(), lr=1e-4), Pace()
    while pace():
        forward_backward(model, 64 if pace.step == 80 else 4 + pace.step % 5)
        optimizer.step()
        optimizer.zero_grad()


main()
