"""Trains a small net with Adam, and writes what it knows of its own memory: bytes of blocks by what they are for.

    categories.py --known FILE [--late]     --late: the attach comes after the first steps
"""

import argparse
import json
import time

import loop
import sidecar
import torch
import torch.nn.functional as F
from torch import nn


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--known", metavar="FILE", required=True)
    parser.add_argument("--late", action="store_true", help="train three steps before the start signal")
    loop.arguments(parser, steps=12)
    return sidecar.arguments(parser).parse_args()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(16 * 30 * 30, 10)

    def forward(self, x):
        return self.head(self.body(x))


class Trainer:
    def __init__(self):
        self.model = Net().cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.inside = None

    def step(self, look):
        self.optimizer.zero_grad()
        images = torch.randn(8, 3, 32, 32).cuda()
        labels = torch.randint(0, 10, (8,)).cuda()
        saved = []

        def save(tensor):
            saved.append(tensor.untyped_storage().data_ptr())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
            loss = F.cross_entropy(self.model(images), labels)
        if look:
            self.inside = self.known({"inputs": [images, labels]}, saved + [loss.data_ptr()])
        saved.clear()
        loss.backward()
        self.optimizer.step()

    def known(self, more, activations=()):
        """Bytes of blocks by what they are for, now."""
        state = [t for s in self.optimizer.state.values() for t in s.values() if t.is_cuda]
        parameters = list(self.model.parameters())
        tensors = {
            "parameters": parameters + [b for b in self.model.buffers() if b.is_cuda],
            "gradients": [p.grad for p in parameters if p.grad is not None],
            "optimizer_state": state,
            **more,
        }
        addresses = {name: {t.data_ptr() for t in group} for name, group in tensors.items()}
        addresses["activations"] = set(activations) - {0} - set().union(*addresses.values())  # 0: an empty tensor
        time_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        sizes = blocks()
        out = {name: sum(sizes[a] for a in group) for name, group in addresses.items()}
        named = {f"{name}.grad": sizes[p.grad.data_ptr()] for name, p in self.model.named_parameters() if p.grad is not None}
        return {"boottime_ns": time_ns, "bytes": out, "named": named, "allocated": torch.cuda.memory_allocated()}


def blocks():
    """Bytes of all blocks that are in use, by address."""
    return {
        block["address"]: block["size"]
        for segment in torch.cuda.memory_snapshot()
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }


def main():
    options = parse_arguments()
    torch.manual_seed(1)
    if options.late:
        trainer = Trainer()
        for _ in range(3):
            trainer.step(False)
    side = sidecar.Sidecar(options)
    if not options.late:
        trainer = Trainer()
    for number in loop.counted(options):
        trainer.step(number == options.steps // 2)
        side.step(number)
    with open(options.known, "w") as file:
        json.dump({"inside": trainer.inside, "end": trainer.known({})}, file)
    side.finish()


if __name__ == "__main__":
    main()
