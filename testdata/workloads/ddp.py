"""DistributedDataParallel, one GPU a rank: torchrun --nproc-per-node 2 ddp.py [--backend nccl|gloo]

Side files get the rank appended to their names: counters.json.0, counters.json.1, ...
"""

import argparse
import os

import loop
import report
import sidecar
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=["nccl", "gloo"], default="nccl")
    parser.add_argument("--batch", type=int, default=64)
    loop.arguments(parser, steps=100)
    return sidecar.arguments(parser).parse_args()


def own_files(options, rank):
    for name in ("counters", "snapshot"):
        if getattr(options, name):
            setattr(options, name, f"{getattr(options, name)}.{rank}")
    return options


def train_step(model, optimizer, batch):
    loss = model(torch.randn(batch, 1024, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def train(rank, options, side):
    model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()
    model = DistributedDataParallel(model, device_ids=[rank])
    optimizer = torch.optim.AdamW(model.parameters())
    progress = report.Progress(f"ddp rank {rank}")
    for step in loop.counted(options):
        loss = train_step(model, optimizer, options.batch)
        side.step(step)
        progress.step(step, loss)
    torch.cuda.synchronize()
    progress.result()


def main():
    rank = int(os.environ["LOCAL_RANK"])
    options = own_files(parse_arguments(), rank)
    torch.cuda.set_device(rank)
    side = sidecar.Sidecar(options)
    dist.init_process_group(options.backend)
    train(rank, options, side)
    side.finish()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
