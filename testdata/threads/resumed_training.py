"""A training is resumed from a checkpoint that was loaded to the GPU and is still there (karpathy/nanoGPT#236).

Agreed cause: `checkpoint` keeps a second copy of the weights on the GPU; `checkpoint = None` repairs it.
Device: STANDIN_GPU_MEM=994MiB, of which the context has 460 MiB. Weights of 8 x 1536 x 1536 floats, 75,497,472 B (and biases), momentum as much.
Truth: `checkpoint['model']` is a second copy of the weights, 75,546,624 B (the momentum is shared with the optimizer); with it the first steps do not fit, without
it they do. Holder: `checkpoint`, a local of main. Advice: drop it after loading, or map_location="cpu".
--fixed: checkpoint = None.
"""

import io
import sys

import torch
from pace import Pace
from torch import nn


def network():
    return nn.Sequential(*[layer for _ in range(8) for layer in (nn.Linear(1536, 1536), nn.GELU())]).cuda()


def step(model, optimizer, rows):
    loss = model(torch.rand(rows, 1536, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def saved():
    """A checkpoint of an earlier run, in memory."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    step(model, optimizer, 8)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": 2000}, file)
    file.seek(0)
    return file


def main():
    file = saved()
    torch.cuda.empty_cache()
    pace = Pace()
    checkpoint = torch.load(file, map_location="cuda")
    model = network()
    model.load_state_dict(checkpoint["model"])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    optimizer.load_state_dict(checkpoint["optimizer"])
    if "--fixed" in sys.argv:
        checkpoint = None
    while pace():
        step(model, optimizer, 2048)


main()
