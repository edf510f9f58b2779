"""Allocates and frees at random, and writes PyTorch's own snapshot, with what PyTorch counted beside it.

    history.py --snapshot FILE --counters FILE [--seed N] [--steps N] [--before N] [--entries N] [--plain]

The history begins after --before steps and keeps the last --entries entries. The counters are one JSON object: "steps", the
totals [allocated, reserved] after each step since the history began, and "stats", torch.cuda.memory_stats() when the
snapshot was made, with the peaks since the history began. --plain writes torch.cuda.memory_snapshot() instead.
"""

import argparse
import json
import pickle
import random

import torch


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--snapshot", required=True)
    parser.add_argument("--counters", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--before", type=int, default=0)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--plain", action="store_true")
    return parser.parse_args()


def small(size):
    return torch.empty(size, device="cuda", dtype=torch.uint8)


def large(size):
    return torch.empty(size, device="cuda", dtype=torch.uint8)


def huge(size):
    return torch.empty(size, device="cuda", dtype=torch.uint8)


class Player:
    """Holds tensors and does one thing at a time."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.kept = []
        self.streams = [torch.cuda.current_stream()] + [torch.cuda.Stream() for _ in range(2)]

    def step(self):
        choice = self.random.random()
        if choice < 0.5 or not self.kept:
            self.allocate()
        elif choice < 0.97:
            self.kept.pop(self.random.randrange(len(self.kept)))
        elif choice < 0.98:
            torch.cuda.empty_cache()
        elif choice < 0.985:
            self.refused()
        else:
            del self.kept[: len(self.kept) // 2]

    def allocate(self):
        make, low, high = self.random.choice([(small, 1, 1 << 20), (large, 1 << 20, 12 << 20), (huge, 10 << 20, 60 << 20)])
        with torch.cuda.stream(self.random.choice(self.streams)):
            tensor = make(self.random.randrange(low, high))
        if self.random.random() < 0.1:
            tensor.record_stream(self.random.choice(self.streams))
        self.kept.append(tensor)

    def refused(self):
        try:
            huge(1 << 45)
        except torch.cuda.OutOfMemoryError:
            pass


def main():
    options = parse()
    torch.cuda.init()
    player = Player(options.seed)
    for _ in range(options.before):
        player.step()
    torch.cuda.memory._record_memory_history(max_entries=options.entries)
    torch.cuda.reset_peak_memory_stats()
    steps = []
    for _ in range(options.steps):
        player.step()
        steps.append([torch.cuda.memory_allocated(), torch.cuda.memory_reserved()])
    if options.plain:
        with open(options.snapshot, "wb") as file:
            pickle.dump(torch.cuda.memory_snapshot(), file)
    else:
        torch.cuda.memory._dump_snapshot(options.snapshot)
    with open(options.counters, "w") as file:
        json.dump({"steps": steps, "stats": torch.cuda.memory_stats()}, file)


if __name__ == "__main__":
    main()
