"""A service loads its shards to the GPU and keeps each file's tensors beside the module that they were copied into.

Device: STANDIN_GPU_MEM=1GiB, of which the context has 460 MiB. Six shards of 8 x 1024 x 1024 floats, 33,554,432 B; the module's own weights as much.
Truth: `loaded` keeps all shards, 201,326,592 B at most; the module needs 201,326,592 B and the first request 160 MiB more. It fails while it loads or in the first
request; without `loaded` it fits. There are no steps: no leak. Holder: `loaded[*]`. Advice: map_location="cpu", or drop each shard. --fixed: del shard.
"""

import io
import sys

import torch
from pace import Pace
from torch import nn


def write(shard):
    file = io.BytesIO()
    torch.save({f"layer{shard * 8 + i}.weight": torch.empty(1024, 1024) for i in range(8)}, file)
    return file


def load(model, files):
    loaded = []
    for file in files:
        file.seek(0)
        shard = torch.load(file, map_location="cuda")
        model.load_state_dict(shard, strict=False)
        if "--fixed" not in sys.argv:
            loaded.append(shard)
    return loaded


def main():
    files = [write(shard) for shard in range(6)]
    model = nn.ModuleDict({f"layer{i}": nn.Linear(1024, 1024, bias=False) for i in range(48)}).cuda()
    loaded, pace = load(model, files), Pace()
    while pace():
        with torch.no_grad():
            x = torch.rand(40960, 1024, device="cuda")
            for layer in model.values():
                x = layer(x).relu_()
    return loaded


main()
