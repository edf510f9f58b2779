"""A rank of a job with loader workers, on gloo: torchrun --nproc-per-node 2 ranks.py [--wait --go FILE] [--hold FILE]

Each rank trains on what its workers load, and prints "RANK <rank> <pid> <torch.cuda.memory_allocated()>". It ends at once, with
what is allocated then.
"""

import argparse
import os

import sidecar
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    """Rows of one number each."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((256,), float(index))


def train(rank, workers):
    model = torch.nn.Linear(256, 256 * (rank + 1)).cuda()
    kept = []
    for batch in DataLoader(Numbers(), batch_size=8, num_workers=workers):
        kept.append(model(batch.cuda()).detach())
        dist.barrier()
    return kept


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    options = sidecar.arguments(parser).parse_args()
    options.cold = True
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank % torch.cuda.device_count())
    side = sidecar.Sidecar(options)
    dist.init_process_group("gloo")
    kept = train(rank, options.workers)
    os.write(1, f"RANK {rank} {os.getpid()} {torch.cuda.memory_allocated()}\n".encode())  # in one piece
    dist.barrier()
    side.finish()
    os._exit(0 if kept else 1)


if __name__ == "__main__":
    main()
